"""Opening the one database: pragmas, checks and forward-only migrations.

A migration is a file ``migrations/NNNN_name.sql``. It and its version stamp (``PRAGMA user_version``) commit
together. A file written by a newer version is refused before anything is written to it. ``schema.sql`` is what
all migrations together make; a test holds the two equal.
"""

from __future__ import annotations

import os
import sqlite3
from importlib import resources

from pawl.errors import DatabaseNewer, StorageError
from pawl.storage.faults import damaged, from_sqlite

APPLICATION_ID = 0x5061776C  # "Pawl": `file pawl.db` can tell, and so can we
_CHECKED_BYTES_MAX = 2 * 1024**3  # a quick_check reads the whole file: 0.6 s a GiB; beyond this it is doctor's work


class Database:
    """The path of a database and the ways to open it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open_writer(self) -> sqlite3.Connection:
        """Open for writing, checked and migrated. Raises ``database_newer``, ``database_damaged`` and the like.

        Only one such connection may exist: the daemon's lock sees to that.
        """
        self._refuse_newer()
        try:
            fresh = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
            if fresh:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            else:
                self._check()
            connection = sqlite3.connect(
                self.path, isolation_level=None, check_same_thread=False, cached_statements=512
            )
        except OSError as error:
            raise StorageError(f"cannot open {self.path}: {error.strerror}", path=self.path) from error
        except sqlite3.Error as error:
            raise from_sqlite(error, self.path) from error
        try:
            self._prepare(connection, fresh=fresh)
        except sqlite3.Error as error:
            connection.close()
            raise from_sqlite(error, self.path) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def open_reader(self) -> sqlite3.Connection:
        """Open for reading only, for whoever looks at a home without its daemon."""
        self._refuse_newer()
        try:
            return sqlite3.connect(self.reader_uri(), uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise from_sqlite(error, self.path) from error

    def reader_uri(self) -> str:
        """The URI of a read-only connection."""
        return read_only_uri(self.path)

    def _prepare(self, connection: sqlite3.Connection, *, fresh: bool) -> None:
        connection.execute("PRAGMA busy_timeout = 5000")
        if fresh:  # a kill before the file is in WAL mode must leave no journal: only a writer could roll it back
            connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA recursive_triggers = ON")
        migrate(connection)

    def _check(self) -> None:
        """Look before anything may write: a writing connection would, as it closes, move the log into the file."""
        connection = sqlite3.connect(self.reader_uri(), uri=True)
        try:
            owner = connection.execute("PRAGMA application_id").fetchone()[0]
            if owner not in (0, APPLICATION_ID) or (owner == 0 and _has_tables(connection)):
                raise damaged(self.path, "it is the database of another program")
            if os.path.getsize(self.path) > _CHECKED_BYTES_MAX:
                return
            answer = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if answer != "ok":
                raise damaged(self.path, answer.strip().splitlines()[-1])
        finally:
            connection.close()

    def _refuse_newer(self) -> None:
        """Read the stamp without opening the file for writing, so that a newer one stays as it is, byte for byte."""
        if not os.path.exists(self.path):
            return
        found = database_version(self.path)
        known = newest_version()
        if found > known:
            raise DatabaseNewer(
                f"cannot use {self.path}: it has schema version {found}, this Pawl knows {known}. Use the newer Pawl",
                path=self.path, found=found, known=known,
            )  # fmt: skip


def read_only_uri(path: str) -> str:
    """The SQLite URI that opens ``path`` for reading only."""
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?mode=ro"


def database_version(path: str) -> int:
    """The schema version stamped into a database file. Raises ``database_damaged`` where it is not one."""
    try:
        connection = sqlite3.connect(read_only_uri(path), uri=True)
        try:
            return int(connection.execute("PRAGMA user_version").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise from_sqlite(error, path) from error


def migrations() -> list[tuple[int, str]]:
    """All migrations, in order: version and text."""
    found = []
    for file in resources.files("pawl.storage").joinpath("migrations").iterdir():
        if file.name.endswith(".sql"):
            found.append((int(file.name.split("_")[0]), file.read_text(encoding="utf-8")))
    return sorted(found)


def newest_version() -> int:
    """The schema version this program knows."""
    return migrations()[-1][0]


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, each step in one transaction with its stamp.

    Foreign keys are off meanwhile, for a step may make a table anew that others refer to; each step ends with a look
    at all of them.
    """
    present = connection.execute("PRAGMA user_version").fetchone()[0]
    enforced = connection.execute("PRAGMA foreign_keys").fetchone()[0]
    connection.execute("PRAGMA foreign_keys = OFF")
    try:
        for version, text in migrations():
            if version > present:
                _step(connection, version, text)
    finally:
        connection.execute(f"PRAGMA foreign_keys = {enforced}")


def _step(connection: sqlite3.Connection, version: int, text: str) -> None:
    try:
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{text}\nPRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {version};"
        )
        dangling = connection.execute("PRAGMA foreign_key_check").fetchall()
        if dangling:
            raise sqlite3.IntegrityError(f"migration {version} leaves rows that refer to nothing: {dangling[:5]}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _has_tables(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
