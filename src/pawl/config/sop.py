"""``[sop]``: where the procedures lie, how they run, and who approves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pawl.config.fields import (
    KIB,
    MINUTE,
    Command,
    Count,
    CountFrom1,
    Duration,
    FilledText,
    Flag,
    HomePath,
    Name,
    Size,
    Text,
)
from pawl.config.section import Named, Section


def _blank_is_none(value: str | None) -> str | None:
    return value if value and value.strip() else None


def _at_least_one(value: int) -> int:
    return max(1, value)


class GroupConfig(Named):
    """Principals that approve together."""

    members: tuple[FilledText, ...] = ()
    """Who belongs to it: ``user:NAME`` or ``agent:NAME``. A group without members keeps its gates closed."""


class ApprovalPolicyConfig(Named):
    """What it takes to open a gate."""

    required_group: Annotated[Text | None, AfterValidator(_blank_is_none)] = None
    """The group whose votes count. Without it any identified principal counts once; one that does not exist
    keeps the gate closed."""
    quorum: Annotated[Count, AfterValidator(_at_least_one)] = 1
    """Votes that are needed, at least 1: a 0 in the file counts as 1."""
    exclude_requester: Flag = False
    """Whether the vote of the one who started the run does not count."""
    request_notice: Command = ()
    """A program to run when a gate opens, one list entry for each argument."""
    escalation_notice: Command = ()
    """A program to run when a gate has waited too long."""


class ApprovalConfig(Section):
    """Who approves."""

    groups: dict[Name, GroupConfig] = Field(default_factory=dict)
    """The groups by name."""
    policies: dict[Name, ApprovalPolicyConfig] = Field(default_factory=dict)
    """The approval policies by name, as steps of a procedure refer to them."""


class SopConfig(Section):
    """Procedures."""

    dir: HomePath = "sops"
    """Where the procedures lie, one folder each; a relative path hangs off the home, ``~`` is expanded."""
    agent: Name | None = None
    """The agent of a step that names none."""
    default_execution_mode: Literal["auto", "supervised", "step_by_step", "priority_based", "deterministic"] = (
        "supervised"
    )
    """The execution mode of a procedure that names none."""
    max_concurrent_total: Count = 4
    """Running procedures at most, all together; 0 admits none."""
    persist_runs: Flag = True
    """Whether runs survive the daemon."""
    approval_timeout_ms: Annotated[int, Duration(least_ms=0)] = 5 * MINUTE
    """How long a gate waits for approval before ``approval_timeout_action``; 0: for ever."""
    approval_timeout_action: Literal["escalate", "cancel", "auto_approve"] = "escalate"
    """What happens when a gate has waited for that long."""
    max_step_visits: CountFrom1 = 256
    """How often one run may come to the same step."""
    max_step_retries: Count = 2
    """How often a failed step is tried again."""
    max_finished_runs: Count = 100
    """Finished runs that are kept; 0 keeps all."""
    step_schema_enforce: Flag = True
    """Whether a step's input and output must fit its schemas."""
    step_scope_enforce: Flag = False
    """Whether a step is held to the tools that it names."""
    untrusted_payload_max_bytes: Annotated[int, Size(least=0)] = 8 * KIB
    """The size to which a trigger's topic and payload are cut; 0 cuts nothing."""
    approval: ApprovalConfig = Field(default_factory=ApprovalConfig)
    """Who approves, and what it takes."""
