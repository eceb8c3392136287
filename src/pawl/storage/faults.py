"""What SQLite and the system say, in our words."""

from __future__ import annotations

import errno
import sqlite3

from pawl.errors import DatabaseDamaged, DiskFull, StorageError, StorageReadOnly

_SQLITE_BUSY = 5
_SQLITE_FULL = 13
_SQLITE_READONLY = 8
_SQLITE_CORRUPT = 11
_SQLITE_NOTADB = 26
_SQLITE_CANTOPEN = 14
_SQLITE_IOERR_SHMSIZE = 10 | 19 << 8  # the index beside the log could not be made or grow
# a wrong statement, a broken constraint, a wrong use: a bug of ours, which no waiting mends
_OURS = frozenset({1, 19, 20, 21, 25})


def is_bug(error: sqlite3.Error) -> bool:
    """Whether an error says that the statement is wrong, and not that the disk or the file is."""
    code = getattr(error, "sqlite_errorcode", None)
    return not isinstance(code, int) or code & 0xFF in _OURS


def is_locked(error: sqlite3.Error) -> bool:
    """Whether another program is writing to the database and did not end within our patience."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == _SQLITE_BUSY


def from_sqlite(error: sqlite3.Error, path: str) -> StorageError:
    """The error to raise for an error of SQLite's. ``path`` is the database file, for the message."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary == _SQLITE_FULL or code == _SQLITE_IOERR_SHMSIZE:
        return DiskFull(f"cannot write {path}: the disk is full", path=path)
    if primary == _SQLITE_READONLY:
        return StorageReadOnly(f"cannot write {path}: it is read-only", path=path)
    if primary in (_SQLITE_CORRUPT, _SQLITE_NOTADB):
        return damaged(path, str(error))
    if primary == _SQLITE_CANTOPEN:
        return StorageError(f"cannot open {path}: {error}", path=path)
    return StorageError(f"cannot use {path}: {error}", path=path, sqlite=getattr(error, "sqlite_errorname", None))


def damaged(path: str, reason: str) -> DatabaseDamaged:
    """The error for a database that is not one any more, with the way out."""
    return DatabaseDamaged(
        f"cannot use {path}: the database is damaged ({reason}). It was left as it is. Restore a backup over it, or "
        f"move it and its -wal and -shm files aside to start with an empty one",
        path=path, reason=reason,
    )  # fmt: skip


def from_system(error: OSError, path: str) -> StorageError:
    """The error to raise for an error of the operating system's while a file is written or read."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"cannot write {path}: the disk is full", path=path)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StorageReadOnly(f"cannot write {path}: {reason}", path=path)
    return StorageError(f"cannot use {path}: {reason}", path=path, errno=error.errno)
