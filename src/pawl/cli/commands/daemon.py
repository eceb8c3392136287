"""``daemon``: its own life, seen from outside."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.render import epoch_ms
from pawl.errors import DaemonUnreachable
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(call: Call) -> int:
    import os

    from pawl.cli.daemon_process import command

    call.home.prepare()
    words = command(call.home)
    os.execv(words[0], words)


def start(call: Call) -> int:
    from pawl.cli import daemon_process

    _, daemon = daemon_process.start(call.home)
    call.show(daemon, _started(call, daemon))
    return 0


def stop(call: Call, *, cancel: bool) -> int:
    from pawl.cli import daemon_process

    stopped = daemon_process.stop(call.home, cancel=cancel, tell=call.note)
    lines = [f"stopped: the daemon with pid {stopped.pid} is gone", *_left(call, stopped.left)]
    call.show({"pid": stopped.pid, "cancelled": cancel, "running": stopped.running, "left": stopped.left}, lines)
    return 0


def restart(call: Call) -> int:
    from pawl.cli import daemon_process

    stopped = None
    try:
        stopped = daemon_process.stop(call.home, tell=call.note)
    except DaemonUnreachable:
        call.note("no daemon was running")
    _, daemon = daemon_process.start(call.home)
    lines = [] if stopped is None else [f"stopped: the daemon with pid {stopped.pid} is gone"]
    call.show(daemon | {"stopped_pid": stopped and stopped.pid}, lines + _started(call, daemon))
    return 0


def status(call: Call) -> int:
    daemon: dict[str, Any] = call.ask("daemon.status")["daemon"]
    import time

    uptime_ms = max(0, round(time.time() * 1000) - epoch_ms(daemon["started_at"]))
    facts = [
        ("daemon", f"running, pid {daemon['pid']}"),
        ("up", f"{duration_text(uptime_ms)}, since {daemon['started_at']}"),
        ("version", daemon["version"]),
        ("home", daemon["home"]),
        ("socket", daemon["socket"]),
    ]
    call.show(daemon | {"uptime_s": uptime_ms / 1000}, call.screen.facts(facts))
    return 0


def install(call: Call, *, only_print: bool) -> int:
    from pawl.cli import systemd_unit

    return systemd_unit.install(call, only_print=only_print)


def _started(call: Call, daemon: dict[str, Any]) -> list[str]:
    from pawl.cli.commands.status import recovery

    lines = [f"started: the daemon runs with pid {daemon['pid']}, home {daemon.get('home', call.home.path)}"]
    mended = recovery(daemon.get("recovery") or {})
    if mended:
        lines.append(f"taken over from the last one: {mended}")
    return [*lines, f"next: {call.command('status')}"]


def _left(call: Call, left: list[str]) -> list[str]:
    """What still runs, for the next daemon to take over."""
    if not left:
        return []
    what = "1 task still runs" if len(left) == 1 else f"{len(left)} tasks still run"
    lines = [f"{what}; the next daemon takes over: {call.command('daemon start')}"]
    return lines + [f"  {task}" for task in left]
