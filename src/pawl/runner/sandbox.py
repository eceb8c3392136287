"""The sandbox around a task: bubblewrap (``bwrap``), on Linux.

Inside, everything is read-only but the workspace and the task's own directory; ``/tmp``, ``/var/tmp`` and ``/run`` are
empty and private, so that no socket there leads out; other processes can be neither seen nor signalled; the network
can be off. The home stays read-only even where the workspace holds it, and the daemon's socket can be reached, for
there the caller is known by what the kernel says of it. It holds no program back from reading what its user may read,
nor from sockets elsewhere. It is a guard rail, not a prison.

A program that a signal ends is reported by bwrap as exit code 128 and the signal's number. What is still running when
the program ends is ended with it by the kernel. bwrap is not told to die with its parent, for work outlives the
keeper.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import NamedTuple

_HIDDEN = ("/tmp", "/var/tmp", "/run")
_RESOLVER = "/etc/resolv.conf"
_TRY_S = 5.0
_BASE = (
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
    "--unshare-pid",
    "--unshare-ipc",
    "--cap-drop",
    "ALL",
)


class Offer(NamedTuple):
    """What this machine offers: whether a sandbox could be made just now, by which program, or why not."""

    works: bool
    program: str | None
    version: str | None
    reason: str


class Sandbox(NamedTuple):
    """What one task's sandbox lets through. Absolute paths: ``writable``; ``readable``, put back where they would be
    hidden; ``protected``, read-only even inside something writable."""

    writable: tuple[str, ...]
    readable: tuple[str, ...]
    protected: tuple[str, ...]
    network: bool
    cwd: str


def available() -> Offer:
    """Look for bwrap and try it, as a task would use it, for at most five seconds. Blocks."""
    if not sys.platform.startswith("linux"):
        return Offer(False, None, None, "bubblewrap is for Linux only")
    program = shutil.which("bwrap")
    if program is None:
        return Offer(False, None, None, "bubblewrap is not installed (no bwrap on PATH)")
    version = _run(program, "--version")
    if version.returncode != 0:
        return Offer(False, program, None, f"{program} does not run: {_last_line(version.stderr)}")
    number = version.stdout.strip().rpartition(" ")[2]
    tried = _run(*wrapper(program, Sandbox((), (), (), network=False, cwd="/")), "true")
    if tried.returncode != 0:
        return Offer(False, program, number, f"{program} cannot make a sandbox here: {_last_line(tried.stderr)}")
    return Offer(True, program, number, f"bubblewrap {number} works")


def wrapper(program: str, box: Sandbox) -> tuple[str, ...]:
    """The words to put before a command so that it runs in this sandbox. ``program`` is bwrap's path."""
    words = [program, *_BASE]
    if not box.network:
        words.append("--unshare-net")
    hidden = [path for path in _HIDDEN if os.path.isdir(path) and not os.path.islink(path)]
    for path in hidden:
        words += ["--tmpfs", path]
    writable = {os.path.realpath(path) for path in box.writable}
    protected = {os.path.realpath(path) for path in box.protected}
    readable = {os.path.realpath(path) for path in (*box.readable, box.cwd, *([_RESOLVER] if box.network else []))}
    put_back = {path for path in readable if _under(path, hidden) and not _under(path, writable)}
    mounts = [*((path, "--bind") for path in writable), *((path, "--ro-bind") for path in protected | put_back)]
    # the outer before the inner, and of one path the read-only one last, so that it stands
    for path, how in sorted(mounts, key=lambda mount: (mount[0].count("/"), mount[0], mount[1] != "--bind")):
        if how == "--bind" or os.path.exists(path):
            words += [how, path, path]
    return (*words, "--chdir", box.cwd, "--")


def _under(path: str, directories: Iterable[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in directories)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TRY_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
