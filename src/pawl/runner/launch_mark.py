"""The mark in a spool that says whether its task was launched: the file ``worker``, made before the worker is.

Making it is exclusive, so whoever makes it first has it:

    claimed <keeper> <start> <boot>     a keeper, before it launches
    launched <worker> <start> <boot>    the same keeper, appended right after
    barred                              recovery: this task was never launched, and never will be

The tombstone appears whole, linked into place. A claim is written just after the file is made, and a keeper that is
killed between the two leaves an empty mark: it may have been about to launch, so it reads as a claim of nobody
knows whom. The second line goes into the block that the first one has allocated, so a full disk does not stop it.
One file and no renaming over it, because making and deleting files is what a launch costs most on a busy disk.

Light enough for the keeper: imports what is built in.
"""

from __future__ import annotations

import errno
import os

from pawl.runner import small_file

_NAME = "/worker"


def read(spool: str) -> list[str]:
    """The complete lines of the mark. Raises OSError: FileNotFoundError where there is none."""
    text = small_file.read(spool + _NAME).decode("ascii", "replace")
    return [line for line in text.split("\n")[:-1] if line]


def bar(spool: str) -> None:
    """Put the tombstone. Raises FileExistsError when there is a mark already."""
    tombstone = f"{spool}/tombstone.{os.getpid()}"
    descriptor = os.open(tombstone, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor, "barred\n")
        os.link(tombstone, spool + _NAME)
    finally:
        os.close(descriptor)
        os.unlink(tombstone)


def claim(spool: str, keeper: tuple[int, str, str]) -> int:
    """Claim the launch: a descriptor for ``fill``. Raises FileExistsError when somebody has claimed or barred it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(spool + _NAME, flags, 0o600)
    try:
        _write(descriptor, _line("claimed", keeper))
    except OSError:
        os.close(descriptor)
        unclaim(spool)
        raise
    return descriptor


def unclaim(spool: str) -> None:
    """Take one's own claim back: nothing was launched."""
    os.unlink(spool + _NAME)


def fill(descriptor: int, worker: tuple[int, str, str]) -> None:
    """Add the worker's name to one's own claim. May be tried again: it starts a line of its own."""
    _write(descriptor, "\n" + _line("launched", worker))


def fill_later(spool: str, worker: tuple[int, str, str]) -> None:
    """The same when the claim's descriptor is closed."""
    descriptor = os.open(spool + _NAME, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        fill(descriptor, worker)
    finally:
        os.close(descriptor)


def _line(verb: str, process: tuple[int, str, str]) -> str:
    pid, start, boot = process
    return f"{verb} {pid} {start} {boot}\n"


def _write(descriptor: int, line: str) -> None:
    """One write, all or an error: a line that is cut short by a full disk counts as not written."""
    if os.write(descriptor, line.encode("ascii")) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
