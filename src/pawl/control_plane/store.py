"""How a task is written. Only this module changes a status, and only by compare-and-set.

Each function is the whole of a logical transaction over a ``Transaction``. "No row changed" is an answer: it
means that somebody settled the task first, and the row that won comes back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from pawl import failpoints
from pawl.control_plane import audit, budget
from pawl.control_plane.model import CleanUp, Intent, NewTask, Outcome, PolicyText, Task
from pawl.control_plane.statements import Q
from pawl.errors import CallerEnded, IdempotencyConflict, RefusedByState
from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, Transaction
from pawl.values import rfc3339

RETRIED = frozenset({"failed", "timed_out", "lost"})
DAEMON = "daemon"
MODELS_MAX = 20  # that are told apart in what one task used: the sums are part of its row
OTHER_MODELS = "other"
ENDED_BELOW = "ended below"  # topic: rows that ended since one above them did, as they are now


class Submitted(NamedTuple):
    """The row of a submission, and whether it is new (an idempotency key may have brought back an older one)."""

    task: Task
    new: bool


Also = Callable[[Transaction, list[Submitted]], None]  # what an engine writes in the transaction of its tasks


class Ended(NamedTuple):
    """What an attempt to end a task came to: whether it was this one that ended it, the row as it is now, the new
    attempt that replaces it, and the ids of what ended with it."""

    won: bool
    task: Task
    retry: Task | None = None
    below: tuple[str, ...] = ()


def submit(tx: Transaction, new: NewTask, owner: ProcessIdentity | None, mono_ms: int) -> Submitted:
    """Store a task: running where an owner has a slot for it, else queued.

    Raises ``idempotency_conflict``; where a task asked for it, ``caller_ended`` and what ``budget.charge`` raises.
    """
    return submit_all(tx, [(new, owner)], mono_ms)[0]


def submit_all(
    tx: Transaction, tasks: list[tuple[NewTask, ProcessIdentity | None]], mono_ms: int, also: Also | None = None
) -> list[Submitted]:
    """Store the tasks of one request and what belongs to them, or nothing. An idempotency key is that of the whole
    request."""
    first = tasks[0][0]
    if first.idempotency_key is not None:
        rows = tx.execute(Q.by_key, (first.whose_key, first.idempotency_key)).fetchall()
        if rows:
            before = same_request(rows, first.idempotency_key, [new.request_sha256 for new, _ in tasks])
            return [Submitted(task, False) for task in before]
    stored = [_submit(tx, new, owner, mono_ms) for new, owner in tasks]
    if also is not None:
        also(tx, stored)
    return stored


def _submit(tx: Transaction, new: NewTask, owner: ProcessIdentity | None, mono_ms: int) -> Submitted:
    deadline: tuple[int | None, int | None] = (None, None)
    if new.asked_by is not None:
        deadline = _caller_runs(tx, new)
        budget.charge(tx, new.asked_by, new.actions)
    elif new.parent_id is not None and new.retry_of is None:
        _not_cancelled(tx, new.parent_id)
    status = "queued" if owner is None else "running"
    task = _insert(tx, new, owner, mono_ms, deadline if new.kind == "subagent" else (None, None))
    actor = f"task:{new.asked_by}" if new.asked_by else new.principal
    audit.record(
        tx, actor=DAEMON if new.retry_of else actor or DAEMON, subject=("task", task.id), event="submitted",
        change=(None, status),
        details={"agent": new.agent, "kind": new.kind} | ({"retry_of": new.retry_of} if new.retry_of else {})
        | ({"gates": new.why} if new.why else {}),
    )  # fmt: skip
    return Submitted(task, True)


def refuse(tx: Transaction, task_id: str, message: str, details: dict[str, Any]) -> None:
    """Remember that a task asked for something and was refused: once for each target (``details.agent``) and cause
    (``details.code``), for whoever is refused may ask again and again."""
    if tx.one(Q.refused_already, (task_id, details["code"], details["agent"])) is None:
        audit.record(
            tx, actor=f"task:{task_id}", subject=("task", task_id), event="refused", reason=message, details=details
        )


def claim(tx: Transaction, owner: ProcessIdentity, mono_ms: int, slots: int, agents: dict[str, int]) -> list[Task]:
    """Start the best queued tasks: at most ``slots`` in all and as many of each agent as ``agents`` says."""
    best: list[tuple[int, int]] = []
    for agent, free in agents.items():
        rows = tx.execute(Q.next_of_agent, (agent, max(0, min(free, slots)))).fetchall()
        best += [(-priority, seq) for priority, seq in rows]
    started = []
    for _, seq in sorted(best)[:slots]:
        row = tx.one(Q.claim, _owner(owner) | {"seq": seq, "now": tx.now_ms, "mono": mono_ms})
        if row is not None:
            task = Task._make(row)
            _event(tx, task, "started", ("queued", "running"))
            started.append(task)
    return started


def record_worker(tx: Transaction, task_id: str, owner: ProcessIdentity, worker: ProcessIdentity) -> bool:
    """Remember which process does the work."""
    return tx.execute(Q.record_worker, (*worker, task_id, *owner)).rowcount == 1


def promise(
    tx: Transaction,
    task_id: str,
    owner: ProcessIdentity,
    outcome: Outcome,
    output: Artifact,
    stderr: Artifact | None,
    truncated: bool,
    leftovers: bool,
) -> bool:
    """Store the settlement intent. False: the row has ended or changed hands, so nothing may be published."""
    values = _owner(owner) | outcome._asdict() | {
        "id": task_id, "now": tx.now_ms, "truncated": int(truncated), "leftovers": int(leftovers),
        "output_sha256": output.sha256, "output_bytes": output.size_bytes,
        "stderr_sha256": stderr and stderr.sha256, "stderr_bytes": stderr and stderr.size_bytes,
    }  # fmt: skip
    return tx.execute(Q.promise, values).rowcount == 1


def settle(
    tx: Transaction, task_id: str, owner: ProcessIdentity, status: str, output: Artifact, actor: str = DAEMON
) -> Ended:
    """Apply the intent and delete it, where the row is running, still this owner's and the intent unchanged."""
    values = _owner(owner) | {
        "id": task_id, "now": tx.now_ms, "status": status,
        "output_sha256": output.sha256, "output_bytes": output.size_bytes,
    }  # fmt: skip
    row = tx.one(Q.settle, values)
    failpoints.hit("settle.in_transaction")
    if row is None:
        return _lost_to(tx, task_id)
    tx.execute(Q.forget_promise, (task_id,))
    task = Task._make(row)
    _event(tx, task, status, ("running", status), reason=task.error_message, actor=actor)
    below = _end_below(tx, task, actor)
    return Ended(True, task, None if task.cleanup else _retry(tx, task), below)


def end_queued(tx: Transaction, task_id: str, outcome: Outcome, actor: str) -> Ended:
    """End a task that never started: cancelled, or failed."""
    values = {
        "id": task_id, "now": tx.now_ms, "status": outcome.status,
        "code": outcome.error_code, "message": outcome.error_message,
    }  # fmt: skip
    for statement, before in ((Q.end_queued, "queued"), (Q.end_paused, "paused")):
        row = tx.one(statement, values)
        if row is not None:
            tx.execute(Q.forget_promise, (task_id,))
            task = Task._make(row)
            _event(tx, task, outcome.status, (before, outcome.status), reason=outcome.error_message, actor=actor)
            return Ended(True, task, None, _end_below(tx, task, actor))
    return _lost_to(tx, task_id)


def end_running(
    tx: Transaction, task_id: str, owner: ProcessIdentity, outcome: Outcome, processes: bool, actor: str
) -> Ended:
    """End a running task by decision: cancelled, timed_out, failed or lost. Its intent, if any, goes with it.

    ``processes``: whether processes of it may live; then the row asks for clean-up until ``clean``.
    """
    values = _owner(owner) | {
        "id": task_id, "now": tx.now_ms, "status": outcome.status, "processes": int(processes),
        "code": outcome.error_code, "message": outcome.error_message,
    }  # fmt: skip
    row = tx.one(Q.end_running, values)
    if row is None:
        return _lost_to(tx, task_id)
    tx.execute(Q.forget_promise, (task_id,))
    task = Task._make(row)
    _event(tx, task, outcome.status, ("running", outcome.status), reason=outcome.error_message, actor=actor)
    below = _end_below(tx, task, actor)
    return Ended(True, task, None if task.cleanup else _retry(tx, task), below)


def clean(tx: Transaction, task_id: str, done: CleanUp) -> Ended:
    """Record that no process of an ended task is left (or which could not be ended), and what it left behind."""
    values = {
        "id": task_id, "report": json.dumps(done.report), "exit_code": done.exit_code, "signal": done.signal,
        "output_sha256": done.output and done.output.sha256, "output_bytes": done.output and done.output.size_bytes,
        "stderr_sha256": done.stderr and done.stderr.sha256, "stderr_bytes": done.stderr and done.stderr.size_bytes,
        "truncated": int(done.truncated),
    }  # fmt: skip
    row = tx.one(Q.clean, values)
    if row is None:
        return Ended(False, _row(tx, task_id))
    task = Task._make(row)
    _event(tx, task, "cleaned", (None, None), details=done.report)
    return Ended(True, task, _retry(tx, task))


def take_over(
    tx: Transaction, task_id: str, old: ProcessIdentity, owner: ProcessIdentity, worker: ProcessIdentity | None,
    mono_ms: int,
) -> Task | None:  # fmt: skip
    """Make a dead owner's row ours. None: somebody else was quicker, or the row has ended."""
    worker_pid, worker_start, worker_boot = worker or (None, None, None)
    values = _owner(owner) | {
        "id": task_id, "now": tx.now_ms, "mono": mono_ms, "old_pid": old.pid, "old_start": old.start,
        "old_boot": old.boot_id, "worker_pid": worker_pid, "worker_start": worker_start, "worker_boot": worker_boot,
    }  # fmt: skip
    row = tx.one(Q.take_over, values)
    if row is None:
        return None
    task = Task._make(row)
    _event(tx, task, "adopted", (None, None), details={"from_pid": old.pid, "to_pid": owner.pid})
    return task


def note(tx: Transaction, task_id: str, event: str, reason: str) -> None:
    """Tell the audit log something about a task that changes none of its columns."""
    audit.record(tx, actor=DAEMON, subject=("task", task_id), event=event, reason=reason)


def record_policy(tx: Transaction, task_id: str, owner: ProcessIdentity, policy: PolicyText) -> Task | None:
    """Remember under which policy a task starts, where that is not the one it was admitted under. None: it ended."""
    tx.execute(Q.insert_policy, policy)
    row = tx.one(Q.record_policy, (policy.sha256, task_id, *owner))
    return None if row is None else Task._make(row)


def record_progress(tx: Transaction, task_id: str, text: str, phase: str | None, mono_ms: int) -> dict[str, Any]:
    """Remember how far a task says it is. Raises ``caller_ended``."""
    progress = {"text": text, "phase": phase, "at": rfc3339(tx.now_ms)}
    values = {"id": task_id, "progress": json.dumps(progress), "now": tx.now_ms, "mono": mono_ms}
    if tx.execute(Q.record_progress, values).rowcount == 0:
        raise CallerEnded(f"cannot record progress: task {task_id} is not running any more", id=task_id)
    return progress


def record_usage(
    tx: Transaction, task_id: str, tokens: int, cost_micros: int, model: str | None, request_key: str | None
) -> None:
    """Count what a task says it has used; the same ``request_key`` counts once. Also of a task that just ended.

    Nothing is refused, for it was spent: what comes of more models than a row has room for is ``other``.
    """
    known = {row[0] for row in tx.execute(Q.usage_by_model, (task_id,))}
    if model not in known and len(known) >= MODELS_MAX:
        model = OTHER_MODELS
    entry = (task_id, tx.now_ms, tokens, cost_micros, model, request_key)
    if tx.execute(Q.insert_usage, entry).rowcount == 0:
        return
    budget.count_cost(tx, task_id, cost_micros)
    models = {
        name or "unknown": {"tokens": tokens, "cost": cost / budget.MICROS}
        for name, tokens, cost in tx.execute(Q.usage_by_model, (task_id,)).fetchall()
    }
    sums = {
        "tokens": sum(each["tokens"] for each in models.values()),
        "cost": round(sum(each["cost"] for each in models.values()), 6),
        "models": models,
    }
    tx.execute(Q.record_usage, (json.dumps(sums), task_id))


def forget_stale_intents(tx: Transaction) -> int:
    """Delete intents beside rows that have ended: a winner took the row before the promise was kept."""
    stale = [row[0] for row in tx.execute(Q.stale_intents).fetchall()]
    for task_id in stale:
        tx.execute(Q.forget_promise, (task_id,))
    return len(stale)


def beat(tx: Transaction, owner: ProcessIdentity, mono_ms: int, task_ids: list[str]) -> int:
    """Refresh the heartbeats of this owner's running tasks. Returns how many there were."""
    return sum(tx.execute(Q.beat, (tx.now_ms, mono_ms, each, *owner)).rowcount for each in task_ids)


def expire(tx: Transaction) -> list[Task]:
    """Fail the queued tasks whose queue time is over."""
    ended = []
    for (task_id,) in tx.execute(Q.expired, (tx.now_ms,)).fetchall():
        outcome = Outcome(
            "failed",
            error_code="queue_timeout",
            error_message="it waited longer than its queue time for a free slot",
        )
        ended.append(end_queued(tx, task_id, outcome, DAEMON).task)
    return ended


def _caller_runs(tx: Transaction, new: NewTask) -> tuple[int | None, int | None]:
    """See that the task that asks is still running, in the transaction that stores what it asks for: what is cancelled
    gets no children any more. Returns its deadline on both clocks."""
    caller = Task._make(tx.one(Q.by_id, (new.asked_by,)))
    if caller.status != "running":
        raise CallerEnded(
            f"cannot start work for task {caller.id}: it is {caller.status} and asks for nothing any more",
            id=caller.id, status=caller.status,
        )  # fmt: skip
    return caller.deadline_at_ms, caller.deadline_mono_ms


def _not_cancelled(tx: Transaction, parent_id: str) -> None:
    """See that what the operator hangs below a task does not slip into a tree that is cancelled."""
    row = tx.one(Q.by_id, (parent_id,))
    if row is not None and Task._make(row).status == "cancelled":
        raise RefusedByState(f"cannot put work below task {parent_id}: it is cancelled", id=parent_id)


def _end_below(tx: Transaction, task: Task, actor: str) -> tuple[str, ...]:
    """End what ends with a task: its sub-agents, for they are part of it; and if it was cancelled all that lives below
    it. Returns their ids."""
    cancelled = task.status == "cancelled"
    if cancelled:
        rows = tx.execute(Q.below, {"id": task.id}).fetchall()
        reason = f"task {task.id} above it was cancelled"
    else:
        rows = tx.execute(Q.subagents, (task.id,)).fetchall()
        reason = f"its parent {task.id} ended ({task.status})"
    ended: list[str] = []
    for row in rows:
        below = _cancel_row(tx, row, reason, actor)
        if below is not None:
            tx.mark(ENDED_BELOW, below)
            ended += [below.id, *(() if cancelled else _end_below(tx, below, actor))]
    return tuple(ended)


def _cancel_row(tx: Transaction, row: Any, reason: str, actor: str) -> Task | None:
    """Cancel one task, whoever owns it: processes that it may have are ended by whoever drives it, or by recovery."""
    task_id, status, *owner = row
    values = {"id": task_id, "now": tx.now_ms, "status": "cancelled", "code": None, "message": reason}
    if status == "running":
        found = tx.one(Q.end_running, values | _owner(ProcessIdentity(*owner)) | {"processes": 1})
    else:
        found = tx.one(Q.end_queued if status == "queued" else Q.end_paused, values)
    if found is None:
        return None
    tx.execute(Q.forget_promise, (task_id,))
    task = Task._make(found)
    _event(tx, task, "cancelled", (status, "cancelled"), reason=reason, actor=actor)
    return task


def _insert(
    tx: Transaction, new: NewTask, owner: ProcessIdentity | None, mono_ms: int, deadline: tuple[int | None, int | None]
) -> Task:
    """``deadline``: the latest on both clocks, where something else than its own timeout bounds it."""
    now = tx.now_ms
    pid, start, boot = owner or (None, None, None)
    started = now if owner else None
    beats = owner is not None and new.kind != "subagent"  # whoever waits for a sub-agent sees that it lives
    if new.policy is not None:
        tx.execute(Q.insert_policy, new.policy)
    row = tx.one(
        Q.insert_task,
        (
            new.id, new.kind, new.agent, "running" if owner else "queued", new.priority, now,
            None if new.queue_timeout_ms is None else now + new.queue_timeout_ms,
            started, now if beats else None, mono_ms if beats else None,
            _sooner(now + new.timeout_ms, deadline[0]) if owner else None,
            _sooner(mono_ms + new.timeout_ms, deadline[1]) if owner else None,
            new.timeout_ms, new.retries, new.attempt, new.retry_of, new.idempotency_key, new.whose_key,
            new.key_place, new.request_sha256, new.creator, new.chain, new.depth, new.principal, new.parent_id,
            new.mode, new.policy and new.policy.sha256, new.budget_id or new.id, new.goal_id, new.labels, new.source,
            new.prompt, new.cwd, new.env, len(new.inputs), pid, start, boot,
        ),
    )  # fmt: skip
    task = Task._make(row)
    if new.labels != "{}":
        for key, value in json.loads(new.labels).items():
            tx.execute(Q.insert_label, (key, value, task.seq))
    for name, artifact in new.inputs:
        tx.execute(Q.insert_input, (task.seq, name, *artifact))
    return task


def _sooner(at_ms: int, other_ms: int | None) -> int:
    return at_ms if other_ms is None else min(at_ms, other_ms)


def _retry(tx: Transaction, task: Task) -> Task | None:
    """The next attempt of a task that ended badly and may be tried again: a new row, linked to the old one."""
    if task.retries_left == 0 or task.status not in RETRIED:
        return None
    above = {"parent": task.parent_id, "since": task.created_at_ms}
    if task.parent_id is not None and tx.one(Q.cancelled_above, above) is not None:
        return None  # its tree was cancelled while it was being cleaned up after
    new = NewTask(
        id=new_id(), kind=task.kind, agent=task.agent, prompt=task.prompt, timeout_ms=task.timeout_ms,
        creator=task.creator, principal=task.principal, priority=task.priority, retries=task.retries_left - 1,
        cwd=task.cwd, env=task.env, chain=task.chain, depth=task.depth, parent_id=task.parent_id, mode=task.mode,
        policy=_policy_of(tx, task), budget_id=task.budget_id,
        goal_id=task.goal_id, labels=task.labels, source=task.source, attempt=task.attempt + 1, retry_of=task.id,
        queue_timeout_ms=None if task.queue_deadline_ms is None else task.queue_deadline_ms - task.created_at_ms,
        inputs=tuple((name, Artifact(*rest)) for name, *rest in tx.execute(Q.inputs, (task.seq,))),
    )  # fmt: skip
    return _submit(tx, new, None, 0).task


def _policy_of(tx: Transaction, task: Task) -> PolicyText | None:
    if task.policy_sha256 is None:
        return None
    return PolicyText(task.policy_sha256, tx.one(Q.policy, (task.policy_sha256,))[0])


def same_request(rows: list[Any], key: str, digests: list[str | None]) -> list[Task]:
    """The tasks that have this idempotency key already. Raises ``idempotency_conflict`` where that was another request:
    for somebody else, for fewer or for more."""
    tasks = [Task._make(row) for row in rows]
    if [task.request_sha256 for task in tasks] != digests:
        raise IdempotencyConflict(
            f"cannot use the idempotency key {key!r} again: task {tasks[0].id} has it with another request",
            task_id=tasks[0].id, idempotency_key=key,
        )  # fmt: skip
    return tasks


def _lost_to(tx: Transaction, task_id: str) -> Ended:
    """Somebody settled it first: drop a promise that can no longer be kept and tell who won."""
    task = _row(tx, task_id)
    if task.ended:
        tx.execute(Q.forget_promise, (task_id,))
    return Ended(False, task)


def _row(tx: Transaction, task_id: str) -> Task:
    return Task._make(tx.one(Q.by_id, (task_id,)))


def read_intent(tx: Transaction, task_id: str) -> Intent | None:
    """The promise beside a row, as it stands."""
    row = tx.one(Q.intent, (task_id,))
    return None if row is None else Intent._make(row)


def _owner(owner: ProcessIdentity) -> dict[str, Any]:
    return {"pid": owner.pid, "start": owner.start, "boot": owner.boot_id}


def _event(
    tx: Transaction,
    task: Task,
    event: str,
    change: tuple[str | None, str | None],
    *,
    reason: str | None = None,
    actor: str = DAEMON,
    details: dict[str, Any] | None = None,
) -> None:
    audit.record(tx, actor=actor, subject=("task", task.id), event=event, change=change, reason=reason, details=details)
