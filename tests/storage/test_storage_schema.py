"""The schema: equal to its migrations, to the state machine and to the records that are made of its rows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pytest

from pawl.control_plane.audit import Event
from pawl.control_plane.model import KINDS, TASK, Intent, Task
from pawl.storage.database import migrate
from pawl.storage.schema import PATH, schema_text

RECORDS: dict[str, Any] = {"task": Task, "settlement_intent": Intent, "event": Event}
TABLES = (
    "cron_fire", "cron_forgotten", "cron_job", "event", "policy", "settlement_intent", "spent", "task", "task_count",
    "task_input", "task_label", "task_viewer", "usage",
)  # fmt: skip


@pytest.fixture
def schema() -> Iterator[sqlite3.Connection]:
    """A database that was just migrated, in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    yield connection
    connection.close()


def words(text: str) -> tuple[str, ...]:
    """The quoted words of a piece of SQL, in their order."""
    return tuple(re.findall(r"'([^']*)'", text))


def constraint(name: str) -> str:
    """What the CHECK of that name demands."""
    found = re.search(rf'CONSTRAINT "{re.escape(name)}"\s+CHECK \((.*)\)', schema_text())
    assert found, f"there is no CHECK called {name!r}"
    return found.group(1)


def test_the_schema_file_is_what_the_migrations_make() -> None:
    """``schema.sql`` is up to date (``python -m pawl.storage.schema`` makes it so)."""
    assert Path(PATH).read_text(encoding="utf-8") == schema_text()


def test_the_schema_file_makes_the_same_database(schema: sqlite3.Connection) -> None:
    """``schema.sql`` is SQL that stands for itself: executed, it makes the tables, indexes and triggers it lists."""
    other = sqlite3.connect(":memory:")
    other.executescript(Path(PATH).read_text(encoding="utf-8"))

    everything = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    assert other.execute(everything).fetchall() == schema.execute(everything).fetchall()
    other.close()


def test_the_statuses_are_those_of_the_state_machine() -> None:
    """The CHECK of a task's status lists the states of the machine, no more and no fewer."""
    assert sorted(words(constraint("a task has a known status"))) == sorted(TASK.states)


def test_the_terminal_statuses_are_those_of_the_state_machine() -> None:
    """A finish time goes with exactly the states that nothing leaves."""
    assert sorted(words(constraint("a task has a finish time exactly when it has ended"))) == sorted(TASK.terminal)


def test_the_kinds_are_those_of_the_model() -> None:
    """The CHECK of a task's kind lists the kinds of the model."""
    assert sorted(words(constraint("a task has a known kind"))) == sorted(KINDS)


def test_the_transitions_are_those_of_the_state_machine(schema: sqlite3.Connection) -> None:
    """The trigger that guards a task's status lets through the arrows of the machine, no more and no fewer."""
    (sql,) = schema.execute("SELECT sql FROM sqlite_schema WHERE name = 'task_transition'").fetchone()
    guard = sql[sql.index("NOT IN") : sql.index("BEGIN")]

    assert sorted(words(guard)) == sorted(f"{source} {target}" for source, target in TASK.pairs)


@pytest.mark.parametrize(("table", "record"), list(RECORDS.items()), ids=list(RECORDS))
def test_a_record_has_the_columns_of_its_table(
    schema: sqlite3.Connection, table: str, record: type[NamedTuple]
) -> None:
    """The fields of a record are the columns of its table, in their order: ``SELECT *`` makes one."""
    columns = [row[1] for row in schema.execute(f"PRAGMA table_info({table})")]

    assert list(record._fields) == columns


@pytest.mark.parametrize(("table", "record"), list(RECORDS.items()), ids=list(RECORDS))
def test_a_record_has_the_types_of_its_table(schema: sqlite3.Connection, table: str, record: type[NamedTuple]) -> None:
    """A field is an int, str or bytes where its column is INTEGER, TEXT or BLOB, or None where that may be NULL."""
    types = {"INTEGER": int, "TEXT": str, "BLOB": bytes}
    expected = {}
    for _, name, kind, not_null, _, key in schema.execute(f"PRAGMA table_info({table})"):
        expected[name] = types[kind] if not_null or key else types[kind] | None

    assert get_type_hints(record) == expected


def test_every_table_is_strict(schema: sqlite3.Connection) -> None:
    """A column holds what its type says, because every table is STRICT."""
    tables = [row for row in schema.execute("PRAGMA table_list") if not row[1].startswith("sqlite_")]

    assert sorted(row[1] for row in tables) == sorted(TABLES)
    assert [row[1] for row in tables if not row[5]] == []


def test_every_check_has_a_name_that_reads_as_a_sentence() -> None:
    """SQLite tells the name of a broken CHECK, so each has one, of several words, and no two the same."""
    text = schema_text()
    names = re.findall(r'CONSTRAINT "([^"]+)"\s+CHECK\b', text)

    assert len(names) == len(re.findall(r"\bCHECK\b", text)) > 0
    assert [name for name in names if name.count(" ") < 2] == []
    assert len(set(names)) == len(names)
