"""What can be asked, and of whom it is recorded."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """Who asks, as the kernel and the rows know it.

    ``creator``: ``operator``, or the alias of the agent whose task is calling. ``chain``: the aliases of the callers
    above the creator, outermost first. ``depth``: of what it would start.
    """

    principal: str
    creator: str
    chain: tuple[str, ...]
    depth: int
    task_id: str | None

    @property
    def actor(self) -> str:
        """The name in the audit log."""
        return f"task:{self.task_id}" if self.task_id else self.principal


class Request(NamedTuple):
    """A request to delegate, checked for its form. Durations in milliseconds; None asks for the default."""

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
    parent_id: str | None
    labels: dict[str, str]
    inputs: tuple[str, ...]
    source: dict[str, str]
