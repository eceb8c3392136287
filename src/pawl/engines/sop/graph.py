"""The ways through a procedure, and three drawings of them: text, Mermaid, JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pawl.engines.sop import gates
from pawl.engines.sop.conditions import is_blank
from pawl.engines.sop.literals import Json, trim
from pawl.engines.sop.model import Goto, Procedure, Retry, Step, Trigger
from pawl.engines.sop.routing import is_past_the_end

_KEEPS = re.compile(r"[^\w .,:;/()\[\]{}$=+*?!-]")


class Edge(NamedTuple):
    """A way from one step to another. ``to`` None: the run is over; a number that no step has: the run fails.

    ``kind``: ``next`` (written or the step below), ``switch`` (a port), ``unmatched`` (no port fits), ``bypass`` (the
    guard does not hold), ``failure`` or ``dependency`` (``to`` waits for ``from_``; no way of its own).
    """

    from_: int
    to: int | None
    kind: str
    label: str | None = None

    def as_json(self) -> dict[str, Json]:
        return {"from": self.from_, "to": self.to, "kind": self.kind, "label": self.label}


def edges(procedure: Procedure) -> list[Edge]:
    """Every way, step by step. A port that leads nowhere has none."""
    return [edge for step in procedure.steps for edge in ways_out(procedure, step)]


def reachable(procedure: Procedure) -> set[int]:
    """The numbers that a run can come to, whatever the outputs are."""
    ways: dict[int, list[int]] = {}
    for edge in edges(procedure):
        if edge.to is not None and edge.kind != "dependency":
            ways.setdefault(edge.from_, []).append(edge.to)
    found: set[int] = set()
    ahead = [procedure.steps[0].number] if procedure.steps else []
    while ahead:
        number = ahead.pop()
        if number not in found:
            found.add(number)
            ahead += ways.get(number, [])
    return found


def document(procedure: Procedure) -> dict[str, Json]:
    """The graph as JSON: nodes, and edges between their numbers."""
    nodes = []
    for step in procedure.steps:
        asked = gates.before(procedure, step)
        nodes.append(
            {"step": step.number, "title": step.title, "kind": step.kind, "gate": asked.kind if asked else None}
        )
    first = procedure.steps[0].number if procedure.steps else None
    return {"start": first, "nodes": nodes, "edges": [edge.as_json() for edge in edges(procedure)]}


def text(procedure: Procedure) -> str:
    """For a terminal: each step with the ways out of it."""
    lines = [f"start: {', '.join(map(trigger_text, procedure.triggers)) or 'nothing starts it'}"]
    ways: dict[int, list[Edge]] = {}
    for edge in edges(procedure):
        if edge.kind != "dependency":
            ways.setdefault(edge.from_, []).append(edge)
    indent = " " * (len(str(max((step.number for step in procedure.steps), default=0))) + 2)
    for step in procedure.steps:
        lines += ["", f"{step.number}  {_one_line(step.title)}{_notes(procedure, step)}"]
        lines += [indent + _way(procedure, edge) for edge in ways.pop(step.number, [])]
        if isinstance(step.on_failure, Retry):
            lines.append(f"{indent}on failure: again, up to {step.on_failure.max} times")
    return "\n".join(lines)


def mermaid(procedure: Procedure) -> str:
    """A flowchart. What the author wrote is quoted, and kept to signs that mean nothing to Mermaid."""
    lines = ["flowchart TD"]
    if procedure.steps:
        label = ", ".join(map(trigger_text, procedure.triggers)) or "nothing"
        lines += [f'  start(["{_quoted(label)}"]) --> s{procedure.steps[0].number}']
    drawn = set()
    for step in procedure.steps:
        if step.number not in drawn:
            drawn.add(step.number)
            left, right = {"checkpoint": ("{{", "}}"), "capability": ("[[", "]]")}.get(step.kind, ("[", "]"))
            lines.append(f'  s{step.number}{left}"{step.number}. {_quoted(step.title)}"{right}')
    for edge in edges(procedure):
        to = "done([end])" if edge.to is None else f"s{edge.to}"
        arrow = "-.->" if edge.kind in ("failure", "dependency") else "-->"
        words = {"failure": "failure", "dependency": "needed by", "unmatched": "no port fits"}.get(
            edge.kind, edge.label
        )
        lines.append(f"  s{edge.from_} {arrow}" + (f'|"{_quoted(words)}"| ' if words else " ") + to)
    return "\n".join(lines)


def trigger_text(trigger: Trigger) -> str:
    """A trigger in one line, like ``mqtt plant/+/queue if $.depth >= 500``."""
    values = [" ".join(value) if isinstance(value, list) else value for key, value in trigger.values.items()
              if value and key != "condition"]  # fmt: skip
    condition = [] if is_blank(trigger.condition) else ["if", trigger.condition or ""]
    return _one_line(" ".join([trigger.type, *values, *condition]))


def ways_out(procedure: Procedure, step: Step) -> Iterator[Edge]:
    """The ways out of one step, and what it waits for."""
    routing, here = step.routing, step.number
    below = None if routing.terminal or is_past_the_end(procedure, here + 1) else here + 1
    if not is_blank(routing.when) and (routing.switch or routing.next is not None):
        yield Edge(here, below, "bypass", f"unless {trim(routing.when or '')}")
    if routing.switch:
        yield from _ports(step)
    elif routing.next is not None:
        yield Edge(here, routing.next, "next", None if is_blank(routing.when) else trim(routing.when or ""))
    else:
        yield Edge(here, below, "next")
    if isinstance(step.on_failure, Goto):
        yield Edge(here, step.on_failure.step, "failure")
    for number in routing.depends_on:
        yield Edge(number, here, "dependency")


def _ports(step: Step) -> Iterator[Edge]:
    for port in step.routing.switch:
        if port.goto is not None:
            yield Edge(
                step.number, port.goto, "switch", port.name if is_blank(port.when) else f"{port.name}: {port.when}"
            )
        if is_blank(port.when):
            return  # it catches all: what stands behind it is never looked at
    yield Edge(step.number, None, "unmatched")


def _notes(procedure: Procedure, step: Step) -> str:
    asked = gates.before(procedure, step)
    notes = [
        *([step.capability or "?"] if step.kind == "capability" else []),
        *(["a person decides"] if asked and asked.kind == "checkpoint" else []),
        *([f"asks first: {', '.join(asked.reasons)}"] if asked and asked.kind == "approval" else []),
        *([f"policy {step.policy}"] if asked and step.policy else []),
        *([f"agent {step.agent}"] if step.agent else []),
        *([f"after {', '.join(map(str, step.routing.depends_on))}"] if step.routing.depends_on else []),
    ]
    return f"  ({_one_line('; '.join(notes))})" if notes else ""


def _way(procedure: Procedure, edge: Edge) -> str:
    to = "end" if edge.to is None else str(edge.to)
    missing = " (no such step)" if edge.to is not None and procedure.step(edge.to) is None else ""
    if edge.kind == "failure":
        return f"on failure: -> {to}{missing}"
    label = "no port fits" if edge.kind == "unmatched" else edge.label
    return f"-> {to}{missing}" + (f"  {_one_line(label)}" if label else "")


def _one_line(words: str) -> str:
    return " ".join(words.split())


def _quoted(words: str) -> str:
    """Inside a Mermaid label: other signs by their code point."""
    return _KEEPS.sub(lambda match: f"#{ord(match[0])};", _one_line(words))
