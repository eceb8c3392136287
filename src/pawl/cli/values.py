"""How the words of a value are read: one function a kind, for both parsers.

On the command line's fast path.
"""

from __future__ import annotations

import os

from pawl.errors import InvalidValue
from pawl.values import duration_ms, size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_DIGITS_MAX = 18  # what fits into the database's integers
_FIRST_OF_AMOUNT = frozenset("0123456789.")  # no sign: an amount is not negative
_AMOUNT = _FIRST_OF_AMOUNT | frozenset("eE+-")  # of all that ``float`` takes: no words, no underscores, no white space
_INFINITE = float("inf")


def read(
    kind: str, text: str, choices: Sequence[str] = (), *, least: int | None = None, most: int | None = None
) -> Any:
    """The value that ``text`` stands for; raises ``invalid_value`` with the right form in its message."""
    if kind == "choice":
        return _choice(text, choices)
    value: Any = _READERS[kind](text)
    if (least is not None and value < least) or (most is not None and value > most):
        raise InvalidValue(f"{text!r} is out of range: {_range(kind, least, most)}", value=text)
    return value


def _range(kind: str, least: int | None, most: int | None) -> str:
    if kind == "duration":
        return "write a duration longer than 0, like 90s"
    if least is None or most is None:
        return f"write a number of at least {least}" if most is None else f"write a number of at most {most}"
    return f"write a number from {least} to {most}"


def _text(text: str) -> str:
    return text


def _integer(text: str) -> int:
    digits = text[1:] if text[:1] in {"-", "+"} else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise InvalidValue(f"cannot read the number {text!r}: write a whole number like 3", value=text)
    return int(text)


def _amount(text: str) -> float:
    """An amount of money, in any form that programs print: ``0.25``, ``.25`` (bc), ``1e-05`` (Python)."""
    try:
        value = float(text) if text[:1] in _FIRST_OF_AMOUNT and _AMOUNT.issuperset(text) else -1.0
    except ValueError:
        value = -1.0
    if not 0.0 <= value < _INFINITE:
        raise InvalidValue(f"cannot read the amount {text!r}: write a number of at least 0, like 0.25", value=text)
    return value


def _names(text: str) -> list[str]:
    """Names with commas between them; an empty text is an empty list."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if not all(names):
        raise InvalidValue(
            f"cannot read the names {text!r}: write them like A,B with nothing empty between", value=text
        )
    return names


def _path(text: str) -> str:
    """Absolute, and true to symbolic links: ``link/..`` is not shortened, because it may be elsewhere."""
    if not text:
        raise InvalidValue("cannot use an empty path (is a variable unset?)", value=text)
    path = os.path.expanduser(text)
    try:
        return os.path.join(os.getcwd(), path) if ".." in path.split("/") else os.path.abspath(path)
    except FileNotFoundError:
        raise InvalidValue(f"cannot use the path {text!r}: the current directory is gone", value=text) from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidValue(f"cannot read {text!r}: write it like KEY=VALUE", value=text)
    return key, value


def _choice(text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise InvalidValue(f"there is no {text!r} here: choose from {', '.join(choices)}", value=text)
    return text


_READERS = {
    "text": _text,
    "integer": _integer,
    "amount": _amount,
    "names": _names,
    "duration": duration_ms,  # milliseconds
    "size": size_bytes,
    "path": _path,
    "pair": _pair,
}
