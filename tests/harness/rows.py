"""What the database of a home says, read and, where a test plays the bad disk, written from outside."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from pawl.control_plane.model import Intent, Task
from pawl.home import Home
from pawl.storage.database import read_only_uri


def tasks(home: Home) -> list[Task]:
    """Every task, oldest first."""
    return [Task._make(row) for row in query(home, "SELECT * FROM task ORDER BY seq")]


def task(home: Home, task_id: str) -> Task:
    """One task, as its row is now."""
    return Task._make(query(home, "SELECT * FROM task WHERE id = ?", task_id)[0])


def intents(home: Home) -> list[Intent]:
    """Every promise."""
    return [Intent._make(row) for row in query(home, "SELECT * FROM settlement_intent")]


def ends_of(home: Home, task_id: str) -> list[str]:
    """Every status that ever ended this task, by the audit log: more than one is a lie."""
    ending = "('completed', 'failed', 'cancelled', 'timed_out', 'lost')"
    rows = query(
        home, f"SELECT to_status FROM event WHERE subject_id = ? AND to_status IN {ending} ORDER BY seq", task_id
    )
    return [row[0] for row in rows]


def events_of(home: Home, task_id: str) -> list[str]:
    """The names of what happened to a task, in order."""
    return [row[0] for row in query(home, "SELECT event FROM event WHERE subject_id = ? ORDER BY seq", task_id)]


def query(home: Home, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Read. Also beside a living daemon."""
    with contextlib.closing(sqlite3.connect(read_only_uri(home.database), uri=True)) as connection:
        return connection.execute(sql, parameters).fetchall()


def edit(home: Home, sql: str, *parameters: Any) -> int:
    """Write, as no code of ours would: no CHECK and no foreign key is asked. Returns how many rows changed."""
    with editing(home) as connection:
        return connection.execute(sql, parameters).rowcount


@contextlib.contextmanager
def editing(home: Home) -> Iterator[sqlite3.Connection]:
    """A writing connection that asks no CHECK and no foreign key; commits at the end."""
    with contextlib.closing(sqlite3.connect(home.database, timeout=10)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA foreign_keys = OFF")
        yield connection
        connection.commit()
