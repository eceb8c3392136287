"""Values as the files write them: numbers, JSON, TOML, plain text.

Python reads more than the format has: ``1_000``, ``٣`` and ``NaN`` are numbers to it, and ``\\x1c`` is white space.
Here it is held to what the format knows, so that a file means the same wherever it is read.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from datetime import date, datetime, time
from typing import Any, NamedTuple

Json = Any

# Unicode's White_Space. str.strip() would take \x1c to \x1f besides.
SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
DEPTH_MAX = 128  # of lists and objects in each other: what walks them may call itself
U32_MAX = 2**32 - 1

_WHOLE = re.compile(r"\+?0*([0-9]{1,10})")
_NUMBER = re.compile(
    r"[+-]?(?:inf|infinity|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.IGNORECASE | re.ASCII
)


class Read(NamedTuple):
    """A value, and whether its text was JSON or TOML; where it was neither, the text itself is the value."""

    value: Json
    understood: bool


def trim(text: str) -> str:
    """Without the white space around it."""
    return text.strip(SPACE)


def whole(text: str, most: int = U32_MAX) -> int | None:
    """A whole number from 0 to ``most`` in ASCII digits, with or without ``+``; None for anything else."""
    match = _WHOLE.fullmatch(text)
    return int(match[1]) if match and int(match[1]) <= most else None


def number(text: str) -> float | None:
    """A number with or without fraction and exponent, ``inf`` and ``nan`` too; None for anything else."""
    return float(text) if _NUMBER.fullmatch(text) else None


def value_of(text: str) -> Read:
    """A value as a bullet holds it: JSON, else a value of TOML, else the text."""
    for reader in (from_json, from_toml):
        try:
            return Read(reader(text), True)
        except ValueError:
            continue
    return Read(text, False)


def from_json(text: str) -> Json:
    """A JSON document. Raises ``ValueError`` for what RFC 8259 does not have, and for what is nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        # A lone half of a surrogate pair is no character: it could be neither stored nor shown.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _shallow(value)


def from_toml(text: str) -> Json:
    """A single value of TOML on one line, as JSON has it. Raises ``ValueError``."""
    try:
        document = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return plain(_shallow(document["value"]))


def plain(value: Any) -> Json:
    """A value of TOML in JSON's types: moments as text, numbers that JSON does not have as null."""
    match value:
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case datetime() | date() | time():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return None
    return value


def text_of(value: Json) -> str:
    """JSON on one line, as short as it goes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def too_deep(value: Any) -> bool:
    """Whether lists and tables lie deeper in each other than ``DEPTH_MAX``."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = [one for outer in level for one in _inner(outer)]
    return True


def _shallow(value: Any) -> Any:
    if too_deep(value):
        raise ValueError("nested too deeply")
    return value


def _inner(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value
