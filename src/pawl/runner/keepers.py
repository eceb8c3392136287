"""The keepers of one home: this daemon's, and those of earlier daemons that still have children.

Whoever descends from one of them is work of this home, whatever became of its task. Found once at the start, by the
command line that they were given and cannot lose; a home has seldom more than one.
"""

from __future__ import annotations

import os

from pawl.runner import kernel, processes
from pawl.runner.identity import Liveness, ProcessIdentity, probe

_MODULE = "pawl.runner.keeper"


class Keepers:
    """Knows which processes are keepers of ``home``."""

    def __init__(self, home: str) -> None:
        self._home = os.path.realpath(home)
        self._known: set[ProcessIdentity] = set()

    def find(self) -> None:
        """Look for those that earlier daemons left. Reads the command line of every process."""
        for process in processes.look():
            words = _command_line(process.pid)
            if words and words[-1] == self._home and any(_MODULE in word for word in words):
                self._known.add(process.identity)

    def add(self, keeper: ProcessIdentity | None) -> None:
        """One that was started just now."""
        if keeper is not None:
            self._known.add(keeper)

    def pids(self) -> set[int]:
        """The PIDs of those that live."""
        self._known = {keeper for keeper in self._known if probe(keeper) is not Liveness.GONE}
        return {keeper.pid for keeper in self._known}


def _command_line(pid: int) -> list[str]:
    if not kernel.HAS_PROC:
        return _command_line_psutil(pid)
    try:
        text = kernel.read_file(f"{kernel.PROC}/{pid}/cmdline")
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.split(b"\0")[:-1]]


def _command_line_psutil(pid: int) -> list[str]:
    import psutil

    try:
        return list(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return []
