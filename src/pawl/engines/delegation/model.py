"""What can be asked, of whom it is recorded, and what was decided about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from pawl.control_plane.model import Task
from pawl.policy import Overrides, Sourced

OPERATOR = "operator"


class Caller(NamedTuple):
    """Who asks, as the kernel and the rows know it.

    ``creator``: ``operator``, or the alias of the agent whose task is calling. ``chain``: the aliases of the callers
    above the creator, outermost first. ``depth``: of what it would start. ``task``: the row of the calling task.
    """

    principal: str
    creator: str
    chain: tuple[str, ...]
    depth: int
    task: Task | None

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return f"task:{self.task.id}" if self.task else self.principal

    @property
    def key_scope(self) -> str:
        """Among whose idempotency keys its own stand: the operator's, or those of the calling task and its other
        attempts, which ask for the same again."""
        return OPERATOR if self.task is None else self.task.budget_id or self.task.id

    @property
    def viewer(self) -> str | None:
        """For whom tasks are looked up: an agent's alias, or None for the operator, who sees everything."""
        return self.creator if self.task else None


class Request(NamedTuple):
    """A request to delegate, checked for its form. Durations in milliseconds; None asks for the default.

    ``place``: from 1 on among several that are asked for at once, else 0.
    """

    agent: str
    prompt: bytes
    timeout_ms: int | None
    queue_timeout_ms: int | None
    retries: int
    priority: int
    cwd: str | None
    caller_cwd: str | None
    env: dict[str, str]
    idempotency_key: str | None
    place: int
    parent_id: str | None
    labels: dict[str, str]
    inputs: tuple[str, ...]
    source: dict[str, str]

    @property
    def actions(self) -> int:
        """How many actions it takes when it comes from inside: one, and one for each attempt that may follow."""
        return 1 + self.retries


class SpawnRequest(NamedTuple):
    """A request for a sub-agent, checked for its form."""

    prompt: bytes
    timeout_ms: int | None
    overrides: Overrides
    request_key: str | None
    source: dict[str, str]


class Admission(NamedTuple):
    """A request that passed every gate: how its target is held to what the caller may do (None for the operator, who
    may do anything), the policy that follows, the gates one by one, and the directory to work in (None: the home)."""

    mode: str | None
    policy: Sourced
    gates: tuple[dict[str, Any], ...]
    cwd: str | None
