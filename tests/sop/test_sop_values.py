"""Triggers, schemas, bindings and literals, by tables."""

from __future__ import annotations

from typing import Any

import pytest

from pawl.engines.sop import bindings, literals, schemas
from pawl.engines.sop.model import Scope, Step, Trigger
from pawl.engines.sop.triggers import Event, matches

SHOW = "calendar.no_show"
_PAYLOAD = (
    '{"event_id": "1", "event_title": "t", "expected_start": "s", "detected_at": "d", "calendar_source": "work", '
    '"calendar_id": "a"}'
)


def trigger(kind: str, **values: Any) -> Trigger:
    return Trigger(kind, {"condition": None} | values)


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("a/b", "a/b", True), ("a/b", "a", False), ("a", "a/b", False), ("a/+", "a/b", True), ("a/+", "a", False),
        ("a/+", "a/b/c", False), ("+", "a", True), ("a/#", "a/b/c", True), ("a/#", "a/b", True), ("a/#", "a", False),
        ("#", "a", True), ("#", "a/b", True), ("+/b", "a/b", True), ("a/+/c", "a/b/c", True), ("A", "a", False),
    ],
)  # fmt: skip
def test_topics_of_mqtt(pattern: str, topic: str, fits: bool) -> None:
    assert matches(trigger("mqtt", topic=pattern), Event("mqtt", topic)) is fits


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("a.b", "a.b", True), ("a.b", "a", False), ("a.*", "a.b", True), ("a.*", "a", False), ("a.*", "a.b.c", False),
        ("a.#", "a", True), ("a.#", "a.b.c", True), ("#", "a", True), ("#.z", "z", True), ("#.z", "a.b.z", True),
        ("#.z", "a.b", False), ("a.#.z", "a.z", True), ("a.#.*", "a", False), ("#.#", "a.b", True),
        ("#.b.#", "a.b.c", True), ("#.b.#", "a.c", False), ("*.#.*", "a", False), ("*.#.*", "a.b", True),
    ],
)  # fmt: skip
def test_routing_keys_of_amqp(pattern: str, topic: str, fits: bool) -> None:
    assert matches(trigger("amqp", routing_key=pattern), Event("amqp", topic)) is fits


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("in/*.txt", "in/a.txt", True), ("in/*.txt", "in/b/a.txt", True), ("in/*.txt", "in/a.csv", False),
        ("in/**", "in/a/b", True), ("in/?.txt", "in/a.txt", True), ("in/?.txt", "in/ab.txt", False),
        ("in/[ab].txt", "in/b.txt", True), ("in/[!a-c].txt", "in/b.txt", False), ("in/[!a-c].txt", "in/d.txt", True),
        ("in", "in", True), ("in", "in/a/b", True), ("in/", "in/a", True), ("in", "inside", False),
        ("a.c", "abc", False), ("in/[", "in/[", True), ("in/*\n", "in/a\n", True),
    ],
)  # fmt: skip
def test_paths(pattern: str, path: str, fits: bool) -> None:
    """A star crosses slashes; a plain directory is all below it."""
    assert matches(trigger("filesystem", path=pattern, events=[]), Event("filesystem", path)) is fits


@pytest.mark.parametrize(
    ("made", "event", "fits"),
    [
        (trigger("manual"), Event("manual"), True),
        (trigger("manual"), Event("webhook", "/x"), False),
        (trigger("webhook", path="/x"), Event("webhook", "/x"), True),
        (trigger("webhook", path="/x"), Event("webhook", "/x/"), False),
        (trigger("webhook", path="/x"), Event("webhook"), False),
        (trigger("cron", expression="* * * * *"), Event("cron", "* * * * *"), True),
        (trigger("peripheral", board="b", signal="s"), Event("peripheral", "b/s"), True),
        (trigger("peripheral", board="b", signal="s"), Event("peripheral", "b"), False),
        (trigger("filesystem", path="x", events=["created"]), Event("filesystem", "x", '{"event": "created"}'), True),
        (trigger("filesystem", path="x", events=["created"]), Event("filesystem", "x", '{"event": "deleted"}'), False),
        (trigger("filesystem", path="x", events=["created"]), Event("filesystem", "x", "[]"), False),
        (trigger("filesystem", path="x", events=["created"]), Event("filesystem", "x"), False),
        (trigger("calendar", calendar_source="work", calendar_ids=[]), Event("calendar", SHOW, _PAYLOAD), True),
        (trigger("calendar", calendar_source="work", calendar_ids=["b"]), Event("calendar", SHOW, _PAYLOAD),
         False),
        (trigger("calendar", calendar_source="home", calendar_ids=[]), Event("calendar", SHOW, _PAYLOAD),
         False),
        (trigger("calendar", calendar_source="work", calendar_ids=[]), Event("calendar", "other", _PAYLOAD), False),
        (trigger("calendar", calendar_source="work", calendar_ids=[]), Event("calendar", SHOW, "{}"), False),
        (trigger("channel", channel="Git", alias=None), Event("channel", "git"), True),
        (trigger("channel", channel="git", alias=None), Event("channel", "GIT/main"), True),
        (trigger("channel", channel="git", alias="main"), Event("channel", "git/main"), True),
        (trigger("channel", channel="git", alias="main"), Event("channel", "git/Main"), False),
        (trigger("channel", channel="git", alias="main"), Event("channel", "git"), False),
        (trigger("channel", channel="git", alias="main"), Event("channel", "git.main:opened"), True),
        (trigger("channel", channel="git", alias=None), Event("channel"), False),
        (trigger("mqtt", topic="a", condition="$.n > 1"), Event("mqtt", "a", '{"n": 2}'), True),
        (trigger("mqtt", topic="a", condition="$.n > 1"), Event("mqtt", "a", '{"n": 1}'), False),
        (trigger("mqtt", topic="a", condition="$.n > 1"), Event("mqtt", "a"), False),
    ],
)  # fmt: skip
def test_an_event_fits_a_trigger(made: Trigger, event: Event, fits: bool) -> None:
    assert matches(made, event) is fits


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ({}, 1, None),
        ({"type": "integer"}, 1, None),
        ({"type": "integer"}, 1.0, "of type number"),
        ({"type": "integer"}, True, "of type boolean"),
        ({"type": "number"}, 1, None),
        ({"type": "number"}, 1.5, None),
        ({"type": "number"}, "1", "of type string"),
        ({"type": "null"}, None, None),
        ({"type": "string"}, "", None),
        ({"type": "object", "required": ["a"]}, {}, "$ has no a"),
        ({"required": ["a"]}, 3, "must be of type object"),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "$.a is"),
        ({"properties": {"a": {"type": "string"}}}, {}, None),
        ({"properties": {}}, 3, None),
        ({"items": {"type": "string"}}, ["a", 1], "$.1 is"),
        ({"items": {"type": "string"}}, 3, "must be of type array"),
        ({"type": "array", "items": {"properties": {"a": {"type": "null"}}}}, [{"a": 0}], "$.0.a is"),
        ({"type": "string", "minLength": 5}, "a", None),
        ({"type": "text"}, "a", "$.type is none of"),
        ({"type": ["string"]}, "a", "$.type is none of"),
        ({"required": "a"}, {}, "$.required"),
        ({"required": [1]}, {}, "$.required"),
        ({"type": "string", "properties": []}, "a", "$.properties"),
        ({"items": []}, [], "$.items is"),
        ("prose", "prose", "must be an object"),
        (None, None, "must be an object"),
    ],
)
def test_a_value_fits_a_schema(schema: Any, value: Any, why: str | None) -> None:
    """What cannot be read fits nothing."""
    found = schemas.misfit(schema, value)

    assert (found is None) if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("args", "made"),
    [
        ("{{steps.1}}", {"url": "u", "list": [1, {"a": None}]}),
        (" {{ steps.1.list }} ", [1, {"a": None}]),
        ("{{steps.1.list.0}}", 1),
        ("{{steps.1.list.1.a}}", None),
        ("n={{steps.1.list.0}}, {{steps.1.url}}", "n=1, u"),
        ("{{steps.1.list}}!", '[1,{"a":null}]!'),
        ("{{calls.0}}{{calls.1}}", "xtrue"),
        ({"a": ["{{calls.1}}", 3]}, {"a": [True, 3]}),
        ("no {binding}", "no {binding}"),
        ("", ""),
    ],
)
def test_bindings_are_filled_in(args: Any, made: Any) -> None:
    """One that stands alone keeps its type."""
    steps = {1: {"url": "u", "list": [1, {"a": None}]}}

    assert bindings.fill(args, steps=steps, calls=["x", True]) == made


@pytest.mark.parametrize(
    "args",
    ["{{steps.2}}", "{{steps.1.b}}", "{{steps.1.a.0}}", "{{calls.1}}", "{{steps.x}}", "{{steps}}", "{{run.1}}", "{{",
     "a {{steps.1", "{{}}", "{{steps.-1}}", "{{steps.1.l.9}}", "{{steps.1.l.-1}}"],
)  # fmt: skip
def test_a_binding_that_cannot_be_filled_in_is_an_error(args: str) -> None:
    """It is never passed on as it stands."""
    with pytest.raises(bindings.Unfilled):
        bindings.fill(args, steps={1: {"a": 1, "l": [1]}}, calls=["x"])


def test_a_prompt_is_filled_in() -> None:
    """What is missing is empty, and backslash n is a new line."""
    made = bindings.prompt(
        r"To {{who.name}}:\n{{text}}{{gone}} {{n}} {{open", {"who": {"name": "A"}, "text": "t", "n": 3}
    )

    assert made == "To A:\nt 3 {{open"


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), ("+3", 3), ("003", 3), ("4294967295", 2**32 - 1), ("4294967296", None), ("-1", None), ("", None),
     ("1.0", None), (" 3", None), ("٣", None), ("1_0", None), ("0" * 5000, 0), ("9" * 5000, None)],
)  # fmt: skip
def test_a_whole_number(text: str, number: int | None) -> None:
    assert literals.whole(text) == number


def test_the_tools_that_count() -> None:
    """Suggested tools are the list of allowed ones where none is written, even an empty one."""
    assert Step(1, "A").tools is None
    assert Step(1, "A", suggested_tools=("a",)).tools == Scope(("a",))
    assert Step(1, "A", suggested_tools=("a",), scope=Scope(None, ("b",))).tools == Scope(("a",), ("b",))
    assert Step(1, "A", suggested_tools=("a",), scope=Scope((), ("b",))).tools == Scope((), ("b",))
