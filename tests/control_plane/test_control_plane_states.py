"""The task's state machine, and that the database itself holds it."""

from __future__ import annotations

import sqlite3
from itertools import product

import pytest
from ledger import COMPLETED, FAILED, OUTPUT, WORKER, Ledger

from pawl.control_plane import store
from pawl.control_plane.model import KINDS, TASK, TERMINAL
from pawl.state_machine import StateMachine, Transition

LAMP = StateMachine(
    "lamp",
    [
        Transition(None, "buy", "off", "a person", "it is dark"),
        Transition("off", "press", "on", "a finger", "light is wanted"),
        Transition("on", "press", "off", "a finger", "light is not wanted"),
        Transition("on", "burn_out", "broken", "time", "nothing lasts"),
    ],
)
BADLY = ("failed", "timed_out", "lost")


# --- any machine ---------------------------------------------------------------------------------------------


def test_everything_follows_from_the_table() -> None:
    """States, beginnings, ends and arrows are read off the table, in its order."""
    assert LAMP.states == ("off", "on", "broken")
    assert LAMP.initial == ("off",)
    assert LAMP.terminal == ("broken",)
    assert LAMP.pairs == {("off", "on"), ("on", "off"), ("on", "broken")}
    assert LAMP.allows("off", "on")
    assert not LAMP.allows("broken", "on")


def test_the_diagram_comes_from_the_table() -> None:
    assert LAMP.mermaid() == (
        "stateDiagram-v2\n"
        "    [*] --> off: buy\n"
        "    off --> on: press\n"
        "    on --> off: press\n"
        "    on --> broken: burn_out\n"
        "    broken --> [*]\n"
    )


def test_the_page_comes_from_the_table() -> None:
    assert LAMP.markdown().splitlines()[:3] == [
        "| from | event | to | fired by | because |",
        "| --- | --- | --- | --- | --- |",
        "| (none) | buy | off | a person | it is dark |",
    ]
    assert len(LAMP.markdown().splitlines()) == 2 + len(LAMP.table)


# --- the task's ----------------------------------------------------------------------------------------------


def test_a_task_ends_in_one_of_five_ways() -> None:
    """Nothing leaves completed, failed, cancelled, timed_out and lost; everything else can still end."""
    assert {"completed", "failed", "cancelled", "timed_out", "lost"} == TERMINAL
    assert set(TASK.states) - TERMINAL == {"queued", "running", "paused"}
    assert TASK.initial == ("queued", "running")


def test_every_state_is_reached_and_every_task_can_end() -> None:
    """From the beginnings every state can be reached, and from every state an end."""
    reached = set(TASK.initial)
    for _ in TASK.states:
        reached |= {target for source, target in TASK.pairs if source in reached}
    ending = set(TERMINAL)
    for _ in TASK.states:
        ending |= {source for source, target in TASK.pairs if target in ending}

    assert reached == ending == set(TASK.states)


def test_no_arrow_is_drawn_twice() -> None:
    """An event leads from a state to one other state, and is told who fires it and why."""
    arrows = [(row.source, row.event) for row in TASK.table]

    assert len(set(arrows)) == len(arrows)
    assert all(row.fired_by and row.because for row in TASK.table)


def test_what_is_tried_again_are_ends() -> None:
    """Only tasks that ended badly are tried again."""
    assert store.RETRIED < TERMINAL


# --- held by the database ------------------------------------------------------------------------------------


def put_in(ledger: Ledger, status: str) -> str:
    """A task in that status, brought there by hand along the arrows."""
    if status == "queued":
        return ledger.queued().id
    task = ledger.running()
    if status != "running":
        change(ledger, task.id, status)
    return task.id


def change(ledger: Ledger, task_id: str, status: str) -> None:
    """Change a status by hand, and with it whatever the CHECKs ask for, so that only the arrow is in question."""
    columns: dict[str, object] = {"status": status, "worker_pid": None, "finished_at_ms": None}
    columns |= {"output_sha256": None, "output_bytes": None, "error_code": None, "error_message": None}
    columns |= {"owner_pid": 100, "owner_start": "5000", "owner_boot": "boot-1", "started_at_ms": 1}
    if status == "queued":
        columns |= {"owner_pid": None, "started_at_ms": None}
    if status in TERMINAL:
        columns |= {"finished_at_ms": ledger.now_ms}
    if status == "completed":
        columns |= {"output_sha256": OUTPUT.sha256, "output_bytes": OUTPUT.size_bytes}
    if status in BADLY:
        columns |= {"error_code": "bad", "error_message": "it went badly"}
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    ledger.connection.execute(f"UPDATE task SET {assignments} WHERE id = :id", columns | {"id": task_id})


@pytest.mark.parametrize(("source", "target"), list(product(TASK.states, TASK.states)))
def test_the_database_refuses_what_is_not_in_the_table(ledger: Ledger, source: str, target: str) -> None:
    """Whoever writes to the row, a status moves along the arrows only."""
    task_id = put_in(ledger, source)
    before = ledger.task(task_id)

    if TASK.allows(source, target) or source == target:
        change(ledger, task_id, target)
        assert ledger.task(task_id).status == target
    else:
        with pytest.raises(sqlite3.IntegrityError, match="the task state machine has no such transition"):
            change(ledger, task_id, target)
        assert ledger.task(task_id) == before
    assert ledger.counts() == ledger.counted()


@pytest.mark.parametrize("status", [each for each in TASK.states if each not in TERMINAL])
def test_a_task_that_has_not_ended_is_not_deleted(ledger: Ledger, status: str) -> None:
    """Nothing that is queued, running or paused disappears."""
    task_id = put_in(ledger, status)

    with pytest.raises(sqlite3.IntegrityError, match="a task that has not ended is not deleted"):
        ledger.rows("DELETE FROM task WHERE id = ?", task_id)


def test_a_task_to_be_cleaned_up_after_is_not_deleted(ledger: Ledger) -> None:
    """While processes of an ended task may live, its row stays; then it may go, and the counters know."""
    task = ledger.promised(leftovers=True)
    ledger(store.settle, task.id, task.owner, "completed", OUTPUT)
    with pytest.raises(sqlite3.IntegrityError, match="a task that has not ended is not deleted"):
        ledger.rows("DELETE FROM task WHERE id = ?", task.id)

    ledger.rows("UPDATE task SET cleanup = 'done' WHERE id = ?", task.id)
    ledger.rows("DELETE FROM task WHERE id = ?", task.id)

    assert ledger.counts() == ledger.counted() == {}


def test_a_deleted_task_takes_what_hangs_on_it(ledger: Ledger) -> None:
    """Labels and inputs go with their task; a new attempt stays and forgets which one it repeats; the log stays."""
    task = ledger.promised(FAILED, labels='{"k": "v"}', inputs=(("name", OUTPUT),), retries=1)
    retry = ledger(store.settle, task.id, task.owner, "failed", OUTPUT).retry
    assert retry is not None
    assert retry.retry_of == task.id

    ledger.rows("DELETE FROM task WHERE id = ?", task.id)

    assert ledger.task(retry.id).retry_of is None
    assert ledger.rows("SELECT DISTINCT task_seq FROM task_label") == [(retry.seq,)]
    assert ledger.rows("SELECT DISTINCT task_seq FROM task_input") == [(retry.seq,)]
    assert ledger.changes(task.id) == [(None, "running"), ("running", "failed")]


BROKEN = {
    "a task has a known kind": ("queued", "kind = 'dream'"),
    "a running task has an owner, named by pid, start and boot": ("running", "owner_boot = NULL"),
    "a queued task has neither owner nor worker": ("queued", "worker_pid = 1"),
    "a completed task has its output and no error": ("completed", "output_sha256 = NULL, output_bytes = NULL"),
    "a task that failed, was lost or timed out says why": ("lost", "error_message = NULL"),
    "an output is named by digest and size": ("completed", "stderr_bytes = 1"),
    "a digest is 64 characters": ("completed", "output_sha256 = 'abc'"),
    "only an ended task is cleaned up after": ("running", "cleanup = 'pending'"),
    "a paused task has no worker": ("paused", "worker_pid = 1"),
    "counts are not negative": ("queued", "retries_left = -1"),
    "a task has a finish time exactly when it has ended": ("running", "finished_at_ms = 1"),
}


@pytest.mark.parametrize(("name", "status", "assignment"), [(name, *how) for name, how in BROKEN.items()])
def test_a_row_that_cannot_be_true_is_refused_by_name(ledger: Ledger, name: str, status: str, assignment: str) -> None:
    """The database says which sentence a wrong row would break."""
    task_id = put_in(ledger, status)

    with pytest.raises(sqlite3.IntegrityError, match=f"^CHECK constraint failed: {name}$"):
        ledger.rows(f"UPDATE task SET {assignment} WHERE id = ?", task_id)


def test_only_outcomes_of_the_work_are_promised(ledger: Ledger) -> None:
    """Nobody can promise that a task will have been cancelled, timed out or lost."""
    task = ledger.running()

    for status in ("cancelled", "timed_out", "lost", "running"):
        outcome = COMPLETED._replace(status=status)
        with pytest.raises(sqlite3.IntegrityError, match="what is promised is an outcome of the work"):
            ledger(store.promise, task.id, task.owner, outcome, OUTPUT, None, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_stored(ledger: Ledger, kind: str) -> None:
    absent = {"creator": None, "principal": None, "parent_id": "its parent"} if kind == "subagent" else {}

    assert ledger.queued(kind=kind, **absent).kind == kind


def test_records_know_their_processes(ledger: Ledger) -> None:
    """Owner, worker and output of a row come as values, or as None where a column is missing."""
    task = ledger.promised()
    assert (task.owner, task.worker, task.output, task.ended) == (task.owner, None, None, False)
    assert ledger(store.record_worker, task.id, task.owner, WORKER)

    ended = ledger(store.settle, task.id, task.owner, "completed", OUTPUT).task

    assert (ended.owner, ended.worker, ended.output, ended.stderr) == (task.owner, WORKER, OUTPUT, None)
    assert ended.ended
