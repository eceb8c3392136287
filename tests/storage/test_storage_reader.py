"""Reads beside the writer, and the statements by name."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pawl.errors import StorageError
from pawl.home import Home
from pawl.storage import Database, Reader, Transaction, Writer, load_queries

Run = Callable[..., Any]


@pytest.fixture
def reader(home: Home, writer: Writer, run: Run) -> Iterator[Reader]:
    made = Reader(Database(home.database))
    run(made.start())
    yield made
    run(made.close())


def put(tx: Transaction, number: int) -> None:
    tx.execute(
        "INSERT INTO task_count VALUES ('queued', ?) ON CONFLICT DO UPDATE SET tasks = excluded.tasks", (number,)
    )


# --- reader --------------------------------------------------------------------------------------------------


def test_a_query_sees_what_was_answered_before_it(writer: Writer, reader: Reader, run: Run) -> None:
    """Each query sees every commit whose caller has heard back."""

    async def body() -> None:
        for number in range(100):
            await writer.submit(put, number)
            assert await reader.one("SELECT tasks FROM task_count") == (number,)

    run(body())


def test_no_query_holds_a_snapshot_afterwards(writer: Writer, reader: Reader, run: Run) -> None:
    """A reader that has answered does not keep the write-ahead log from being cut."""

    async def body() -> Any:
        await writer.submit(put, 1)
        await reader.one("SELECT * FROM task_count, sqlite_schema")
        await writer.close()
        connection = sqlite3.connect(writer._path)
        try:
            return connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.close()

    assert run(body())[0] == 0, "the checkpoint was held up"


def test_readers_do_not_wait_for_the_writer(writer: Writer, reader: Reader, run: Run) -> None:
    """While a transaction is open, a query answers at once, with what was committed before."""

    async def body() -> Any:
        loop = asyncio.get_running_loop()
        inside, over = loop.create_future(), asyncio.Event()
        await writer.submit(put, 1)

        def hold(tx: Transaction) -> None:
            put(tx, 2)
            loop.call_soon_threadsafe(inside.set_result, None)
            asyncio.run_coroutine_threadsafe(over.wait(), loop).result(10)

        held = writer.submit(hold)
        await inside
        seen = await asyncio.wait_for(reader.one("SELECT tasks FROM task_count"), 5)
        over.set()
        await held
        return seen, await reader.one("SELECT tasks FROM task_count")

    assert run(body()) == ((1,), (2,))


def test_a_reader_cannot_write(reader: Reader, run: Run) -> None:
    """What comes through a reader changes nothing."""
    with pytest.raises(StorageError, match="read-only"):
        run(reader.all("DELETE FROM task_count"))


def test_a_wrong_statement_is_a_bug_and_no_storage_error(reader: Reader, run: Run) -> None:
    """Callers try storage errors again; a statement that is wrong stays wrong, so it comes out as itself."""
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        run(reader.all("SELECT * FROM no_such"))


def test_a_database_that_is_not_there_is_said_by_name(home: Home, run: Run) -> None:
    """A reader of nothing says which file it could not open, and makes none."""
    with pytest.raises(StorageError, match=home.database):
        run(Reader(Database(home.database)).start())
    for thread in threading.enumerate():  # the failed connection's own thread still answers to the loop
        if thread is not threading.current_thread():
            thread.join(5)

    assert not Path(home.database).exists()


def test_closing_twice_is_harmless(home: Home, writer: Writer, run: Run) -> None:
    async def body() -> None:
        reader = Reader(Database(home.database))
        await reader.close()
        await reader.start()
        await reader.close()
        await reader.close()

    run(body())


# --- statements by name --------------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Makes a package with the given ``queries.sql`` and answers its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(text: str) -> str:
        package = tmp_path / "a_room"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "queries.sql").write_text(text)
        return "a_room"

    yield make
    sys.modules.pop("a_room", None)


def test_statements_have_names(room: Callable[[str], str]) -> None:
    """Each block under ``-- name:`` is a statement, with its comment and without its semicolon."""
    text = "-- The statements of a room.\n\n-- name: one\n-- why\nSELECT 1;\n\n-- name: two\nSELECT\n  2;\n"

    queries = load_queries(room(text))

    assert vars(queries) == {"one": "-- why\nSELECT 1", "two": "SELECT\n  2"}


def test_a_name_is_used_once(room: Callable[[str], str]) -> None:
    """Two statements of one name are a mistake that is told, not a silent choice."""
    with pytest.raises(ValueError, match="two statements named one"):
        load_queries(room("-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n"))
