"""The commands about jobs that the daemon answers."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.output import clean
from pawl.clock import clock_of
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADS = ("NAME", "AGENT", "SCHEDULE", "NEXT", "LAST", "OUTCOME")
_FIRES = ("DUE", "JOB", "STATUS", "TRIGGER", "TASK", "TOOK", "WHY")


def list_jobs(call: Call) -> int:
    jobs = call.ask("cron.list")
    call.show(jobs, call.screen.table(_HEADS, [_row(call, job) for job in jobs], whole=0, wrap=True) if jobs else [])
    if not jobs:
        call.note(f"there are no jobs; {call.command('cron add --help')} shows how to add one")
    return 0


def show(call: Call, *, name: str) -> int:
    job = call.ask("cron.show", name=name)
    fires = [] if call.json else call.ask("cron.runs", name=name, limit=5)
    call.show(job, [] if call.json else [*call.screen.facts(_facts(call, job)), *_last(call, fires)])
    return 0


def add(call: Call, *, name: str, argv: list[str], replace: bool, **said: Any) -> int:
    job = call.ask("cron.add", name=name, job=_job(argv, said), replace=replace)
    return _changed(call, job)


def update(call: Call, *, name: str, argv: list[str], **said: Any) -> int:
    return _changed(call, call.ask("cron.update", name=name, job=_job(argv, said)))


def remove(call: Call, *, name: str) -> int:
    job = call.ask("cron.remove", name=name)
    call.show(job, [])
    call.note(f"{job['name']} is removed; its history stays: {call.command('cron runs ' + job['name'])}")
    return 0


def enable(call: Call, *, name: str) -> int:
    return _changed(call, call.ask("cron.enable", name=name))


def disable(call: Call, *, name: str) -> int:
    return _changed(call, call.ask("cron.disable", name=name))


def run(call: Call, *, name: str) -> int:
    fire = call.ask("cron.run", name=name)
    call.show(fire, [fire["task_id"]] if fire["task_id"] else [])
    if fire["finished_at"] and not fire["task_id"]:
        call.note(f"{name} did not start: {fire['reason']}")
        return 1
    if not fire["task_id"]:
        call.note(f"{name} starts when its turn comes: {call.command('cron runs ' + name)} shows it")
    return 0


def runs(call: Call, *, name: str | None, limit: int | None) -> int:
    fires = call.ask("cron.runs", **({"name": name} if name else {}), **({"limit": limit} if limit else {}))
    call.show(fires, _fire_table(call, fires, job=name is None) if fires else [])
    if not fires:
        call.note("nothing has fired yet")
    return 0


def _job(argv: list[str], said: dict[str, Any]) -> dict[str, Any]:
    """The keys of ``[[cron]]`` that were given."""
    job = {key: value for key, value in said.items() if value is not None and value is not False}
    return job | ({"command": argv} if argv else {})


def _changed(call: Call, job: dict[str, Any]) -> int:
    call.show(job, [job["name"]])
    if job["enabled"]:
        call.note(f"{job['name']} fires next at {job['next_at']} ({job['timezone']})")
    else:
        call.note(f"{job['name']} does not fire: {job['disabled_reason']}")
    return 0


def _row(call: Call, job: dict[str, Any]) -> list[str | None]:
    last = job["last"] or {}
    return [
        job["name"],
        job["agent"],
        job["schedule"],
        _second(job["next_at"]) if job["enabled"] else f"off: {job['disabled_reason']}",
        _second(last.get("nominal_at")),
        last.get("status"),
    ]


def _second(instant: str | None) -> str | None:
    """An instant of a schedule, which has no milliseconds."""
    return instant and instant.replace(".000Z", "Z")


def _fire_table(call: Call, fires: list[dict[str, Any]], *, job: bool) -> list[str]:
    rows = []
    for fire in fires:
        row = [
            _second(fire["nominal_at"]), fire["job"], fire["status"], fire["trigger"], fire["task_id"],
            _took(fire), _why(fire),
        ]  # fmt: skip
        rows.append(row if job else [row[0], *row[2:]])
    heads = _FIRES if job else (_FIRES[0], *_FIRES[2:])
    return call.screen.table(heads, rows, whole=0, wrap=True)


def _took(fire: dict[str, Any]) -> str | None:
    if not fire["started_at"] or not fire["finished_at"]:
        return None
    from datetime import datetime

    began, ended = (datetime.fromisoformat(fire[key]) for key in ("started_at", "finished_at"))
    return duration_text(round((ended - began).total_seconds() * 1000))


def _why(fire: dict[str, Any]) -> str | None:
    if fire["count"] > 1:
        return f"{fire['count']} fires up to {_second(fire['until_at'])}: {fire['reason']}"
    return clean(fire["reason"], one_line=True) if fire["reason"] else None


def _last(call: Call, fires: list[dict[str, Any]]) -> list[str]:
    return ["", "its last fires:", *_fire_table(call, fires, job=False)] if fires else ["", "it has not fired yet"]


def _facts(call: Call, job: dict[str, Any]) -> list[tuple[str, str | None]]:
    origin = f"config.toml, line {job['line']}" if job["line"] else "added"
    work = job["prompt"] if job["command"] is None else " ".join(job["command"])
    caught = {"skip": "recorded only", "once": "one run for all", "all": f"each, up to {job['catch_up_max']}"}
    return [
        ("name", job["name"]),
        ("from", origin),
        ("agent", job["agent"]),
        ("does", clean(work or "", one_line=True)),
        ("schedule", f"{job['schedule']} ({job['timezone']})"),
        ("next", _next(call, job) if job["enabled"] else f"off: {job['disabled_reason']}"),
        (
            "missed fires",
            f"{caught[job['catch_up']]}, of the last {duration_text(round(job['catch_up_window_s'] * 1000))}",
        ),
        ("overlap", job["overlap"]),
        ("jitter", _span(job["jitter_s"])),
        ("timeout", _span(job["timeout_s"])),
        ("retries", str(job["retries"]) if job["retries"] else None),
        ("precondition", " ".join(job["precondition"]) if job["precondition"] else None),
        ("expected duration", _span(job["expected_duration_s"])),
        ("goes once it has run", "yes" if job["delete_after_run"] else None),
    ]


def _next(call: Call, job: dict[str, Any]) -> str:
    """The next fire, and what the clocks of the job's zone show then."""
    from datetime import datetime
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    due = datetime.fromisoformat(job["next_at"])
    try:
        where = ZoneInfo(job["timezone"])
    except ZoneInfoNotFoundError:  # the machine's own, which has no name
        where = None
    wait_ms = round(due.timestamp() * 1000) - clock_of(call.home).wall_ms()
    soon = f", in {duration_text(wait_ms)}" if wait_ms > 0 else ""
    return f"{_second(job['next_at'])} ({due.astimezone(where):%a %H:%M} there{soon})"


def _span(seconds: float | None) -> str | None:
    return duration_text(round(seconds * 1000)) if seconds else None
