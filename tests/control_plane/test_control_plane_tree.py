"""Trees of tasks: what ends with what, who may see whom, and what may be spent."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger import (
    CANCELLED,
    COMPLETED,
    FAILED,
    HERE,
    LOST,
    NEIGHBOUR,
    OUTPUT,
    TIMED_OUT,
    Ledger,
    new_task,
    open_unsynced,
)  # fmt: skip

from pawl.control_plane import budget, store
from pawl.control_plane.model import PolicyText, Task
from pawl.control_plane.statements import Q
from pawl.errors import ActionsExhausted, CallerEnded, CostExhausted, IdempotencyConflict, PawlError

MINUTE_MS = 60_000


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(open_unsynced(str(tmp_path / "pawl.db")))
    yield made
    made.connection.close()


def policy(actions: int | None = 100, cost: float | None = None) -> PolicyText:
    micros = None if cost is None else round(cost * budget.MICROS)
    text = json.dumps({"max_actions_per_hour": actions, "max_cost_per_day_micros": micros})
    return PolicyText(hashlib.sha256(text.encode()).hexdigest(), text)


def child(ledger: Ledger, parent: Task, *, owner: Any = HERE, asked: bool = True, **changes: Any) -> Task:
    """A task that another asked for from inside; queued without an owner."""
    fields = {
        "parent_id": parent.id, "creator": parent.agent, "principal": f"task:{parent.id}", "mode": "bounded",
        "depth": parent.depth + 1, "asked_by": parent.id if asked else None, "actions": int(asked), "policy": policy(),
    } | changes  # fmt: skip
    return ledger(store.submit, new_task(**fields), owner, 0).task


def subagent(ledger: Ledger, parent: Task, **changes: Any) -> Task:
    return child(ledger, parent, kind="subagent", creator=None, principal=None, agent=parent.agent, **changes)


def root(ledger: Ledger, **changes: Any) -> Task:
    return ledger.running(**({"policy": policy(), "creator": "operator"} | changes))


def status(ledger: Ledger, task: Task) -> str:
    return ledger.task(task.id).status


def end(ledger: Ledger, task: Task, outcome: Any) -> store.Ended:
    return ledger(store.end_running, task.id, HERE, outcome, True, "somebody")


# --- what ends with what ----------------------------------------------------------------------------------------


def test_a_cancelled_task_takes_all_below_it_along(ledger: Ledger) -> None:
    """In one transaction: running, queued and paused ones, sub-agents, and those below something that has ended."""
    top = root(ledger)
    running = child(ledger, top)
    ended = child(ledger, top)
    deep = child(ledger, child(ledger, ended), owner=None)
    helper = subagent(ledger, running)
    paused = child(ledger, top)
    ledger.rows("UPDATE task SET status = 'paused', worker_pid = NULL WHERE id = ?", paused.id)
    end(ledger, ended, FAILED)
    stranger = root(ledger)
    hers = child(ledger, stranger)

    done = end(ledger, top, CANCELLED)

    assert done.won
    living = {task.id for task in (running, deep, helper, paused, ledger.task(deep.parent_id or ""))}
    assert set(done.below) == living
    assert {status(ledger, ledger.task(each)) for each in living} == {"cancelled"}
    assert ledger.task(deep.id).cleanup is None
    assert ledger.task(running.id).cleanup == "pending"
    assert ledger.task(running.id).error_message == f"task {top.id} above it was cancelled"
    assert (status(ledger, ended), status(ledger, stranger), status(ledger, hers)) == ("failed", "running", "running")
    assert ledger.counts() == ledger.counted()
    assert ledger.audit_fault() is None


@pytest.mark.parametrize("outcome", [FAILED, TIMED_OUT, LOST])
def test_a_task_that_ends_badly_takes_its_subagents_along(ledger: Ledger, outcome: Any) -> None:
    """They are part of it; what was delegated goes on. What hangs below a sub-agent goes with the sub-agent."""
    top = root(ledger)
    helper, waiting, delegated = subagent(ledger, top), subagent(ledger, top, owner=None), child(ledger, top)
    below = child(ledger, helper)

    done = end(ledger, top, outcome)

    assert set(done.below) == {helper.id, waiting.id, below.id}
    assert [status(ledger, each) for each in (helper, waiting, below)] == ["cancelled"] * 3
    assert status(ledger, delegated) == "running"
    assert ledger.task(helper.id).error_message == f"its parent {top.id} ended ({outcome.status})"


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED])
def test_a_settled_task_takes_its_subagents_along(ledger: Ledger, outcome: Any) -> None:
    """Also the one that ended well while a sub-agent still ran."""
    top = ledger.promised(outcome, policy=policy())
    helper, delegated = subagent(ledger, top), child(ledger, top)

    done = ledger(store.settle, top.id, HERE, outcome.status, OUTPUT)

    assert done.won
    assert done.below == (helper.id,)
    assert (status(ledger, helper), status(ledger, delegated)) == ("cancelled", "running")


def test_a_task_of_a_dead_owner_is_ended_with_its_tree(ledger: Ledger) -> None:
    """Whoever owns a row below: it is cancelled, and cleaned up after by whoever takes it over."""
    top = root(ledger)
    lost = child(ledger, top, owner=NEIGHBOUR)

    end(ledger, top, CANCELLED)

    row = ledger.task(lost.id)
    assert (row.status, row.cleanup, row.owner) == ("cancelled", "pending", NEIGHBOUR)


def test_the_promise_of_a_task_below_goes_with_it(ledger: Ledger) -> None:
    top = root(ledger)
    below = child(ledger, top)
    assert ledger(store.promise, below.id, HERE, COMPLETED, OUTPUT, None, False, False)

    end(ledger, top, CANCELLED)

    assert ledger.intents() == {}
    assert not ledger(store.settle, below.id, HERE, "completed", OUTPUT).won


def test_a_cancelled_task_gets_no_children_any_more(ledger: Ledger) -> None:
    """The status of whoever asks is looked at in the transaction that stores what it asks for."""
    top = root(ledger)
    end(ledger, top, CANCELLED)

    with pytest.raises(CallerEnded, match="cancelled"):
        child(ledger, top)

    assert ledger.counted() == {"cancelled": 1}
    assert ledger.rows("SELECT * FROM spent") == []


def test_no_attempt_follows_into_a_cancelled_tree(ledger: Ledger) -> None:
    """One that failed and was still being cleaned up after when its tree was cancelled is not tried again."""
    top = root(ledger)
    failing, other = child(ledger, top, retries=1), child(ledger, top, retries=1)
    end(ledger, failing, FAILED)
    end(ledger, other, FAILED)
    assert ledger(store.clean, other.id, store.CleanUp({})).retry is not None

    end(ledger, top, CANCELLED)

    assert ledger(store.clean, failing.id, store.CleanUp({})).retry is None
    assert ledger.counted() == {"cancelled": 2, "failed": 2}


def test_cancelling_an_attempt_ends_what_earlier_ones_started(ledger: Ledger) -> None:
    first = root(ledger, retries=1)
    started = child(ledger, first)
    end(ledger, first, FAILED)
    again = ledger(store.clean, first.id, store.CleanUp({})).retry
    assert again is not None

    done = ledger(store.end_queued, again.id, CANCELLED, "somebody")

    assert done.below == (started.id,)
    assert status(ledger, started) == "cancelled"


def test_no_attempt_follows_into_a_tree_whose_later_attempt_was_cancelled(ledger: Ledger) -> None:
    """What an earlier attempt started is of the same tree."""
    first = root(ledger, retries=1)
    started = child(ledger, first, retries=1)
    end(ledger, first, FAILED)
    again = ledger(store.clean, first.id, store.CleanUp({})).retry
    assert again is not None
    end(ledger, started, TIMED_OUT)

    ledger(store.end_queued, again.id, CANCELLED, "somebody")

    assert ledger(store.clean, started.id, store.CleanUp({})).retry is None


def test_the_operator_puts_nothing_below_what_was_cancelled(ledger: Ledger) -> None:
    """Below what has ended otherwise he may: it is a place in the tree, and no permission."""
    ended, cancelled = root(ledger), root(ledger)
    end(ledger, ended, FAILED)
    end(ledger, cancelled, CANCELLED)

    assert child(ledger, ended, asked=False).status == "running"
    with pytest.raises(PawlError) as refused:
        child(ledger, cancelled, asked=False)
    assert refused.value.code == "refused_by_state"


# --- sub-agents -------------------------------------------------------------------------------------------------


def test_a_subagent_leaves_much_absent(ledger: Ledger) -> None:
    """No creator, no chain, no principal, no heartbeat; also when it was queued, taken over, or says how far it is."""
    top = root(ledger, timeout_ms=5 * MINUTE_MS)
    at_once, queued = subagent(ledger, top), subagent(ledger, top, owner=None)
    claimed = ledger(store.claim, HERE, 77, 5, {top.agent: 5})
    taken = ledger(store.take_over, at_once.id, HERE, NEIGHBOUR, None, 99)
    ledger(store.record_progress, queued.id, "half", None, 99)
    ledger(store.beat, HERE, 99, [queued.id])

    assert [task.id for task in claimed] == [queued.id]
    for task in (at_once, taken, ledger.task(queued.id)):
        assert task is not None
        assert (task.creator, task.chain, task.principal) == (None, "[]", None)
        assert (task.heartbeat_at_ms, task.heartbeat_mono_ms) == (None, None)


def test_a_subagent_must_leave_them_absent(ledger: Ledger) -> None:
    """The database itself holds it."""
    with pytest.raises(sqlite3.IntegrityError, match="a sub-agent has a parent"):
        ledger.queued(kind="subagent", creator="somebody", parent_id="p")
    with pytest.raises(sqlite3.IntegrityError, match="a sub-agent has a parent"):
        ledger.queued(kind="subagent", creator=None, principal=None)


def test_a_subagent_has_its_parents_deadline(ledger: Ledger) -> None:
    """Where that is nearer than its own timeout, on both clocks, whether it starts at once or later."""
    top = root(ledger, timeout_ms=MINUTE_MS)
    ledger.now_ms += 1_000
    long = subagent(ledger, top, timeout_ms=10 * MINUTE_MS)
    short = subagent(ledger, top, timeout_ms=MINUTE_MS // 2)
    queued = subagent(ledger, top, owner=None, timeout_ms=10 * MINUTE_MS)
    (claimed,) = ledger(store.claim, HERE, 1_000, 1, {top.agent: 1})
    delegated = child(ledger, top, timeout_ms=10 * MINUTE_MS)

    assert (long.deadline_at_ms, long.deadline_mono_ms) == (top.deadline_at_ms, top.deadline_mono_ms)
    assert short.deadline_at_ms == ledger.now_ms + MINUTE_MS // 2
    assert claimed.id == queued.id
    assert (claimed.deadline_at_ms, claimed.deadline_mono_ms) == (top.deadline_at_ms, top.deadline_mono_ms)
    assert delegated.deadline_at_ms == ledger.now_ms + 10 * MINUTE_MS


def test_the_request_key_of_a_subagent_is_its_parents(ledger: Ledger) -> None:
    """The same key from the same task is the same sub-agent; another task's is its own."""
    top, other = root(ledger), root(ledger)
    keyed = {"idempotency_key": "k", "request_sha256": "a"}
    first = subagent(ledger, top, **keyed)

    assert subagent(ledger, top, **keyed).id == first.id
    assert subagent(ledger, other, **keyed).id != first.id
    with pytest.raises(IdempotencyConflict):
        subagent(ledger, top, idempotency_key="k", request_sha256="b")
    assert len(ledger.rows("SELECT * FROM spent WHERE holder_id = ?", top.id)) == 1


# --- who may see whom -------------------------------------------------------------------------------------------


def viewers(ledger: Ledger, task: Task) -> set[str]:
    return {alias for (alias,) in ledger.rows("SELECT alias FROM task_viewer WHERE task_seq = ?", task.seq)}


def test_a_task_exists_for_its_creator_and_its_chain(ledger: Ledger) -> None:
    """And for nobody else: the operator's own needs no entry, one older than creators has none."""
    of_operator = ledger.queued(creator="operator")
    older = ledger.queued(creator=None)
    plain = ledger.queued(creator="boss")
    deep = ledger.queued(creator="worker", chain='["chief", "boss"]')

    assert [viewers(ledger, each) for each in (of_operator, older, plain, deep)] == [
        set(), set(), {"boss"}, {"worker", "chief", "boss"},
    ]  # fmt: skip


def test_a_subagent_exists_for_whom_its_parent_does(ledger: Ledger) -> None:
    """And for its parent: its own row leaves creator and chain absent."""
    top = root(ledger, agent="boss", creator="chief", chain='["president"]')

    assert viewers(ledger, subagent(ledger, top)) == {"boss", "chief", "president"}


def test_the_principal_opens_nothing(ledger: Ledger) -> None:
    """It is recorded, and appears in no statement that looks tasks up."""
    task = ledger.queued(creator="boss", principal="task:somebody")

    assert viewers(ledger, task) == {"boss"}
    reading = [name for name, sql in vars(Q).items() if "principal" in sql]
    assert reading == ["insert_task"]


# --- what may be spent ------------------------------------------------------------------------------------------


def test_a_budget_is_shared_by_all_below_a_task(ledger: Ledger) -> None:
    """Whoever of the tree asks, it counts against everybody above."""
    top = root(ledger, policy=policy(3))
    first = child(ledger, top)
    second = child(ledger, first)
    child(ledger, second)

    for asker in (top, first, second):
        with pytest.raises(ActionsExhausted) as refused:
            child(ledger, asker)
        assert refused.value.details["holder"] == top.id
    assert ledger.counted() == {"running": 4}


def test_a_nearer_budget_may_be_smaller(ledger: Ledger) -> None:
    """It holds for what is below it; the rest of the tree goes on."""
    top = root(ledger, policy=policy(10))
    small = child(ledger, top, policy=policy(1))
    child(ledger, small)

    with pytest.raises(ActionsExhausted) as refused:
        child(ledger, small)

    assert refused.value.details["holder"] == small.id
    assert child(ledger, top).status == "running"


def test_an_independent_task_has_a_budget_of_its_own(ledger: Ledger) -> None:
    top = root(ledger, policy=policy(1))
    free = child(ledger, top, mode="independent", policy=policy(2))

    child(ledger, free)
    child(ledger, free)

    with pytest.raises(ActionsExhausted) as refused:
        child(ledger, free)
    assert refused.value.details["holder"] == free.id


def test_a_request_takes_all_its_actions_or_none(ledger: Ledger) -> None:
    top = root(ledger, policy=policy(3))

    with pytest.raises(ActionsExhausted):
        child(ledger, top, actions=4)
    child(ledger, top, actions=3)
    with pytest.raises(ActionsExhausted):
        child(ledger, top)


def test_nothing_is_taken_for_what_is_refused(ledger: Ledger) -> None:
    """Neither for a repetition, nor for several of which one is refused."""
    top = root(ledger, policy=policy(2))
    keyed = {"idempotency_key": "k", "request_sha256": "a"}
    child(ledger, top, **keyed)
    child(ledger, top, **keyed)
    asked = [
        (new_task(asked_by=top.id, actions=1, parent_id=top.id, creator="writer"), None),
        (new_task(asked_by=top.id, actions=1, parent_id=top.id, creator="writer"), None),
    ]

    with pytest.raises(ActionsExhausted):
        ledger(store.submit_all, asked, 0)

    assert ledger.rows("SELECT sum(amount) FROM spent WHERE holder_id = ?", top.id) == [(1,)]
    assert len(ledger.rows("SELECT * FROM task")) == 2


@pytest.mark.parametrize("left", [0, 1])
def test_actions_come_back_after_an_hour(ledger: Ledger, left: int) -> None:
    """Each for itself: the span slides. The refusal says when."""
    top = root(ledger, policy=policy(2))
    child(ledger, top)
    ledger.now_ms += 10 * MINUTE_MS
    child(ledger, top)
    with pytest.raises(ActionsExhausted) as refused:
        child(ledger, top)
    assert refused.value.details["retry_at"] is not None

    ledger.now_ms += 50 * MINUTE_MS - 1 + left

    if left:
        child(ledger, top)
    with pytest.raises(ActionsExhausted):
        child(ledger, top)


def test_a_budget_of_nothing_says_never(ledger: Ledger) -> None:
    top = root(ledger, policy=policy(0))

    with pytest.raises(ActionsExhausted, match="never enough") as refused:
        child(ledger, top)

    assert refused.value.details["retry_at"] is None


def test_cost_that_is_used_up_refuses_what_comes(ledger: Ledger) -> None:
    """What was reported counts up the tree, for a day; an independent one's counts for itself."""
    top = root(ledger, policy=policy(100, cost=1.0))
    worker = child(ledger, top)
    apart = child(ledger, top, mode="independent")
    ledger(store.record_usage, apart.id, 0, 5_000_000, None, None)
    child(ledger, top)

    ledger(store.record_usage, worker.id, 10, 1_000_000, "large", None)

    for asker in (top, worker):
        with pytest.raises(CostExhausted) as refused:
            child(ledger, asker)
        assert refused.value.details["holder"] == top.id
    child(ledger, apart)
    ledger.now_ms += 24 * 60 * MINUTE_MS
    child(ledger, top)


def test_a_usage_report_counts_once(ledger: Ledger) -> None:
    """By its key; the row has the sums, by model too."""
    top = root(ledger)
    for key in ("a", "a", "b", None, None):
        ledger(store.record_usage, top.id, 10, 250_000, "large" if key == "a" else None, key)

    usage = json.loads(ledger.task(top.id).usage or "")

    assert (usage["tokens"], usage["cost"]) == (40, 1.0)
    assert usage["models"] == {"large": {"tokens": 10, "cost": 0.25}, "unknown": {"tokens": 30, "cost": 0.75}}


def test_a_retry_keeps_the_budget_of_its_first_attempt(ledger: Ledger) -> None:
    top = root(ledger, policy=policy(1), retries=1)
    child(ledger, top)
    end(ledger, top, FAILED)
    ledger(store.clean, top.id, store.CleanUp({}))
    (again,) = ledger(store.claim, HERE, 0, 1, {top.agent: 1})

    with pytest.raises(ActionsExhausted):
        child(ledger, again)

    assert again.policy_sha256 == top.policy_sha256


def test_a_task_without_a_policy_has_no_budget(ledger: Ledger) -> None:
    """Rows that are older than policies."""
    assert child(ledger, ledger.running()).status == "running"


def test_the_same_refusal_is_remembered_once(ledger: Ledger) -> None:
    """Whoever is refused may ask again and again."""
    top = root(ledger)
    for code, agent, message in (("a", "x", "1"), ("a", "x", "2"), ("b", "x", "3"), ("a", "y", "4")):
        ledger(store.refuse, top.id, message, {"agent": agent, "code": code})

    told = ledger.rows("SELECT reason, actor FROM event WHERE event = 'refused' ORDER BY seq")

    assert told == [(message, f"task:{top.id}") for message in ("1", "3", "4")]


def test_only_a_running_task_progresses(ledger: Ledger) -> None:
    """Each word of progress is a sign of life."""
    top = root(ledger)
    ledger.now_ms += 5

    said = ledger(store.record_progress, top.id, "half", "write", 42)

    row = ledger.task(top.id)
    assert json.loads(row.progress or "") == said == {"text": "half", "phase": "write", "at": said["at"]}
    assert (row.heartbeat_at_ms, row.heartbeat_mono_ms) == (ledger.now_ms, 42)
    end(ledger, top, CANCELLED)
    with pytest.raises(PawlError) as refused:
        ledger(store.record_progress, top.id, "more", None, 43)
    assert refused.value.code == "caller_ended"


def test_the_policy_that_a_task_starts_under_is_recorded(ledger: Ledger) -> None:
    top = root(ledger)
    narrowed = policy(7)

    assert ledger(store.record_policy, top.id, NEIGHBOUR, narrowed) is None
    assert ledger(store.record_policy, top.id, HERE, narrowed) == ledger.task(top.id)

    assert ledger.task(top.id).policy_sha256 == narrowed.sha256
    assert ledger.rows(Q.policy, narrowed.sha256) == [(narrowed.document,)]


@pytest.mark.parametrize(
    ("cost", "micros"),
    [(0.0, 0), (1e-9, 1), (4e-7, 1), (1e-6, 1), (1.0000001e-6, 2), (0.1, 100_000), (0.3, 300_000), (1.1, 1_100_000),
     (0.03, 30_000), (2.675, 2_675_000), (1e9, 10**15), (123456.789012, 123_456_789_012)],
)  # fmt: skip
def test_a_cost_is_never_counted_as_less_than_it_is(cost: float, micros: int) -> None:
    """Nor as more than the next millionth: what a float adds to a decimal number is not spent."""
    assert budget.micros(cost) == micros
