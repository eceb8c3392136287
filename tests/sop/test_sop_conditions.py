"""Conditions, by table."""

from __future__ import annotations

import pytest

from pawl.engines.sop.conditions import Comparison, holds, holds_for, parse

# condition | payload | whether it holds
_TABLE = """
$.n > 5 | {"n": 6} | yes
$.n > 5 | {"n": 5} | no
$.n >= 5 | {"n": 5} | yes
$.n < 5 | {"n": 4.5} | yes
$.n <= 5 | {"n": 5.5} | no
$.n == 5 | {"n": 5.0} | yes
$.n != 5 | {"n": 5} | no
$.n != 5 | {"n": 6} | yes
$.n == 0.3 | {"n": 0.30000000000000004} | yes
$.n>=5 | {"n": 5} | yes
$n == 5 | {"n": 5} | yes
$..n == 5 | {"n": 5} | yes
$.n == 5 | {"n": "5"} | yes
$.n > 10 | {"n": "9"} | no
$.n > 10 | {"n": "9x"} | yes
$.n == 1e1 | {"n": 10} | yes
$.n == 1_0 | {"n": 10} | no
$.n < inf | {"n": 10} | yes
$.n == nan | {"n": 10} | no
$.n != nan | {"n": 10} | no
$.a.b == x | {"a": {"b": "x"}} | yes
$.a.1 == x | {"a": ["w", "x"]} | yes
$.a.2 == x | {"a": ["w", "x"]} | no
$.a.-1 == x | {"a": ["w", "x"]} | no
$.a.1 == x | {"a": {"1": "x"}} | yes
$.1 == x | ["w", "x"] | yes
$.a.b == x | {"a": "x"} | no
$.missing == x | {"a": "x"} | no
$.missing != x | {"a": "x"} | no
$.s == "two words" | {"s": "two words"} | yes
$.s == two words | {"s": "two words"} | yes
$.s == "x | {"s": "\\"x"} | yes
$.s == "" | {"s": ""} | yes
$.s == | {"s": ""} | no
$.s < b | {"s": "a"} | yes
$.s < Z | {"s": "a"} | no
$.s > z | {"s": "é"} | yes
$.b == true | {"b": true} | yes
$.b == True | {"b": true} | no
$.b == false | {"b": false} | yes
$.b == 1 | {"b": true} | no
$.z == "" | {"z": null} | yes
$.z == null | {"z": null} | no
$.o == {"a":[1,2]} | {"o": {"a": [1, 2]}} | yes
$.o == [] | {"o": []} | yes
$.s == a != b | {"s": "a"} | no
$.s == a>=b | {"s": "a>=b"} | no
$.n = 5 | {"n": 5} | no
$.n | {"n": 5} | no
$ == 5 | 5 | no
$.n == 5 | no json | no
$.n == 5 | {"n": NaN} | no
$.n == 5 and $.m == 6 | {"n": 5, "m": 6} | no
> 5 | 6 | yes
> 5 |  6.5  | yes
>= 5 | 5 | yes
<= 5 | 5 | yes
== 5 | 5.0 | yes
!= 5 | 5 | no
< 5 | "4" | no
> 5 | {"n": 6} | no
> 5 | six | no
> x | 6 | no
> | 6 | no
5 | 5 | no
n > 5 | 6 | no
"""


def rows() -> list[tuple[str, str, bool]]:
    lines = [line.split(" | ") for line in _TABLE.strip().splitlines()]
    return [(condition, payload, answer == "yes") for condition, payload, answer in lines]


@pytest.mark.parametrize(("condition", "payload", "answer"), rows())
def test_a_condition_holds_or_not(condition: str, payload: str, answer: bool) -> None:
    assert holds(condition, payload) is answer


@pytest.mark.parametrize("payload", [None, "", "{}"])
def test_a_blank_condition_holds_whatever_the_payload(payload: str | None) -> None:
    """None and white space ask for nothing."""
    assert holds(None, payload)
    assert holds(" \t", payload)


@pytest.mark.parametrize("payload", [None, ""])
def test_without_a_payload_nothing_holds(payload: str | None) -> None:
    assert not holds("$.a != 1", payload)
    assert not holds("> 1", payload)


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        ("$.a.b >= 3", Comparison(("a", "b"), ">=", "3")),
        ("  $.a<3 ", Comparison(("a",), "<", "3")),
        ("== x", Comparison(None, "==", "x")),
        ("$.a > b >= c", Comparison(("a > b",), ">=", "c")),
        ("$ > 1", None),
        ("a > 1", None),
        ("", None),
    ],
)
def test_the_parts_of_a_condition(condition: str, parts: Comparison | None) -> None:
    """The kind of operator that is looked for first is where the text is cut, wherever it stands."""
    assert parse(condition) == parts


def test_a_document_is_no_number() -> None:
    """In routing a condition without a path never holds."""
    assert holds_for("$.steps.1.n == 2", {"steps": {"1": {"n": 2}}})
    assert not holds_for("> 1", {"steps": {}})
    assert not holds_for("> 1", 2)
    assert holds_for(None, 2)


def test_a_number_of_any_size_can_be_compared() -> None:
    """JSON has numbers that no machine number holds."""
    assert holds("$.n > 5", '{"n": 1' + "0" * 400 + "}")
    assert holds("$.n < 5", '{"n": -1' + "0" * 400 + "}")
