"""Where a process comes from: its session, its ancestors, the environment it was started with; and a task's worker."""

from __future__ import annotations

import os

from pawl.runner import kernel, processes, tree
from pawl.runner.identity import ProcessIdentity, identity_of

_ANCESTORS_MAX = 128


def lineage(pid: int) -> tuple[int, list[int]]:
    """The session of a process and the PIDs of its ancestors, nearest first; what cannot be read is left out."""
    if not kernel.HAS_PROC:
        return _lineage_psutil(pid)
    session = 0
    ancestors: list[int] = []
    found = processes.read(pid)
    if found is not None:
        session = found.session
    while found is not None and found.parent > 1 and len(ancestors) < _ANCESTORS_MAX:
        ancestors.append(found.parent)
        found = processes.read(found.parent)
    return session, ancestors


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


def _lineage_psutil(pid: int) -> tuple[int, list[int]]:
    import psutil

    try:
        return os.getsid(pid), [parent.pid for parent in psutil.Process(pid).parents()[:_ANCESTORS_MAX]]
    except (psutil.Error, OSError):
        return 0, []


def _environment_psutil(pid: int) -> dict[str, str]:
    import psutil

    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError):
        return {}
