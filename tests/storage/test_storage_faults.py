"""What SQLite and the system say, in our words."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from pawl.errors import DatabaseDamaged, DiskFull, PawlError, StorageError, StorageReadOnly
from pawl.storage.faults import from_sqlite, from_system, is_bug


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, DiskFull),
        (sqlite3.SQLITE_READONLY, StorageReadOnly),
        (sqlite3.SQLITE_READONLY_DBMOVED, StorageReadOnly),
        (sqlite3.SQLITE_CORRUPT, DatabaseDamaged),
        (sqlite3.SQLITE_CORRUPT_INDEX, DatabaseDamaged),
        (sqlite3.SQLITE_NOTADB, DatabaseDamaged),
        (sqlite3.SQLITE_CANTOPEN, StorageError),
        (sqlite3.SQLITE_IOERR_FSYNC, StorageError),
        (sqlite3.SQLITE_BUSY, StorageError),
    ],
)
def test_what_sqlite_says_of_the_disk(code: int, expected: type[PawlError]) -> None:
    """Each kind of trouble with the file is its own error, names the file, and is no bug of ours."""
    error = sqlite_error(code)

    fault = from_sqlite(error, "/home/pawl.db")

    assert type(fault) is expected
    assert "/home/pawl.db" in fault.message
    assert fault.details["path"] == "/home/pawl.db"
    assert not is_bug(error)


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT_CHECK, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE]
)
def test_what_sqlite_says_of_us(code: int) -> None:
    """A wrong statement and a broken constraint are bugs: no waiting mends them."""
    assert is_bug(sqlite_error(code))
    assert is_bug(sqlite3.ProgrammingError("raised by the module, without a code"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageReadOnly),
        (errno.EPERM, StorageReadOnly),
        (errno.EIO, StorageError),
        (errno.ENOENT, StorageError),
    ],
)
def test_what_the_system_says(code: int, expected: type[PawlError]) -> None:
    """Each kind of trouble with a file is its own error and names the file."""
    fault = from_system(OSError(code, "what the system says"), "/home/artifacts/x")

    assert type(fault) is expected
    assert "/home/artifacts/x" in fault.message
