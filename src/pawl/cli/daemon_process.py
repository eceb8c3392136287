"""The daemon as a process: how it is started in the background, and how one waits until it is gone.

Imported by the few commands that need it; ``subprocess`` and its company are not on the fast path.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pawl.cli.client import Client, home_option, listed
from pawl.cli.jsontext import loads
from pawl.errors import AlreadyRunning, DaemonUnreachable, InternalError, PawlError, RemoteError
from pawl.home import Home

TELL_AFTER_S = 1.0  # an end that takes longer is told of
STOP_MARGIN_S = 15.0  # what a stopping daemon gets beyond the grace that it asked for
_WORKER_PATIENCE_S = 0.5
_END_PATIENCE_S = 10.0
_LOG_TAIL_BYTES = 4096


def command(home: Home, *more: str) -> list[str]:
    """How the daemon is run. ``-P``: a file called ``json.py`` in the current directory is none of its business."""
    return [sys.executable, "-P", "-m", "pawl.daemon", "--home", home.path, *more]


def running(home: Home) -> dict[str, Any] | None:
    """The daemon that answers at this home, as it describes itself, or nothing."""
    client = Client(home, patience_s=30)
    try:
        return dict(client.call("daemon.status")["daemon"])
    except DaemonUnreachable:
        return None
    finally:
        client.close()


def start(home: Home) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a daemon and wait until it is ready: its process, and how it describes itself.

    Raises ``daemon_already_running`` and whatever else the daemon says it could not do.
    """
    home.prepare()
    there = running(home)
    if there is not None:
        raise AlreadyRunning(f"a daemon runs at {home.path} already: pid {there['pid']}", pid=there["pid"])
    reader, writer = os.pipe()
    try:
        log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        log_start = os.fstat(log).st_size
        try:
            process = _spawn(home, writer, log)
        finally:
            os.close(log)
            os.close(writer)
        with os.fdopen(reader, "rb", closefd=False) as pipe:
            report = pipe.readline()
    finally:
        os.close(reader)
    return process, _ready(home, process, report, log_start)


def _spawn(home: Home, report_fd: int, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(home, "--report-fd", str(report_fd)),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[report_fd],
        start_new_session=True,
        cwd="/",  # not to keep the caller's file system busy
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """Ours, with a relative PYTHONPATH made absolute: the daemon starts in another directory."""
    environment = dict(os.environ)
    paths = environment.get("PYTHONPATH")
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in paths.split(os.pathsep))
    return environment


def _ready(home: Home, process: subprocess.Popen[bytes], report: bytes, log_start: int) -> dict[str, Any]:
    try:
        said = loads(report.decode())
    except ValueError:
        said = {}
    if isinstance(said, dict) and "ready" in said:
        return dict(said["ready"])
    if isinstance(said, dict) and "error" in said:
        _see_off(process)
        raise _reported(said["error"])
    how = _how(_see_off(process))
    last = _tail(home.log, log_start)
    raise InternalError(
        f"the daemon ended before it was ready ({how}); its log {home.log} says:\n{last or '(nothing)'}",
        how=how, log=home.log,
    )  # fmt: skip


def _see_off(process: subprocess.Popen[bytes]) -> int:
    """Wait for a daemon that could not start; its exit status. One that hangs instead is ended: it would keep the
    home locked, and it has taken no work yet."""
    for end in (process.terminate, process.kill):
        try:
            return process.wait(timeout=_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            end()
    return process.wait()


def _reported(error: dict[str, Any]) -> PawlError:
    return RemoteError(
        str(error.get("code", "internal")),
        str(error.get("message", "the daemon could not start")),
        int(error.get("exit", 1)),
        bool(error.get("retryable", False)),
        dict(error.get("details") or {}),
    )


def _how(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"exit status {status}"


def _tail(path: str, start: int) -> str:
    """What was written since then, the last lines of it."""
    with open(path, "rb") as file:
        file.seek(max(start, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


class Stopped(NamedTuple):
    """A daemon that is gone: its pid, the tasks that ran when it was asked, those of them whose process runs on, and
    how many wait for the next daemon."""

    pid: int
    running: list[str]
    left: list[str]
    queued: int


def stop(
    home: Home, *, cancel: bool = False, wait: bool = True, tell: Callable[[str], None] = lambda text: None
) -> Stopped:
    """Ask the daemon to stop and wait until its process is gone; ``wait`` gives what runs the grace to end by itself.

    ``tell`` is told, once, where there is something to wait for. Raises ``daemon_unreachable`` where none runs.
    """
    client = Client(home, patience_s=None)
    tasks = _running_tasks(client)
    answer: dict[str, Any] = client.call("daemon.stop", cancel=cancel, wait=wait)
    client.close()
    pid, grace_s = int(answer["pid"]), float(answer.get("grace_s") or 0)
    patience = grace_s + STOP_MARGIN_S
    if tasks and not cancel and grace_s:
        tell(f"waiting up to {grace_s:g} s for what runs to end by itself ({count(len(tasks))})")
    elif not wait_gone(home, pid, TELL_AFTER_S):
        patience -= TELL_AFTER_S
        ending = f"{count(len(tasks))} to end" if tasks and cancel else "the daemon to end"
        tell(f"waiting up to {max(patience, 0):g} s for {ending}")
    if not wait_gone(home, pid, max(patience, 0)):
        raise InternalError(
            f"the daemon with pid {pid} was asked to stop and is still there after {grace_s + STOP_MARGIN_S:g} s; "
            f"see {home.log}, and `pawl daemon status{home_option(home)}`",
            pid=pid,
        )
    left = [task["id"] for task in tasks if task["worker"] and alive(int(task["worker"]["pid"]))]
    known = [task["id"] for task in tasks]
    begun = [task for task in answer.get("running") or () if task not in known]  # between the two questions
    return Stopped(pid, known + begun, left, int(answer.get("queued") or 0))


def _running_tasks(client: Client) -> list[dict[str, Any]]:
    """The running tasks; those that have only just begun are given a moment to have a process."""
    until = time.monotonic() + _WORKER_PATIENCE_S
    while True:
        tasks = listed(client, None, statuses=["running"])
        if all(task["worker"] for task in tasks) or time.monotonic() > until:
            return tasks
        time.sleep(0.02)


def count(tasks: int) -> str:
    """``1 task``, ``2 tasks``"""
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def wait_gone(home: Home, pid: int, patience_s: float) -> bool:
    """Whether the process has gone in time. One that has ended and waits to be collected by its parent is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # not on this system, or not for this process
        return _poll_gone(home, pid, patience_s)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(patience_s * 1000))
    finally:
        os.close(pidfd)


def _poll_gone(home: Home, pid: int, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if not alive(pid) or lock_free(home):
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    """Whether there is a process of that number; a zombie counts as gone where that can be seen."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except (OSError, IndexError):  # no /proc here, or gone this very moment
        return False


def lock_free(home: Home) -> bool:
    """Whether no daemon holds the lock of the home. Takes it for an instant, so never while one may be starting."""
    import fcntl

    try:
        fd = os.open(home.lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
