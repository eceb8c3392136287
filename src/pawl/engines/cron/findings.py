"""What a person should know about the jobs: late, missed, disabled, or running longer than they do."""

from __future__ import annotations

from typing import Any

from pawl.engines.cron.due import LATE_MS
from pawl.engines.cron.engine import Scheduler
from pawl.engines.cron.model import Fire, Job, jitter_ms, late_text
from pawl.engines.cron.store import Q
from pawl.storage import Reader
from pawl.values import duration_text, rfc3339

_RECENT_MS = 86_400_000  # how long a missed or late fire is a finding


async def last_fires(reader: Reader, name: str | None = None) -> dict[str, Fire]:
    """The newest fire of each job, or of one, by schedule or by hand."""
    rows = await (reader.all(Q.last_fires) if name is None else reader.all(Q.last_fires_of, (name,)))
    newest: dict[str, Fire] = {}
    for fire in map(Fire._make, rows):
        if fire.job not in newest or fire.nominal_at_ms > newest[fire.job].nominal_at_ms:
            newest[fire.job] = fire
    return newest


async def findings(scheduler: Scheduler, reader: Reader, now_ms: int) -> list[dict[str, str]]:
    """The findings about jobs, now."""
    found: list[dict[str, str]] = []

    def say(code: str, job: str, message: str) -> None:
        found.append({"code": code, "message": message, "subject": job})

    for name, why in sorted(scheduler.jobs.conflicts.items()):
        say("cron_name_taken", name, why)
    for name, why in sorted(scheduler.troubles.items()):
        say("cron_not_recorded", name, f"its fires cannot be recorded at the moment: {why}")
    for job in scheduler.jobs.all():
        if job.disabled_reason and not job.finished and job.wanted:
            say("cron_job_disabled", job.name, f"it cannot fire: {job.disabled_reason}")
        elif _late(job, now_ms) and _late(job, now_ms - jitter_ms(job.config)):
            late = late_text(now_ms - (job.next_at_ms or 0))
            say("cron_late", job.name, f"its fire of {rfc3339(job.next_at_ms)} is {late} late and not started yet")
    waiting: set[str] = set()
    for fire in [Fire._make(row) for row in await reader.all(Q.open_fires)]:
        held = scheduler.jobs.get(fire.job)
        late_ms = now_ms - fire.nominal_at_ms - (jitter_ms(held.config) if held else 0)
        if fire.started_at_ms is None and late_ms > LATE_MS and fire.job not in waiting:
            waiting.add(fire.job)  # of several that wait the oldest tells
            why = f"task {fire.task_id} waits for a slot" if fire.task_id else "it waits for the run before it"
            what = f"its fire of {rfc3339(fire.nominal_at_ms)} is {late_text(late_ms)} late and not started yet"
            say("cron_late", fire.job, f"{what}: {why}")
        expected_ms = held.config.expected_duration_ms if held else None
        if expected_ms and fire.started_at_ms and now_ms - fire.started_at_ms > expected_ms:
            runs = duration_text(now_ms - fire.started_at_ms)
            say(
                "cron_runs_long", fire.job,
                f"task {fire.task_id} runs since {runs}; the job expects {duration_text(expected_ms)}",
            )  # fmt: skip
    for name, status, count, newest in await reader.all(Q.late_since, (now_ms - _RECENT_MS,)):
        times = "a fire" if count == 1 else f"{count} fires"
        rest = f"in the last day, the newest that of {rfc3339(newest)}; `pawl cron runs {name}` says why"
        if status == "missed":
            say("cron_missed", name, f"{times} missed {rest}")
        else:
            say("cron_caught_up", name, f"{times} caught up late {rest}")
    return found


def _late(job: Job, now_ms: int) -> bool:
    return job.next_at_ms is not None and now_ms - job.next_at_ms > LATE_MS


def overview(scheduler: Scheduler) -> dict[str, Any]:
    """What ``status`` says of the jobs."""
    jobs = scheduler.jobs.all()
    coming = min((job for job in jobs if job.next_at_ms is not None), key=lambda job: job.next_at_ms or 0, default=None)
    return {
        "jobs": len(jobs),
        "enabled": sum(job.next_at_ms is not None for job in jobs),  # who fires has a next fire: quick for thousands
        "under_way": len(scheduler.under_way()),
        "next_at": rfc3339(coming.next_at_ms) if coming else None,
        "next_job": coming.name if coming else None,
    }
