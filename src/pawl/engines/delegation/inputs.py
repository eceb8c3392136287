"""Files that are handed over (``--input``): opened once, judged by what is open, and copied from there.

What a path names may be another file at the next look, so nothing that was found out about a path counts for what is
read. Where what is open lies is asked of the system, through the descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

from pawl.errors import InvalidParams, PolicyWidens
from pawl.runner import sandbox

# What stands there depends on who reads it, or is no content at all. What lies in memory is as good as any file.
_OF_THE_READER = ("/proc", "/sys", "/dev")
_MEMORY = "/dev/shm"
_DESCRIPTORS = "/proc/self/fd"
_PATH_BYTES = 1024  # what macOS wants to have for a path


class Input(NamedTuple):
    """A plain file that is open: ``real`` is where it lies, ``size_bytes`` and ``changed_ns`` are as it was found."""

    path: str
    real: str
    descriptor: int
    size_bytes: int
    changed_ns: int

    def changed(self, taken_bytes: int) -> bool:
        """Whether somebody wrote to it, now that so many bytes were read."""
        now = os.fstat(self.descriptor)
        found = (self.size_bytes, self.size_bytes, self.changed_ns)
        return found != (taken_bytes, now.st_size, now.st_mtime_ns)


@contextlib.contextmanager
def opened(path: str, within: Collection[str] | None = None) -> Iterator[Input]:
    """Open a file to take it in. Blocks. ``within``: real paths of the directories that it must lie in, if any.

    Raises ``invalid_params`` where it cannot be taken, ``policy_widens`` where it lies elsewhere.
    """
    if not os.path.isfile(path):  # a pipe or a device must not even be opened
        _refuse_the_readers(path, sandbox.resolve(path)[0])
        raise _unreadable(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path) from error
    try:
        found = os.fstat(descriptor)
        real = _by_proc(path, descriptor) or _by_system(descriptor) or _by_name(path, descriptor)
        _refuse_the_readers(path, real, found.st_dev)
        if not stat.S_ISREG(found.st_mode):
            raise _unreadable(path)
        if within is not None and not any(_lies_in(real, each) for each in within):
            raise beyond(path)
        yield Input(path, real, descriptor, found.st_size, found.st_mtime_ns)
    finally:
        os.close(descriptor)


def beyond(*paths: str) -> PolicyWidens:
    """A program in a sandbox sees other files than the daemon, which would read them for it."""
    return PolicyWidens(
        f"cannot take the input {paths[0]}: a task in a sandbox hands over files of its workspace and of its own "
        "directory (PAWL_TASK_DIR) only",
        field="inputs", beyond=list(paths),
    )  # fmt: skip


def _refuse_the_readers(path: str, real: str, device: int | None = None) -> None:
    """Refuse what the daemon would read another thing in than its caller: also what a link leads to or through."""
    places = [real, *(link for link, _ in sandbox.resolve(path)[1])]
    tops = [top for top in _OF_THE_READER if any(_lies_in(place, top) for place in places if not _in_memory(place))]
    tops += [top for top in _OF_THE_READER[:2] if os.path.ismount(top) and os.stat(top).st_dev == device]
    if tops:
        raise InvalidParams(
            f"cannot take the input {path}: what stands in {tops[0]} depends on who reads it, and that would be the "
            "daemon; copy it to a file first",
            path=path,
        )


def _in_memory(place: str) -> bool:
    return _lies_in(place, _MEMORY)


def _by_proc(path: str, descriptor: int) -> str | None:
    """Where an open file lies, on Linux. One that was removed since has a path that no file has."""
    try:
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except OSError:
        return None


def _by_system(descriptor: int) -> str | None:
    """The same on macOS."""
    ask = getattr(fcntl, "F_GETPATH", None)
    return None if ask is None else os.fsdecode(fcntl.fcntl(descriptor, ask, bytes(_PATH_BYTES)).rstrip(b"\0"))


def _by_name(path: str, descriptor: int) -> str:
    """The same anywhere else: the real path, if that is still this very file."""
    real, _ = sandbox.resolve(path)
    with contextlib.suppress(OSError):
        now, found = os.stat(real, follow_symlinks=False), os.fstat(descriptor)
        if (now.st_dev, now.st_ino) == (found.st_dev, found.st_ino):
            return real
    raise _unreadable(path)


def _unreadable(path: str) -> InvalidParams:
    return InvalidParams(f"cannot take the input {path}: it is no file that can be read", path=path)


def _lies_in(real: str, directory: str) -> bool:
    return real == directory or real.startswith(directory.rstrip("/") + "/")
