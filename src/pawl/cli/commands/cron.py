"""``cron next``: when a schedule fires, by the function that the engine uses. Pure: it asks no daemon."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta

from pawl.cli.call import Call
from pawl.clock import clock_of
from pawl.config import load
from pawl.config.model import CronConfig
from pawl.engines.cron import schedule, zones
from pawl.engines.cron.model import plan_of, read, timing
from pawl.engines.cron.schedule import Schedule
from pawl.engines.cron.store import Q
from pawl.errors import CronJobNotFound, InvalidValue
from pawl.storage.database import Database
from pawl.storage.faults import from_sqlite
from pawl.values import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from zoneinfo import ZoneInfo

_COUNT = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def next_fires(call: Call, *, what: str, timezone: str | None, after: str | None, count: int | None) -> int:
    now_ms = clock_of(call.home).wall_ms()
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
    job, first_seen_ms = _job(call, what, now_ms)
    if timezone is not None:
        job = job.model_copy(update={"timezone": timezone})
    return plan_of(job, first_seen_ms), zones.zone(job.timezone)


def _job(call: Call, name: str, now_ms: int) -> tuple[CronConfig, int]:
    """A job of the file, or one that was added; and when it was first seen, from which a period is counted."""
    declared = {job.name: job for job in load(call.home.config).cron}
    stored = _stored(call)
    if name in declared:
        known = stored.get(name)
        same = known is not None and timing(known[0]) == timing(declared[name])
        return declared[name], known[1] if known is not None and same else now_ms
    if name in stored:
        return stored[name]
    there = ", ".join(sorted({*declared, *stored})[:10]) or "none"
    raise CronJobNotFound(
        f"cannot find a job named {name!r} at {call.home.path} (there is {there}); a schedule is written in quotes, "
        'like "30 2 * * *"',
        name=name,
    )  # fmt: skip


def _stored(call: Call) -> dict[str, tuple[CronConfig, int]]:
    """The jobs in the database, read beside a daemon or without one."""
    if not os.path.exists(call.home.database):
        return {}
    connection = Database(call.home.database).open_reader()
    try:
        rows = connection.execute(Q.definitions).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # written by a version that knew no jobs
            return {}
        raise from_sqlite(error, call.home.database) from error
    except sqlite3.Error as error:
        raise from_sqlite(error, call.home.database) from error
    finally:
        connection.close()
    return {name: (read(definition), first_seen_ms) for name, definition, first_seen_ms in rows}


def _instant(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidValue(f"cannot read the instant {text!r}: write it like 2026-03-29T00:00:00Z", value=text)
    return round((found - _EPOCH).total_seconds() * 1000)
