"""Opening the database: what is refused and left alone, what is made, and what a crash half-way leaves."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pawl.errors import DatabaseDamaged, DatabaseNewer, StorageError
from pawl.home import Home
from pawl.storage import Database, database, database_version
from pawl.storage.database import APPLICATION_ID, newest_version

PAGE_BYTES = 4096
FIRST_START = "import sys; from pawl.storage import Database; Database(sys.argv[1]).open_writer().close()"


def digests(directory: str) -> dict[str, str]:
    """Every file of a directory by its digest; the shared-memory index is left out: it is rebuilt at will."""
    paths = sorted(Path(directory).iterdir())
    files = [path for path in paths if path.is_file() and not path.name.endswith("-shm")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def fill(connection: sqlite3.Connection, rows: int) -> None:
    values = "(at_ms, actor, subject_kind, subject_id, event, hash) VALUES (1, 'a', 'task', ?, 'started', ?)"
    connection.executemany(f"INSERT INTO event {values}", [(f"subject {number}", "f" * 64) for number in range(rows)])


def crashed(home: Home, rows: int = 200, *, logged: str = "") -> Database:
    """A home's database as a crash leaves it: ``rows`` in the main file, what ``logged`` wrote in the log only."""
    source = os.path.join(home.data, "living")
    os.mkdir(source)
    connection = Database(os.path.join(source, "pawl.db")).open_writer()
    fill(connection, rows)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if logged:
        connection.execute(logged)
    for ending in ("", "-wal"):
        shutil.copy(os.path.join(source, "pawl.db" + ending), home.database + ending)
    connection.close()
    shutil.rmtree(source)
    return Database(home.database)


def logged_pages(path: str) -> set[int]:
    """The pages, counted from 0, of which a write-ahead log holds a copy."""
    log = Path(path).read_bytes()
    return {int.from_bytes(log[at : at + 4], "big") - 1 for at in range(32, len(log), 24 + PAGE_BYTES)}


def stamp(connection: sqlite3.Connection) -> tuple[int, int, list[tuple[str, str]]]:
    """Version, application id and schema."""
    return (
        connection.execute("PRAGMA user_version").fetchone()[0],
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall(),
    )


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["main file", "log"])
def test_a_newer_database_is_refused_untouched(home: Home, where: str) -> None:
    """A database of a newer version is refused with both versions named, and every byte of it stays as it was,
    whether the stamp has reached the main file or a crash left it in the log."""
    newer = newest_version() + 1
    found = crashed(home, logged=f"PRAGMA user_version = {newer}")
    if where == "main file":
        connection = sqlite3.connect(found.path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    before = digests(home.data)

    for verb in (found.open_writer, found.open_reader):
        with pytest.raises(DatabaseNewer) as refused:
            verb()
        assert f"schema version {newer}, this Pawl knows {newest_version()}" in refused.value.message
        assert refused.value.details == {"path": found.path, "found": newer, "known": newest_version()}
        assert not refused.value.retryable

    assert digests(home.data).items() >= before.items()
    assert database_version(found.path) == newer


def test_a_damaged_page_is_refused_wherever_it_is(home: Home, tmp_path: Path) -> None:
    """Whichever page is overwritten, the database is refused with its name and the way out, and left as it is,
    log and all. (A page that the log holds too is not damaged: the log's copy counts.)"""
    found = crashed(home, logged="INSERT INTO task_count VALUES ('queued', 7)")
    pages = set(range(os.path.getsize(found.path) // PAGE_BYTES)) - logged_pages(found.path + "-wal")
    assert len(pages) > 20

    for page in sorted(pages):
        copy = tmp_path / str(page)
        shutil.copytree(home.data, copy)
        path = str(copy / "pawl.db")
        with open(path, "r+b") as file:
            file.seek(page * PAGE_BYTES)
            file.write(b"\xa5" * PAGE_BYTES)
        before = digests(str(copy))

        with pytest.raises(DatabaseDamaged) as refused:
            Database(path).open_writer()

        assert path in refused.value.message
        assert "Restore a backup over it, or move it and its -wal and -shm files aside" in refused.value.message
        assert not refused.value.retryable
        assert digests(str(copy)) == before, f"page {page}"
        shutil.rmtree(copy)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at: " * 40, b"short"])
def test_a_file_that_is_no_database_is_refused(home: Home, content: bytes) -> None:
    """A file of anything else is refused as damaged and left as it is."""
    Path(home.database).write_bytes(content)

    with pytest.raises(DatabaseDamaged, match="file is not a database"):
        Database(home.database).open_writer()

    assert Path(home.database).read_bytes() == content


@pytest.mark.parametrize("application_id", [0, 0x0F055112])
@pytest.mark.parametrize("checked_bytes_max", [2 * 1024**3, 0])
def test_the_database_of_another_program_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch, application_id: int, checked_bytes_max: int
) -> None:
    """Tables that are not ours are not written to, however large the file is."""
    monkeypatch.setattr(database, "_CHECKED_BYTES_MAX", checked_bytes_max)
    connection = sqlite3.connect(home.database, isolation_level=None)
    connection.execute(f"PRAGMA application_id = {application_id}")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = digests(home.data)

    with pytest.raises(DatabaseDamaged, match="it is the database of another program"):
        Database(home.database).open_writer()

    assert digests(home.data) == before


def test_a_directory_in_the_place_of_the_database_is_refused(home: Home) -> None:
    """What cannot be opened is refused with its name."""
    os.mkdir(home.database)

    with pytest.raises(StorageError, match=home.database):
        Database(home.database).open_writer()


# --- what is made --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [False, True])
def test_a_fresh_database_is_made(home: Home, empty: bool) -> None:
    """Where there is none, or an empty file, a database is made: migrated, stamped, in WAL mode, synced."""
    if empty:
        Path(home.database).touch(0o600)

    connection = Database(home.database).open_writer()

    assert stamp(connection)[:2] == (newest_version(), APPLICATION_ID)
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "busy_timeout")
    assert [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas] == ["wal", 2, 1, 1, 5000]
    connection.close()


def test_the_files_belong_to_their_owner_alone(home: Home) -> None:
    """The database, its log and its index have mode 0600, whatever the umask says."""
    before = os.umask(0)
    try:
        connection = Database(home.database).open_writer()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(home.data).glob("pawl.db*")}
    finally:
        os.umask(before)
    connection.close()

    assert modes == dict.fromkeys(("pawl.db", "pawl.db-wal", "pawl.db-shm"), 0o600)


def test_opening_again_changes_nothing(home: Home) -> None:
    """A database that is up to date is opened as it is, and its rows are there."""
    connection = Database(home.database).open_writer()
    fill(connection, 3)
    before = stamp(connection)
    connection.close()

    connection = Database(home.database).open_writer()

    assert stamp(connection) == before
    assert connection.execute("SELECT count(*) FROM event").fetchone() == (3,)
    connection.close()


def test_what_a_crash_left_in_the_log_is_there(home: Home) -> None:
    """Rows that were committed and not yet moved into the main file survive a crash."""
    found = crashed(home, 5, logged="INSERT INTO task_count VALUES ('queued', 7)")

    connection = found.open_writer()

    assert connection.execute("SELECT tasks FROM task_count").fetchall() == [(7,)]
    connection.close()


def test_a_reader_cannot_write(home: Home) -> None:
    """Whoever only looks at a home cannot change it."""
    Database(home.database).open_writer().close()
    connection = Database(home.database).open_reader()

    with pytest.raises(sqlite3.OperationalError, match="attempt to write a readonly database"):
        connection.execute("INSERT INTO task_count VALUES ('queued', 7)")
    connection.close()


def test_a_path_may_have_characters_that_a_uri_escapes(home: Home) -> None:
    """A home called ``a?b#c%20d`` is opened where it is and nowhere else."""
    directory = os.path.join(home.data, "a?b#c%20d")
    os.mkdir(directory)
    found = Database(os.path.join(directory, "pawl.db"))
    found.open_writer().close()

    connection = found.open_reader()

    assert connection.execute("PRAGMA user_version").fetchone() == (newest_version(),)
    connection.close()
    assert sorted(os.listdir(home.data)) == ["a?b#c%20d", "artifacts", "spool"]


# --- half-way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("statement", ["INSERT INTO nothing VALUES (1)", "CREATE TABL x", "SELECT RAISE(ABORT, 'x')"])
def test_a_migration_that_fails_half_way_leaves_version_and_schema_as_they_were(
    home: Home, monkeypatch: pytest.MonkeyPatch, fresh: bool, statement: str
) -> None:
    """A migration and its stamp commit together or not at all; the steps before it stay."""
    if not fresh:
        Database(home.database).open_writer().close()
    good = database.migrations()
    version = good[-1][0]
    failing = [*good, (version + 1, f"CREATE TABLE half (x TEXT) STRICT; DROP TABLE task_label; {statement};")]
    with monkeypatch.context() as patched:
        patched.setattr(database, "migrations", lambda: failing)
        with pytest.raises(StorageError, match=home.database):
            Database(home.database).open_writer()

    connection = Database(home.database).open_writer()
    found = stamp(connection)
    connection.close()
    other = os.path.join(home.data, "whole.db")
    connection = Database(other).open_writer()
    assert found == stamp(connection)
    connection.close()


def test_migrations_run_in_the_order_of_their_numbers() -> None:
    """Versions are 1, 2, 3, ... without a gap, so that a stamp says which have run."""
    versions = [version for version, _ in database.migrations()]

    assert versions == list(range(1, len(versions) + 1))


@pytest.mark.skipif(shutil.which("strace") is None, reason="kills a process at a system call")
@pytest.mark.parametrize("call", ["pwrite64:2", "pwrite64:3", "unlink:1", "fdatasync:2", "fdatasync:4"])
def test_a_first_start_that_is_killed_does_not_spoil_the_home(home: Home, call: str) -> None:
    """Wherever the first start is killed, the next one opens the database."""
    name, when = call.split(":")
    inject = f"inject={name}:signal=SIGKILL:when={when}"
    command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={name}", "-e", inject]
    subprocess.run([*command, sys.executable, "-B", "-c", FIRST_START, home.database], check=False)

    connection = Database(home.database).open_writer()

    assert stamp(connection)[:2] == (newest_version(), APPLICATION_ID)
    connection.close()
