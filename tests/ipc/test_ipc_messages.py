"""Parameters are checked at the edge, and a fault is said in words that name its parameter."""

from __future__ import annotations

from typing import Any

import pytest

from pawl.daemon import routes
from pawl.errors import InvalidParams
from pawl.ipc import messages


def refused(model: type[messages.Params], raw: Any) -> InvalidParams:
    with pytest.raises(InvalidParams) as caught:
        messages.read(model, raw)
    return caught.value


@pytest.mark.parametrize(
    ("model", "raw", "message"),
    [
        (messages.Delegate, {}, "cannot use the parameter agent: it is required"),
        (messages.Nothing, {"x": 1}, "cannot use the parameter x: there is no such parameter"),
        (messages.Delegate, {"agent": 1}, "cannot use the parameter agent: it must be text"),
        (messages.Name, {"name": ""}, "cannot use the parameter name: it must have at least 1 character(s)"),
        (messages.Name, {"name": "a" * 65}, "cannot use the parameter name: it may have at most 64 characters"),
        (messages.Name, {"name": "\ud800"}, "cannot use the parameter name: it holds half of a surrogate pair"),
        (messages.Stop, {"cancel": 1}, "cannot use the parameter cancel: it must be true or false"),
        (messages.Events, {"after": "1"}, "cannot use the parameter after: it must be a whole number"),
        (messages.Events, {"limit": 1.5}, "cannot use the parameter limit: it must be a whole number"),
        (messages.Events, {"limit": 0}, "cannot use the parameter limit: it must be at least 1"),
        (messages.Events, {"last": 10**4000}, "cannot use the parameter last: it may be at most 10000"),
        (messages.Wait, {"ids": "a"}, "cannot use the parameter ids: it must be an array"),
        (messages.Wait, {"ids": []}, "cannot use the parameter ids: it must have at least 1 entry"),
        (messages.Wait, {"ids": ["a"], "timeout_s": "1"}, "cannot use the parameter timeout_s: it must be a number"),
        (
            messages.Wait,
            {"ids": ["a"], "timeout_s": float("nan")},
            "cannot use the parameter timeout_s: it must be a finite number",
        ),
        (messages.Delegate, {"agent": "a", "timeout_s": 0}, "cannot use the parameter timeout_s: it must be over 0"),
        (messages.Delegate, {"agent": "a", "env": []}, "cannot use the parameter env: it must be an object"),
        (messages.Delegate, {"agent": "a", "env": {"A": 1}}, "cannot use the parameter env.A: it must be text"),
        (
            messages.Delegate,
            {"agent": "a", "env": {"1": "a"}},
            "cannot use the parameter env.1: the name of a variable has letters, digits and underscores only",
        ),
        (
            messages.Delegate,
            {"agent": "a", "env": {"A": "a\0"}},
            "cannot use the parameter env.A: it may hold no zero bytes",
        ),
        (
            messages.Delegate,
            {"agent": "a", "cwd": "here"},
            "cannot use the parameter cwd: it must be an absolute path without zero bytes",
        ),
        (
            messages.Delegate,
            {"agent": "a", "prompt": "", "prompt_base64": ""},
            "cannot use the parameters: give prompt or prompt_base64, not both",
        ),
        (
            messages.Delegate,
            {"agent": "a", "env": {"PAWL_HOME": ""}},
            "cannot use the parameters: names that begin with PAWL_ are the daemon's to set",
        ),
        (messages.One, {"id": "é"}, "cannot use the parameter id: an id has letters, digits and hyphens only"),
        (
            messages.Logs,
            {"id": "a", "stream": "both"},
            "cannot use the parameter stream: it must be 'stdout' or 'stderr'",
        ),
        (messages.Nothing, [], "cannot read the parameters: they must be one JSON object"),
        (
            messages.Listing,
            {"labels": {f"k{i}": "" for i in range(51)}},
            "cannot use the parameter labels: it may have at most 50 entries",
        ),
        (
            messages.Delegate,
            {"agent": "a", "labels": {f"k{i}": "v" * 150 for i in range(40)}},
            "cannot use the parameter labels: it may take at most 4096 bytes, counted as JSON",
        ),
        (
            messages.Progress,
            {"text": "\x01" * 1000},
            "cannot use the parameter text: it may take at most 4096 bytes, counted as JSON",
        ),
        (messages.Progress, {"text": ""}, "cannot use the parameter text: it must have at least 1 character(s)"),
        (messages.Usage, {"model": "m" * 101}, "cannot use the parameter model: it may have at most 100 characters"),
    ],
)
def test_a_fault_names_its_parameter(model: type[messages.Params], raw: Any, message: str) -> None:
    """What is wrong stands in a sentence of ours, for every kind of fault."""
    assert refused(model, raw).message == message


def test_every_fault_is_listed() -> None:
    """The message has the first, the details have the others too."""
    error = refused(messages.Events, {"after": -1, "limit": "x", "follow": 0})

    faults: Any = error.details["faults"]

    assert [fault["parameter"] for fault in faults] == ["after", "limit", "follow"]


def test_no_parameters_are_an_empty_object() -> None:
    """``params`` may be left out."""
    assert messages.read(messages.Nothing, None) == messages.Nothing()


@pytest.mark.parametrize("method", routes._TABLE)
def test_a_crowd_is_refused_before_it_is_looked_at(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million wrong entries are one fault: looking at each would keep every other client waiting for a minute."""
    model = routes._TABLE[method].params
    monkeypatch.setattr(model, "model_validate", lambda raw: pytest.fail("it was looked at"))
    crowd = [1] * 1_000_000

    named = [refused(model, {name: crowd}).message for name in (*model.model_fields, "unknown")]
    many = refused(model, {f"k{number}": 1 for number in range(1001)}).message

    assert all("it may have at most 1000 entries" in message for message in named)
    assert many == "cannot read the parameters: there are 1001 of them"


def test_long_names_and_many_faults_are_cut() -> None:
    """What a client sent is not sent back to it at full length."""
    error = refused(messages.Nothing, {f"{number}-{'k' * 5000}": 1 for number in range(900)})

    faults: Any = error.details["faults"]

    assert len(error.message) < 300
    assert len(faults) == 20
    assert all(len(fault["parameter"]) <= 100 for fault in faults)


def test_every_pattern_has_words() -> None:
    """A parameter with a pattern of its own has a sentence for it."""
    patterns = {
        part.pattern
        for name in ("Id", "Path", "Word", "EnvName", "Tool")
        for part in getattr(messages, name).__metadata__
        if getattr(part, "pattern", None)
    }

    assert patterns == set(messages._PATTERNS)
