"""Schedules: the handed cases of clock changes and of reading crontab text, and a slow model to compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pawl.engines.cron import schedule, zones
from pawl.engines.cron.schedule import At, Cron, Every
from pawl.errors import InvalidValue

ZONES = [
    "America/New_York", "Europe/London", "Europe/Berlin", "America/Sao_Paulo", "Asia/Beirut", "Australia/Lord_Howe",
    "Africa/Casablanca", "Pacific/Apia", "America/Havana", "Asia/Tehran", "Pacific/Chatham", "UTC",
]  # fmt: skip


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def shown(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


def fires(text: str, zone: str, after: str, count: int) -> list[str]:
    """So many fires after an instant, as a person asks for them."""
    cron, at_ms, found = Cron(text, ZoneInfo(zone)), ms(after), []
    for _ in range(count):
        fire = cron.after(at_ms)
        assert fire is not None
        at_ms = fire.at_ms
        found.append(shown(at_ms))
    return found


# The id, the schedule, its zone, an instant; below it the fires that follow.
_TABLE = """
B-001 Toronto | 0 9 * * * | America/Toronto | 2026-10-31T12:00Z
    2026-10-31T13:00Z 2026-11-01T14:00Z 2026-11-02T14:00Z
B-001 New York | 0 9 * * * | America/New_York | 2026-03-07T12:00Z
    2026-03-07T14:00Z 2026-03-08T13:00Z 2026-03-09T13:00Z
B-002 New York | 30 1 * * * | America/New_York | 2026-10-31T12:00Z
    2026-11-01T05:30Z 2026-11-02T06:30Z 2026-11-03T06:30Z 2026-11-04T06:30Z
B-002 London | 30 1 * * * | Europe/London | 2026-10-24T12:00Z
    2026-10-25T00:30Z 2026-10-26T01:30Z 2026-10-27T01:30Z
B-004 | 0 * * * * | America/New_York | 2026-11-01T03:30Z
    2026-11-01T04:00Z 2026-11-01T05:00Z 2026-11-01T06:00Z 2026-11-01T07:00Z 2026-11-01T08:00Z
    2026-11-01T09:00Z
B-007 | 30 2 * * * | America/New_York | 2026-03-07T12:00Z
    2026-03-08T07:00Z 2026-03-09T06:30Z 2026-03-10T06:30Z
B-007 2027 | 30 2 * * * | America/New_York | 2027-03-13T12:00Z
    2027-03-14T07:00Z 2027-03-15T06:30Z 2027-03-16T06:30Z
B-010 2:30 | 30 2 * * 0 | Europe/Berlin | 2026-03-22T12:00Z
    2026-03-29T01:00Z 2026-04-05T00:30Z
B-010 3:00 | 0 3 * * 0 | Europe/Berlin | 2026-03-22T12:00Z
    2026-03-29T01:00Z 2026-04-05T01:00Z
B-014 | * * * */3 * | America/New_York | 2015-02-15T05:00Z
    2015-04-01T04:00Z
B-015 | 30 16 * * 1-5 | America/Los_Angeles | 2026-07-10T00:00Z
    2026-07-10T23:30Z 2026-07-13T23:30Z 2026-07-14T23:30Z 2026-07-15T23:30Z
B-018 | 0 0 * * 1-5 | America/Chicago | 2026-03-06T06:00Z
    2026-03-09T05:00Z 2026-03-10T05:00Z 2026-03-11T05:00Z
B-021 number | 0 10 * * 1 | Europe/Berlin | 2023-03-13T12:00Z
    2023-03-20T09:00Z 2023-03-27T08:00Z
B-021 name | 0 10 * * mon | Europe/Berlin | 2023-03-13T12:00Z
    2023-03-20T09:00Z 2023-03-27T08:00Z
B-021 Sunday | 0 3 * * 0 | UTC | 2026-06-22T00:00Z
    2026-06-28T03:00Z 2026-07-05T03:00Z
B-022 seven | 0 0 * * 7 | UTC | 2026-06-01T00:00Z
    2026-06-07T00:00Z 2026-06-14T00:00Z
B-022 range | 0 0 * * 5-7 | UTC | 2026-06-01T00:00Z
    2026-06-05T00:00Z 2026-06-06T00:00Z 2026-06-07T00:00Z 2026-06-12T00:00Z
B-022 both | 0 0 * * 0,7 | UTC | 2026-06-01T00:00Z
    2026-06-07T00:00Z 2026-06-14T00:00Z
B-023 | 0 0 */2 * 1 | UTC | 2026-06-01T00:00Z
    2026-06-15T00:00Z 2026-06-29T00:00Z 2026-07-13T00:00Z 2026-07-27T00:00Z 2026-08-03T00:00Z
B-026 | 0 4 1-7 * 1 | UTC | 2026-12-01T00:00Z
    2026-12-01T04:00Z 2026-12-02T04:00Z 2026-12-03T04:00Z 2026-12-04T04:00Z 2026-12-05T04:00Z
    2026-12-06T04:00Z 2026-12-07T04:00Z 2026-12-14T04:00Z 2026-12-21T04:00Z
B-026 list | 0 0 1,15 * 1 | UTC | 2026-06-01T00:00Z
    2026-06-08T00:00Z 2026-06-15T00:00Z 2026-06-22T00:00Z 2026-06-29T00:00Z 2026-07-01T00:00Z
    2026-07-06T00:00Z 2026-07-13T00:00Z 2026-07-15T00:00Z
B-027 | 5/15 * * * * | UTC | 2026-06-01T00:00Z
    2026-06-01T00:05Z 2026-06-01T00:20Z 2026-06-01T00:35Z 2026-06-01T00:50Z
B-028 45 | */45 * * * * | UTC | 2026-06-01T00:00Z
    2026-06-01T00:45Z 2026-06-01T01:00Z 2026-06-01T01:45Z 2026-06-01T02:00Z
B-028 7 | */7 * * * * | UTC | 2026-06-01T00:50Z
    2026-06-01T00:56Z 2026-06-01T01:00Z 2026-06-01T01:07Z
B-028 hours | 0 */5 * * * | UTC | 2026-06-01T18:00Z
    2026-06-01T20:00Z 2026-06-02T00:00Z 2026-06-02T05:00Z 2026-06-02T10:00Z
B-030 | 0 9 29 2 * | UTC | 2024-02-29T09:00Z
    2028-02-29T09:00Z
B-030 2104 | 0 0 29 2 * | UTC | 2096-03-01T00:00Z
    2104-02-29T00:00Z
B-030 31 | 0 0 31 * * | UTC | 2026-01-31T00:00Z
    2026-03-31T00:00Z 2026-05-31T00:00Z 2026-07-31T00:00Z 2026-08-31T00:00Z
nickname | @Daily | Europe/Paris | 2026-06-01T00:00Z
    2026-06-01T22:00Z
"""


def cases() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in _TABLE.strip().splitlines():
        if line.startswith(" "):
            found[name] += line.split()
        else:
            name, *about = line.split(" | ")
            found[name] = about
    return found


_CASES = cases()


@pytest.mark.parametrize("case", _CASES)
def test_next_fires(case: str) -> None:
    """Each handed case, by its id."""
    text, zone, after, *expected = _CASES[case]

    assert fires(text, zone, after, len(expected)) == expected


def test_b011_the_zone_of_the_host_changes_nothing() -> None:
    """B-011: a job that names its zone has the same fires everywhere."""
    code = (
        "from pawl.engines.cron.schedule import Cron; from pawl.engines.cron.zones import zone;"
        "c = Cron('0 * * * *', zone('UTC')); f = c.after(1759629600000); print(f.at_ms, c.after(f.at_ms).at_ms)"
    )
    for host in ("Australia/Sydney", "UTC"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"TZ": host}, capture_output=True, text=True
        )
        assert done.stdout.split() == [str(ms(f"2025-10-05T0{hour}:00Z")) for hour in (3, 4)], done.stderr


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2027-03-23", "Asia/Shanghai", "2027-03-22T16:00Z"),
        ("2026-11-01T01:30", "America/New_York", "2026-11-01T05:30Z"),
        ("2026-10-25T02:30", "Europe/Oslo", "2026-10-25T00:30Z"),
        ("2026-12-24T18:00:00+01:00", "UTC", "2026-12-24T17:00Z"),
    ],
)
def test_b019_one_instant(text: str, zone: str, expected: str) -> None:
    """B-019: read in the zone; the first of two."""
    once = schedule.at(text, ZoneInfo(zone))

    assert shown(once.at_ms) == expected
    assert once.after(once.at_ms) is None
    assert once.after(once.at_ms - 1) == (once.at_ms, None)


@pytest.mark.parametrize("text", ["2026-03-08T02:30", "tomorrow", "", "2026-13-01T00:00"])
def test_b019_an_instant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as no:
        schedule.at(text, ZoneInfo("America/New_York"))
    assert no.value.details["field"] == "at"


_BAD = {
    "*/0 * * * *": "minute", "60 * * * *": "minute", "0 24 * * *": "hour", "0 0 0 * *": "day of month",
    "0 0 32 * *": "day of month", "0 0 * 13 *": "month", "0 0 * * 8": "weekday", "* * * *": "schedule",
    "1,2, 3 * * *": "minute", "5,,6 * * * *": "minute", "5- * * * *": "minute", "-1 * * * *": "minute",
    "*/5/2 * * * *": "minute", "": "schedule", "１ * * * *": "minute", "0 0 30 2 *": "day of month",
    "0 0 L * *": "day of month", "0 0 * * 5L": "weekday", "0 0 * * 1#2": "weekday", "9-5 * * * *": "minute",
    "0 0 * * sat-mon": "weekday", "@often": "schedule", "0 0 * * * * *": "schedule", "99999999999 * * * *": "minute",
    "0 0 * jan-foo *": "month", "60 0 0 * * *": "second",
}  # fmt: skip


@pytest.mark.parametrize("text", _BAD)
def test_b033_bad_text_is_refused_by_its_field(text: str) -> None:
    """B-033: at once, naming the field; what crontab does not know is not taken either."""
    with pytest.raises(InvalidValue) as no:
        Cron(text, ZoneInfo("UTC"))

    named = no.value.details["field"]
    assert named == _BAD[text] or text == "1,2, 3 * * *"
    assert str(named) in no.value.message


@pytest.mark.parametrize("text", ["0  9\t* * *", "0 9 * * MON", "0 9 * jAn mon-Fri", " 0 9 * * * ", "0 0 9 * * *"])
def test_b033_what_is_right_is_taken(text: str) -> None:
    assert Cron(text, ZoneInfo("UTC")).after(0) is not None


@pytest.mark.parametrize("name", ["Mars/Phobos", "", "utc ", "../etc/passwd"])
def test_b033_an_unknown_zone_is_never_utc(name: str) -> None:
    with pytest.raises(InvalidValue) as no:
        zones.zone(name)
    assert no.value.details["field"] == "timezone"


def test_notes_say_what_a_change_did() -> None:
    """Moved behind a jump, or the first of two; nothing else has a note."""
    york = ZoneInfo("America/New_York")

    moved = Cron("30 2 * * *", york).after(ms("2026-03-08T00:00Z"))
    twice = Cron("30 1 * * *", york).after(ms("2026-11-01T00:00Z"))
    plain = Cron("30 2 * * *", york).after(ms("2026-03-09T00:00Z"))

    assert moved is not None
    assert twice is not None
    assert plain is not None
    assert (moved.note or "").startswith("shifted: 02:30")
    assert (twice.note or "").startswith("repeated: 01:30")
    assert plain.note is None


def test_a_day_that_a_zone_left_out_is_not_made_up_for() -> None:
    """Apia went from 29 to 31 December 2011: that is no change of the clocks of a few hours."""
    assert fires("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00Z", 3) == [
        "2011-12-29T22:00Z", "2011-12-30T22:00Z", "2011-12-31T22:00Z",
    ]  # fmt: skip


@given(st.integers(1_000, 10**9), st.integers(-(10**12), 10**13), st.integers(-(10**12), 10**13))
def test_a_period_does_not_drift(period: int, anchor: int, after: int) -> None:
    """The next one is strictly later, a whole number of periods from the anchor, and none is left out."""
    fire = Every(period, anchor).after(after)

    assert fire is not None
    assert fire.at_ms > after
    assert (fire.at_ms - anchor) % period == 0
    assert fire.at_ms == anchor or fire.at_ms - after <= period


def test_a_period_has_a_least() -> None:
    with pytest.raises(InvalidValue):
        schedule.every("10ms", 0)
    assert isinstance(schedule.every("15m", 0), Every)
    assert At(5).after(5) is None


# --- the slow model: minute by minute, by the rules of vixie cron -----------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _asks(field: str, value: int, low: int, high: int) -> bool:
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = int(first)
            end = int(last) if dash else (high if step else begin)
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False


def asks(text: str, wall: datetime) -> bool:
    """Whether the five fields ask for this minute of the wall clock."""
    minute, hour, day, month, weekday = text.split()
    day_fits = _asks(day, wall.day, 1, 31)
    number = wall.isoweekday() % 7
    weekday_fits = _asks(weekday, number, 0, 7) or (number == 0 and _asks(weekday, 7, 0, 7))
    both = day.startswith("*") or weekday.startswith("*")
    return (
        _asks(minute, wall.minute, 0, 59)
        and _asks(hour, wall.hour, 0, 23)
        and _asks(month, wall.month, 1, 12)
        and ((day_fits and weekday_fits) if both else (day_fits or weekday_fits))
    )


def slowly(text: str, zone: ZoneInfo, start_s: int, minutes: int) -> Iterator[int]:
    """The minutes, in seconds of the epoch, at which a cron that looks at the clock every minute would run it."""
    minute, hour = text.split()[:2]
    wildcard = minute.startswith("*") or hour.startswith("*")
    reached: datetime | None = None
    for at_s in range(start_s, start_s + minutes * 60, 60):
        wall = (_EPOCH + timedelta(seconds=at_s)).astimezone(zone).replace(tzinfo=None)
        if wildcard:
            due = asks(text, wall)
        elif reached is None or wall > reached:
            due = asks(text, wall)
            skipped = round((wall - reached).total_seconds() / 60) - 1 if reached is not None else 0
            if reached is not None and 0 < skipped < 180:
                due = due or any(asks(text, reached + timedelta(minutes=m)) for m in range(1, skipped + 1))
        else:
            due = False
        reached = wall if reached is None else max(reached, wall)
        if due:
            yield at_s


_minutes = st.sampled_from(["*", "*/7", "*/30", "0", "30", "15,45", "0-20/5", "59", "5/25", "0,30"])
_hours = st.sampled_from(["*", "*/2", "0", "1", "2", "3", "1-3", "0,2", "23", "0-23", "2/3"])
_days = st.sampled_from(["*", "*", "1-28", "*/2", "15", "8-14"])
_months = st.sampled_from(["*", "*", "1-12", "3,10,11"])
_weekdays = st.sampled_from(["*", "*", "0", "7", "1-5", "*/2", "6-7"])


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """A zone, and an instant within three days of a change of its clocks."""
    zone = draw(st.sampled_from(ZONES))
    start = draw(st.integers(0, 2_000_000_000))
    change = zones.next_change(start, ZoneInfo(zone)) or start
    near = change - draw(st.integers(0, 3 * 86_400))
    return zone, near // 60 * 60


@given(_minutes, _hours, _days, _months, _weekdays, moments())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_it_agrees_with_a_cron_that_looks_every_minute(
    minute: str, hour: str, day: str, month: str, weekday: str, moment: tuple[str, int]
) -> None:
    """Around every change of the clocks, in zones that change by an hour, by half an hour, at midnight and by a day."""
    text, (name, start) = f"{minute} {hour} {day} {month} {weekday}", moment
    zone, minutes = ZoneInfo(name), 5 * 24 * 60
    cron = Cron(text, zone)
    warm = 26 * 60  # the model must have seen the clock before it judges a change
    expected = [at_s for at_s in slowly(text, zone, start - warm * 60, minutes + warm) if at_s > start]

    found, at_ms = [], start * 1000
    while (fire := cron.after(at_ms)) is not None and fire.at_ms < (start + minutes * 60) * 1000:
        at_ms = fire.at_ms
        found.append(at_ms // 1000)

    assert found == [at_s for at_s in expected if at_s < start + minutes * 60]
    assert all(one < other for one, other in pairwise(found))
