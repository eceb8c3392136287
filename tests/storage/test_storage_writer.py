"""The one writer: what commits together, what fails alone, and when an answer may be heard."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pawl import failpoints
from pawl.errors import DiskFull, StorageError
from pawl.home import Home
from pawl.storage import Database, Transaction, Writer

WAL_BYTES_MAX = 8 * 1024**2
Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def table(writer: Writer, run: Run) -> None:
    run(answer(writer, lambda tx: tx.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT UNIQUE)").rowcount))


@pytest.fixture
def other(home: Home) -> Iterator[sqlite3.Connection]:
    """A second connection, which sees what is committed and nothing else."""
    connection = Database(home.database).open_reader()
    yield connection
    connection.close()


@pytest.fixture
def commits(writer: Writer) -> list[str]:
    """Every COMMIT the writer executes from here on."""
    seen: list[str] = []
    writer._connection.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    return seen


class Gate:
    """Holds the writer inside a transaction, so that whatever is submitted meanwhile is its next batch."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, tx: Transaction) -> None:
        self.reached.set()
        assert self.opened.wait(10)


async def answer(writer: Writer, function: Callable[..., Any], *arguments: Any) -> Any:
    return await writer.submit(function, *arguments)


async def as_one_batch(writer: Writer, functions: list[Callable[[Transaction], Any]]) -> list[Any]:
    """Submit functions so that they are one batch; answers and errors in their order."""
    gate = Gate()
    held = writer.submit(gate)
    await asyncio.to_thread(gate.reached.wait)
    futures = [writer.submit(function) for function in functions]
    gate.opened.set()
    await held
    return await asyncio.gather(*futures, return_exceptions=True)


def add(text: str) -> Callable[[Transaction], int]:
    def insert(tx: Transaction) -> int:
        return tx.execute("INSERT INTO note (text) VALUES (?)", (text,)).rowcount

    return insert


def notes(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM note ORDER BY id")]


def test_callers_that_wait_share_one_commit(
    writer: Writer, run: Run, commits: list[str], other: sqlite3.Connection
) -> None:
    """However many submit while the disk is busy, one commit answers them all."""
    answers = run(as_one_batch(writer, [add(str(number)) for number in range(500)]))

    assert answers == [1] * 500
    assert len(commits) == 2  # the one that held the writer, and the batch
    assert notes(other) == [str(number) for number in range(500)]


def test_one_bad_function_fails_alone(writer: Writer, run: Run, other: sqlite3.Connection) -> None:
    """One failing function of a batch gets its own error; what stands before and behind it is durable."""
    answers = run(as_one_batch(writer, [add("before"), lambda tx: 1 // 0, add("behind")]))

    assert [type(each) for each in answers] == [int, ZeroDivisionError, int]
    assert notes(other) == ["before", "behind"]


def test_every_bad_function_of_a_batch_fails_with_its_own_error(
    writer: Writer, run: Run, other: sqlite3.Connection
) -> None:
    """Several failures of one batch do not mix: each caller hears of its own."""
    answers = run(as_one_batch(writer, [add("a"), add("a"), lambda tx: [][0], add("b"), lambda tx: tx.execute("no")]))

    assert [type(each) for each in answers] == [int, sqlite3.IntegrityError, IndexError, int, sqlite3.OperationalError]
    assert notes(other) == ["a", "b"]


def test_a_function_that_raises_half_way_leaves_nothing(writer: Writer, run: Run, other: sqlite3.Connection) -> None:
    """All of a logical transaction or nothing of it, alone and in a batch."""

    def half(tx: Transaction) -> None:
        add("half")(tx)
        raise LookupError

    for batch in ([half], [add("x"), half], [half, add("y")]):
        answers = run(as_one_batch(writer, batch))
        assert sum(isinstance(each, LookupError) for each in answers) == 1

    assert notes(other) == ["x", "y"]


def test_a_broken_constraint_reaches_its_caller_as_itself(writer: Writer, run: Run) -> None:
    """A bug of ours is not dressed up as a storage error, which callers would try again for ever."""
    run(answer(writer, add("once")))

    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: note\.text"):
        run(answer(writer, add("once")))


def test_a_transaction_sees_one_moment(writer: Writer, run: Run, clock: Any) -> None:
    """``now_ms`` is the wall clock, and the same for all of a batch."""
    moments = run(as_one_batch(writer, [lambda tx: tx.now_ms] * 3))

    assert moments == [clock.wall_ms()] * 3


def test_an_answer_comes_after_the_commit(
    writer: Writer, run: Run, monkeypatch: pytest.MonkeyPatch, other: sqlite3.Connection
) -> None:
    """While a commit is held back nobody has an answer; the moment the answer is there, anybody can read the row."""
    reached, opened = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    def hold(name: str) -> None:
        if name == "writer.before_commit":
            reached.set()
            assert opened.wait(10)

    async def body() -> None:
        future = writer.submit(add("durable"))
        future.add_done_callback(lambda _: seen.append(notes(other)))
        await asyncio.to_thread(reached.wait)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not future.done()
        assert notes(other) == []
        opened.set()
        await future
        await asyncio.sleep(0)

    monkeypatch.setattr(failpoints, "hit", hold)
    run(body())

    assert seen == [["durable"]]


def test_a_commit_is_synced_before_it_returns(writer: Writer, run: Run) -> None:
    """The connection that writes is in WAL mode with ``synchronous = FULL`` and foreign keys on."""

    def pragmas(tx: Transaction) -> list[Any]:
        return [tx.one(f"PRAGMA {name}")[0] for name in ("journal_mode", "synchronous", "foreign_keys")]

    assert run(answer(writer, pragmas)) == ["wal", 2, 1]


def test_a_full_disk_is_said_and_outlived(writer: Writer, run: Run, other: sqlite3.Connection) -> None:
    """Those whom a full disk hits hear ``disk_full``; the writer goes on, and works again once there is room."""
    large = "x" * 200_000

    def limit(tx: Transaction, pages: int) -> None:
        tx.execute(f"PRAGMA max_page_count = {pages}")

    pages = run(answer(writer, lambda tx: tx.one("PRAGMA page_count")[0]))
    run(answer(writer, limit, pages + 4))
    answers = run(as_one_batch(writer, [add("small"), add(large), add("another")]))
    alone = run(asyncio.wait_for(as_one_batch(writer, [add(large)]), 10))

    assert [type(each) for each in answers] == [int, DiskFull, int]
    assert [type(each) for each in alone] == [DiskFull]
    assert "the disk is full" in answers[1].message
    assert answers[1].retryable
    assert isinstance(answers[1].__cause__, sqlite3.OperationalError)
    assert notes(other) == ["small", "another"]

    run(answer(writer, limit, 1_000_000))
    assert run(answer(writer, add(large))) == 1
    assert notes(other) == ["small", "another", large]


def test_another_writer_holds_up_a_batch_once(home: Home, writer: Writer, run: Run, other: sqlite3.Connection) -> None:
    """Where somebody with an SQLite shell holds the database, nobody waits longer because others wait too."""
    attempts: list[str] = []
    writer._connection.execute("PRAGMA busy_timeout = 100")
    writer._connection.set_trace_callback(lambda sql: attempts.append(sql) if sql == "BEGIN IMMEDIATE" else None)
    shell = sqlite3.connect(home.database, isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")

    async def body() -> list[Any]:
        return await asyncio.gather(*(writer.submit(add(str(number))) for number in range(20)), return_exceptions=True)

    answers = run(body())

    assert [type(each) for each in answers] == [StorageError] * 20
    assert all("database is locked" in each.message and each.retryable for each in answers)
    assert len(attempts) <= 4  # those that came while the first waited are the second batch; each is tried twice
    shell.execute("ROLLBACK")
    shell.close()
    assert run(answer(writer, add("after"))) == 1
    assert notes(other) == ["after"]


def test_close_writes_what_waits(home: Home, writer: Writer, run: Run) -> None:
    """What was submitted before ``close`` is written; what comes after is refused; closing twice is harmless."""

    async def body() -> None:
        gate = Gate()
        held = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        waiting = [writer.submit(add(str(number))) for number in range(100)]
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)  # the end is in the same batch as what waits
        gate.opened.set()
        await closing
        assert await asyncio.wait_for(asyncio.gather(held, *waiting), 10) == [None] + [1] * 100
        with pytest.raises(StorageError, match="the database is closed"):
            writer.submit(add("late"))
        await writer.close()

    run(body())

    connection = Database(home.database).open_reader()
    assert notes(connection) == [str(number) for number in range(100)]
    connection.close()


def test_a_caller_that_gave_up_hurts_nobody(writer: Writer, run: Run, other: sqlite3.Connection) -> None:
    """A cancelled future loses its answer and nothing else: its transaction and its neighbours' are done."""

    async def body() -> list[Any]:
        gate = Gate()
        held = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        given_up, waiting = writer.submit(add("given up")), writer.submit(add("waiting"))
        given_up.cancel()
        gate.opened.set()
        return await asyncio.wait_for(asyncio.gather(held, waiting), 10)

    assert run(body()) == [None, 1]
    assert notes(other) == ["given up", "waiting"]


def test_listeners_hear_of_committed_marks_only(writer: Writer, run: Run) -> None:
    """A topic's listeners are called once for each commit that marked it, and not for one that was rolled back."""
    heard: list[str] = []

    def failing(tx: Transaction) -> None:
        tx.mark("bad")
        raise LookupError

    for topic in ("good", "bad", "left"):
        stop = writer.listen(topic, lambda _, topic=topic: heard.append(topic))  # type: ignore[misc]
    stop()
    run(as_one_batch(writer, [lambda tx: tx.mark("good"), lambda tx: tx.mark("good"), lambda tx: tx.mark("left")]))
    assert heard == ["good"]

    run(as_one_batch(writer, [failing]))
    assert heard == ["good"]


@pytest.mark.parametrize("action", ["error", "crash"])
def test_an_error_after_the_commit_is_heard_and_outlived(
    writer: Writer, run: Run, other: sqlite3.Connection, action: str
) -> None:
    """Where the answer of a commit is lost, its caller hears an error, the row is there, and the writer goes on."""
    failpoints.arm(f"writer.after_commit={action}*1")
    try:
        with pytest.raises((StorageError, RuntimeError), match="failpoint"):
            run(asyncio.wait_for(answer(writer, add("unknown")), 10))
    finally:
        failpoints.arm("")

    assert run(asyncio.wait_for(answer(writer, add("next")), 10)) == 1
    assert notes(other) == ["unknown", "next"]


def wal_bytes(home: Home) -> int:
    return os.stat(home.database + "-wal").st_size


def test_b107_the_log_stays_short(home: Home, writer: Writer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 small changes, a read transaction held open through part of them: once it ends and something is
    written, the write-ahead log is below 8 MiB again, with the writer still running. Without it, it never grew."""
    kept = threading.Event()
    keep = writer._keep_log_short

    def keep_and_tell() -> None:
        keep()
        kept.set()

    monkeypatch.setattr(writer, "_keep_log_short", keep_and_tell)
    change = "UPDATE note SET text = ? WHERE id = ?"

    async def changes(first: int, last: int) -> int:
        most = 0
        for number in range(first, last):
            await writer.submit(lambda tx, number: tx.execute(change, (str(number), number % 100)).rowcount, number)
            if number % 100 == 0:
                most = max(most, wal_bytes(home))
        return most

    async def body() -> None:
        writer._connection.execute("PRAGMA synchronous = OFF")  # how long the log gets does not depend on the syncs
        for number in range(100):
            await writer.submit(add(f"first {number}"))
        assert await changes(1, 12_000) < WAL_BYTES_MAX
        reader = Database(home.database).open_reader()
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM note").fetchall()
        await changes(12_000, 17_000)
        assert wal_bytes(home) > WAL_BYTES_MAX, "the reader must have held the log for this to be a test"
        assert writer.log_is_long
        reader.close()
        await changes(17_000, 20_000)
        await asyncio.to_thread(kept.wait, 10)
        kept.clear()
        await writer.submit(add("after idling"))
        assert await asyncio.to_thread(kept.wait, 10)

    run(body())

    assert wal_bytes(home) < WAL_BYTES_MAX
    assert not writer.log_is_long


def test_a_log_that_cannot_be_cut_leaves_the_writer_as_it_was(
    home: Home, writer: Writer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt to cut the log waits for nobody, and the writer's own patience is restored, whatever came of it."""
    monkeypatch.setattr("pawl.storage.writer._WAL_PAGES_MAX", 0)
    kept = threading.Event()
    keep = writer._keep_log_short

    def keep_and_tell() -> None:
        writer._connection.execute("BEGIN IMMEDIATE")  # a checkpoint inside a transaction is refused by SQLite
        keep()
        writer._connection.execute("ROLLBACK")
        kept.set()

    monkeypatch.setattr(writer, "_keep_log_short", keep_and_tell)
    run(answer(writer, add("x")))
    assert kept.wait(10)

    assert run(answer(writer, lambda tx: tx.one("PRAGMA busy_timeout")[0])) == 5000
