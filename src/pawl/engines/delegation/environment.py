"""The environment of a program: what its policy names, what Pawl says to it, and nothing else."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping

from pawl.control_plane.model import Task
from pawl.home import Home
from pawl.runner.spool import Spool

# A program without these finds neither its tools nor its files nor its language: they are there in any case.
_ALWAYS = ("PATH", "HOME", "LANG")


def environment(
    task: Task,
    spool: Spool,
    home: Home,
    allowed: Iterable[str],
    extra: Mapping[str, str],
    outside: Mapping[str, str],
) -> dict[str, str]:
    """The whole environment of a task's program. ``outside`` is the daemon's own, of which ``allowed`` passes."""
    found = {name: outside[name] for name in allowed if name in outside}
    for name in _ALWAYS:
        if name not in found:
            found[name] = _default(name)
    found.update(extra)
    found.update(
        PAWL_HOME=home.path,
        PAWL_SOCKET=home.socket,
        PAWL_TASK_ID=task.id,
        PAWL_AGENT=task.agent,
        PAWL_DEPTH=str(task.depth),
        PAWL_IDEMPOTENCY_KEY=task.idempotency_key or task.id,
        PAWL_TASK_DIR=spool.files,
    )
    return found


def _default(name: str) -> str:
    if name == "PATH":
        return os.defpath
    if name == "LANG":
        return "C.UTF-8"
    return pwd.getpwuid(os.geteuid()).pw_dir
