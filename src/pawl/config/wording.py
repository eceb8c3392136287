"""How a fault of the configuration is put into words: values, key paths, and what was probably meant."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import date, time

_SHOWN_MAX = 60  # characters of a value that a message repeats
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# A little more than half of the letters in common: one slip in a key of three letters ("dri") still finds it.
_NEAR = 0.55


def quoted(text: str) -> str:
    """Text as TOML would have it, in double quotes, cut where it is long."""
    return _cut(json.dumps(text, ensure_ascii=False))


def found(value: object) -> str:
    """What stands in the file, for the subject of a message: ``"abc"``, ``7``, ``true``, ``a list``."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case int() | float():
            return _number(value)
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a table"
        case date() | time():
            return "a date or time"
    return "this value"


def dotted(path: Sequence[str | int]) -> str:
    """A key path as TOML writes it, ``agents."my agent".command``; places in a list are ``cron[0].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else quoted(part)
            text += f".{key}" if text else key
    return text


def listed(names: Iterable[str], *, last: str = "or") -> str:
    """Names in a sentence: ``"a", "b" or "c"``."""
    shown = [quoted(name) for name in names]
    return f" {last} ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, or None where none is."""
    return next(iter(nearest_few(name, known, count=1)), None)


def nearest_few(name: str, known: Iterable[str], *, count: int) -> list[str]:
    """Up to ``count`` known names that are like this one, the likest first."""
    folded = {candidate.lower(): candidate for candidate in known}
    return [folded[hit] for hit in difflib.get_close_matches(name.lower(), folded, n=count, cutoff=_NEAR)]


def _number(value: float) -> str:
    # Python refuses to print integers of more than some thousand digits; nobody wants to read them either.
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN_MAX:
        return "a huge number"
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 4]}..."
