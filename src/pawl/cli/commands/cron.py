"""``cron next``: when a schedule fires, by the function that the engine uses. Pure: it asks no daemon."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from pawl.cli.call import Call
from pawl.config import load
from pawl.config.model import CronConfig
from pawl.engines.cron import schedule, zones
from pawl.engines.cron.schedule import Schedule
from pawl.errors import CronJobNotFound, InvalidValue
from pawl.values import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from zoneinfo import ZoneInfo

_COUNT = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def next_fires(call: Call, *, what: str, timezone: str | None, after: str | None, count: int | None) -> int:
    now_ms = round(time.time() * 1000)
    at_ms = now_ms if after is None else _instant(after)
    plan, where = _schedule(call, what, timezone, now_ms)
    fires: list[dict[str, Any]] = []
    while len(fires) < (count or _COUNT) and (fire := plan.after(at_ms)) is not None:
        at_ms = fire.at_ms
        local = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(where).isoformat(timespec="seconds")
        fires.append({"at": rfc3339(at_ms), "local": local, "note": fire.note})
    rows = [(fire["at"], fire["local"], fire["note"]) for fire in fires]
    call.show(fires, call.screen.table(("AT", "LOCAL", "NOTE"), rows, wrap=True) if rows else [])
    if not fires:
        call.note("it does not fire any more")
    elif isinstance(plan, schedule.Cron) and plan.either_day:
        call.note("day of month and weekday are both given: either of them is enough")
    return 0


def _schedule(call: Call, what: str, timezone: str | None, now_ms: int) -> tuple[Schedule, ZoneInfo]:
    """What is meant: text with white space or a leading ``@`` is a schedule, anything else a job's name."""
    if what.startswith("@") or what.split() != [what]:
        where = zones.zone(timezone)
        return schedule.Cron(what, where), where
    job = _job(call, what)
    where = zones.zone(timezone or job.timezone)
    if job.schedule is not None:
        return schedule.Cron(job.schedule, where), where
    if job.every is not None:
        return schedule.every(job.every, now_ms), where
    assert job.at is not None, "a job has one of the three"
    return schedule.at(job.at, where), where


def _job(call: Call, name: str) -> CronConfig:
    jobs = load(call.home.config).cron
    for job in jobs:
        if job.name == name:
            return job
    known = ", ".join(job.name for job in jobs) or "none"
    raise CronJobNotFound(
        f"cannot find a job named {name!r} in {call.home.config} (there is {known}); a schedule is written in quotes, "
        'like "30 2 * * *"',
        name=name,
    )  # fmt: skip


def _instant(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidValue(f"cannot read the instant {text!r}: write it like 2026-03-29T00:00:00Z", value=text)
    return round((found - _EPOCH).total_seconds() * 1000)
