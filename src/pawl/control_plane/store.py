"""How a task is written. Only this module changes a status, and only by compare-and-set.

Each function is the whole of a logical transaction over a ``Transaction``. "No row changed" is an answer: it
means that somebody settled the task first, and the row that won comes back.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pawl import failpoints
from pawl.control_plane import audit
from pawl.control_plane.model import CleanUp, Intent, NewTask, Outcome, Task
from pawl.control_plane.statements import Q
from pawl.errors import IdempotencyConflict
from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, Transaction

RETRIED = frozenset({"failed", "timed_out", "lost"})
DAEMON = "daemon"


class Submitted(NamedTuple):
    """The row of a submission, and whether it is new (an idempotency key may have brought back an older one)."""

    task: Task
    new: bool


class Ended(NamedTuple):
    """What an attempt to end a task came to: whether it was this one that ended it, the row as it is now, and the
    new attempt that replaces it."""

    won: bool
    task: Task
    retry: Task | None = None


def submit(tx: Transaction, new: NewTask, owner: ProcessIdentity | None, mono_ms: int) -> Submitted:
    """Store a task: running where an owner has a slot for it, else queued. Raises ``idempotency_conflict``."""
    if new.idempotency_key is not None:
        row = tx.one(Q.by_key, (new.creator, new.idempotency_key))
        if row is not None:
            return Submitted(_same_request(Task._make(row), new), False)
    status = "queued" if owner is None else "running"
    task = _insert(tx, new, owner, mono_ms)
    audit.record(
        tx, actor=DAEMON if new.retry_of else new.principal or DAEMON, subject=("task", task.id), event="submitted",
        change=(None, status),
        details={"agent": new.agent, "kind": new.kind} | ({"retry_of": new.retry_of} if new.retry_of else {}),
    )  # fmt: skip
    return Submitted(task, True)


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
    return Ended(True, task, None if task.cleanup else _retry(tx, task))


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
            return Ended(True, task)
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
    return Ended(True, task, None if task.cleanup else _retry(tx, task))


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


def _insert(tx: Transaction, new: NewTask, owner: ProcessIdentity | None, mono_ms: int) -> Task:
    now = tx.now_ms
    pid, start, boot = owner or (None, None, None)
    started = now if owner else None
    row = tx.one(
        Q.insert_task,
        (
            new.id, new.kind, new.agent, "running" if owner else "queued", new.priority, now,
            None if new.queue_timeout_ms is None else now + new.queue_timeout_ms,
            started, started, mono_ms if owner else None,
            now + new.timeout_ms if owner else None, mono_ms + new.timeout_ms if owner else None,
            new.timeout_ms, new.retries, new.attempt, new.retry_of, new.idempotency_key, new.request_sha256,
            new.creator, new.chain, new.depth, new.principal, new.parent_id, new.goal_id, new.labels, new.source,
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


def _retry(tx: Transaction, task: Task) -> Task | None:
    """The next attempt of a task that ended badly and may be tried again: a new row, linked to the old one."""
    if task.retries_left == 0 or task.status not in RETRIED:
        return None
    new = NewTask(
        id=new_id(), kind=task.kind, agent=task.agent, prompt=task.prompt, timeout_ms=task.timeout_ms,
        creator=task.creator, principal=task.principal, priority=task.priority, retries=task.retries_left - 1,
        cwd=task.cwd, env=task.env, chain=task.chain, depth=task.depth, parent_id=task.parent_id,
        goal_id=task.goal_id, labels=task.labels, source=task.source, attempt=task.attempt + 1, retry_of=task.id,
        queue_timeout_ms=None if task.queue_deadline_ms is None else task.queue_deadline_ms - task.created_at_ms,
        inputs=tuple((name, Artifact(*rest)) for name, *rest in tx.execute(Q.inputs, (task.seq,))),
    )  # fmt: skip
    return submit(tx, new, None, 0).task


def _same_request(task: Task, new: NewTask) -> Task:
    if task.request_sha256 != new.request_sha256:
        raise IdempotencyConflict(
            f"cannot use the idempotency key {new.idempotency_key!r} again: task {task.id} has it with another request",
            task_id=task.id, idempotency_key=new.idempotency_key,
        )  # fmt: skip
    return task


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
