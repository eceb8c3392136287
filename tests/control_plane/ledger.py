"""The store's functions on a real database, each at once and in a transaction of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pawl.control_plane import audit, store
from pawl.control_plane.model import NewTask, Outcome, Task
from pawl.control_plane.statements import Q
from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, Database, Transaction

Result = TypeVar("Result")

HERE = ProcessIdentity(100, "5000", "boot-1")
REUSED = ProcessIdentity(100, "6000", "boot-1")  # the same PID, later
REBOOTED = ProcessIdentity(100, "5000", "boot-2")  # the same PID and ticks, in another boot
NEIGHBOUR = ProcessIdentity(200, "5000", "boot-1")
OWNERS = (HERE, REUSED, REBOOTED, NEIGHBOUR)
WORKER = ProcessIdentity(300, "7000", "boot-1")

OUTPUT = Artifact("a" * 64, 5)
OTHER_OUTPUT = Artifact("b" * 64, 5)
COMPLETED = Outcome("completed", exit_code=0)
FAILED = Outcome("failed", exit_code=3, error_code="exit_code", error_message="it ended with exit code 3")
CANCELLED = Outcome("cancelled", error_message="nobody wants it")
TIMED_OUT = Outcome("timed_out", error_code="timeout", error_message="its time is over")
LOST = Outcome("lost", error_code="lost", error_message="its owner is gone")


class Ledger:
    """One connection, a clock that is set by hand, and ``ledger(function, *arguments)``."""

    def __init__(self, connection: sqlite3.Connection, now_ms: int = 1_750_000_000_000) -> None:
        self.connection = connection
        self.now_ms = now_ms

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            result = function(Transaction(self.connection, self.now_ms), *arguments)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        return result

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.connection.execute(sql, parameters).fetchall()

    def task(self, task_id: str) -> Task:
        return Task._make(self.rows(Q.by_id, task_id)[0])

    def intents(self) -> dict[str, str]:
        """The promised status by task."""
        return dict(self.rows("SELECT task_id, status FROM settlement_intent"))

    def counts(self) -> dict[str, int]:
        """What the counters say, without the zeros."""
        return dict(self.rows(Q.counts))

    def counted(self) -> dict[str, int]:
        """What counting the rows says."""
        return dict(self.rows("SELECT status, count(*) FROM task GROUP BY status"))

    def changes(self, task_id: str) -> list[tuple[str | None, str]]:
        """The changes of status that the audit log tells of one task."""
        sql = "SELECT from_status, to_status FROM event WHERE subject_id = ? AND to_status IS NOT NULL ORDER BY seq"
        return self.rows(sql, task_id)

    def audit_fault(self) -> tuple[int, str] | None:
        """The first fault of the audit log."""
        return at_once(audit.first_fault(self))  # type: ignore[arg-type]

    async def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """A reader's ``all``, for functions that want a reader."""
        return self.rows(sql, *parameters)

    # --- what most tests begin with --------------------------------------------------------------------------

    def queued(self, **changes: Any) -> Task:
        return self(store.submit, new_task(**changes), None, 0).task

    def running(self, owner: ProcessIdentity = HERE, **changes: Any) -> Task:
        return self(store.submit, new_task(**changes), owner, 0).task

    def promised(self, outcome: Outcome = COMPLETED, *, leftovers: bool = False, **changes: Any) -> Task:
        """A running task with a promise beside it."""
        task = self.running(**changes)
        assert self(store.promise, task.id, HERE, outcome, OUTPUT, None, False, leftovers)
        return task


def at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


def new_task(**changes: Any) -> NewTask:
    """A submission that says nothing special."""
    task = NewTask(new_id(), "delegate", "writer", b"do it", 60_000, creator="uid:1000", principal="uid:1000")
    return task._replace(**changes)


def open_unsynced(path: str) -> sqlite3.Connection:
    """Open for writing without waiting for the disk: what survives a power cut is not the claim here."""
    connection = Database(path).open_writer()
    connection.execute("PRAGMA synchronous = OFF")
    return connection
