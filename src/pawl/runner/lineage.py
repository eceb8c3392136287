"""Where a process comes from: its session, its ancestors, the environment it was started with; and a task's worker."""

from __future__ import annotations

import os
from typing import NamedTuple

from pawl.runner import kernel, processes, tree
from pawl.runner.identity import ProcessIdentity, identity_of

_CLIMBS = 5


class Lineage(NamedTuple):
    """Where one process comes from."""

    session: int
    ancestors: list[int]  # nearest first, init not among them


def lineage(pid: int) -> Lineage | None:
    """The session and all the ancestors of a process, however many; None where it, or the way up, cannot be read.

    An ancestor that ends while we climb cuts the way: the orphans below it have another parent by then, so the climb
    begins again, a few times. Processes that never hold still remain unreadable, and whoever asks must not trust them.
    """
    before = None
    for _ in range(_CLIMBS):
        found = _climb(pid) if kernel.HAS_PROC else _lineage_psutil(pid)
        if found is not None and found == before:  # twice the same: no number on the way has changed hands meanwhile
            return found
        before = found
    return None


def _climb(pid: int) -> Lineage | None:
    process = processes.read(pid)
    if process is None:
        return None
    session, ancestors, passed = process.session, [], {pid}
    while process.parent > 1:
        parent = process.parent
        if parent in passed:  # numbers changed hands under us
            return None
        ancestors.append(parent)
        passed.add(parent)
        above = processes.read(parent)
        if above is None:
            if _is_hidden(parent):
                break
            return None
        process = above
    return Lineage(session, ancestors)


def _is_hidden(pid: int) -> bool:
    """Whether it is another user's where ``/proc`` shows only one's own (``hidepid``): nobody of ours is above it,
    unless that user let them be."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where it cannot be read."""
    if not kernel.HAS_PROC:
        return _environment_psutil(pid)
    try:
        text = kernel.read_file(f"{kernel.PROC}/{pid}/environ")
    except OSError:
        return {}
    pairs = (os.fsdecode(item).partition("=") for item in text.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def session_leader(task_id: str) -> ProcessIdentity | None:
    """The worker of a task whose spool does not name it: the leader of the session that its processes share."""
    for member in tree.members(None, task_id):
        try:
            leader = os.getsid(member.pid)
        except OSError:
            continue
        if leader == member.pid:
            return member
        found = identity_of(leader)
        if found is not None:
            return found
    return None


def _lineage_psutil(pid: int) -> Lineage | None:
    import psutil

    try:
        return Lineage(os.getsid(pid), [parent.pid for parent in psutil.Process(pid).parents()])
    except (psutil.Error, OSError):
        return None


def _environment_psutil(pid: int) -> dict[str, str]:
    import psutil

    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError):
        return {}
