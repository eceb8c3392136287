"""``daemon``: its own life, seen from outside."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.client import ConnectionLost
from pawl.cli.render import epoch_ms
from pawl.errors import DaemonUnreachable, InvalidConfig
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pawl.cli.daemon_process import Stopped


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

    try:
        stopped = daemon_process.stop(call.home, cancel=cancel, tell=call.note)
    except DaemonUnreachable as error:
        raise _nothing_to_stop(call, error) from None
    lines = [f"stopped: the daemon with pid {stopped.pid} is gone"]
    done = _done(call, stopped, cancel=cancel)
    call.show(
        {"pid": stopped.pid, "cancelled": cancel, "running": stopped.running, "left": stopped.left}
        | {"queued": stopped.queued},
        lines + ([done] if done else []) + _left(call, stopped.left),
    )
    return 0


def _nothing_to_stop(call: Call, error: DaemonUnreachable) -> DaemonUnreachable:
    """The error where none runs, with a word on the work that runs all the same."""
    from pawl.cli import checks, unowned

    if isinstance(error, ConnectionLost) or "found" in error.details or checks.lock_holder(call.home) is not None:
        return error  # it went meanwhile, it is of another version, or it is there and does not answer
    tasks = unowned.running(call.home)
    message = f"no daemon runs at {call.home.path}: nothing to stop"
    if tasks:
        runs = "1 task still runs" if len(tasks) == 1 else f"{len(tasks)} tasks still run"
        message += (
            f"; but {runs} without a daemon. To end what runs: "
            f"`{call.command('daemon start')}`, then `{call.command('daemon stop --cancel')}`"
        )
    return DaemonUnreachable(message, home=call.home.path, running=tasks)


def _done(call: Call, stopped: Stopped, *, cancel: bool) -> str | None:
    """What became of the tasks: ``2 tasks cancelled; 2 stay queued and start with the next daemon``."""
    from pawl.cli import unowned
    from pawl.cli.daemon_process import count

    parts = []
    if cancel and stopped.running:
        ended = unowned.ended(call.home, stopped.running)
        parts += [f"{count(number)} {status.replace('_', ' ')}" for status, number in ended.items()]
    elif cancel:
        parts.append("no task was running")
    if stopped.queued:
        queued = str(stopped.queued) if parts else count(stopped.queued)
        parts.append(queued + (" stays queued and starts" if stopped.queued == 1 else " stay queued and start"))
        parts[-1] += " with the next daemon"
    return "; ".join(parts) or None


def restart(call: Call) -> int:
    from pawl import config
    from pawl.cli import daemon_process

    faults = config.check(call.home.config)
    if faults:
        daemon = daemon_process.running(call.home)
        told = (
            "no daemon was started"
            if daemon is None
            else (f"nothing was restarted: the daemon with pid {daemon['pid']} runs on with its old configuration")
        )
        raise InvalidConfig(
            "\n".join([*(fault.text(call.home.config) for fault in faults), told]),
            file=call.home.config, faults=[fault.as_json() for fault in faults], pid=daemon and daemon["pid"],
        )  # fmt: skip
    stopped = None
    try:
        stopped = daemon_process.stop(call.home, wait=False, tell=call.note)
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
        ("daemon", f"{'stopping' if daemon.get('stopping') else 'running'}, pid {daemon['pid']}"),
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
