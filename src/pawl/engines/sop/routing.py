"""What follows a step. Pure: the same definition, outputs and counts always give the same answer.

Steps are meant by number. ``outputs`` has the output of each step that has completed, the latest of each: a step that
failed or was skipped has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pawl.engines.sop.conditions import holds_for
from pawl.engines.sop.literals import Json, from_json
from pawl.engines.sop.model import Fail, Goto, Procedure, Step


@dataclass(frozen=True, slots=True)
class Enter:
    """That step is next."""

    step: int


@dataclass(frozen=True, slots=True)
class Again:
    """The same step once more, with the input it had."""


@dataclass(frozen=True, slots=True)
class Wait:
    """That step is next once these have completed."""

    step: int
    on: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """The run is over and well."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run is over and failed, with a code and words for people."""

    code: str
    message: str


Next = Enter | Again | Wait | Complete | Failed


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: the outputs, and how many results each step has on record."""

    outputs: Mapping[int, Json]
    visits: Mapping[int, int]


def document(outputs: Mapping[int, Json]) -> Json:
    """What the conditions of routing look into: ``$.steps.2.load``."""
    return {"steps": {str(number): output for number, output in outputs.items()}}


def output_of(text: str) -> Json:
    """An output as conditions see it: JSON where it parses, else the text."""
    try:
        return from_json(text)
    except ValueError:
        return text


def after(procedure: Procedure, step: Step, progress: Progress, *, visits_max: int) -> Next:
    """What follows a step that completed or was skipped.

    A guard that does not hold bypasses ``switch`` and ``next``: what is left is ``terminal`` or the step below.
    """
    routing, seen = step.routing, document(progress.outputs)
    guarded = holds_for(routing.when, seen)
    if guarded and routing.switch:
        port = next((port for port in routing.switch if holds_for(port.when, seen)), None)
        if port is None:
            return Complete()
        if port.goto is None:
            return Failed("port_without_target", f"the port {port.name!r} of step {step.number} leads nowhere")
        return _to(procedure, port.goto, progress, visits_max)
    if guarded and routing.next is not None:
        return _to(procedure, routing.next, progress, visits_max)
    if routing.terminal or is_past_the_end(procedure, step.number + 1):
        return Complete()
    return _to(procedure, step.number + 1, progress, visits_max)


def after_failure(
    procedure: Procedure, step: Step, progress: Progress, *, retries_used: int, retries_max: int, visits_max: int
) -> Next:
    """What follows a step that failed. ``retries_max`` is the configuration's; the step's own limit holds beside it."""
    match step.on_failure:
        case Fail():
            return Failed("step_failed", f"step {step.number} failed")
        case Goto(target):
            return _to(procedure, target, progress, visits_max)
        case retry:
            if retries_used < min(retry.max, retries_max):
                return Again()
            return Failed("retries_exhausted", f"step {step.number} failed, and has been tried again often enough")


def missing(step: Step, outputs: Mapping[int, Json]) -> tuple[int, ...]:
    """The steps that this one depends on and that have not completed."""
    return tuple(number for number in step.routing.depends_on if number not in outputs)


def is_past_the_end(procedure: Procedure, number: int) -> bool:
    """Whether no step has this number or a higher one."""
    return number > max((step.number for step in procedure.steps), default=0)


def _to(procedure: Procedure, number: int, progress: Progress, visits_max: int) -> Next:
    step = procedure.step(number)
    if step is None:
        return Failed("step_missing", f"there is no step {number}")
    if progress.visits.get(number, 0) >= visits_max:
        return Failed("visits_exhausted", f"step {number} has been come to {visits_max} times")
    waits = missing(step, progress.outputs)
    return Wait(number, waits) if waits else Enter(number)
