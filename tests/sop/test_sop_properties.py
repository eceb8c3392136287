"""Whatever is written: reading never fails, is stable, and leaves nothing that JSON could not hold."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pawl.engines.sop import bindings, conditions, graph, literals, manifest, schemas, steps, triggers
from pawl.engines.sop.literals import DEPTH_MAX
from pawl.engines.sop.model import TRIGGERS, Procedure, Trigger
from pawl.engines.sop.validate import Known, Source, remarks

_WORDS = st.sampled_from(
    [*steps._KEYS, "## Steps", "## Other", "1. ", "12. ", "- ", "- - ", "**", ":", ": ", ">", ";", ",", "{", "}", "[",
     "]", '"', "retry:1", "goto:2", "true", "null", "1", "2", "$.steps.1.a == 1", ">=", "{{steps.1}}", "{{", "}}",
     "noop", "capability", "checkpoint", "\n", "\r\n", " ", "\t", "\ufeff", "\u2028", "\x1c", "\ud800", "é"]
)  # fmt: skip
TEXT = st.lists(_WORDS | st.text(max_size=6), max_size=60).map("".join)
_LINE = st.builds("- {}: {}\n".format, st.sampled_from([*steps._KEYS]), st.text(st.characters(exclude_characters="\n")))
DOCUMENT = st.builds(
    "## Steps\n{}".format,
    st.lists(st.just("1. **A** - b\n") | _LINE | TEXT.map("{}\n".format), max_size=12).map("".join),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ODD = st.sampled_from(
    ['"x"', "1", "-1", "1.5", "true", "[]", "{}", '["a", 1]', "{ a = 1 }", "nan", "2026-01-01", '"fail"', '"cron"',
     "{ retry = { max = 1 } }", "{ goto = { step = 2 } }", '"capability"', '"noop"', '["created"]',
     '[{ name = "a", goto = 1 }]', '{ next = 3, when = "x" }']
)  # fmt: skip
_SOURCE = Source("SOP.md", lambda place, key: None, lambda *path: None)


def through(procedure: Procedure) -> str:
    """Everything that can be made of a procedure; its JSON."""
    list(remarks(procedure, _SOURCE, Known()))
    graph.text(procedure)
    graph.mermaid(procedure)
    return json.dumps([procedure.as_json(), graph.document(procedure)], allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(TEXT | DOCUMENT)
def test_no_text_makes_the_reader_of_steps_raise(text: str) -> None:
    """Read twice it is the same, its steps are numbered as they stand, and its lines are lines of the text."""
    first, second = steps.parse(text), steps.parse(text)

    assert first == second
    assert [step.number for step in first.steps] == list(range(1, len(first.steps) + 1))
    assert set(first.lines.values()) <= set(range(1, text.count("\n") + 2))
    through(Procedure("x", "x", steps=first.steps))


@settings(max_examples=200, deadline=None)
@given(DOCUMENT)
def test_indentation_and_line_ends_say_nothing(text: str) -> None:
    """Each line further in, and with a carriage return: the same steps."""
    moved = "\n".join(f"  \t{line}\r" for line in text.split("\n"))

    assert steps.parse(moved).steps == steps.parse(text).steps


@settings(max_examples=200, deadline=None)
@given(st.text() | TEXT | st.dictionaries(st.sampled_from(["name", "kind", "with", "steps"]), JSON).map(str))
def test_no_text_makes_the_reader_of_the_manifest_raise(text: str) -> None:
    assert manifest.parse(text, default_mode="auto") == manifest.parse(text, default_mode="auto")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_values_make_the_reader_of_the_manifest_raise(data: st.DataObject) -> None:
    """Tables of known keys with any values: it loads or says why, and what loads has a drawing and JSON."""
    text = '[sop]\nname = "x"\ndescription = "x"\n'
    for header, keys in (
        ("triggers", ["type", "path", "expression", "events", "condition"]),
        ("steps", manifest._STEP),
    ):
        for _ in range(data.draw(st.integers(0, 2))):
            values = data.draw(st.dictionaries(st.sampled_from(keys), ODD, max_size=4))
            text += f"[[{header}]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())

    found = manifest.parse(text, default_mode="auto")

    assert (found.procedure is None) == any(one.severity == "error" for one in found.remarks)
    if found.procedure is not None:
        through(found.procedure)


@given(TEXT, TEXT | JSON.map(json.dumps), JSON)
def test_no_condition_raises(condition: str, payload: str, value: Any) -> None:
    assert conditions.holds(condition, payload) in (True, False)
    assert conditions.holds_for(condition, value) in (True, False)


@given(JSON, JSON)
def test_no_schema_raises(schema: Any, value: Any) -> None:
    """A schema with a fault fits nothing."""
    fault = next(schemas.faults(schema), None)

    assert schemas.misfit(schema, value) == fault or fault is None


@given(JSON | TEXT)
def test_a_binding_is_filled_in_or_refused(args: Any) -> None:
    for found in bindings.find(args):
        assert found.fault or found.scope in ("steps", "calls")
    with contextlib.suppress(bindings.Unfilled):
        bindings.fill(args, steps={1: {"a": [1]}}, calls=["x"])
    bindings.prompt(args if isinstance(args, str) else "{{a}}", args)


@given(st.sampled_from([*TRIGGERS]), TEXT, TEXT, TEXT | JSON.map(json.dumps))
def test_no_event_makes_a_trigger_raise(kind: str, pattern: str, topic: str, payload: str) -> None:
    keys = TRIGGERS[kind]
    values = {
        **dict.fromkeys(keys.required, pattern),
        **{key: [] for key in keys.lists},
        **dict.fromkeys(keys.optional),
    }

    event = triggers.Event(kind, topic, payload)

    assert triggers.matches(Trigger(kind, values), event) in (True, False)


@given(JSON)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    """JSON in a bullet comes back; what is no JSON and no TOML is the text itself."""
    text = json.dumps(value)

    if "Infinity" not in text:
        assert literals.value_of(text) == (value, True)
    assert literals.value_of(text + "]") == (text + "]", False)


def test_values_may_nest_only_so_deeply() -> None:
    """What is deeper is text: whatever walks a value may call itself."""
    deep = "[" * DEPTH_MAX + "]" * DEPTH_MAX

    assert literals.value_of(deep).understood
    for more in (f"[{deep}]", "[" * 100_000 + "]" * 100_000, "{a=" * 2000 + "1" + "}" * 2000, "9" * 5000):
        assert steps.parse(f"## Steps\n1. **A**\n- with: {more}\n").steps[0].with_ is not None
    assert not literals.value_of(f"[{deep}]").understood
