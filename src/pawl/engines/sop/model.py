"""A procedure as values. They never change: an edited file makes a new one, and a run keeps the one it began with.

``as_json`` gives each the keys that ``SOP.toml`` has for it, whichever of the two files it was read from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pawl.engines.sop.literals import Json

PRIORITIES = ("low", "normal", "high", "critical")
MODES = ("auto", "supervised", "step_by_step", "priority_based", "deterministic")
ADMISSIONS = ("parallel", "hold", "coalesce", "drop")
KINDS = ("execute", "checkpoint", "capability")
CHANGES = ("created", "modified", "deleted", "renamed")


class TriggerKind(NamedTuple):
    """What a trigger of one type is made of.

    ``fed``: whether anything in Pawl makes such events. The others load, so that folders from elsewhere do.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    fed: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return ("type", *self.required, *self.lists, *self.optional)


TRIGGERS = {
    "manual": TriggerKind((), fed=True),
    "cron": TriggerKind(("expression",), fed=True),
    "filesystem": TriggerKind(("path",), ("condition",), ("events",), fed=True),
    "webhook": TriggerKind(("path",), fed=True),
    "mqtt": TriggerKind(("topic",), ("condition",)),
    "amqp": TriggerKind(("routing_key",), ("condition",)),
    "channel": TriggerKind(("channel",), ("alias", "condition")),
    "calendar": TriggerKind(("calendar_source",), ("condition",), ("calendar_ids",)),
    "peripheral": TriggerKind(("board", "signal"), ("condition",)),
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """What starts runs. ``values`` has every key of its type; an optional one that is not written is None."""

    type: str
    values: dict[str, Json] = field(default_factory=dict)

    @property
    def condition(self) -> str | None:
        """What the payload must fulfil."""
        return self.values.get("condition")

    def as_json(self) -> dict[str, Json]:
        return {"type": self.type, **self.values}


@dataclass(frozen=True, slots=True)
class Given:
    """A value that is written down, null included; None in its place means that nothing is."""

    value: Json


@dataclass(frozen=True, slots=True)
class Port:
    """One way out of a switch. Without ``when`` it catches all; without ``goto`` it fails the run."""

    name: str
    when: str | None = None
    goto: int | None = None

    def as_json(self) -> dict[str, Json]:
        return {"name": self.name, "when": self.when, "goto": self.goto}


@dataclass(frozen=True, slots=True)
class Routing:
    """What follows a step that ended well; ``routing.after`` reads it. Steps are meant by their numbers."""

    when: str | None = None
    next: int | None = None
    terminal: bool = False
    depends_on: tuple[int, ...] = ()
    switch: tuple[Port, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {
            "when": self.when,
            "next": self.next,
            "terminal": self.terminal,
            "depends_on": list(self.depends_on),
            "switch": [port.as_json() for port in self.switch],
        }


@dataclass(frozen=True, slots=True)
class Fail:
    """A failed step fails its run."""

    def as_json(self) -> Json:
        return "fail"


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed step is tried again, at most so many times and never more often than the configuration allows."""

    max: int

    def as_json(self) -> Json:
        return {"retry": {"max": self.max}}


@dataclass(frozen=True, slots=True)
class Goto:
    """A failed step is followed by this one."""

    step: int

    def as_json(self) -> Json:
        return {"goto": {"step": self.step}}


OnFailure = Fail | Retry | Goto


@dataclass(frozen=True, slots=True)
class Scope:
    """The tools that a step may use. ``allow`` None: no list is given; an empty one allows none."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        return {"allow": None if self.allow is None else list(self.allow), "deny": list(self.deny)}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that is planned for a step. ``pinned``: a sample of its output, for authors."""

    tool: str
    args: Json = None
    pinned: Json = None

    def as_json(self) -> dict[str, Json]:
        return {"tool": self.tool, "args": self.args} | ({} if self.pinned is None else {"pinned": self.pinned})


@dataclass(frozen=True, slots=True)
class Place:
    """Where an editor draws a step."""

    x: float
    y: float

    def as_json(self) -> dict[str, Json]:
        return {"x": self.x, "y": self.y}


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``suggested_tools`` stand for ``scope.allow`` where that is not given. ``mode`` can only add a gate to those of the
    procedure's. ``capability`` and ``with_`` count only where ``kind`` is ``capability``.
    """

    number: int
    title: str
    body: str = ""
    suggested_tools: tuple[str, ...] = ()
    requires_confirmation: bool = False
    kind: str = "execute"
    input: Given | None = None
    output: Given | None = None
    scope: Scope | None = None
    routing: Routing = Routing()
    on_failure: OnFailure = Fail()
    mode: str | None = None
    calls: tuple[Call, ...] = ()
    pos: Place | None = None
    agent: str | None = None
    capability: str | None = None
    with_: Given | None = None
    policy: str | None = None
    gate_prompt: str | None = None
    edit: str | None = None

    @property
    def tools(self) -> Scope | None:
        """The scope that holds: suggested tools are the list where no other is given."""
        if not self.suggested_tools or (self.scope and self.scope.allow is not None):
            return self.scope
        return Scope(self.suggested_tools, self.scope.deny if self.scope else ())

    def as_json(self) -> dict[str, Json]:
        """Every key, with null for what is not given; ``with`` and the two schemas only where they are."""
        given = {"input": self.input, "output": self.output}
        schema = {key: one.value for key, one in given.items() if one is not None}
        return {
            "number": self.number,
            "title": self.title,
            "body": self.body,
            "suggested_tools": list(self.suggested_tools),
            "requires_confirmation": self.requires_confirmation,
            "kind": self.kind,
            "schema": schema or None,
            "scope": self.scope and self.scope.as_json(),
            "routing": self.routing.as_json(),
            "on_failure": self.on_failure.as_json(),
            "mode": self.mode,
            "calls": [call.as_json() for call in self.calls],
            "pos": self.pos and self.pos.as_json(),
            "agent": self.agent,
            "capability": self.capability,
            **({"with": self.with_.value} if self.with_ else {}),
            "policy": self.policy,
            "gate_prompt": self.gate_prompt,
            "edit": self.edit,
        }


@dataclass(frozen=True, slots=True)
class Procedure:
    """A procedure as it runs: the configuration's default mode is filled in, ``deterministic`` has had its way."""

    name: str
    description: str
    version: str = "0.1.0"
    priority: str = "normal"
    execution_mode: str = "supervised"
    deterministic: bool = False
    cooldown_secs: int = 0
    max_concurrent: int = 1
    admission_policy: str = "parallel"
    max_pending_approvals: int = 0
    agent: str | None = None
    triggers: tuple[Trigger, ...] = ()
    steps: tuple[Step, ...] = ()

    def step(self, number: int) -> Step | None:
        """The step of that number; the first of them where several have it."""
        return next((step for step in self.steps if step.number == number), None)

    def agent_of(self, step: Step) -> str | None:
        """Whose work a step is, as far as the procedure says."""
        return self.agent if step.agent is None else step.agent

    def as_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "description": self.description,
            "version": self.version,
            "priority": self.priority,
            "execution_mode": self.execution_mode,
            "deterministic": self.deterministic,
            "cooldown_secs": self.cooldown_secs,
            "max_concurrent": self.max_concurrent,
            "admission_policy": self.admission_policy,
            "max_pending_approvals": self.max_pending_approvals,
            "agent": self.agent,
            "triggers": [trigger.as_json() for trigger in self.triggers],
            "steps": [step.as_json() for step in self.steps],
        }
