"""``usage`` and ``progress``: what a program says of the task that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import TASK_ID, Asked, FakeDaemon, Hangup, always, refuse

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]


def sums(left: float | None = None, **tree: Any) -> dict[str, Any]:
    return {
        "task_id": TASK_ID, "tokens": 1200, "cost": 0.03, "tree": {"tokens": 4200, "cost": 0.1, **tree},
        "left": {"cost": left},
    }  # fmt: skip


def test_usage_is_reported_and_the_sums_are_told(daemon: Start, pawl: Pawl) -> None:
    """With a key, so that a report that is sent twice counts once."""
    fake = daemon({"task.usage": always(sums())})

    ran = pawl("usage", "--tokens", "200", "--cost", "0.01", "--model", "large")

    assert ran == (0, "1200 tokens, 0.03 in all for this task; 4200 tokens, 0.10 for its tree\n", "")
    asked = fake.params("task.usage")
    assert len(asked.pop("request_key")) == 32
    assert asked == {"tokens": 200, "cost": 0.01, "model": "large"}


def test_usage_tells_what_is_left_and_of_how_many_tasks(daemon: Start, pawl: Pawl) -> None:
    """Where the daemon says so; the document as it is."""
    answer = sums(left=0.0042, tasks=3)
    daemon({"task.usage": always(answer)})

    assert pawl("usage", "--cost", "0").out == (
        "1200 tokens, 0.03 in all for this task; 4200 tokens, 0.10 for its tree of 3 tasks; "
        "0.0042 of the cost for a day is left\n"
    )
    assert pawl("usage", "--tokens", "0", "--json").json == answer


@pytest.mark.parametrize(("word", "cost"), [("0", 0.0), ("12.5", 12.5), (".5", 0.5), ("1e-05", 0.00001)])
def test_a_cost_is_read_as_programs_print_it(daemon: Start, pawl: Pawl, word: str, cost: float) -> None:
    """A given 0 is given, and what was not given is not sent."""
    fake = daemon({"task.usage": always(sums())})

    assert pawl("usage", "--cost", word).status == 0
    asked = fake.params("task.usage")
    del asked["request_key"]
    assert asked == {"cost": cost}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["usage"], "give --tokens, --cost or both"),
        (["usage", "--model", "large"], "give --tokens, --cost or both"),
        (["usage", "--cost", "0,03"], "'0,03': write a number of at least 0, like 0.25"),
        (["usage", "--cost", "-0.1"], "of at least 0"),
        (["usage", "--cost", "1e999"], "of at least 0"),
        (["usage", "--cost", "inf"], "of at least 0"),
        (["usage", "--cost", "1_0"], "of at least 0"),
        (["usage", "--cost", "2000000000"], "out of range"),
        (["usage", "--tokens", "-1"], "out of range"),
    ],
)
def test_a_wrong_report_is_refused_before_a_daemon_is_asked(pawl: Pawl, words: list[str], told: str) -> None:
    """Exit 2, with the right form."""
    text, json = pawl(*words), pawl(*words, "--json")

    assert (text.status, text.out) == (2, "")
    assert told in text.err
    assert (json.status, json.error["code"]) == (2, "usage")


def test_a_report_is_sent_again_with_the_same_key(daemon: Start, pawl: Pawl) -> None:
    """Through a loss of the daemon."""
    answers: Any = iter([Hangup(), sums()])

    def answer(asked: Asked) -> Any:
        found = next(answers)
        if isinstance(found, Hangup):
            raise found
        return found

    fake = daemon({"task.usage": answer})

    assert pawl("usage", "--tokens", "1").status == 0
    assert fake.asked[0] == fake.asked[1]


def test_progress_says_nothing_on_success(daemon: Start, pawl: Pawl) -> None:
    """And is the document with ``--json``."""
    answer = {"task_id": TASK_ID, "progress": {"text": "12 of 40", "phase": None, "at": "2026-01-31T09:30:00.000Z"}}
    fake = daemon({"task.progress": always(answer)})

    assert pawl("progress", "12 of 40", "--phase", "tests") == (0, "", "")
    assert fake.params("task.progress") == {"text": "12 of 40", "phase": "tests"}
    assert pawl("progress", "12 of 40", "--json").json == answer
    assert fake.params("task.progress") == {"text": "12 of 40"}


@pytest.mark.parametrize("words", [["usage", "--tokens", "1"], ["progress", "half"]], ids=" ".join)
def test_outside_a_task_the_refusal_is_passed_on(daemon: Start, pawl: Pawl, words: list[str]) -> None:
    """Exit 6; the help says for whom it is."""
    answer = refuse("inside_only", "cannot report from outside a task", 6)
    daemon({"task.usage": answer, "task.progress": answer})

    assert pawl(*words) == (6, "", "pawl: cannot report from outside a task\n")
    assert pawl(*words, "--json").error["code"] == "inside_only"
    assert "For programs inside a task" in pawl(words[0], "--help").out
