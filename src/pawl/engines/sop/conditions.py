"""Conditions: one comparison, of something in a JSON document or of a number.

``$.path OP value`` looks into the document, ``OP value`` takes it as a number. There is no "and", "or" or "not".
A blank condition holds; everything that cannot be read, found or compared does not.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import NamedTuple

from pawl.engines.sop.literals import Json, from_json, number, text_of, trim, whole

# In the order in which they are looked for, anywhere in the text: `a > b >= c` is cut at `>=`.
OPERATORS = (">=", "<=", "!=", "==", ">", "<")
_EPSILON = sys.float_info.epsilon
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": lambda left, right: abs(left - right) >= _EPSILON,
    "==": lambda left, right: abs(left - right) < _EPSILON,
    ">": operator.gt,
    "<": operator.lt,
}
_TEXTS: dict[str, Callable[[str, str], bool]] = {
    ">=": operator.ge, "<=": operator.le, "!=": operator.ne, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_INDEX_MAX = 2**63


class Comparison(NamedTuple):
    """A condition in its parts. ``path`` None: the document itself is a number that is compared."""

    path: tuple[str, ...] | None
    operator: str
    value: str


def parse(condition: str) -> Comparison | None:
    """The parts of a condition; None for one that is blank or cannot be read, which ``is_blank`` tells apart."""
    text = trim(condition)
    if not text.startswith("$"):
        return _direct(text)
    for symbol in OPERATORS:
        before, found, after = text[1:].partition(symbol)
        if found:
            path = tuple(part for part in trim(before).split(".") if part)
            return Comparison(path, symbol, trim(after)) if path and trim(after) else None
    return None


def is_blank(condition: str | None) -> bool:
    """Whether a condition asks for nothing."""
    return condition is None or not trim(condition)


def holds(condition: str | None, payload: str | None) -> bool:
    """Whether a condition holds for a payload, which is text and may be JSON."""
    if condition is None or is_blank(condition):
        return True
    parts = parse(condition)
    if parts is None or not payload:
        return False
    if parts.path is None:
        return _compare_numbers(number(trim(payload)), parts)
    try:
        return _of_document(from_json(payload), parts)
    except ValueError:
        return False


def holds_for(condition: str | None, document: Json) -> bool:
    """Whether a condition holds for a document that is no mere number, such as the outputs of a run's steps."""
    if condition is None or is_blank(condition):
        return True
    parts = parse(condition)
    return parts is not None and parts.path is not None and _of_document(document, parts)


def _direct(text: str) -> Comparison | None:
    for symbol in OPERATORS:
        if text.startswith(symbol):
            value = trim(text.removeprefix(symbol))
            return Comparison(None, symbol, value) if value else None
    return None


def _of_document(document: Json, parts: Comparison) -> bool:
    for key in parts.path or ():
        if isinstance(document, dict) and key in document:
            document = document[key]
            continue
        index = whole(key, _INDEX_MAX)
        if not isinstance(document, list) or index is None or index >= len(document):
            return False
        document = document[index]
    return _compare(document, parts)


def _compare(found: Json, parts: Comparison) -> bool:
    left, right = _as_number(found), number(parts.value)
    if left is not None and right is not None:
        return _compare_numbers(left, parts)
    quoted = len(parts.value) > 1 and parts.value[0] == parts.value[-1] == '"'
    return _TEXTS[parts.operator](_as_text(found), parts.value[1:-1] if quoted else parts.value)


def _compare_numbers(left: float | None, parts: Comparison) -> bool:
    right = number(parts.value)
    return left is not None and right is not None and _NUMBERS[parts.operator](left, right)


def _as_number(found: Json) -> float | None:
    match found:
        case bool():
            return None
        case int() | float():
            try:
                return float(found)
            except OverflowError:
                return float("inf") if found > 0 else float("-inf")
        case str():
            return number(found)
    return None


def _as_text(found: Json) -> str:
    if found is None:
        return ""
    return found if isinstance(found, str) else text_of(found)
