"""What can be true of a task: the record, the state machine, and what moves it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from pawl.runner.identity import ProcessIdentity
from pawl.state_machine import StateMachine, Transition
from pawl.storage import Artifact
from pawl.values import rfc3339

KINDS = ("delegate", "subagent", "cron", "sop_step", "work_item", "goal")

TASK = StateMachine(
    "task",
    [
        Transition(None, "submit", "queued", "an engine", "every slot it could use is taken"),
        Transition(None, "start", "running", "an engine", "a slot was free: stored and claimed in one transaction"),
        Transition("queued", "start", "running", "the dispatcher", "a slot became free"),
        Transition("queued", "cancel", "cancelled", "a principal", "nobody wants it any more"),
        Transition("queued", "expire", "failed", "the dispatcher", "its queue time is over, or it can never start"),
        Transition("running", "pause", "paused", "a goal's controller", "it waits for something outside"),
        Transition("running", "complete", "completed", "settlement", "it ended well and its output is durable"),
        Transition("running", "fail", "failed", "settlement", "it ended badly, or its evidence is bad"),
        Transition("running", "cancel", "cancelled", "a principal", "nobody wants it any more"),
        Transition("running", "time_out", "timed_out", "the supervisor", "its time is over"),
        Transition("running", "lose", "lost", "recovery", "owner and worker are gone and nothing proves an outcome"),
        Transition("paused", "resume", "running", "a goal's controller", "what it waited for has come"),
        Transition("paused", "complete", "completed", "a goal's controller", "its objective was met while it waited"),
        Transition("paused", "fail", "failed", "a goal's controller", "its objective cannot be met"),
        Transition("paused", "cancel", "cancelled", "a principal", "nobody wants it any more"),
    ],
)
TERMINAL = frozenset(TASK.terminal)
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Task(NamedTuple):
    """A row of ``task``; the fields stand in the order of its columns. Times in milliseconds."""

    seq: int
    id: str
    kind: str
    agent: str
    status: str
    priority: int
    created_at_ms: int
    queue_deadline_ms: int | None
    started_at_ms: int | None
    finished_at_ms: int | None
    heartbeat_at_ms: int | None
    heartbeat_mono_ms: int | None
    deadline_at_ms: int | None
    deadline_mono_ms: int | None
    timeout_ms: int
    retries_left: int
    attempt: int
    retry_of: str | None
    idempotency_key: str | None
    key_scope: str | None
    key_place: int
    request_sha256: str | None
    creator: str | None
    chain: str
    depth: int
    principal: str | None
    parent_id: str | None
    mode: str | None
    policy_sha256: str | None
    budget_id: str | None
    goal_id: str | None
    labels: str
    source: str
    prompt: bytes
    cwd: str | None
    env: str
    inputs: int
    owner_pid: int | None
    owner_start: str | None
    owner_boot: str | None
    worker_pid: int | None
    worker_start: str | None
    worker_boot: str | None
    exit_code: int | None
    signal: int | None
    error_code: str | None
    error_message: str | None
    output_sha256: str | None
    output_bytes: int | None
    stderr_sha256: str | None
    stderr_bytes: int | None
    truncated: int
    cleanup: str | None
    cleanup_report: str | None
    inline_output: bytes | None
    progress: str | None
    usage: str | None
    delivered: int

    @property
    def owner(self) -> ProcessIdentity | None:
        """The daemon that is responsible for it."""
        return identity(self.owner_pid, self.owner_start, self.owner_boot)

    @property
    def worker(self) -> ProcessIdentity | None:
        """The process that does it; None before it is known and for work done inside the daemon."""
        return identity(self.worker_pid, self.worker_start, self.worker_boot)

    @property
    def ended(self) -> bool:
        """Whether its status is one that nothing leaves."""
        return self.status in TERMINAL

    @property
    def output(self) -> Artifact | None:
        """Its standard output, once it is settled."""
        return artifact(self.output_sha256, self.output_bytes)

    @property
    def stderr(self) -> Artifact | None:
        """Its standard error, once it is settled."""
        return artifact(self.stderr_sha256, self.stderr_bytes)


class PolicyText(NamedTuple):
    """An effective policy as it is stored: the digest, and the text that has it."""

    sha256: str
    document: str


class NewTask(NamedTuple):
    """What an engine submits.

    ``request_sha256`` is the digest of the body that an idempotency key stands for, ``key_place`` its place (from 1)
    among several that were asked for at once. ``key_scope``: whose key it is; without it its creator's, or of a
    sub-agent its parent's. ``asked_by``: the running task that asks for it from inside, which pays ``actions`` of its
    budget; None for the operator's own. ``policy``: digest and text of the effective policy. ``why``: the gates it
    passed, for the audit log.
    """

    id: str
    kind: str
    agent: str
    prompt: bytes
    timeout_ms: int
    creator: str | None
    principal: str | None
    priority: int = 0
    queue_timeout_ms: int | None = None
    retries: int = 0
    cwd: str | None = None
    env: str = "{}"
    chain: str = "[]"
    depth: int = 0
    parent_id: str | None = None
    mode: str | None = None
    policy: PolicyText | None = None
    budget_id: str | None = None
    goal_id: str | None = None
    labels: str = "{}"
    source: str = "{}"
    idempotency_key: str | None = None
    key_scope: str | None = None
    key_place: int = 0
    request_sha256: str | None = None
    inputs: tuple[tuple[str, Artifact], ...] = ()
    attempt: int = 1
    retry_of: str | None = None
    asked_by: str | None = None
    actions: int = 0
    why: tuple[dict[str, Any], ...] = ()

    @property
    def whose_key(self) -> str | None:
        """Among whose keys its own stands; None where it has none."""
        return None if self.idempotency_key is None else self.key_scope or self.creator or self.parent_id


class Outcome(NamedTuple):
    """How a piece of work ended, before it is settled: the desired status and everything that goes into the row.

    ``ended_at_ms`` (wall) is when, where that was while no daemon watched; None is now.
    """

    status: str
    exit_code: int | None = None
    signal: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    ended_at_ms: int | None = None


class Intent(NamedTuple):
    """A row of ``settlement_intent``, in the order of its columns: the durable promise to settle."""

    task_id: str
    owner_pid: int
    owner_start: str
    owner_boot: str
    status: str
    exit_code: int | None
    signal: int | None
    error_code: str | None
    error_message: str | None
    output_sha256: str
    output_bytes: int
    stderr_sha256: str | None
    stderr_bytes: int | None
    truncated: int
    leftovers: int
    ended_at_ms: int | None
    created_at_ms: int

    @property
    def artifacts(self) -> list[Artifact]:
        """The bytes it promises."""
        found = [
            Artifact(self.output_sha256, self.output_bytes),
            artifact(self.stderr_sha256, self.stderr_bytes),
        ]
        return [each for each in found if each is not None]

    def fault(self) -> str | None:
        """What is wrong with it as it stands, or None. Rows can be damaged in ways that types do not show."""
        if self.status not in ("completed", "failed"):
            return f"it promises the status {self.status!r}"
        for each in self.artifacts:
            if not _DIGEST.fullmatch(str(each.sha256)) or not isinstance(each.size_bytes, int) or each.size_bytes < 0:
                return "its digest or size is malformed"
        if self.status == "failed" and not (self.error_code and self.error_message):
            return "it promises a failure without a reason"
        if (self.stderr_sha256 is None) != (self.stderr_bytes is None):
            return "its digest or size is malformed"
        if self.truncated not in (0, 1):
            return f"it says {self.truncated} where it should say whether its output was cut"
        if self.status == "completed" and self.error_code is not None:
            return "it promises success and names an error"
        return None


class CleanUp(NamedTuple):
    """What ending the processes of a task took, and what of its output could be kept."""

    report: dict[str, Any]
    exit_code: int | None = None
    signal: int | None = None
    output: Artifact | None = None
    stderr: Artifact | None = None
    truncated: bool = False


def identity(pid: int | None, start: str | None, boot: str | None) -> ProcessIdentity | None:
    """A process identity from its three columns; None where one is missing."""
    if pid is None or start is None or boot is None:
        return None
    return ProcessIdentity(pid, start, boot)


def artifact(sha256: str | None, size_bytes: int | None) -> Artifact | None:
    """An artifact from its two columns; None where there is none."""
    return None if sha256 is None or size_bytes is None else Artifact(sha256, size_bytes)


def public(task: Task, artifact_path: Any) -> dict[str, Any]:
    """A task as the contract shows it. ``artifact_path`` turns a digest into a path."""
    owner, worker = task.owner, task.worker
    return {
        "id": task.id,
        "kind": task.kind,
        "agent": task.agent,
        "status": task.status,
        "priority": task.priority,
        "created_at": rfc3339(task.created_at_ms),
        "queue_deadline_at": rfc3339(task.queue_deadline_ms),
        "started_at": rfc3339(task.started_at_ms),
        "finished_at": rfc3339(task.finished_at_ms),
        "heartbeat_at": rfc3339(task.heartbeat_at_ms),
        "deadline_at": rfc3339(task.deadline_at_ms),
        "timeout_s": task.timeout_ms / 1000,
        "owner": owner and {"pid": owner.pid, "started": owner.start, "boot_id": owner.boot_id},
        "worker": worker and {"pid": worker.pid, "started": worker.start},
        "parent_id": task.parent_id,
        "goal_id": task.goal_id,
        "depth": task.depth,
        "creator": task.creator,
        "chain": _loads(task.chain, []),
        "principal": task.principal,
        "mode": task.mode,
        "policy_sha256": task.policy_sha256,
        "attempt": task.attempt,
        "retry_of": task.retry_of,
        "retries_left": task.retries_left,
        "idempotency_key": task.idempotency_key,
        "labels": _loads(task.labels, {}),
        "cwd": task.cwd,
        "exit_code": task.exit_code,
        "signal": task.signal,
        "error": None if task.error_code is None else {"code": task.error_code, "message": task.error_message},
        "reason": task.error_message if task.status == "cancelled" else None,
        "output": _public_artifact(task.output, artifact_path) or _inline(task.inline_output),
        "stderr": _public_artifact(task.stderr, artifact_path),
        "truncated": bool(task.truncated),
        "cleanup": task.cleanup,
        "leftovers": _loads(task.cleanup_report, None),
        "progress": _loads(task.progress, None),
        "usage": _loads(task.usage, None),
        "delivered": bool(task.delivered),
        "source": _loads(task.source, {}),
    }


def _loads(text: str | None, otherwise: Any) -> Any:
    """JSON from a column; what is damaged there must not hide the other rows."""
    try:
        return json.loads(text) if text else otherwise
    except ValueError:
        return otherwise


def _inline(output: bytes | None) -> dict[str, Any] | None:
    """The output of a row that is older than artifacts: its bytes lie in the row and have no path."""
    if output is None:
        return None
    return {"sha256": hashlib.sha256(output).hexdigest(), "size_bytes": len(output), "path": None}


def _public_artifact(found: Artifact | None, artifact_path: Any) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"sha256": found.sha256, "size_bytes": found.size_bytes, "path": artifact_path(found.sha256)}
