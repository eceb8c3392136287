"""JSON without the ``json`` module: a third of a command's start went into importing that.

``json`` imports ``re``, which imports ``enum`` and ``functools``: 13 ms beside 15 ms for the interpreter
itself. Its two halves written in C, in ``_json``, do all the work and import nothing. Where they are
missing or have changed (another interpreter), ``json`` itself steps in: same results, slower start.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Context:
    """What the C scanner asks its decoder for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - an attribute of that name is part of the C interface


def _refuse(value: object) -> Any:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _quick() -> tuple[Callable[[str], Any], Callable[[Any], str], Callable[[Any], str]]:
    from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

    scan = make_scanner(_Context)  # type: ignore[arg-type]  # anything with these attributes will do

    def loads(text: str) -> Any:
        text = text.strip(" \t\n\r")
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("more than one JSON document")
        return value

    def encoder(quote: Callable[[str], str]) -> Callable[[Any], str]:
        def dumps(value: Any) -> str:
            # A new one each time: its first argument, the containers it is inside of, is its state.
            return "".join(make_encoder({}, _refuse, quote, None, ": ", ", ", False, False, True)(value, 0))

        return dumps

    ascii_only, plain = encoder(encode_basestring_ascii), encoder(encode_basestring)
    # A trial, so that an interpreter with another interface is noticed here and not in the middle of a command.
    if loads(ascii_only({"a": [1, None, "é"]})) != {"a": [1, None, "é"]}:
        raise ImportError("_json does not do what it did")
    return loads, ascii_only, plain


def _slow() -> tuple[Callable[[str], Any], Callable[[Any], str], Callable[[Any], str]]:
    import json

    return json.loads, json.dumps, lambda value: json.dumps(value, ensure_ascii=False)


try:
    loads, dumps_ascii, dumps = _quick()
except (ImportError, TypeError, AttributeError, ValueError):
    loads, dumps_ascii, dumps = _slow()
