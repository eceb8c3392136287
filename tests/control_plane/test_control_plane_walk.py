"""Random walks of the store's functions over a real database, beside a model that knows what has to come out."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from ledger import (
    CANCELLED,
    COMPLETED,
    FAILED,
    HERE,
    LOST,
    NEIGHBOUR,
    OTHER_OUTPUT,
    OUTPUT,
    OWNERS,
    TIMED_OUT,
    WORKER,
    Ledger,
    new_task,
)

from pawl.control_plane import audit, store
from pawl.control_plane.model import TASK, TERMINAL, CleanUp, Outcome, Task
from pawl.errors import IdempotencyConflict
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, Database, Transaction

AGENTS = ("writer", "reader")
BADLY = ("failed", "timed_out", "lost")
owners = st.sampled_from(OWNERS)
outcomes = st.sampled_from((COMPLETED, FAILED))
mostly = st.sampled_from((True, True, False))
outputs = st.sampled_from((OUTPUT, OTHER_OUTPUT))


@dataclass
class Promise:
    owner: ProcessIdentity
    status: str
    output: Artifact
    leftovers: bool


@dataclass
class Row:
    """What has to be true of a task."""

    id: str
    agent: str
    priority: int
    status: str
    owner: ProcessIdentity | None
    retries_left: int
    attempt: int = 1
    retry_of: str | None = None
    queue_deadline_ms: int | None = None
    worker: ProcessIdentity | None = None
    finished_at_ms: int | None = None
    cleanup: str | None = None
    output: Artifact | None = None
    promise: Promise | None = None
    changes: list[tuple[str | None, str]] = field(default_factory=list)

    def move(self, status: str) -> None:
        self.changes.append((self.status, status))
        self.status = status

    def says(self) -> tuple[Any, ...]:
        """What can be compared with the stored row."""
        return (
            self.id, self.agent, self.priority, self.status, self.owner, self.retries_left, self.attempt, self.retry_of,
            self.queue_deadline_ms, self.worker, self.finished_at_ms, self.cleanup, self.output,
        )  # fmt: skip


def says(task: Task) -> tuple[Any, ...]:
    return (
        task.id, task.agent, task.priority, task.status, task.owner, task.retries_left, task.attempt, task.retry_of,
        task.queue_deadline_ms, task.worker, task.finished_at_ms, task.cleanup, task.output,
    )  # fmt: skip


class Walk(RuleBasedStateMachine):
    template: str  # a migrated database, copied for each walk

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp(prefix="p")
        path = os.path.join(self.directory, "pawl.db")
        shutil.copy(self.template, path)
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = OFF")
        self.ledger = Ledger(connection)
        self.model: dict[str, Row] = {}  # in the order of the rows
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.events = 0
        self.before: dict[str, Task] = {}

    def teardown(self) -> None:
        self.ledger.connection.close()
        shutil.rmtree(self.directory)

    def pick(self, data: st.DataObject, fitting: Callable[[Row], Any]) -> Row:
        """A task, most often a fitting one."""
        rows = list(self.model.values())
        found = [row for row in rows if fitting(row)]
        return data.draw(st.sampled_from(found if found and data.draw(mostly) else rows))

    def owner_for(self, data: st.DataObject, row: Row) -> ProcessIdentity:
        """Most often the row's own owner."""
        return row.owner if row.owner and data.draw(mostly) else data.draw(owners)

    def ended(self, row: Row, status: str, cleanup: str | None) -> None:
        row.move(status)
        row.finished_at_ms = self.ledger.now_ms
        row.cleanup = cleanup
        row.promise = None
        self.events += 1

    def answered(self, row: Row, answer: store.Ended, won: bool) -> None:
        """The answer says who won, tells the loser the row as it is, and brings the one retry that is due."""
        assert answer.won == won
        assert says(answer.task) == row.says()
        due = won and row.cleanup != "pending" and row.status in BADLY and row.retries_left > 0
        assert (answer.retry is not None) == due
        if answer.retry is not None:
            self.model[answer.retry.id] = Row(
                answer.retry.id, row.agent, row.priority, "queued", None, row.retries_left - 1, row.attempt + 1, row.id,
                answer.retry.queue_deadline_ms, changes=[(None, "queued")],
            )  # fmt: skip
            self.events += 1

    # --- what can happen -------------------------------------------------------------------------------------

    @initialize(outcome=outcomes, leftovers=st.booleans())
    def begin(self, outcome: Outcome, leftovers: bool) -> None:
        """Every walk begins with a task in the queue, one that runs, and one that is about to be settled."""
        self.submit("writer", 0, 1, 5_000, None)
        self.submit("reader", 0, 0, None, NEIGHBOUR)
        self.submit("writer", 0, 1, None, HERE)
        row = list(self.model.values())[-1]
        row.promise = Promise(HERE, outcome.status, OUTPUT, leftovers)
        assert self.ledger(store.promise, row.id, HERE, outcome, OUTPUT, None, False, leftovers)

    @rule(
        agent=st.sampled_from(AGENTS),
        priority=st.integers(-1, 1),
        retries=st.integers(0, 2),
        queue_timeout_ms=st.sampled_from((None, None, 1_000, 5_000)),
        owner=st.none() | owners,
    )
    def submit(
        self, agent: str, priority: int, retries: int, queue_timeout_ms: int | None, owner: ProcessIdentity | None
    ) -> None:
        new = new_task(agent=agent, priority=priority, retries=retries, queue_timeout_ms=queue_timeout_ms)
        answer = self.ledger(store.submit, new, owner, 0)
        deadline = None if queue_timeout_ms is None else self.ledger.now_ms + queue_timeout_ms
        status = "running" if owner else "queued"
        row = Row(new.id, agent, priority, status, owner, retries, queue_deadline_ms=deadline)
        row.changes.append((None, status))
        self.model[new.id] = row
        self.events += 1
        assert answer.new
        assert says(answer.task) == row.says()

    @rule(creator=st.sampled_from(("uid:1000", "uid:1001")), key=st.sampled_from("kl"), body=st.sampled_from("xy"))
    def submit_with_key(self, creator: str, key: str, body: str) -> None:
        new = new_task(creator=creator, idempotency_key=key, request_sha256=body)
        first = self.keys.setdefault((creator, key), (new.id, body))
        if first[1] != body:
            with pytest.raises(IdempotencyConflict, match=first[0]):
                self.ledger(store.submit, new, None, 0)
            return
        answer = self.ledger(store.submit, new, None, 0)
        if answer.new:
            self.model[new.id] = Row(new.id, "writer", 0, "queued", None, 0, changes=[(None, "queued")])
            self.events += 1
        assert answer.new == (first[0] == new.id)
        assert says(answer.task) == self.model[first[0]].says()

    @rule(
        owner=owners,
        slots=st.integers(1, 4),
        limits=st.dictionaries(st.sampled_from(AGENTS), st.integers(1, 3), min_size=1),
    )
    def claim(self, owner: ProcessIdentity, slots: int, limits: dict[str, int]) -> None:
        queued = [(index, row) for index, row in enumerate(self.model.values()) if row.status == "queued"]
        queued.sort(key=lambda each: (-each[1].priority, each[0]))
        expected, left = [], dict(limits)
        for _, row in queued:
            if len(expected) < slots and left.get(row.agent, 0) > 0:
                left[row.agent] -= 1
                expected.append(row)
        for row in expected:
            row.move("running")
            row.owner = owner
            self.events += 1

        started = self.ledger(store.claim, owner, 0, slots, limits)

        assert [says(task) for task in started] == [row.says() for row in expected]

    @rule(data=st.data())
    def record_worker(self, data: st.DataObject) -> None:
        row = self.pick(data, lambda row: row.status == "running")
        owner = self.owner_for(data, row)
        if row.status == "paused":
            return
        expected = row.status != "queued" and row.owner == owner and row.worker is None
        if expected:
            row.worker = WORKER
        assert self.ledger(store.record_worker, row.id, owner, WORKER) == expected

    @rule(data=st.data(), outcome=outcomes, output=outputs, leftovers=st.booleans(), then_settle=st.booleans())
    def promise(
        self, data: st.DataObject, outcome: Outcome, output: Artifact, leftovers: bool, then_settle: bool
    ) -> None:
        row = self.pick(data, lambda row: row.status == "running")
        owner = self.owner_for(data, row)
        expected = row.status == "running" and row.owner == owner
        if expected:
            row.promise = Promise(owner, outcome.status, output, leftovers)
        assert self.ledger(store.promise, row.id, owner, outcome, output, None, False, leftovers) == expected
        if then_settle:
            self.settled(row, owner, outcome.status, output)

    @rule(data=st.data(), outcome=outcomes, output=outputs)
    def settle(self, data: st.DataObject, outcome: Outcome, output: Artifact) -> None:
        row = self.pick(data, lambda row: row.promise)
        status = outcome.status
        if row.promise is not None and data.draw(mostly):
            status, output = row.promise.status, row.promise.output
        owner = self.owner_for(data, row)
        if row.promise is not None and data.draw(mostly):
            owner = row.promise.owner  # not the row's any more where that was taken over
        self.settled(row, owner, status, output)

    def settled(self, row: Row, owner: ProcessIdentity, status: str, output: Artifact) -> None:
        promise = row.promise
        answer = self.ledger(store.settle, row.id, owner, status, output)
        won = row.status == "running" and row.owner == owner and promise is not None
        won = won and promise is not None and (promise.owner, promise.status, promise.output) == (owner, status, output)
        if won and promise is not None:
            self.ended(row, status, "pending" if promise.leftovers else None)
            row.output = output
        self.answered(row, answer, won)

    @rule(data=st.data(), outcome=st.sampled_from((CANCELLED, FAILED)))
    def end_queued(self, data: st.DataObject, outcome: Outcome) -> None:
        row = self.pick(data, lambda row: row.status in ("queued", "paused"))
        won = row.status in ("queued", "paused")
        answer = self.ledger(store.end_queued, row.id, outcome, "uid:1000")
        if won:
            self.ended(row, outcome.status, None)
            assert answer.retry is None
            assert says(answer.task) == row.says()
            assert answer.won
        else:
            self.answered(row, answer, False)

    @rule(data=st.data(), outcome=st.sampled_from((CANCELLED, TIMED_OUT, FAILED, LOST)), processes=st.booleans())
    def end_running(self, data: st.DataObject, outcome: Outcome, processes: bool) -> None:
        row = self.pick(data, lambda row: row.status == "running")
        owner = self.owner_for(data, row)
        won = row.status == "running" and row.owner == owner
        answer = self.ledger(store.end_running, row.id, owner, outcome, processes, "uid:1000")
        if won:
            self.ended(row, outcome.status, "pending" if processes else None)
        self.answered(row, answer, won)

    @rule(data=st.data(), output=st.none() | outputs)
    def clean(self, data: st.DataObject, output: Artifact | None) -> None:
        row = self.pick(data, lambda row: row.cleanup == "pending")
        won = row.cleanup == "pending"
        answer = self.ledger(store.clean, row.id, CleanUp({"left": []}, exit_code=0, output=output))
        if won:
            row.cleanup = "done"
            row.output = row.output or output
            self.events += 1
        self.answered(row, answer, won)

    @rule(data=st.data(), new=owners, worker=st.none() | st.just(WORKER))
    def take_over(self, data: st.DataObject, new: ProcessIdentity, worker: ProcessIdentity | None) -> None:
        row = self.pick(data, lambda row: row.status == "running")
        old = self.owner_for(data, row)
        expected = row.owner == old and (row.status == "running" or row.cleanup == "pending")
        answer = self.ledger(store.take_over, row.id, old, new, worker, 0)
        if expected:
            row.owner = new
            row.worker = row.worker or worker
            self.events += 1
            assert answer is not None
            assert says(answer) == row.says()
        else:
            assert answer is None

    @rule(ms=st.sampled_from((1, 999, 1_000, 6_000)))
    def expire(self, ms: int) -> None:
        self.ledger.now_ms += ms
        due = [
            row for row in self.model.values()
            if row.status == "queued" and row.queue_deadline_ms is not None
            and row.queue_deadline_ms <= self.ledger.now_ms
        ]  # fmt: skip
        ended = self.ledger(store.expire)
        for row in due:
            self.ended(row, "failed", None)
        assert sorted(says(task)[0] for task in ended) == sorted(row.id for row in due)
        assert {task.error_code for task in ended} <= {"queue_timeout"}

    @rule(owner=owners)
    def beat(self, owner: ProcessIdentity) -> None:
        running = [row.id for row in self.model.values() if row.status == "running" and row.owner == owner]
        assert self.ledger(store.beat, owner, 7, list(self.model)) == len(running)
        for task_id in running:
            assert self.ledger.task(task_id).heartbeat_mono_ms == 7

    @precondition(lambda self: any(row.status == "running" and not row.promise for row in self.model.values()))
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """No function does this yet; a goal's controller will. The rows and the log have to bear it."""
        row = data.draw(st.sampled_from([row for row in self.model.values() if row.status == "running"]))
        if row.promise is None:
            self.moved_by_hand(row, "paused")
            if data.draw(mostly):
                self.moved_by_hand(row, "running")

    def moved_by_hand(self, row: Row, status: str) -> None:
        def change(tx: Transaction) -> None:
            sql = "UPDATE task SET status = ?, worker_pid = NULL, worker_start = NULL, worker_boot = NULL WHERE id = ?"
            tx.execute(sql, (status, row.id))
            audit.record(tx, actor="goal", subject=("task", row.id), event=status, change=(row.status, status))

        row.worker = None
        self.ledger(change)
        row.move(status)
        self.events += 1

    # --- what stays true -------------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        tasks = [Task._make(row) for row in self.ledger.rows("SELECT * FROM task ORDER BY seq")]

        assert [says(task) for task in tasks] == [row.says() for row in self.model.values()]

    @invariant()
    def statuses_move_along_the_arrows_and_ends_stay(self) -> None:
        now = {row[1]: Task._make(row) for row in self.ledger.rows("SELECT * FROM task")}
        for task_id, old in self.before.items():
            new = now[task_id]
            if old.status in TERMINAL:
                kept = ("status", "finished_at_ms", "error_code", "error_message", "retries_left")
                assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
                assert old.output in (None, new.output)
        self.before = now

    @invariant()
    def no_promise_is_beside_a_row_that_does_not_run(self) -> None:
        promises = {row.id: row.promise.status for row in self.model.values() if row.promise}
        assert self.ledger.intents() == promises
        assert all(self.model[task_id].status == "running" for task_id in promises)
        assert self.ledger(store.forget_stale_intents) == 0

    @invariant()
    def counters_count(self) -> None:
        assert self.ledger.counts() == self.ledger.counted()

    @invariant()
    def the_audit_log_tells_each_change_once(self) -> None:
        assert self.ledger.audit_fault() is None
        assert self.ledger.rows("SELECT count(*) FROM event") == [(self.events,)]
        for row in self.model.values():
            told = self.ledger.changes(row.id)
            assert told == row.changes
            assert told[0][0] is None
            assert told[0][1] in TASK.initial
            assert all(TASK.allows(source or "", target) for source, target in told[1:])
            assert [source for source, _ in told[1:]] == [target for _, target in told[:-1]]
            assert told[-1][1] == row.status

    @invariant()
    def a_task_is_tried_again_once(self) -> None:
        repeated = [row.retry_of for row in self.model.values() if row.retry_of]
        assert len(set(repeated)) == len(repeated)
        for row in self.model.values():
            if row.retry_of:
                first = self.model[row.retry_of]
                assert first.status in BADLY
                assert (row.attempt, row.retries_left + 1) <= (first.attempt + 1, first.retries_left)


def test_random_walks_keep_every_promise(tmp_path: Any) -> None:
    """Whatever happens in whatever order: rows, promises, counters and log are what the model says after each step.

    Statuses move along the arrows only; an end never changes; exactly one of several wins and the others are told
    who did; no promise is left beside an end; the audit log is intact and tells each change of status once.
    """
    template = tmp_path / "template.db"
    Database(str(template)).open_writer().close()

    class WalkHere(Walk):
        pass

    WalkHere.template = str(template)
    run_state_machine_as_test(
        WalkHere,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
