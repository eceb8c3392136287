"""Small files in a spool, which its worker can reach too and may have put anything there.

A worker may do as it likes with its own spool, but not hold up those who look after all the others: a pipe in the
place of a file would block whoever opens it, and a link would lead elsewhere. Light enough for the keeper.
"""

from __future__ import annotations

import errno
import os
import stat

_BYTES_MAX = 65_536


def read(path: str) -> bytes:
    """All of a regular file. Raises OSError: FileNotFoundError, or EINVAL for anything else and for large files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _BYTES_MAX:
            raise OSError(errno.EINVAL, "not a small regular file", path)
        return os.read(descriptor, _BYTES_MAX)
    finally:
        os.close(descriptor)


def write(path: str, text: bytes) -> None:
    """Make or replace a file in one step, through ``path.new``. Raises OSError; then ``path`` is as it was."""
    fresh = path + ".new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(fresh, flags, 0o600)
    except FileExistsError:  # an earlier try, or something the worker put there
        os.unlink(fresh)
        descriptor = os.open(fresh, flags, 0o600)
    try:
        if os.write(descriptor, text) != len(text):  # a file takes less only when the disk is full
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
    os.rename(fresh, path)
