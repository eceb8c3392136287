"""Durations, sizes and timestamps as people write them and as JSON carries them.

Durations: ``90``, ``90s``, ``10m``, ``2h``, ``7d``, ``1h30m``, ``250ms``; a bare number is seconds.
Sizes: ``512``, ``64KiB``, ``64MiB``, ``1GiB``, ``10MB``; a bare number is bytes.
Timestamps: RFC 3339, UTC, ``Z``, milliseconds; inside the program integer milliseconds since the epoch.

This module is on the command line's fast path: nothing but ``time``.
"""

from __future__ import annotations

import time

from pawl.errors import InvalidValue

_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 1024, "kib": 1024, "kb": 1000,
    "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
    "g": 1024**3, "gib": 1024**3, "gb": 1000**3,
    "t": 1024**4, "tib": 1024**4, "tb": 1000**4,
}  # fmt: skip
_DURATION_MS_MAX = 100 * 365 * 86_400_000  # a hundred years: longer is a slip of the finger

_last_second: list[object] = [None, ""]


def duration_ms(text: str) -> int:
    """Read a duration, in milliseconds. Raises ``invalid_value``."""
    rest = text.strip().lower()
    total = 0.0
    if not rest:
        raise _bad_duration(text)
    while rest:
        number, rest = _number(rest)
        unit, rest = _letters(rest)
        if not number or (not unit and rest) or unit not in {"", *_DURATION_UNITS}:
            raise _bad_duration(text)
        try:
            total += float(number) * _DURATION_UNITS[unit or "s"]
        except ValueError:
            raise _bad_duration(text) from None
    if total > _DURATION_MS_MAX:
        raise InvalidValue(f"cannot use the duration {text!r}: it is longer than a hundred years", value=text)
    return round(total)


def size_bytes(text: str) -> int:
    """Read a size, in bytes. Raises ``invalid_value``."""
    number, unit = _number(text.strip().lower())
    unit = unit.strip()
    try:
        if unit in _SIZE_UNITS:
            return round(float(number) * _SIZE_UNITS[unit])
    except (ValueError, OverflowError):
        pass
    raise InvalidValue(f"cannot read the size {text!r}: write it like 512, 64KiB, 64MiB or 1GiB", value=text)


def rfc3339(ms: int | None) -> str | None:
    """Milliseconds since the epoch as ``2026-01-31T09:30:00.000Z``."""
    if ms is None:
        return None
    seconds, rest = divmod(ms, 1000)
    if seconds != _last_second[0]:  # most times that are shown together lie in one second
        _last_second[:] = seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{_last_second[1]}.{rest:03d}Z"


def duration_text(ms: int) -> str:
    """A duration for people: ``0.4s``, ``12s``, ``3m05s``, ``2h10m``, ``4d3h``."""
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600}h"


def size_text(count: int) -> str:
    """A size for people: ``12 B``, ``4.0 KiB``, ``64 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _bad_duration(text: str) -> InvalidValue:
    return InvalidValue(f"cannot read the duration {text!r}: write it like 90, 90s, 10m, 2h, 7d or 1h30m", value=text)


def _number(text: str) -> tuple[str, str]:
    end = 0
    while end < len(text) and text[end] in "0123456789.":
        end += 1
    return text[:end], text[end:]


def _letters(text: str) -> tuple[str, str]:
    end = 0
    while end < len(text) and text[end].isalpha():
        end += 1
    return text[:end], text[end:]
