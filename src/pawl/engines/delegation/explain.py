"""Why a task is where it is: the gates it passed when it was asked for, and what it waits at or came to."""

from __future__ import annotations

import json
import os
from typing import Any

from pawl.control_plane.audit import Event
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import Task
from pawl.control_plane.statements import Q
from pawl.engines.delegation.engine import Delegation
from pawl.errors import PolicyDisjoint
from pawl.policy import Policy, Sourced, narrow
from pawl.policy.model import public_name
from pawl.values import duration_text, rfc3339

_REFUSALS_MAX = 100
_SHORT = 18  # its time in milliseconds and twelve random bits


async def explain(plane: ControlPlane, delegation: Delegation, task: Task) -> dict[str, Any]:
    """The answer of `pawl why` for a task."""
    return {
        "id": task.id,
        "kind": "task",
        "agent": task.agent,
        "status": task.status,
        "steps": [*await _admission(plane, task), *await _sandbox(plane, task), *_course(plane, task)],
        "policy": await _policy(plane, delegation, task),
        "refusals": await _refusals(plane, task),
    }


async def _admission(plane: ControlPlane, task: Task) -> list[dict[str, Any]]:
    row = await plane.reader.one(Q.first_event, (task.id,))
    details = _loads(Event._make(row).details) if row else {}
    if gates := details.get("gates"):
        return list(gates)
    if task.retry_of is not None:
        return [_step("caller", "passed", f"it is attempt {task.attempt} of {task.retry_of}, which passed the gates")]
    if task.mode is None and task.creator is not None:
        return [_step("caller", "passed", "the operator asked for it: depth, budget, delegation and reach do not bind")]
    return [_step("caller", "skipped", "its row is older than the record of gates")]


async def _sandbox(plane: ControlPlane, task: Task) -> list[dict[str, Any]]:
    row = await plane.reader.one(Q.unsandboxed, (task.id,))
    if row is None:
        return []
    unguarded = "it runs without the one that its policy prefers, with a network and free to write anywhere"
    return [_step("sandbox", "skipped", f"{unguarded}: {Event._make(row).reason}")]


def _course(plane: ControlPlane, task: Task) -> list[dict[str, Any]]:
    """What came after its admission."""
    steps = []
    if task.status == "queued":
        steps.append(_step("slot", "waits", plane.dispatcher.waits_for(task)))
        if task.queue_deadline_ms is not None:
            steps.append(_step("queue time", "waits", f"it fails at {rfc3339(task.queue_deadline_ms)} if it waits on"))
    elif task.started_at_ms is not None:
        waited = duration_text(task.started_at_ms - task.created_at_ms)
        steps.append(_step("slot", "passed", f"it started {waited} after it was asked for"))
    if task.status == "running" and task.deadline_at_ms is not None:
        steps.append(_step("deadline", "waits", f"it is ended at {rfc3339(task.deadline_at_ms)} if it runs on"))
    if task.ended:
        outcome = "passed" if task.status == "completed" else "refused"
        steps.append(_step("end", outcome, task.error_message or f"it {task.status.replace('_', ' ')}"))
    return steps


async def _policy(plane: ControlPlane, delegation: Delegation, task: Task) -> dict[str, Any] | None:
    if task.policy_sha256 is None:
        return None
    policy = await delegation.policy_of(task)
    return {
        "sha256": task.policy_sha256,
        "mode": task.mode,
        "values": policy.public(),
        "sources": await _sources(plane, delegation, task, policy),
    }


async def _sources(plane: ControlPlane, delegation: Delegation, task: Task, policy: Policy) -> dict[str, str]:
    """Where each value came from, as far as the configuration in force and the caller's policy still tell."""
    own = delegation.configured(task.agent)
    if own is not None and own.policy.workspace is not None and policy.sandbox != "off":
        real = os.path.realpath(own.policy.workspace)  # as it is admitted (``places``)
        own = own._replace(policy=own.policy._replace(workspace=real))
    above = None
    if task.mode == "bounded" and task.parent_id is not None:
        above = await delegation.policy_of(await plane.find(task.parent_id))
    return {public_name(field): _source(field, policy, own, above, task) for field in Policy._fields}


def _source(field: str, policy: Policy, own: Sourced | None, above: Policy | None, task: Task) -> str:
    value = getattr(policy, field)
    if task.kind == "subagent" and above is not None and getattr(above, field) == value:
        return f"its parent's (task {_short(task.parent_id)})"
    if own is not None and getattr(own.policy, field) == value:
        return own.sources[field]
    if above is not None and getattr(above, field) == value:
        return f"its caller's (task {_short(task.parent_id)})"
    if task.kind == "subagent":
        return f"its parent's (task {_short(task.parent_id)}), narrowed as it was asked for"
    if own is not None and above is not None and _both_allow(own, above, field, value):
        return f"what both its own policy and its caller's allow (task {_short(task.parent_id)})"
    return "as it was configured when it was admitted or started; the configuration says otherwise now"


def _both_allow(own: Sourced, above: Policy, field: str, value: Any) -> bool:
    try:
        return bool(getattr(narrow(own, above, "").policy, field) == value)
    except PolicyDisjoint:  # a workspace was moved since
        return False


async def _refusals(plane: ControlPlane, task: Task) -> list[dict[str, Any]]:
    found = []
    for row in await plane.reader.all(Q.refusals, (task.id, _REFUSALS_MAX)):
        event = Event._make(row)
        details = _loads(event.details)
        found.append({
            "at": rfc3339(event.at_ms), "agent": details.get("agent"), "code": details.get("code"),
            "message": event.reason, "steps": details.get("gates", []),
        })  # fmt: skip
    return found


def _short(task_id: str | None) -> str:
    """As much of an id as tells a task apart, for texts that stand in narrow columns."""
    return (task_id or "")[:_SHORT]


def _step(gate: str, outcome: str, message: str) -> dict[str, Any]:
    return {"gate": gate, "outcome": outcome, "message": message}


def _loads(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
