"""What each function of the store writes, and what it answers to whoever came too late."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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

from pawl.control_plane import store
from pawl.control_plane.model import CleanUp, Outcome, Task, public
from pawl.errors import IdempotencyConflict
from pawl.storage import Artifact, Writer

STRANGERS = [owner for owner in OWNERS if owner != HERE]
ENDS = [CANCELLED, FAILED, TIMED_OUT, LOST]


def events(ledger: Ledger, task_id: str) -> list[tuple[Any, ...]]:
    sql = "SELECT actor, event, from_status, to_status, reason FROM event WHERE subject_id = ? ORDER BY seq"
    return ledger.rows(sql, task_id)


# --- submit --------------------------------------------------------------------------------------------------


def test_a_submission_is_stored_as_it_was_made(ledger: Ledger) -> None:
    """Everything a submission says is in its row, its labels and its inputs."""
    new = new_task(
        priority=3, queue_timeout_ms=5_000, retries=2, cwd="/somewhere", env='{"A":"b"}', chain='["x"]', depth=1,
        parent_id="parent", goal_id="goal", labels='{"team":"red","size":"1"}', source='{"from":"here"}',
        idempotency_key="key", key_scope="uid:1000", request_sha256="body",
        inputs=(("b.txt", OUTPUT), ("a.txt", OTHER_OUTPUT)),
    )  # fmt: skip

    task, is_new = ledger(store.submit, new, None, 7)

    assert is_new
    shared = set(new._fields) & set(task._fields) - {"inputs", "budget_id"}
    assert {name: getattr(task, name) for name in shared} == {name: getattr(new, name) for name in shared}
    assert (task.status, task.retries_left, task.created_at_ms, task.inputs) == ("queued", 2, ledger.now_ms, 2)
    assert task.queue_deadline_ms == ledger.now_ms + 5_000
    assert (task.owner, task.started_at_ms, task.deadline_at_ms, task.deadline_mono_ms) == (None, None, None, None)
    assert ledger.rows("SELECT key, value FROM task_label ORDER BY key") == [("size", "1"), ("team", "red")]
    assert ledger.rows("SELECT name, sha256, size_bytes FROM task_input ORDER BY name") == [
        ("a.txt", *OTHER_OUTPUT),
        ("b.txt", *OUTPUT),
    ]
    assert events(ledger, task.id) == [("uid:1000", "submitted", None, "queued", None)]


def test_a_submission_with_a_slot_runs_at_once(ledger: Ledger) -> None:
    """Stored and claimed in one transaction: the row has its owner and its times, on both clocks."""
    task = ledger(store.submit, new_task(timeout_ms=60_000), HERE, 7).task

    assert (task.status, task.owner, task.worker) == ("running", HERE, None)
    assert (task.started_at_ms, task.heartbeat_at_ms, task.heartbeat_mono_ms) == (ledger.now_ms, ledger.now_ms, 7)
    assert (task.deadline_at_ms, task.deadline_mono_ms) == (ledger.now_ms + 60_000, 60_007)
    assert events(ledger, task.id) == [("uid:1000", "submitted", None, "running", None)]


def test_the_same_key_and_body_is_the_same_row(ledger: Ledger) -> None:
    """A repeated request brings back its task as it is now, whatever became of it, and stores nothing."""
    first = ledger(store.submit, new_task(idempotency_key="k", request_sha256="body"), None, 0)
    ledger(store.end_queued, first.task.id, CANCELLED, "uid:1000")

    again = ledger(store.submit, new_task(idempotency_key="k", request_sha256="body"), HERE, 0)

    assert (first.new, again.new) == (True, False)
    assert again.task == ledger.task(first.task.id)
    assert again.task.status == "cancelled"
    assert ledger.counted() == {"cancelled": 1}
    assert len(events(ledger, first.task.id)) == 2


def test_the_same_key_with_another_body_is_a_conflict(ledger: Ledger) -> None:
    """A key stands for one request: with another it is refused, names the task, and starts nothing."""
    first = ledger.queued(idempotency_key="k", request_sha256="body")

    with pytest.raises(IdempotencyConflict, match=first.id) as refused:
        ledger(store.submit, new_task(idempotency_key="k", request_sha256="another"), None, 0)

    assert refused.value.details == {"task_id": first.id, "idempotency_key": "k"}
    assert ledger.counted() == {"queued": 1}


def test_a_key_belongs_to_its_creator(ledger: Ledger) -> None:
    """Two creators may use the same key for different things."""
    ledger.queued(idempotency_key="k", request_sha256="body")

    assert ledger.queued(creator="uid:1001", idempotency_key="k", request_sha256="another").status == "queued"
    assert ledger.counted() == {"queued": 2}


def test_twenty_at_once_with_one_key_are_one_task(writer: Writer, run: Callable[..., Any]) -> None:
    """However many ask at the same moment with one key, one task is made and all are told of it."""

    async def body() -> list[store.Submitted]:
        news = [new_task(idempotency_key="k", request_sha256="body") for _ in range(20)]
        return await asyncio.gather(*(writer.submit(store.submit, new, None, 0) for new in news))

    answers = run(body())

    assert len({answer.task.id for answer in answers}) == 1
    assert [answer.new for answer in answers].count(True) == 1


# --- claim ---------------------------------------------------------------------------------------------------


def test_the_best_are_claimed_first(ledger: Ledger) -> None:
    """Higher priority first, then the older; at most so many in all and of each agent; no other agent's."""
    low = ledger.queued(agent="a", priority=0).id
    high = ledger.queued(agent="a", priority=5).id
    other = ledger.queued(agent="b", priority=1).id
    ledger.queued(agent="c", priority=9)
    later = ledger.queued(agent="a", priority=0).id

    def claimed(slots: int, agents: dict[str, int]) -> list[str]:
        return [task.id for task in ledger(store.claim, HERE, 7, slots, agents)]

    assert claimed(2, {"a": 2, "b": 1}) == [high, other]
    assert claimed(5, {"a": 1, "b": 5}) == [low]
    assert claimed(5, {"a": 0, "b": 5}) == []
    assert claimed(5, {}) == []
    assert claimed(5, {"a": 5}) == [later]


def test_a_claimed_task_has_its_owner_and_its_times(ledger: Ledger) -> None:
    """A claim is the start: owner, start, heartbeat and deadline are in the row, and the log tells of it."""
    task_id = ledger.queued(timeout_ms=60_000).id
    ledger.now_ms += 500

    (task,) = ledger(store.claim, HERE, 7, 1, {"writer": 1})

    assert task == ledger.task(task_id)
    assert (task.status, task.owner, task.started_at_ms) == ("running", HERE, ledger.now_ms)
    assert (task.heartbeat_mono_ms, task.deadline_mono_ms) == (7, 60_007)
    assert task.deadline_at_ms == ledger.now_ms + 60_000
    assert events(ledger, task_id)[1:] == [("daemon", "started", "queued", "running", None)]


def test_the_queue_time_is_over_for_those_it_is_over_for(ledger: Ledger) -> None:
    """Only queued tasks whose deadline has come fail, as ``queue_timeout``."""
    patient = ledger.queued(queue_timeout_ms=5_000).id
    hasty = ledger.queued(queue_timeout_ms=1_000).id
    started = ledger.running(queue_timeout_ms=1_000).id
    forever = ledger.queued().id
    ledger.now_ms += 999
    assert ledger(store.expire) == []

    ledger.now_ms += 1
    (ended,) = ledger(store.expire)

    assert (ended.id, ended.status, ended.error_code) == (hasty, "failed", "queue_timeout")
    assert [ledger.task(each).status for each in (patient, started, forever)] == ["queued", "running", "queued"]
    assert ledger(store.expire) == []


# --- promise and settle --------------------------------------------------------------------------------------


def test_a_promise_kept_is_the_outcome(ledger: Ledger) -> None:
    """Settling takes everything from the promise, and the promise goes with it."""
    task = ledger.running()
    outcome = Outcome("failed", exit_code=3, signal=None, error_code="exit_code", error_message="badly")
    assert ledger(store.promise, task.id, HERE, outcome, OUTPUT, OTHER_OUTPUT, True, False)
    ledger.now_ms += 10

    answer = ledger(store.settle, task.id, HERE, "failed", OUTPUT)

    ended = ledger.task(task.id)
    assert answer == store.Ended(True, ended)
    assert (ended.status, ended.exit_code, ended.signal) == ("failed", 3, None)
    assert (ended.error_code, ended.error_message, ended.truncated) == ("exit_code", "badly", 1)
    assert (ended.output, ended.stderr, ended.finished_at_ms) == (OUTPUT, OTHER_OUTPUT, ledger.now_ms)
    assert ended.cleanup is None
    assert ledger.intents() == {}
    assert events(ledger, task.id)[1:] == [("daemon", "failed", "running", "failed", "badly")]


@pytest.mark.parametrize(("ended_before_ms", "expected_before_ms"), [(0, 0), (3, 3), (999_999, 10)])
def test_work_that_ended_unwatched_has_the_time_of_its_end(
    ledger: Ledger, ended_before_ms: int, expected_before_ms: int
) -> None:
    """The finish time is when the work ended, not when it was settled, and never before it started."""
    task = ledger.running()
    ledger.now_ms += 10
    outcome = FAILED._replace(ended_at_ms=ledger.now_ms - ended_before_ms)
    assert ledger(store.promise, task.id, HERE, outcome, OUTPUT, None, False, False)

    ended = ledger(store.settle, task.id, HERE, "failed", OUTPUT).task

    assert ended.finished_at_ms == ledger.now_ms - expected_before_ms


def test_a_later_promise_takes_the_place_of_an_earlier(ledger: Ledger) -> None:
    """One promise a task: the last one made is the one that holds, in every field."""
    task = ledger.promised(COMPLETED)

    assert ledger(store.promise, task.id, HERE, FAILED, OTHER_OUTPUT, OUTPUT, True, True)

    assert not ledger(store.settle, task.id, HERE, "completed", OUTPUT).won
    (row,) = ledger.rows("SELECT * FROM settlement_intent")
    assert row[4:-1] == (*FAILED[:5], *OTHER_OUTPUT, *OUTPUT, 1, 1, None)
    assert ledger(store.settle, task.id, HERE, "failed", OTHER_OUTPUT).won


@pytest.mark.parametrize("stranger", STRANGERS)
def test_only_the_owner_promises_settles_and_ends(ledger: Ledger, stranger: Any) -> None:
    """PID, start and boot all have to be the row's: whoever differs in one of them changes nothing."""
    task = ledger.promised()
    before = ledger.rows("SELECT * FROM task, settlement_intent")

    assert not ledger(store.promise, task.id, stranger, FAILED, OTHER_OUTPUT, None, False, False)
    assert not ledger(store.record_worker, task.id, stranger, WORKER)
    assert ledger(store.beat, stranger, 99, [task.id]) == 0
    assert ledger(store.settle, task.id, stranger, "completed", OUTPUT) == store.Ended(False, task)
    assert ledger(store.end_running, task.id, stranger, CANCELLED, True, "x") == store.Ended(False, task)
    assert ledger(store.take_over, task.id, stranger, NEIGHBOUR, WORKER, 0) is None
    assert ledger.rows("SELECT * FROM task, settlement_intent") == before


@pytest.mark.parametrize(("status", "output"), [("failed", OUTPUT), ("completed", OTHER_OUTPUT)])
def test_only_what_was_promised_is_settled(ledger: Ledger, status: str, output: Any) -> None:
    """Another status or other bytes than the promise has change nothing."""
    task = ledger.promised(COMPLETED)

    assert ledger(store.settle, task.id, HERE, status, output) == store.Ended(False, task)
    assert ledger.intents() == {task.id: "completed"}


def test_nothing_is_settled_without_a_promise(ledger: Ledger) -> None:
    """No promise, no outcome of the work."""
    task = ledger.running()

    assert ledger(store.settle, task.id, HERE, "completed", OUTPUT) == store.Ended(False, task)


def test_a_promise_of_an_earlier_owner_is_not_the_new_ones(ledger: Ledger) -> None:
    """After a take-over only a promise of the new owner can be settled."""
    task = ledger.promised()
    assert ledger(store.take_over, task.id, HERE, NEIGHBOUR, None, 0)

    assert not ledger(store.settle, task.id, HERE, "completed", OUTPUT).won
    assert not ledger(store.settle, task.id, NEIGHBOUR, "completed", OUTPUT).won
    assert ledger(store.promise, task.id, NEIGHBOUR, FAILED, OUTPUT, None, False, False)
    assert ledger(store.settle, task.id, NEIGHBOUR, "failed", OUTPUT).won


# --- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ENDS, ids=lambda outcome: outcome.status)
@pytest.mark.parametrize("processes", [False, True])
def test_an_end_by_decision(ledger: Ledger, outcome: Outcome, processes: bool) -> None:
    """The row says how and why it ended and whether processes may live; a promise goes with it; the log has it."""
    task = ledger.promised()

    answer = ledger(store.end_running, task.id, HERE, outcome, processes, "uid:1000")

    ended = ledger.task(task.id)
    assert answer == store.Ended(True, ended)
    assert (ended.status, ended.error_code, ended.error_message) == (outcome.status, *outcome[3:5])
    assert (ended.finished_at_ms, ended.cleanup) == (ledger.now_ms, "pending" if processes else None)
    assert ledger.intents() == {}
    told = ("uid:1000", outcome.status, "running", outcome.status, outcome.error_message)
    assert events(ledger, task.id)[1:] == [told]


@pytest.mark.parametrize("outcome", [CANCELLED, FAILED], ids=lambda outcome: outcome.status)
def test_a_queued_task_ends_without_having_run(ledger: Ledger, outcome: Outcome) -> None:
    """Cancelled or failed from the queue: no owner, no clean-up, and nothing claims it any more."""
    task = ledger.queued()

    answer = ledger(store.end_queued, task.id, outcome, "uid:1000")

    ended = ledger.task(task.id)
    assert answer == store.Ended(True, ended)
    assert (ended.status, ended.owner, ended.cleanup, ended.finished_at_ms) == (
        outcome.status, None, None, ledger.now_ms,
    )  # fmt: skip
    assert ledger(store.claim, HERE, 0, 5, {"writer": 5}) == []
    told = ("uid:1000", outcome.status, "queued", outcome.status, outcome.error_message)
    assert events(ledger, task.id)[1:] == [told]


def test_a_paused_task_can_be_cancelled(ledger: Ledger) -> None:
    """What waits for something outside ends like what waits in the queue, and the log names the state it was in."""
    task = ledger.running()
    ledger.rows("UPDATE task SET status = 'paused' WHERE id = ?", task.id)

    assert ledger(store.end_queued, task.id, CANCELLED, "uid:1000").won

    told = ("uid:1000", "cancelled", "paused", "cancelled", "nobody wants it")
    assert events(ledger, task.id)[1:] == [told]


def attempts(ledger: Ledger, task: Task) -> list[store.Ended]:
    """Everything that could end a task, tried on one."""
    return [
        ledger(store.settle, task.id, HERE, "completed", OUTPUT),
        ledger(store.settle, task.id, HERE, "failed", OUTPUT),
        ledger(store.end_queued, task.id, CANCELLED, "x"),
        *(ledger(store.end_running, task.id, HERE, outcome, True, "x") for outcome in ENDS),
        ledger(store.clean, task.id, CleanUp({}, exit_code=9, output=OTHER_OUTPUT)),
    ]


@pytest.mark.parametrize("first", range(6))
def test_the_first_end_stays(ledger: Ledger, first: int) -> None:
    """Once a task has ended nothing changes it: everyone who comes later is told of the end that won."""
    task = ledger.promised(FAILED if first == 1 else COMPLETED)
    ways: list[Callable[[], store.Ended]] = [
        lambda: ledger(store.settle, task.id, HERE, "completed", OUTPUT),
        lambda: ledger(store.settle, task.id, HERE, "failed", OUTPUT),
        *(lambda outcome=outcome: ledger(store.end_running, task.id, HERE, outcome, False, "y") for outcome in ENDS),
    ]
    assert ways[first]().won
    ended, told = ledger.task(task.id), events(ledger, task.id)

    answers = attempts(ledger, task)

    assert answers == [store.Ended(False, ended)] * len(answers)
    assert not ledger(store.promise, task.id, HERE, COMPLETED, OTHER_OUTPUT, None, False, False)
    assert ledger(store.take_over, task.id, HERE, NEIGHBOUR, None, 0) is None
    assert ledger.task(task.id) == ended
    assert events(ledger, task.id) == told


def test_a_loser_takes_its_promise_away(ledger: Ledger) -> None:
    """A promise that an end left behind goes when its maker comes to settle and loses; one beside a running row stays.

    No function leaves such a promise; a row that was written by hand does."""
    ended, running = ledger.promised(), ledger.promised()
    ledger.rows("UPDATE task SET status = 'cancelled', finished_at_ms = 1 WHERE id = ?", ended.id)

    assert not ledger(store.settle, ended.id, HERE, "completed", OUTPUT).won
    assert not ledger(store.settle, running.id, NEIGHBOUR, "completed", OUTPUT).won

    assert ledger.intents() == {running.id: "completed"}


def test_stale_promises_are_forgotten(ledger: Ledger) -> None:
    """Promises beside rows that do not run go, in one sweep; the others stay."""
    ended, running = ledger.promised(), ledger.promised()
    ledger.rows("UPDATE task SET status = 'cancelled', finished_at_ms = 1 WHERE id = ?", ended.id)

    assert ledger(store.forget_stale_intents) == 1
    assert ledger(store.forget_stale_intents) == 0
    assert ledger.intents() == {running.id: "completed"}


# --- worker, owner, heartbeat, clean-up ----------------------------------------------------------------------


def test_a_worker_is_recorded_once(ledger: Ledger) -> None:
    """The first worker stays: a second record changes nothing. A queued task has none."""
    task = ledger.running()
    assert ledger(store.record_worker, task.id, HERE, WORKER)

    assert not ledger(store.record_worker, task.id, HERE, NEIGHBOUR)
    assert ledger.task(task.id).worker == WORKER
    assert not ledger(store.record_worker, ledger.queued().id, HERE, WORKER)


def test_a_worker_is_recorded_on_a_row_that_was_cancelled_meanwhile(ledger: Ledger) -> None:
    """A cancel between spawn and record must not hide the process from the clean-up."""
    task = ledger.running()
    ledger(store.end_running, task.id, HERE, CANCELLED, True, "x")

    assert ledger(store.record_worker, task.id, HERE, WORKER)
    assert ledger.task(task.id).worker == WORKER


def test_a_dead_owners_row_is_taken_over_once(ledger: Ledger) -> None:
    """The new owner has the row, its heartbeat is fresh, a known worker stays; a second taker comes too late."""
    task = ledger.running()

    taken = ledger(store.take_over, task.id, HERE, NEIGHBOUR, WORKER, 9)

    assert taken == ledger.task(task.id)
    assert taken is not None
    assert (taken.owner, taken.worker, taken.heartbeat_mono_ms) == (NEIGHBOUR, WORKER, 9)
    assert taken.deadline_mono_ms == task.deadline_mono_ms
    assert ledger(store.take_over, task.id, HERE, OWNERS[1], None, 9) is None
    again = ledger(store.take_over, task.id, NEIGHBOUR, HERE, OWNERS[1], 9)
    assert again is not None
    assert (again.owner, again.worker) == (HERE, WORKER)
    assert [event[1] for event in events(ledger, task.id)] == ["submitted", "adopted", "adopted"]


def test_a_heartbeat_touches_the_owners_running_rows(ledger: Ledger) -> None:
    """Only rows that run and are ours are refreshed, and the answer says how many they are."""
    mine, ended, others = ledger.running(), ledger.running(), ledger.running(NEIGHBOUR)
    ledger(store.end_running, ended.id, HERE, CANCELLED, False, "x")
    ledger.now_ms += 5

    assert ledger(store.beat, HERE, 77, [mine.id, ended.id, others.id, "unknown"]) == 1
    beats = [ledger.task(each.id).heartbeat_mono_ms for each in (mine, ended, others)]
    assert beats == [77, 0, 0]
    assert ledger.task(mine.id).heartbeat_at_ms == ledger.now_ms


def test_a_clean_up_keeps_what_the_work_left(ledger: Ledger) -> None:
    """Exit code, signal and output of a cancelled task are kept once its processes are gone, and only once."""
    task = ledger.running()
    ledger(store.end_running, task.id, HERE, CANCELLED, True, "x")
    done = CleanUp({"left": []}, exit_code=0, signal=15, output=OUTPUT, stderr=OTHER_OUTPUT, truncated=True)

    answer = ledger(store.clean, task.id, done)

    row = ledger.task(task.id)
    assert answer == store.Ended(True, row)
    assert (row.status, row.cleanup, row.cleanup_report) == ("cancelled", "done", '{"left": []}')
    assert (row.exit_code, row.signal, row.output, row.stderr, row.truncated) == (0, 15, OUTPUT, OTHER_OUTPUT, 1)
    assert ledger(store.clean, task.id, done._replace(output=OTHER_OUTPUT)) == store.Ended(False, row)
    assert events(ledger, task.id)[2:] == [("daemon", "cleaned", None, None, None)]


def test_a_clean_up_does_not_overwrite_the_outcome(ledger: Ledger) -> None:
    """What was settled stays: a clean-up of left-over processes adds only what was not known."""
    task = ledger.promised(leftovers=True)
    settled = ledger(store.settle, task.id, HERE, "completed", OUTPUT).task
    assert settled.cleanup == "pending"

    row = ledger(store.clean, task.id, CleanUp({}, exit_code=1, signal=9, output=OTHER_OUTPUT)).task

    assert (row.status, row.exit_code, row.output, row.finished_at_ms) == (
        "completed", 0, OUTPUT, settled.finished_at_ms,
    )  # fmt: skip


# --- again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [FAILED, TIMED_OUT, LOST], ids=lambda outcome: outcome.status)
def test_what_ended_badly_is_tried_again(ledger: Ledger, outcome: Outcome) -> None:
    """In the transaction of the end a new attempt is queued, linked to the old one, until none is left."""
    task = ledger.running(retries=2, labels='{"k":"v"}', inputs=(("a", OUTPUT),), priority=4, idempotency_key="k")
    chain = [task]
    for _ in range(2):
        retry = ledger(store.end_running, chain[-1].id, HERE, outcome, False, "x").retry
        assert retry is not None
        (started,) = ledger(store.claim, HERE, 0, 5, {"writer": 5})
        assert started.id == retry.id
        chain.append(started)

    assert ledger(store.end_running, chain[-1].id, HERE, outcome, False, "x").retry is None
    assert [(each.attempt, each.retries_left) for each in chain] == [(1, 2), (2, 1), (3, 0)]
    for old, new in pairwise(chain):
        assert new.retry_of == old.id
        same = ("kind", "agent", "prompt", "priority", "timeout_ms", "creator", "principal", "labels", "env", "chain")
        assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
        assert ledger.rows("SELECT name, sha256 FROM task_input WHERE task_seq = ?", new.seq) == [("a", OUTPUT.sha256)]
    assert chain[1].idempotency_key is None
    assert ledger.counted() == {outcome.status: 3}


@pytest.mark.parametrize("settled", [False, True])
def test_what_may_still_live_is_not_tried_again_yet(ledger: Ledger, settled: bool) -> None:
    """While processes of the old attempt may live no new one starts; the clean-up brings it, once."""
    task = ledger.promised(FAILED, leftovers=True, retries=1)
    if settled:
        ended = ledger(store.settle, task.id, HERE, "failed", OUTPUT)
    else:
        ended = ledger(store.end_running, task.id, HERE, TIMED_OUT, True, "x")
    assert ended.retry is None
    assert "queued" not in ledger.counted()

    cleaned = ledger(store.clean, task.id, CleanUp({}))

    assert cleaned.retry is not None
    assert cleaned.retry.retry_of == task.id
    assert ledger(store.clean, task.id, CleanUp({})).retry is None
    assert ledger.counted()["queued"] == 1


def test_what_ended_well_or_was_cancelled_is_not_tried_again(ledger: Ledger) -> None:
    """Retries are for work that failed, was lost or ran out of time."""
    done, unwanted, queued = ledger.promised(retries=1), ledger.running(retries=1), ledger.queued(retries=1)

    assert ledger(store.settle, done.id, HERE, "completed", OUTPUT).retry is None
    assert ledger(store.end_running, unwanted.id, HERE, CANCELLED, False, "x").retry is None
    assert ledger(store.end_queued, queued.id, CANCELLED, "x").retry is None
    assert ledger.counted() == {"completed": 1, "cancelled": 2}


def test_a_task_has_one_next_attempt(ledger: Ledger) -> None:
    """The database refuses a second attempt in the place of the same task."""
    task = ledger.running(retries=1)
    ledger(store.end_running, task.id, HERE, FAILED, False, "x")

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed"):
        ledger.queued(retry_of=task.id)


# --- how it is shown -----------------------------------------------------------------------------------------


def test_a_task_is_shown_as_the_contract_says(ledger: Ledger) -> None:
    """The public form has every key at every stage, with artifacts as paths and times as text."""
    queued = public(ledger.queued(labels='{"k":"v"}'), lambda sha256: f"/artifacts/{sha256}")
    task = ledger.promised(FAILED)
    ledger(store.record_worker, task.id, HERE, WORKER)
    ended = ledger(store.settle, task.id, HERE, "failed", OUTPUT).task

    shown = public(ended, lambda sha256: f"/artifacts/{sha256}")

    assert shown.keys() == queued.keys()
    assert shown["error"] == {"code": "exit_code", "message": "it ended with exit code 3"}
    assert shown["output"] == {"sha256": OUTPUT.sha256, "size_bytes": 5, "path": f"/artifacts/{OUTPUT.sha256}"}
    assert shown["owner"] == {"pid": 100, "started": "5000", "boot_id": "boot-1"}
    assert shown["worker"] == {"pid": 300, "started": "7000"}
    assert shown["finished_at"] == "2025-06-15T15:06:40.000Z"
    assert (queued["owner"], queued["worker"], queued["output"], queued["error"]) == (None, None, None, None)
    assert queued["labels"] == {"k": "v"}


DIGESTS = st.sampled_from(("a" * 64, "A" * 64, "short", ""))
SIZES = st.sampled_from((-1, 0, 5))
WORDS = st.none() | st.sampled_from(("", "text"))


@given(
    promise=st.fixed_dictionaries(
        {
            "status": st.sampled_from(("completed", "failed")),
            "exit_code": st.none() | st.integers(-1, 300),
            "error_code": WORDS,
            "error_message": WORDS,
            "output_sha256": DIGESTS,
            "output_bytes": SIZES,
            "stderr_sha256": st.none() | DIGESTS,
            "stderr_bytes": st.none() | SIZES,
            "truncated": st.integers(-1, 2),
            "leftovers": st.integers(-1, 2),
        }
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_promise_is_settled_or_said_to_be_at_fault(ledger: Ledger, promise: dict[str, Any]) -> None:
    """Whatever a stored promise looks like: either ``fault`` names what is wrong with it, or it can be settled."""
    task = ledger.promised()
    columns = ", ".join(f"{name} = ?" for name in promise)
    ledger.rows(f"UPDATE settlement_intent SET {columns} WHERE task_id = ?", *promise.values(), task.id)

    intent = ledger(store.read_intent, task.id)

    assert intent is not None
    output = Artifact(promise["output_sha256"], promise["output_bytes"])
    assert intent.fault() is not None or ledger(store.settle, task.id, HERE, promise["status"], output).won


def test_a_paused_task_that_is_ended_leaves_no_promise(ledger: Ledger) -> None:
    """Its promise goes with it, as it does for one that runs."""
    task = ledger.promised()
    ledger.rows("UPDATE task SET status = 'paused' WHERE id = ?", task.id)

    assert ledger(store.end_queued, task.id, CANCELLED, "uid:1000").won

    assert ledger.intents() == {}


def test_a_retry_has_the_queue_time_of_its_task(ledger: Ledger) -> None:
    """A new attempt may wait as long as the first one might; the log says that the daemon made it."""
    task = ledger.running(retries=1, queue_timeout_ms=5_000)

    retry = ledger(store.end_running, task.id, HERE, FAILED, False, "uid:1000").retry

    assert retry is not None
    assert retry.queue_deadline_ms == ledger.now_ms + 5_000
    assert ledger.rows("SELECT actor FROM event WHERE subject_id = ?", retry.id) == [("daemon",)]


def test_a_paused_task_gets_no_worker(ledger: Ledger) -> None:
    """A worker is recorded for what runs, or ran; anything else is an answer, not an error."""
    task = ledger.running()
    ledger.rows("UPDATE task SET status = 'paused' WHERE id = ?", task.id)

    assert not ledger(store.record_worker, task.id, HERE, WORKER)


def test_no_slot_claims_nothing(ledger: Ledger) -> None:
    """A negative number of free slots is none, and not all."""
    ledger.queued()

    assert ledger(store.claim, HERE, 0, 5, {"writer": -1}) == []


def test_a_damaged_column_hides_no_row(ledger: Ledger) -> None:
    """Text that is no JSON any more is shown as empty, and the row is shown."""
    task = ledger.running()._replace(labels="x", source="", chain="[", cleanup_report="{", usage="?")

    shown = public(task, str)

    assert (shown["labels"], shown["source"], shown["chain"]) == ({}, {}, [])
    assert (shown["leftovers"], shown["usage"], shown["id"]) == (None, None, task.id)
