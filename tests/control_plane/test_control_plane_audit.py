"""The audit log: append-only, and hashed so that a change to it shows."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger import CANCELLED, Ledger, at_once, new_task

from pawl.control_plane import audit, store
from pawl.control_plane.audit import Event
from pawl.home import Home
from pawl.storage import Database, Reader, Transaction, Writer

Run = Callable[..., Any]


@pytest.fixture
def log(ledger: Ledger) -> Ledger:
    """A log of ten entries."""
    for _ in range(5):
        task = ledger.queued()
        ledger(store.end_queued, task.id, CANCELLED, "uid:1000")
    assert ledger.audit_fault() is None
    return ledger


def tamper(ledger: Ledger, sql: str, *parameters: Any) -> None:
    """What somebody with the file and an SQLite shell can do: take the guards away, and write."""
    ledger.connection.executescript("DROP TRIGGER event_not_changed; DROP TRIGGER event_not_deleted;")
    ledger.rows(sql, *parameters)


# --- append-only ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE event SET reason = 'another'",
        "UPDATE event SET seq = seq + 100",
        "UPDATE event SET hash = hash",
        "DELETE FROM event",
        "DELETE FROM event WHERE seq = 10",
        "INSERT OR REPLACE INTO event SELECT 3, at_ms, actor, subject_kind, subject_id, event, NULL, NULL, NULL, NULL, "
        "hash FROM event WHERE seq = 4",
    ],
)
def test_an_entry_is_neither_changed_nor_deleted(log: Ledger, sql: str) -> None:
    """The database refuses every way to change what was written."""
    before = log.rows("SELECT * FROM event")

    with pytest.raises(sqlite3.IntegrityError, match="the audit log is append-only"):
        log.rows(sql)

    assert log.rows("SELECT * FROM event") == before


def test_an_entry_lives_and_dies_with_its_change(writer: Writer, run: Run, home: Home) -> None:
    """What is rolled back is not told, and what comes behind it, in the same batch too, follows without a gap."""

    def half(tx: Transaction, new: Any) -> None:
        store.submit(tx, new, None, 0)
        raise LookupError

    async def body() -> Any:
        reader = Reader(Database(home.database))
        await reader.start()
        functions = [store.submit, half, store.submit, half, store.submit]
        arguments = [(new_task(), None, 0), (new_task(),), (new_task(), None, 0), (new_task(),), (new_task(), None, 0)]
        futures = [writer.submit(function, *each) for function, each in zip(functions, arguments, strict=True)]  # type: ignore[arg-type]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [isinstance(each, LookupError) for each in answers] == [False, True, False, True, False]
        found = await audit.read(reader, after=0, limit=100, subject=None)
        assert [event.seq for event in found] == [1, 2, 3]
        fault = await audit.first_fault(reader)
        await reader.close()
        return fault

    assert run(body()) is None


def test_entries_of_one_transaction_follow_each_other(ledger: Ledger) -> None:
    """A transaction that writes several entries numbers and hashes them one over the other."""
    for _ in range(3):
        ledger.queued(queue_timeout_ms=1)
    ledger.now_ms += 1
    assert len(ledger(store.expire)) == 3

    assert [seq for (seq,) in ledger.rows("SELECT seq FROM event ORDER BY seq")] == [1, 2, 3, 4, 5, 6]
    assert ledger.audit_fault() is None


def test_listeners_of_the_log_are_told(writer: Writer, run: Run) -> None:
    """Each commit with an entry calls those who follow the log."""
    heard: list[None] = []
    writer.listen(audit.TOPIC, lambda _: heard.append(None))

    async def body() -> None:
        await writer.submit(store.submit, new_task(), None, 0)
        await writer.submit(store.expire)

    run(body())

    assert len(heard) == 1


# --- what shows ----------------------------------------------------------------------------------------------


COLUMNS = [name for name in Event._fields if name not in ("seq", "hash")]


@pytest.mark.parametrize("column", [*COLUMNS, "hash"])
@pytest.mark.parametrize("seq", [1, 6, 10])
def test_an_altered_entry_is_found(log: Ledger, column: str, seq: int) -> None:
    """Whatever is altered in whichever entry, that entry is named."""
    value = 7 if column == "at_ms" else "0" * 64 if column == "hash" else "something else"
    tamper(log, f"UPDATE event SET {column} = ? WHERE seq = ?", value, seq)

    assert log.audit_fault() == (seq, "it was altered")


@pytest.mark.parametrize("seq", [1, 6, 9])
def test_a_missing_entry_is_found(log: Ledger, seq: int) -> None:
    """A gap is named by the entry that is not there."""
    tamper(log, "DELETE FROM event WHERE seq = ?", seq)

    assert log.audit_fault() == (seq, "it is missing")


def test_an_entry_that_was_taken_out_and_closed_up_is_found(log: Ledger) -> None:
    """Renumbering what follows does not hide a gap."""
    tamper(log, "DELETE FROM event WHERE seq = 4")
    log.rows("UPDATE event SET seq = -seq WHERE seq > 4")
    log.rows("UPDATE event SET seq = -seq - 1 WHERE seq < 0")

    assert log.audit_fault() == (4, "it was altered")


def test_reordered_entries_are_found(log: Ledger) -> None:
    """Two entries that changed places are found at the first of them."""
    tamper(log, "UPDATE event SET seq = -1 WHERE seq = 3")
    log.rows("UPDATE event SET seq = 3 WHERE seq = 7")
    log.rows("UPDATE event SET seq = 7 WHERE seq = -1")

    assert log.audit_fault() == (3, "it was altered")


def test_an_entry_that_was_hashed_again_shows_at_the_next(log: Ledger) -> None:
    """Altering an entry and its own hash breaks the one behind it."""
    (row,) = log.rows("SELECT * FROM event WHERE seq = 5")
    (before,) = log.rows("SELECT hash FROM event WHERE seq = 4")
    forged = (*row[:8], "another reason", *row[9:-1])
    tamper(
        log,
        "UPDATE event SET reason = 'another reason', hash = ? WHERE seq = 5",
        audit.entry_hash(before[0], forged),
    )

    assert log.audit_fault() == (6, "it was altered")


def test_a_long_log_is_read_in_pieces(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is found behind the first piece too, and an intact log of several pieces is intact."""
    read = audit.read

    async def in_threes(reader: Reader, *, after: int, limit: int, subject: str | None) -> list[Event]:
        return await read(reader, after=after, limit=3, subject=subject)

    monkeypatch.setattr(audit, "read", in_threes)
    for _ in range(10):
        ledger.queued()
    assert ledger.audit_fault() is None

    tamper(ledger, "UPDATE event SET actor = 'nobody' WHERE seq = 8")

    assert ledger.audit_fault() == (8, "it was altered")


# --- how it is read ------------------------------------------------------------------------------------------


def test_the_log_is_read_from_where_a_reader_stopped(log: Ledger) -> None:
    """Oldest first, behind a number, at most so many; of everything, or of one subject."""
    task_id = log.rows("SELECT subject_id FROM event WHERE seq = 5")[0][0]

    def read(**how: Any) -> list[int]:
        return [event.seq for event in at_once(audit.read(log, **how))]  # type: ignore[arg-type]

    assert read(after=3, limit=4, subject=None) == [4, 5, 6, 7]
    assert read(after=10, limit=4, subject=None) == []
    assert read(after=0, limit=4, subject=task_id) == [5, 6]
    assert read(after=5, limit=4, subject=task_id) == [6]


def test_an_entry_is_shown_as_the_contract_says(ledger: Ledger) -> None:
    """The public form has the names of the contract, the time as text and the details as an object."""
    task = ledger.queued()

    (event,) = at_once(audit.read(ledger, after=0, limit=5, subject=None))  # type: ignore[arg-type]

    assert event.public() == {
        "seq": 1, "at": "2025-06-15T15:06:40.000Z", "actor": "uid:1000", "subject_kind": "task",
        "subject_id": task.id, "event": "submitted", "from": None, "to": "queued", "reason": None,
        "details": {"agent": "writer", "kind": "delegate"}, "hash": event.hash,
    }  # fmt: skip


def test_anyone_can_check_the_hashes(ledger: Ledger) -> None:
    """A hash is SHA-256 over the compact JSON of the hash before and the entry's ten fields; first come zeros."""
    ledger.queued(principal="üser")
    before = "0" * 64

    for row in ledger.rows("SELECT * FROM event ORDER BY seq"):
        text = json.dumps([before, *row[:-1]], separators=(",", ":"), ensure_ascii=False)
        assert row[-1] == hashlib.sha256(text.encode()).hexdigest()
        before = row[-1]


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_keeps_the_log_intact(ledger: Ledger, texts: list[str]) -> None:
    """Whatever characters actors, reasons and details have, what is read back is what was hashed."""

    def record(tx: Transaction) -> None:
        audit.record(
            tx, actor=texts[0], subject=("task", "x"), event="e", reason=texts[1], details={texts[2]: texts[0]}
        )

    ledger(record)

    assert ledger.audit_fault() is None
