"""Time zones: finding one, and the moments at which its clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from tzlocal import get_localzone

from pawl.errors import InvalidValue

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400
YEARS = (1970, 9000)  # beyond, datetime itself ends


def zone(name: str | None) -> ZoneInfo:
    """The zone of an IANA name; the host's for None. Raises ``invalid_value``; an unknown one is never read as UTC."""
    return _host_zone() if name is None else _named(name)


def _host_zone() -> ZoneInfo:
    try:
        return get_localzone()
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidValue(
            f"cannot tell this machine's time zone ({error}): name one, like Europe/Paris or UTC", field="timezone"
        ) from None


@lru_cache(maxsize=1024)
def _named(name: str) -> ZoneInfo:
    if name not in _names():
        raise InvalidValue(
            f"cannot find the time zone {name!r}: write an IANA name like Europe/Paris or UTC",
            value=name,
            field="timezone",
        )
    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    """Every zone there is; to list them takes the walk through a tree of files."""
    return frozenset(available_timezones())


def local(at_s: int, where: ZoneInfo) -> datetime:
    """What a clock shows at an instant (seconds of the epoch), without its zone."""
    return (_EPOCH + timedelta(seconds=at_s)).astimezone(where).replace(tzinfo=None)


def offset_s(at_s: int, where: ZoneInfo) -> int:
    """How far clocks are ahead of UTC at an instant, in seconds."""
    offset = (_EPOCH + timedelta(seconds=at_s)).astimezone(where).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def epoch_s(wall: datetime, ahead_s: int) -> int:
    """The instant at which a clock that is so far ahead of UTC shows this."""
    return round((wall.replace(tzinfo=UTC) - _EPOCH).total_seconds()) - ahead_s


def next_change(at_s: int, where: ZoneInfo) -> int | None:
    """The first instant after this one from which on the offset is another; None where none follows for years."""
    year = local(at_s, where).year
    for each in range(year, min(year + 12, YEARS[1])):
        for change in _changes(each, where):
            if change > at_s:
                return change
    return None


@lru_cache(maxsize=1024)
def _changes(year: int, where: ZoneInfo) -> tuple[int, ...]:
    """The changes from a day before a year to a day after it."""
    start = round((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds()) - DAY_S
    found = []
    before = offset_s(start, where)
    for day in range(368):
        at_s = start + (day + 1) * DAY_S
        after = offset_s(at_s, where)
        if after != before:
            found.append(_bisect(at_s - DAY_S, at_s, where))
            before = after
    return tuple(found)


def _bisect(low: int, high: int, where: ZoneInfo) -> int:
    """The change between two instants, one of each offset."""
    before = offset_s(low, where)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_s(middle, where) == before:
            low = middle
        else:
            high = middle
    return high
