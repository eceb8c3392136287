"""The processes of this machine, one look at a time: ``/proc``, or psutil where there is none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pawl.runner import kernel
from pawl.runner.identity import Liveness, ProcessIdentity, probe

_TASK_ID = b"PAWL_TASK_ID"


class Process(NamedTuple):
    """One process as it was at the look."""

    pid: int
    parent: int
    group: int
    session: int
    start: str
    dead: bool
    threads: int = 1

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start, kernel.boot_id())


def look() -> Iterator[Process]:
    """Every process that can be read, by rising PID, each read at the moment it is yielded."""
    return _look_proc() if kernel.HAS_PROC else _look_psutil()


def _look_proc() -> Iterator[Process]:
    for pid in sorted(int(name) for name in os.listdir(kernel.PROC) if name.isdecimal()):
        process = read(pid)
        if process is not None:
            yield process


def read(pid: int) -> Process | None:
    """One process of ``/proc``; None where it is not there or cannot be read."""
    try:
        stat = kernel.read_stat(pid)
    except OSError:
        return None
    if stat is None:
        return None
    return Process(pid, stat.parent, stat.group, stat.session, stat.start, stat.dead, stat.threads)


def newest_pid() -> int:
    """The number that was given out last, to a process or a thread; 0 where the system does not say."""
    try:
        return int(kernel.read_file(f"{kernel.PROC}/loadavg").split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def look_at(pids: Iterable[int]) -> Iterator[Process]:
    """Those of these numbers that are processes, each read at the moment it is yielded. Threads are not."""
    for pid in pids:
        process = read(pid)
        if process is not None and not (process.threads > 1 and _is_thread(pid)):
            yield process


def _is_thread(pid: int) -> bool:
    """``/proc`` shows a thread under its own number to whoever asks for it by name."""
    try:
        return f"\nTgid:\t{pid}\n".encode() not in kernel.read_file(f"{kernel.PROC}/{pid}/status")
    except OSError:
        return True


def _look_psutil() -> Iterator[Process]:
    import psutil

    for found in psutil.process_iter():
        try:
            dead = found.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
            group, session = os.getpgid(found.pid), os.getsid(found.pid)
            yield Process(found.pid, found.ppid(), group, session, repr(found.create_time()), dead)
        except (psutil.Error, OSError):
            continue


def carries_task(pid: int, task_id: str) -> bool:
    """Whether a process was started with ``PAWL_TASK_ID=<task_id>``; False where its environment cannot be read."""
    if kernel.HAS_PROC:
        return kernel.carries(pid, _TASK_ID, os.fsencode(task_id))
    import psutil

    try:
        return psutil.Process(pid).environ().get(_TASK_ID.decode()) == task_id
    except (psutil.Error, OSError):
        return False


def send(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone or may not be signalled."""
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return _send_by_pid(process, number)
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # out of descriptors, or an old kernel
        return _send_by_pid(process, number)
    try:
        if probe(process) is not Liveness.ALIVE:
            return False
        signal.pidfd_send_signal(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def _send_by_pid(process: ProcessIdentity, number: signal.Signals) -> bool:
    """The same with the instant between look and signal in which a PID could, in theory, change hands."""
    try:
        if probe(process) is not Liveness.ALIVE:
            return False
        os.kill(process.pid, number)
    except OSError:
        return False
    return True
