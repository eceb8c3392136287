"""The sandbox around a task: bubblewrap (``bwrap``), on Linux.

Inside, everything is read-only but the workspace and the task's own directory; ``/tmp``, ``/var/tmp``, ``/run`` and
``/dev/shm`` are empty and private, so that no socket there leads out; other processes can be neither seen nor
signalled; there are no capabilities and no way to new ones; the network can be off. The home stays read-only even where
the workspace holds it. The daemon's socket can be reached: the caller is known there by what the kernel says of it,
which a PID namespace does not change.

It holds no program back from reading what its user may read, from sockets and pipes in other directories, from abstract
sockets (unless the network is off), or from filling the memory through its private ``/tmp``. It is a guard rail, not a
prison.

How a task in it ends:

- ``bwrap`` is the worker, and the program's exit code is its own. A program that a signal ends is reported as exit code
  128 and the signal's number, as a shell does it.
- What is still running when the program ends lives on below the sandbox's first process, in the worker's session, and
  is found and ended like anything that a task leaves behind. Ending that first process ends all of it.
- It does not die with its parent (``--die-with-parent``): that is the keeper, and work outlives its keeper.
- A TERM that is sent to the whole task ends ``bwrap`` at once, with the signal as the worker's end, while the program
  inside still makes use of its grace.

Nor is it asked for a session of its own (``--new-session``: the keeper makes one already, and callers are told by it)
or a host name of its own (``--unshare-uts``: to change it takes a capability).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pawl.errors import SandboxUnavailable
from pawl.runner.spawn import HELD

_HIDDEN = ("/tmp", "/var/tmp", "/run")
_RUN = "/run"
_RESOLVER = "/etc/resolv.conf"
_TRY_S = 5.0
_LINKS_MAX = 40  # as many as the kernel follows
_BASE = ("--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL")
_VIEWS = {"/dev": "--dev", "/proc": "--proc"}  # the kernel's, made anew; /sys is the machine's, read-only
# Parts of /proc that the machine shares with it. They are root's files, and root without capabilities still owns them:
# bwrap itself covers only those directories that it finds writable.
_SHARED = ("/proc/acpi", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")
_BIND, _RO_BIND, _TMPFS = "--bind", "--ro-bind", "--tmpfs"


class Offer(NamedTuple):
    """What this machine offers: whether a sandbox could be made just now, by which program, or why not.

    ``by_descriptor``: whether that program mounts what a descriptor has open; older ones know paths only.
    """

    works: bool
    program: str | None
    version: str | None
    reason: str
    by_descriptor: bool = False


class Sandbox(NamedTuple):
    """What one task's sandbox lets through. Absolute paths, which may go through links.

    ``writable``: directories; one that is missing when the task is launched refuses the launch.
    ``readable``: put back where they would be hidden. A file is taken for a program and comes with its directory, or
    with what that is the ``bin`` of.
    ``protected``: read-only even inside something writable, which it may not be itself; put back where hidden.
    ``cwd`` is put back too, except beneath ``/run``: who may choose a directory must not choose a way to sockets.
    ``fixed``: those of ``writable`` and ``cwd`` that are real paths; one that leads elsewhere by now refuses it.
    """

    writable: tuple[str, ...]
    readable: tuple[str, ...]
    protected: tuple[str, ...]
    network: bool
    cwd: str
    fixed: tuple[str, ...] = ()


def available() -> Offer:
    """Look for bwrap and try it, as a task would use it. Blocks, for up to five seconds each for three runs of it."""
    if not sys.platform.startswith("linux"):
        return Offer(False, None, None, "bubblewrap is for Linux only")
    program = shutil.which("bwrap")
    if program is None:
        return Offer(False, None, None, "bubblewrap is not installed (no bwrap on PATH)")
    version = _run(program, "--version")
    if version.returncode != 0:
        return Offer(False, program, None, f"{program} does not run: {_last_line(version.stderr)}")
    number = version.stdout.strip().rpartition(" ")[2]
    words = wrapper(program, Sandbox((), (), (), network=False, cwd="/"), by_descriptor=False)
    tried = _run(program, "--die-with-parent", *words[1:], "/bin/sh", "-c", ":")  # nothing stays of one that hangs
    if tried.returncode != 0:
        return Offer(False, program, number, f"{program} cannot make a sandbox here: {_last_line(tried.stderr)}")
    # asked for rather than told by the version: distributions have it in older ones
    by_descriptor = HELD[_BIND] in _run(program, "--help").stdout
    return Offer(True, program, number, f"bubblewrap {number} works", by_descriptor)


def wrapper(program: str, box: Sandbox, *, by_descriptor: bool = False) -> tuple[str, ...]:
    """The words to put before a command so that it runs in this sandbox. ``program`` is bwrap's path.

    With ``by_descriptor`` what is mounted is named by path after the options of ``HELD``: whoever starts it opens those
    paths, makes sure that they are what they were, and puts the descriptors in their place (``spawn``). Without it
    bwrap goes by the paths, and what became a link since they were looked at is followed.

    Raises ``sandbox_unavailable`` where it could not protect what is to be protected.
    """
    real = _places(box)
    mounts = _mounts(real)
    links = dict(link for path in _spelled(box) for link in resolve(path)[1])
    for path in box.protected:
        _refuse_a_way_through(path, mounts)
    words = [program, *_BASE]
    if not box.network:
        words.append("--unshare-net")
    for path in sorted(mounts, key=_depth):  # the outer before the inner
        how = mounts[path]
        if how in (_TMPFS, *_VIEWS.values()):
            words += [how, path]
        else:  # the root and the kernel's are nobody's to replace
            words += [HELD[how] if by_descriptor and path not in ("/", *_SHARED) else how, path, path]
    for path in sorted(links, key=_depth):
        if mounts[_around(path, mounts)] == _TMPFS:
            target = links[path]
            words += ["--symlink", f"./{target}" if target.startswith("-") else target, path]  # never an option
    return (*words, "--chdir", real.cwd, "--")


def shows(box: Sandbox, path: str) -> bool:
    """Whether what is at this real path outside can be seen at it in this sandbox too."""
    mounts = _mounts(_places(box))
    return mounts[_around(path, mounts)] in HELD


def unmoved(path: str) -> str:
    """This real path. Raises ``sandbox_unavailable`` where it leads somewhere else by now."""
    now, _ = resolve(path)
    if now != path:
        raise SandboxUnavailable(
            f"cannot make the sandbox: {path} leads to {now} now, which is not the place that it was admitted for; "
            "remove the link, or ask for it again",
            path=path, now=now,
        )  # fmt: skip
    return path


# --- what is mounted -------------------------------------------------------------------------------------------------


def _places(box: Sandbox) -> Sandbox:
    """The same with real paths for what a task may have replaced. They are resolved here and never again: from here on
    they are compared (``spawn``), not followed."""
    real = {path: unmoved(path) if path in box.fixed else resolve(path)[0] for path in (*box.writable, box.cwd)}
    return box._replace(writable=tuple(real[path] for path in box.writable), cwd=real[box.cwd])


def _mounts(box: Sandbox) -> dict[str, str]:
    """How each path is mounted. What surrounds a path decides whether it has to be, so they are looked at from the
    outside in; of one path, what comes last in ``wishes`` stands.
    """
    hidden = {os.path.realpath(path) for path in _HIDDEN if os.path.isdir(path)}
    wishes: list[tuple[str, str]] = [
        *((path, "hidden") for path in hidden),
        *((path, "readable") for path in _put_back(box, hidden)),
        *((path, "writable") for path in box.writable),
        *((os.path.realpath(path), "protected") for path in (*box.protected, "/sys")),
    ]
    mounts = {"/": _RO_BIND}
    for path, wish in sorted(wishes, key=lambda one: _depth(one[0])):  # stable: keeps the order of the wishes
        outer = _around(path, mounts)
        if wish == "hidden":
            mounts[path] = _TMPFS
        elif wish == "writable":
            mounts[path] = _BIND
        elif not os.path.exists(path) or (wish == "readable" and path in hidden):
            continue
        elif wish == "readable" and mounts[outer] == _TMPFS:
            mounts[path] = _RO_BIND
        elif wish == "protected" and mounts[outer] != _RO_BIND:
            mounts.update(_pinned(path, outer) if mounts[outer] == _BIND else {})
            mounts[path] = _RO_BIND
    return {**mounts, **_VIEWS, **{path: _RO_BIND for path in _SHARED if os.path.isdir(path)}}


def _pinned(path: str, outer: str) -> dict[str, str]:
    """The directories between something writable and what is protected in it, each a mount of its own.

    One that is none could be renamed, and another put in its place, protected thing and all.
    """
    if path == outer:
        raise SandboxUnavailable(
            f"cannot make the sandbox: {path} would have to be writable and may not be; name another workspace",
            path=path,
        )
    between = {}
    path = os.path.dirname(path)
    while path != outer:
        between[path] = _BIND
        path = os.path.dirname(path)
    return between


def _refuse_a_way_through(path: str, mounts: dict[str, str]) -> None:
    """A link in a writable directory could be pointed elsewhere, and nothing mounted can prevent it."""
    for link, _ in resolve(path)[1]:
        if mounts[_around(link, mounts)] == _BIND:
            raise SandboxUnavailable(
                f"cannot make the sandbox: {path} goes through the link {link}, which the task could replace; "
                "use the real path, or another workspace",
                path=path, link=link,
            )  # fmt: skip


def _put_back(box: Sandbox, hidden: set[str]) -> Iterator[str]:
    """What would be missed, by real paths."""
    for path in box.readable:
        if os.path.isdir(path):
            yield os.path.realpath(path)
        else:
            yield _place_of(os.path.realpath(os.path.dirname(path)), path, hidden)
            yield _place_of(os.path.dirname(os.path.realpath(path)), path, hidden)
    if not _is_in(box.cwd, os.path.realpath(_RUN)):
        yield box.cwd
    if box.network:
        yield os.path.realpath(_RESOLVER)  # the file alone: sockets lie beside it


def _place_of(directory: str, file: str, hidden: set[str]) -> str:
    """What a program needs around it: its directory with its parent where that is a prefix; never all that is hidden"""
    above = os.path.dirname(directory)
    if os.path.basename(directory) == "bin" and not any(_is_in(each, above) for each in hidden):
        return above
    return os.path.realpath(file) if directory in hidden else directory


def _spelled(box: Sandbox) -> Iterator[str]:
    yield from (*box.writable, *box.readable, *box.protected, box.cwd)
    if box.network:
        yield _RESOLVER


def resolve(path: str) -> tuple[str, list[tuple[str, str]]]:
    """Where a path leads now, and the links on its way: the real place of each, and what it says.

    Unlike ``os.path.realpath`` it raises nothing: a link that cannot be read (in /proc) is taken for a place. A path
    with more links than the kernel follows is left where it was given up.
    """
    here = "/"
    found: list[tuple[str, str]] = []
    ahead = path.split("/")[::-1]
    while ahead and len(found) < _LINKS_MAX:
        part = ahead.pop()
        if part in ("", "."):
            continue
        there = os.path.dirname(here) if part == ".." else os.path.join(here, part)
        try:
            target = os.readlink(there)
        except OSError:  # none, or nothing at all
            here = there
            continue
        found.append((there, target))
        ahead += target.split("/")[::-1]
        here = "/" if target.startswith("/") else here
    return os.path.join(here, *reversed(ahead)), found


def _around(path: str, mounts: Iterable[str]) -> str:
    """The innermost mount that holds this path."""
    return max((each for each in mounts if _is_in(path, each)), key=_depth)


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _depth(path: str) -> int:
    return len(path.rstrip("/").split("/"))


# --- trying it -------------------------------------------------------------------------------------------------------


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_TRY_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
