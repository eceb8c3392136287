"""Text for people: tables, ages, colours. On a terminal it is laid out; into a pipe it is plain and whole.

On the command line's fast path.
"""

from __future__ import annotations

import os
import time

from pawl.cli.output import clean
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SHORT_ID = 18  # characters of a UUIDv7 that are shown: its time in milliseconds and twelve random bits
_NOTHING = "-"
_COLUMN_MIN = 8  # a column is not cut below this
_COLOURS = {
    "queued": "2",
    "running": "36",
    "paused": "33",
    "completed": "32",
    "failed": "31",
    "lost": "31",
    "timed_out": "31",
    "cancelled": "33",
    "ok": "32",
    "no": "31",
    "waits": "33",
    "error": "31",
    "warning": "33",
    "info": "2",
}


class Screen:
    """What stdout is: a terminal of some width, with or without colour, or a pipe."""

    def __init__(self) -> None:
        self.terminal = os.isatty(1)
        self.colour = self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int:
        given = os.environ.get("COLUMNS", "")
        if given.isascii() and given.isdigit() and int(given):
            return int(given)
        try:
            return os.get_terminal_size(1).columns or 80
        except OSError:
            return 80

    def status(self, word: str) -> str:
        """A status word, coloured where that is wanted."""
        word = clean(word, one_line=True)
        code = _COLOURS.get(word)
        return f"\x1b[{code}m{word}\x1b[0m" if self.colour and code else word

    def id(self, text: str) -> str:
        return text[:SHORT_ID] if self.terminal else text

    def when(self, at: str | None) -> str:
        """A moment: how long ago on a terminal, RFC 3339 into a pipe."""
        if not at:
            return _NOTHING
        return f"{age(at)} ago" if self.terminal else at

    def until(self, at: str | None) -> str | None:
        """A moment to come: how long till then on a terminal, RFC 3339 into a pipe; nothing for none."""
        if not at or not self.terminal:
            return at
        return f"in {duration_text(max(0, epoch_ms(at) - round(time.time() * 1000)))}"

    def table(
        self, heads: Sequence[str], rows: Sequence[Sequence[str | None]], *, status: int = -1, whole: int = -1,
        wrap: bool = False,
    ) -> list[str]:  # fmt: skip
        """The rows as lines. ``status``: which column holds a status word, the only one that is coloured.

        On a terminal: with a head, aligned, the widest columns cut until it fits; the column ``whole`` never is,
        columns at the right are left out instead. ``wrap``: nothing is cut, a cell goes on in the next line. Into a
        pipe: no head, two spaces between the columns, nothing cut, ``-`` for what is not there.
        """
        if not self.terminal:
            return ["  ".join(_cell(value) or _NOTHING for value in row) for row in rows]
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max(width(row[i]) for row in [list(heads), *cells]) for i in range(len(heads))]
        shown = _shown(widths, self.width, whole) if whole >= 0 else len(widths)
        del widths[shown:]
        _fit(widths, self.width, whole)
        lines = [_row([_pad(head, widths[i]) for i, head in enumerate(heads[:shown])])]
        for row in _wrapped_rows(cells, widths) if wrap else cells:
            padded = [_pad(cell, widths[i]) for i, cell in enumerate(row[:shown])]
            if 0 <= status < shown and row[status]:
                padded[status] = padded[status].replace(row[status], self.status(row[status]), 1)
            lines.append(_row(padded))
        return lines

    def facts(self, pairs: Sequence[tuple[str, str | None]]) -> list[str]:
        """Names and values, one a line; what is nothing is left out."""
        shown = [(name, value) for name, value in pairs if value]
        column = max((len(name) for name, _ in shown), default=0)
        return [f"{name.ljust(column)}  {value}" for name, value in shown]


def age(at: str) -> str:
    """How long ago a moment was, like ``3m05s``; a moment of the future is ``0.0s``."""
    return duration_text(max(0, round(time.time() * 1000) - epoch_ms(at)))


def took(start: str | None, end: str | None) -> str | None:
    """The time from one moment to another, or to now; nothing without a start."""
    if not start:
        return None
    return duration_text(max(0, (epoch_ms(end) if end else round(time.time() * 1000)) - epoch_ms(start)))


def epoch_ms(at: str) -> int:
    """Milliseconds since the epoch of an RFC 3339 moment in UTC, as the daemon writes them."""
    try:
        year, month, day = int(at[:4]), int(at[5:7]), int(at[8:10])
        seconds = int(at[11:13]) * 3600 + int(at[14:16]) * 60 + int(at[17:19])
        fraction = at[20:].rstrip("Z")[:3].ljust(3, "0")
        return (_days(year, month, day) * 86_400 + seconds) * 1000 + int(fraction)
    except ValueError:
        return 0


def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch; the calendar module would cost a millisecond of imports."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def width(text: str) -> int:
    """Columns on a terminal: East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, columns: int) -> str:
    """The text in at most so many columns, with ``…`` where it was cut."""
    if width(text) <= columns:
        return text
    text = text[:columns]
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, broken at spaces; what is longer than a line is broken anywhere."""
    lines, current = [], ""
    for word in text.split():
        if current and width(current) + 1 + width(word) > columns:
            lines.append(current)
            current = ""
        current = f"{current} {word}" if current else word
        while width(current) > columns:
            end = len(current)
            while end > 1 and width(current[:end]) > columns:
                end -= 1
            if end == len(current):
                break
            lines.append(current[:end])
            current = current[end:]
    return [*lines, current] if current or not lines else lines


def spent(tokens: int | None, cost: float | None) -> str:
    """``1200 tokens, 0.03``"""
    return f"{counted(tokens or 0, 'token')}, {price(cost or 0)}"


def price(cost: float) -> str:
    """``0.10``, ``0.0042``: two decimals, or as many of the six that are kept as say something."""
    whole, _, fraction = f"{cost:.6f}".partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


def counted(count: int, noun: str) -> str:
    """``1 task``, ``2 tasks``"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def joined(values: dict[str, Any]) -> str:
    """``a=1 b=2``"""
    return " ".join(
        f"{clean(str(key), one_line=True)}={clean(str(value), one_line=True)}" for key, value in values.items()
    )


def _cell(value: str | None) -> str:
    return clean(value, one_line=True) if value else ""


def _pad(text: str, columns: int) -> str:
    text = cut(text, columns)
    return text + " " * (columns - width(text))


def _row(cells: list[str]) -> str:
    return "  ".join(cells).rstrip()


def _wrapped_rows(rows: list[list[str]], widths: list[int]) -> list[list[str]]:
    """The rows with as many lines each as their tallest cell needs."""
    lines = []
    for row in rows:
        cells = [wrapped(cell, columns) for cell, columns in zip(row, widths, strict=False)]
        for at in range(max(map(len, cells), default=0)):
            lines.append([cell[at] if at < len(cell) else "" for cell in cells])
    return lines


def _shown(widths: list[int], columns: int, whole: int) -> int:
    """How many columns, from the left, have room beside the one that stays whole; that one always has."""
    least = [width if i == whole else min(width, _COLUMN_MIN) for i, width in enumerate(widths)]
    shown = len(widths)
    while shown > whole + 1 and sum(least[:shown]) + 2 * (shown - 1) > columns:
        shown -= 1
    return shown


def _fit(widths: list[int], columns: int, whole: int = -1) -> None:
    """Cut the longest column but ``whole``, again and again, until all fit or none can be cut any more."""
    over = sum(widths) + 2 * (len(widths) - 1) - columns
    others = [i for i in range(len(widths)) if i != whole]
    while over > 0 and others:
        longest = max(others, key=lambda i: widths[i])
        if widths[longest] <= _COLUMN_MIN:
            return
        rivals = max((widths[i] for i in others if i != longest), default=0)
        step = max(1, min(over, widths[longest] - max(rivals, _COLUMN_MIN)))
        widths[longest] -= step
        over -= step
