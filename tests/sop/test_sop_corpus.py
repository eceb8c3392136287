"""The corpus: folders that cover the format line by line, each with the form that it is read in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reading import CORPUS, folder, noticed, shown

from pawl.engines.sop import gates, graph, steps
from pawl.engines.sop.model import TRIGGERS, Procedure
from pawl.engines.sop.routing import Complete, Enter, Next, Progress, Wait, after, after_failure
from pawl.engines.sop.triggers import Event, matches

FOLDERS = sorted(CORPUS.iterdir())


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.name)
def test_a_folder_is_read_as_expected(path: Path) -> None:
    """The procedure without its defaults (null: it does not load), and every finding with its line."""
    found = folder(path)

    assert {"procedure": shown(found.procedure), "findings": noticed(found)} == json.loads(
        (path / "expected.json").read_text()
    )


def test_the_corpus_covers_the_format() -> None:
    """Thirty folders and more; each key of a bullet, each type of trigger and each key of a step is in one of them."""
    texts = "\n".join(path.read_bytes().decode("utf-8", "replace") for path in CORPUS.rglob("SOP.*"))
    read = [json.loads((path / "expected.json").read_text())["procedure"] for path in FOLDERS]
    keys = {key for procedure in read if procedure for step in procedure["steps"] for key in step}

    assert len(FOLDERS) >= 30
    assert {key for key in steps._KEYS if f"- {key}:" not in texts} == set()
    assert {kind for kind in TRIGGERS if f'type = "{kind}"' not in texts} == set()
    assert {key for key in steps.Step(1, "").as_json() if key not in keys} == set()
    assert "with" in keys


def test_no_file_is_written() -> None:
    """Reading leaves the authors' files as they are, and leaves nothing beside them."""
    before = dict(_files())

    for path in FOLDERS:
        folder(path)

    assert dict(_files()) == before


@pytest.mark.parametrize("path", FOLDERS, ids=lambda path: path.name)
def test_every_drawing_can_be_made(path: Path) -> None:
    """Text, Mermaid and JSON of whatever loads; each way in them begins at a step that is there."""
    procedure = folder(path).procedure
    if procedure is None:
        return

    drawn = graph.document(procedure)

    assert graph.text(procedure).startswith("start: ")
    assert graph.mermaid(procedure).startswith("flowchart TD")
    assert json.loads(json.dumps(drawn)) == drawn
    numbers = {node["step"] for node in drawn["nodes"]}
    assert {edge["from"] for edge in drawn["edges"] if edge["kind"] != "dependency"} <= numbers


def test_clear_backlog() -> None:
    """Routed by what its first step says, asked twice on the way, started by three sorts of events."""
    found = _procedure("clear-backlog")
    mqtt, cron, manual = found.triggers

    assert [step.number for step in found.steps] == [1, 2, 3, 4, 5]
    assert _asked(found) == {1: ("approval", ("mode",)), 2: ("approval", ("confirmation",))}
    assert found.steps[1].policy == "two"
    assert _next(found, 1, {1: {"load": "heavy"}}) == Enter(2)
    assert _next(found, 1, {1: {"load": "light"}}) == Enter(4)
    assert _next(found, 2, {1: {"load": "heavy"}, 2: "stopped a and b"}) == Enter(3)
    assert _next(found, 3, {3: {"ok": False}}) == Enter(5)
    assert _next(found, 3, {3: {"ok": True}}) == Enter(4)
    assert _next(found, 3, {3: {}}) == Enter(4)
    assert _next(found, 4, {}) == Complete()
    assert _failed(found, 2) == Enter(5)
    assert matches(cron, Event("cron", "15 2 * * 1-5"))
    assert matches(mqtt, Event("mqtt", "works/7/queue", '{"depth": 500}'))
    assert not matches(mqtt, Event("mqtt", "works/7/queue", '{"length": 500}'))
    assert matches(manual, Event("manual"))


def test_clear_backlog_waits_for_both_steps() -> None:
    """The check comes only when the look and the pause have completed."""
    found = _procedure("clear-backlog")

    assert _next(found, 2, {2: "x"}) == Wait(3, (1,))


def test_answer_ticket() -> None:
    """A pipeline in which only the checkpoint asks, and whose first step has a say about its payload."""
    found = _procedure("answer-ticket")
    channel = found.triggers[0]

    assert found.execution_mode == "deterministic"
    assert _asked(found) == {3: ("checkpoint", ("checkpoint",))}
    assert found.steps[2].edit == "body"
    assert _next(found, 3, {}) == Enter(4)
    assert _next(found, 4, {}) == Complete()
    assert matches(channel, Event("channel", "git.main:issue.opened", '{"event_type": "issue.opened"}'))
    assert not matches(channel, Event("channel", "git.other:issue.opened", '{"event_type": "issue.opened"}'))
    assert not matches(channel, Event("channel", "git.main:issue.closed", '{"event_type": "issue.closed"}'))


def test_climb_ladder() -> None:
    """Without SOP.md: numbers and a title are filled in, a guard has ``>=``, a denial goes to a step."""
    found = _procedure("climb-ladder")
    files, amqp = found.triggers

    assert [(step.number, step.title) for step in found.steps] == [(1, "Rest"), (2, "noop"), (3, "A look by a person")]
    assert _next(found, 1, {1: {"waited_ms": 25}}) == Enter(3)
    assert _next(found, 1, {1: {"waited_ms": 9}}) == Enter(2)
    assert _asked(found) == {3: ("checkpoint", ("checkpoint",))}
    assert _next(found, 3, {}) == Complete()
    assert _failed(found, 3) == Enter(2)
    assert _next(found, 2, {}) == Complete()
    assert matches(amqp, Event("amqp", "probe"))
    assert matches(amqp, Event("amqp", "probe.a.b"))
    assert matches(files, Event("filesystem", "arrivals/x.done", '{"event": "created"}'))
    assert not matches(files, Event("filesystem", "arrivals/x.done", '{"event": "deleted"}'))


def _procedure(name: str) -> Procedure:
    found = folder(CORPUS / name).procedure
    assert found is not None
    return found


def _asked(found: Procedure) -> dict[int, Any]:
    asked = {step.number: gates.before(found, step) for step in found.steps}
    return {number: (gate.kind, gate.reasons) for number, gate in asked.items() if gate}


def _next(found: Procedure, number: int, outputs: dict[int, Any]) -> Next:
    step = found.step(number)
    assert step is not None
    return after(found, step, Progress({1: {}, 2: {}, **outputs} if number > 2 else outputs, {}), visits_max=256)


def _failed(found: Procedure, number: int) -> Next:
    step = found.step(number)
    assert step is not None
    return after_failure(found, step, Progress({}, {}), retries_used=0, retries_max=2, visits_max=256)


def _files() -> Iterator[tuple[str, bytes]]:
    yield from ((str(path), path.read_bytes()) for path in CORPUS.rglob("*") if path.is_file())
