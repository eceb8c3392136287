"""The quick JSON is the same JSON as the standard library's."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawl.cli import jsontext

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_it_writes_is_what_the_standard_library_writes(value: object) -> None:
    """Same text, with and without the escapes for ASCII."""
    assert jsontext.dumps_ascii(value) == json.dumps(value)
    assert jsontext.dumps(value) == json.dumps(value, ensure_ascii=False)


@given(VALUES)
def test_it_reads_what_the_standard_library_writes(value: object) -> None:
    """Same value, also with white space around."""
    assert jsontext.loads(f" {json.dumps(value)}\n") == value


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", '{"a":}', "1 2", "nope", '"\n"', "[1}"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    """Nothing but ``ValueError`` comes out of a bad text."""
    with pytest.raises(ValueError):  # noqa: PT011 - that is the promise
        jsontext.loads(text)


def test_numbers_that_json_has_not_are_read_as_python_reads_them() -> None:
    """NaN and the infinities, which Python's own writer makes."""
    found = jsontext.loads("[NaN, Infinity, -Infinity]")

    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_a_thing_that_is_no_json_is_refused() -> None:
    """Not silently turned into something else."""
    with pytest.raises(TypeError):
        jsontext.dumps({"a": object()})


def test_the_standard_library_steps_in_where_the_quick_way_is_not_there() -> None:
    """Both ways have the same three functions."""
    for loads, ascii_only, plain in (jsontext._quick(), jsontext._slow()):
        assert loads('{"a": "\\u00e9"}') == {"a": "é"}
        assert ascii_only("é") == '"\\u00e9"'
        assert plain("é") == '"é"'
