"""Who a process is: PID, start and boot, because a PID alone is reused."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

from pawl.runner import kernel
from pawl.runner.kernel import PROC


class Liveness(Enum):
    """The three answers to "does it live?". Only GONE gives anything up."""

    ALIVE = "alive"
    GONE = "gone"
    UNCLEAR = "unclear"


class ProcessIdentity(NamedTuple):
    """One process, in this boot or an earlier one, for ever."""

    pid: int
    start: str
    """Linux: the kernel's start ticks (field 22 of ``/proc/PID/stat``). Elsewhere: ``create_time`` as text."""
    boot_id: str


def identity_of(pid: int, *, proc: str = PROC) -> ProcessIdentity | None:
    """The identity of the living process ``pid``; None where there is none, it is a zombie, or it cannot be read."""
    if not _uses_proc(proc):
        start = _psutil_start(pid)
        return ProcessIdentity(pid, start, kernel.boot_id()) if start else None
    try:
        stat = kernel.read_stat(pid, proc)
    except OSError:
        return None
    boot = kernel.boot_id(proc)
    if stat is None or stat.dead or not boot:
        return None
    return ProcessIdentity(pid, stat.start, boot)


def own_identity() -> ProcessIdentity:
    """The identity of this very process."""
    identity = identity_of(os.getpid())
    if identity is None:
        raise OSError("cannot read this process's own start time: is /proc mounted?")
    return identity


def probe(identity: ProcessIdentity, *, proc: str = PROC) -> Liveness:
    """Whether this very process lives. Never raises; what cannot be read is UNCLEAR."""
    boot = kernel.boot_id(proc)
    if boot and identity.boot_id and boot != identity.boot_id:
        return Liveness.GONE
    liveness = _probe_proc(identity, proc) if _uses_proc(proc) else _probe_psutil(identity)
    if liveness is Liveness.ALIVE and not (boot and identity.boot_id):
        # The same PID and start in a boot nobody can name: the ticks of two boots do coincide.
        return Liveness.UNCLEAR
    return liveness


def _probe_proc(identity: ProcessIdentity, proc: str) -> Liveness:
    try:
        stat = kernel.read_stat(identity.pid, proc)
    except OSError:
        return Liveness.UNCLEAR
    if stat is None:
        return _absent(identity.pid, proc)
    if stat.dead:
        return Liveness.GONE
    if not identity.start:
        return Liveness.UNCLEAR
    return Liveness.ALIVE if stat.start == identity.start else Liveness.GONE


def _absent(pid: int, proc: str) -> Liveness:
    """``/proc`` has no such process. Mounted with ``hidepid`` it says so of other users' processes too: ask again."""
    if proc != PROC:
        return Liveness.GONE
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Liveness.GONE
    except (OSError, OverflowError):
        return Liveness.UNCLEAR
    return Liveness.UNCLEAR  # one of that PID was born this moment; the next probe reads its start


def _uses_proc(proc: str) -> bool:
    return kernel.HAS_PROC or proc != PROC


def _psutil_start(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} else repr(process.create_time())
    except psutil.Error:
        return ""


def _probe_psutil(identity: ProcessIdentity) -> Liveness:
    import psutil

    try:
        process = psutil.Process(identity.pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return Liveness.GONE
        return _compare_starts(identity.start, process.create_time())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return Liveness.GONE
    except (psutil.Error, OSError):
        return Liveness.UNCLEAR


def _compare_starts(recorded: str, found: float) -> Liveness:
    """Compare start times that were read off the wall clock: less than a second apart may be the same process."""
    try:
        apart_s = abs(float(recorded) - found)
    except ValueError:
        return Liveness.UNCLEAR
    if repr(found) == recorded:
        return Liveness.ALIVE
    return Liveness.UNCLEAR if apart_s < 1.0 else Liveness.GONE
