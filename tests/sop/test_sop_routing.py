"""What follows a step, and where a person is asked, by tables."""

from __future__ import annotations

from typing import Any

import pytest

from pawl.engines.sop import gates
from pawl.engines.sop.model import Fail, Goto, OnFailure, Port, Procedure, Retry, Routing, Step
from pawl.engines.sop.routing import (
    Again,
    Complete,
    Enter,
    Failed,
    Next,
    Progress,
    Wait,
    after,
    after_failure,
    document,
    output_of,
)

TRUE, FALSE = "$.steps.1.n == 1", "$.steps.1.n == 2"


def procedure(routing: Routing, *, others: tuple[Step, ...] = (Step(2, "B"), Step(3, "C"))) -> Procedure:
    return Procedure("x", "x", steps=(Step(1, "A", routing=routing), *others))


def following(routing: Routing, *, others: tuple[Step, ...] = (Step(2, "B"), Step(3, "C")), **counts: Any) -> Next:
    """What follows step 1, whose output is ``{"n": 1}``."""
    found = procedure(routing, others=others)
    progress = Progress({1: {"n": 1}, **counts.get("outputs", {})}, counts.get("visits", {}))
    return after(found, found.steps[0], progress, visits_max=counts.get("visits_max", 256))


@pytest.mark.parametrize(
    ("routing", "answer"),
    [
        (Routing(), Enter(2)),
        (Routing(next=3), Enter(3)),
        (Routing(next=1), Enter(1)),
        (Routing(terminal=True), Complete()),
        (Routing(next=3, terminal=True), Enter(3)),
        (Routing(when=TRUE, next=3), Enter(3)),
        (Routing(when=FALSE, next=3), Enter(2)),
        (Routing(when=TRUE, next=1), Enter(1)),
        (Routing(when=FALSE, next=1), Enter(2)),
        (Routing(when=FALSE, next=3, terminal=True), Complete()),
        (Routing(when=" ", next=3), Enter(3)),
        (Routing(when="nonsense", next=3), Enter(2)),
        (Routing(when=TRUE), Enter(2)),
        (Routing(when=TRUE, terminal=True), Complete()),
        (Routing(switch=(Port("a", TRUE, 3),)), Enter(3)),
        (Routing(switch=(Port("a", FALSE, 3), Port("b", None, 2))), Enter(2)),
        (Routing(switch=(Port("a", None, 2), Port("b", TRUE, 3))), Enter(2)),
        (Routing(switch=(Port("a", FALSE, 3),)), Complete()),
        (Routing(switch=(Port("a", FALSE, 3),), next=2), Complete()),
        (Routing(switch=(Port("a", TRUE, 3),), next=2, terminal=True), Enter(3)),
        (Routing(when=FALSE, switch=(Port("a", TRUE, 3),)), Enter(2)),
        (Routing(when=FALSE, switch=(Port("a", TRUE, 3),), terminal=True), Complete()),
        (Routing(when=TRUE, switch=(Port("a", TRUE, 3),)), Enter(3)),
    ],
    ids=str,
)
def test_what_follows_a_step(routing: Routing, answer: Next) -> None:
    """Guard, then switch, then next, then terminal, then the step below."""
    assert following(routing) == answer


@pytest.mark.parametrize(
    ("routing", "code"),
    [
        (Routing(next=9), "step_missing"),
        (Routing(next=0), "step_missing"),
        (Routing(switch=(Port("a", None, 9),)), "step_missing"),
        (Routing(switch=(Port("a", None, None),)), "port_without_target"),
    ],
    ids=str,
)
def test_a_way_that_leads_nowhere_fails_the_run(routing: Routing, code: str) -> None:
    answer = following(routing)

    assert isinstance(answer, Failed)
    assert answer.code == code


def test_the_last_step_completes_the_run() -> None:
    """Also a loop at the end whose guard does not hold any more, and numbers that end higher than they count."""
    assert following(Routing(), others=()) == Complete()
    assert following(Routing(when=FALSE, next=1), others=()) == Complete()


def test_a_hole_in_the_numbers_fails_the_run() -> None:
    """Steps behind the hole are not passed over in silence."""
    answer = following(Routing(), others=(Step(3, "C"), Step(4, "D")))

    assert isinstance(answer, Failed)
    assert answer.code == "step_missing"


def test_a_step_may_be_come_to_only_so_often() -> None:
    """The limit is of results on record: the visit that would be one too many fails the run."""
    assert following(Routing(next=3), visits={3: 2}, visits_max=3) == Enter(3)

    answer = following(Routing(next=3), visits={3: 3}, visits_max=3)

    assert isinstance(answer, Failed)
    assert answer.code == "visits_exhausted"


def test_a_step_waits_for_what_it_depends_on() -> None:
    """Outputs count: what failed or was skipped has none."""
    others = (Step(2, "B", routing=Routing(depends_on=(1, 3))), Step(3, "C"))

    assert following(Routing(), others=others) == Wait(2, (3,))
    assert following(Routing(), others=others, outputs={3: None}) == Enter(2)


@pytest.mark.parametrize(
    ("policy", "used", "answer"),
    [
        (Fail(), 0, "step_failed"),
        (Retry(1), 0, Again()),
        (Retry(1), 1, "retries_exhausted"),
        (Retry(0), 0, "retries_exhausted"),
        (Retry(9), 1, Again()),
        (Retry(9), 2, "retries_exhausted"),
        (Goto(3), 5, Enter(3)),
        (Goto(1), 0, Enter(1)),
        (Goto(9), 0, "step_missing"),
    ],
    ids=str,
)
def test_what_follows_a_failure(policy: OnFailure, used: int, answer: Any) -> None:
    """The smaller of the step's and the configuration's limit of retries (2 here) holds."""
    step = Step(1, "A", on_failure=policy)
    found = Procedure("x", "x", steps=(step, Step(2, "B"), Step(3, "C")))

    said = after_failure(found, step, Progress({}, {}), retries_used=used, retries_max=2, visits_max=256)

    assert said == answer or (isinstance(said, Failed) and said.code == answer)


def test_what_conditions_look_into() -> None:
    """Outputs by number, as JSON where they are JSON."""
    assert document({1: output_of('{"a": 1}'), 12: output_of("words")}) == {"steps": {"1": {"a": 1}, "12": "words"}}


@pytest.mark.parametrize(
    ("mode", "priority", "step", "reasons"),
    [
        ("auto", "critical", Step(1, "A"), None),
        ("auto", "normal", Step(2, "A", requires_confirmation=True), ("confirmation",)),
        ("auto", "normal", Step(2, "A", mode="step_by_step"), ("step mode",)),
        ("auto", "normal", Step(2, "A", mode="supervised"), None),
        ("auto", "normal", Step(1, "A", mode="supervised"), ("step mode",)),
        ("supervised", "normal", Step(1, "A"), ("mode",)),
        ("supervised", "normal", Step(1, "A", mode="auto"), ("mode",)),
        ("supervised", "critical", Step(2, "A"), None),
        ("step_by_step", "low", Step(7, "A"), ("mode",)),
        ("step_by_step", "low", Step(7, "A", mode="deterministic"), ("mode",)),
        ("priority_based", "critical", Step(2, "A"), ("mode",)),
        ("priority_based", "high", Step(2, "A"), ("mode",)),
        ("priority_based", "normal", Step(2, "A"), None),
        ("priority_based", "low", Step(1, "A"), ("mode",)),
        ("deterministic", "critical", Step(1, "A", requires_confirmation=True, mode="step_by_step"), None),
        ("deterministic", "normal", Step(2, "A", kind="checkpoint"), ("checkpoint",)),
        ("auto", "normal", Step(2, "A", kind="checkpoint"), ("checkpoint",)),
        ("supervised", "normal", Step(1, "A", kind="checkpoint"), ("checkpoint",)),
        ("supervised", "normal", Step(2, "A", requires_confirmation=True, mode="step_by_step"),
         ("confirmation", "step mode")),
    ],
)  # fmt: skip
def test_where_a_person_is_asked(mode: str, priority: str, step: Step, reasons: tuple[str, ...] | None) -> None:
    """A step can add a gate to those of its procedure's mode and take none away."""
    found = Procedure("x", "x", priority=priority, execution_mode=mode, steps=(step,))

    asked = gates.before(found, step)

    assert (asked and asked.reasons) == reasons
