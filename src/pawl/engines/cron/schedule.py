"""Schedules: when a job fires next, in the job's own zone.

Crontab text means what vixie cron and Debian's make of it. A job whose second, minute and hour all begin without ``*``
is a fixed-time job: where its moment is skipped by a change of the clocks of less than three hours, it fires once right
after the change, and in an hour that comes twice it fires on the first pass only. Every other job follows real time:
it fires whenever the clock shows what it asks for, in both passes of a repeated hour, and not in one that is missing.

The calendar is ``cronsim``'s, asked about clocks without a zone; what the zone does to them is worked out here, from
change to change, so that changes by half an hour and at midnight are right too.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pawl.engines.cron import zones
from pawl.errors import InvalidValue
from pawl.values import duration_ms, rfc3339

_ANY = datetime(2000, 1, 1)  # noqa: DTZ001 (on a clock without a zone)
_JUMP_S = 3 * 3600  # a longer one is no change of the clocks but a new calendar
_FIELDS = ("second", "minute", "hour", "day of month", "month", "weekday")
_RANGES = ("0 to 59", "0 to 59", "0 to 23", "1 to 31", "1 to 12 or jan to dec", "0 to 7 or sun to sat")
_NICKNAMES = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_NUMBER = r"[0-9]{1,4}"
_NAMES = {4: "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec", 5: "sun|mon|tue|wed|thu|fri|sat"}


class Fire(NamedTuple):
    """An instant at which something is due, in milliseconds of the epoch, and what a change of the clocks did to it."""

    at_ms: int
    note: str | None = None


class Schedule(Protocol):
    """What says when a job fires."""

    def after(self, at_ms: int) -> Fire | None:
        """The first fire strictly later than an instant; None where there is none."""

    def between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """The instants of all fires from one instant to another, both included."""

    def count(self, first_ms: int, last_ms: int) -> int:
        """How many these are: years of seconds are counted without looking at each."""


class Cron:
    """A schedule in crontab form. Raises ``invalid_value``, naming the field."""

    def __init__(self, text: str, where: ZoneInfo) -> None:
        self.text = text
        self.where = where
        expression = _NICKNAMES.get(text.strip().lower(), text)
        if expression.lstrip().startswith("@"):
            raise InvalidValue(
                f"cannot read the schedule {text!r}: there is {', '.join(_NICKNAMES)}", value=text, field="schedule"
            )
        fields = expression.split()
        if len(fields) not in (5, 6):
            raise InvalidValue(
                f"cannot read the schedule {text!r}: it has {len(fields)} fields, and needs minute, hour, day of "
                "month, month and weekday, like 30 2 * * 1-5 (with seconds before them if you like)",
                value=text, field="schedule",
            )  # fmt: skip
        fields = ["0", *fields] if len(fields) == 5 else fields
        for place, field in enumerate(fields):
            _check(text, place, field)
        self.fields = tuple(fields)
        self._expression = " ".join(fields)
        self.fixed = not any(field.startswith("*") for field in fields[:3])
        try:
            next(self._matches(_ANY))
        except CronSimError as error:
            raise _bad(text, str(error)) from None
        except StopIteration:
            message = f"cannot use the schedule {text!r}: it can never fire"
            raise InvalidValue(message, value=text, field="schedule") from None

    @property
    def either_day(self) -> bool:
        """Whether day of month and weekday are both restricted, so that one of them is enough."""
        return not self.fields[3].startswith("*") and not self.fields[5].startswith("*")

    def after(self, at_ms: int) -> Fire | None:
        """The first fire strictly later than an instant; None beyond the end of calendars."""
        try:
            return self._fixed(at_ms // 1000) if self.fixed else self._real(at_ms // 1000)
        except (StopIteration, OverflowError, ValueError):
            return None

    def between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """The instants of all fires from one instant to another, both included."""
        at_s, last_s = -(-first_ms // 1000) - 1, last_ms // 1000
        with contextlib.suppress(StopIteration, OverflowError, ValueError):
            yield from self._fixed_between(at_s, last_s) if self.fixed else self._real_between(at_s, last_s)

    def count(self, first_ms: int, last_ms: int) -> int:
        """How many fires there are from one instant to another, both included."""
        if self.fixed:
            return sum(1 for _ in self.between(first_ms, last_ms))
        at_s, end_s, found = -(-first_ms // 1000), last_ms // 1000 + 1, 0
        with contextlib.suppress(OverflowError, ValueError):
            while at_s < end_s:  # in each stretch of one offset the wall clock runs like any other
                change = zones.next_change(at_s, self.where)
                stop_s = end_s if change is None else min(change, end_s)
                wall = zones.local(at_s, self.where)
                found += self._matches_between(wall, wall + timedelta(seconds=stop_s - at_s))
                at_s = stop_s
        return found

    def _matches_between(self, first: datetime, end: datetime) -> int:
        """How many moments the fields ask for, from one to before another, on a clock that never changes."""
        sim = self._matches(_ANY)
        hours, minutes, seconds = sim.hours, sim.minutes, sim.seconds

        def before(wall: datetime) -> int:
            """How many of a day that matches come before this time of the day."""
            count = sum(hour < wall.hour for hour in hours) * len(minutes) * len(seconds)
            if wall.hour in hours:
                count += sum(minute < wall.minute for minute in minutes) * len(seconds)
                if wall.minute in minutes:
                    count += sum(second < wall.second for second in seconds)
            return count

        count = 0
        midnight = first.replace(hour=0, minute=0, second=0)
        for day in CronSim(" ".join(("0 0 0", *self.fields[3:])), midnight - timedelta(seconds=1)):
            if day >= end:
                break
            count += len(hours) * len(minutes) * len(seconds)
            count -= before(first) if day == midnight else 0
            if end - day < timedelta(days=1):
                count -= len(hours) * len(minutes) * len(seconds) - before(end)
        return count

    def _real_between(self, at_s: int, last_s: int) -> Iterator[int]:
        """One run through the calendar for each stretch of one offset."""
        while at_s < last_s:
            ahead = zones.offset_s(at_s, self.where)
            change = zones.next_change(at_s, self.where)
            end = last_s + 1 if change is None else min(change, last_s + 1)
            for wall in self._matches(zones.local(at_s, self.where)):
                due = zones.epoch_s(wall, ahead)
                if due >= end:
                    break
                yield due * 1000
            if end > last_s:
                return
            first = zones.local(end, self.where)
            if next(self._matches(first - timedelta(seconds=1))) == first:
                yield end * 1000
            at_s = end

    def _fixed_between(self, at_s: int, last_s: int) -> Iterator[int]:
        before = at_s * 1000
        for wall in self._matches(zones.local(at_s, self.where) - timedelta(seconds=_JUMP_S + 1)):
            fire = self._placed(wall)
            if fire is None or fire.at_ms <= before:  # several that a change skips fire once
                continue
            if fire.at_ms > last_s * 1000:
                return
            before = fire.at_ms
            yield fire.at_ms

    def _real(self, at_s: int) -> Fire:
        """By real time: within each stretch of one offset the wall clock runs like any other."""
        while True:
            ahead = zones.offset_s(at_s, self.where)
            change = zones.next_change(at_s, self.where)
            due = zones.epoch_s(next(self._matches(zones.local(at_s, self.where))), ahead)
            if change is None or due < change:
                return Fire(due * 1000, self._repeated(due))
            ahead = zones.offset_s(change, self.where)
            first = zones.local(change, self.where)
            if next(self._matches(first - timedelta(seconds=1))) == first:
                return Fire(change * 1000, self._repeated(change))
            at_s = change

    def _fixed(self, at_s: int) -> Fire:
        """By the wall clock: each match once, moved behind the change that skips it."""
        for wall in self._matches(zones.local(at_s, self.where) - timedelta(seconds=_JUMP_S + 1)):
            fire = self._placed(wall)
            if fire is not None and fire.at_ms > at_s * 1000:
                return fire
        raise StopIteration

    def _placed(self, wall: datetime) -> Fire | None:
        """The instant of a moment on the wall clock; None where too long a change skips it."""
        first = wall.replace(tzinfo=self.where, fold=0)
        offset = first.utcoffset()
        assert offset is not None
        due = zones.epoch_s(wall, round(offset.total_seconds()))
        if zones.local(due, self.where) == wall:
            return Fire(due * 1000, self._repeated(due))
        change = zones.next_change(due - _JUMP_S - zones.DAY_S, self.where)
        while change is not None and zones.local(change, self.where) < wall:
            change = zones.next_change(change, self.where)
        assert change is not None
        jump = zones.offset_s(change, self.where) - zones.offset_s(change - 1, self.where)
        if jump >= _JUMP_S:
            return None
        return Fire(change * 1000, f"shifted: {wall:%H:%M} does not exist on {wall:%Y-%m-%d}; the clocks go forward")

    def _repeated(self, due: int) -> str | None:
        """A word about the first pass of a time that comes twice."""
        wall = zones.local(due, self.where)
        again = wall.replace(tzinfo=self.where, fold=1).utcoffset()
        assert again is not None
        second = zones.epoch_s(wall, round(again.total_seconds()))
        if second > due and zones.local(second, self.where) == wall:
            return f"repeated: {wall:%H:%M} comes twice on {wall:%Y-%m-%d}; this is the first time"
        return None

    def _matches(self, wall: datetime) -> CronSim:
        """The moments after this one that the fields ask for, on a clock that never changes."""
        return CronSim(self._expression, wall)


class Every:
    """A period in milliseconds, counted from an anchor in both directions: it does not drift, and a clock that is set
    back to before the anchor does not stop it."""

    def __init__(self, period_ms: int, anchor_ms: int) -> None:
        if period_ms < 1000:
            raise InvalidValue("cannot repeat more often than every second: write a period like 15m", field="every")
        self.period_ms = period_ms
        self.anchor_ms = anchor_ms

    def after(self, at_ms: int) -> Fire | None:
        """The first instant strictly later than this one that is a whole number of periods from the anchor."""
        return Fire(self.anchor_ms + ((at_ms - self.anchor_ms) // self.period_ms + 1) * self.period_ms)

    def between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """Its multiples from one instant to another, both included."""
        yield from self._range(first_ms, last_ms)

    def count(self, first_ms: int, last_ms: int) -> int:
        """How many these are."""
        return len(self._range(first_ms, last_ms))

    def _range(self, first_ms: int, last_ms: int) -> range:
        steps = -(-(first_ms - self.anchor_ms) // self.period_ms)
        return range(self.anchor_ms + steps * self.period_ms, last_ms + 1, self.period_ms)


class At:
    """One instant."""

    def __init__(self, at_ms: int, note: str | None = None) -> None:
        self.at_ms = at_ms
        self.note = note

    def after(self, at_ms: int) -> Fire | None:
        """That instant, while it is still to come."""
        return Fire(self.at_ms, self.note) if at_ms < self.at_ms else None

    def between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """That instant, where it lies there."""
        if first_ms <= self.at_ms <= last_ms:
            yield self.at_ms

    def count(self, first_ms: int, last_ms: int) -> int:
        """Whether it lies there, as a number."""
        return int(first_ms <= self.at_ms <= last_ms)


def every(text: str, anchor_ms: int) -> Every:
    """Read a period. Raises ``invalid_value``."""
    return Every(duration_ms(text), anchor_ms)


def at(text: str, where: ZoneInfo) -> At:
    """Read an instant: RFC 3339, or a date with or without a time, which is read in the zone.

    A local time that does not exist is refused; of one that comes twice the first is meant. Raises ``invalid_value``.
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(
            f"cannot read the instant {text!r}: write it like 2026-12-24T18:00:00+01:00, or without the offset for the "
            "zone's own time",
            value=text, field="at",
        ) from None  # fmt: skip
    if not zones.YEARS[0] <= found.year <= zones.YEARS[1]:
        raise InvalidValue(
            f"cannot use the instant {text!r}: write a year from {zones.YEARS[0]} to {zones.YEARS[1]}",
            value=text,
            field="at",
        )
    if found.tzinfo is not None:
        return At(round(found.timestamp() * 1000))
    whole = found.replace(microsecond=0)
    offset = whole.replace(tzinfo=where, fold=0).utcoffset()
    assert offset is not None
    due = zones.epoch_s(whole, round(offset.total_seconds()))
    if zones.local(due, where) != whole:
        raise InvalidValue(
            f"cannot use the instant {text!r}: the clocks of {where.key} skip it; "
            f"write one with its offset, or one after {rfc3339(due * 1000)}",
            value=text, field="at",
        )  # fmt: skip
    return At(due * 1000 + found.microsecond // 1000)


def _check(text: str, place: int, field: str) -> None:
    """What crontab knows, and no more: its library takes ``L``, ``W`` and ``#`` too, and numbers of any length."""
    name = rf"|{_NAMES[place]}" if place in _NAMES else ""
    one = rf"(?:{_NUMBER}{name})"
    item = rf"(?:\*|{one}(?:-{one})?)(?:/{_NUMBER})?"
    if not re.fullmatch(rf"{item}(?:,{item})*", field, re.IGNORECASE | re.ASCII):
        raise InvalidValue(
            f"cannot read the {_FIELDS[place]} {field!r} of the schedule {text!r}: write {_RANGES[place]}, a list like "
            "1,3, a range like 1-5, * or a step like */2",
            value=text, field=_FIELDS[place],
        )  # fmt: skip


def _bad(text: str, said: str) -> InvalidValue:
    """The library's word for what is wrong, which names the field, in ours."""
    field = said.removeprefix("Bad ").replace("day-of-month", "day of month").replace("day-of-week", "weekday")
    place = _FIELDS.index(field) if field in _FIELDS else None
    if place is None:
        return InvalidValue(f"cannot read the schedule {text!r}: {said}", value=text, field="schedule")
    return InvalidValue(
        f"cannot use the {field} of the schedule {text!r}: it may be {_RANGES[place]}, and must be there in one of the "
        "months",
        value=text, field=field,
    )  # fmt: skip
