"""The calls about scheduled jobs. All of them are the operator's: a job outlives whoever would add it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from pawl.engines.cron.findings import last_fires
from pawl.engines.cron.model import Fire, Job, head, public_fire, public_job
from pawl.engines.cron.store import Q
from pawl.ipc import messages
from pawl.ipc.server import Call

if TYPE_CHECKING:
    from pawl.daemon.app import App

_HEAD_BYTES = 8_192
_BRIEF = 200  # characters of a text in a list of jobs
_BRIEF_WORDS = 20  # of a command


async def list_(app: App, call: Call, params: messages.Nothing) -> list[dict[str, Any]]:
    """Every job."""
    last, lines = await last_fires(app.reader), app.jobs.lines()
    return [_brief(_shown(job, last.get(job.name), lines)) for job in app.jobs.all()]


async def show(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """One job."""
    return await _public(app, app.jobs.need(params.name))


async def add(app: App, call: Call, params: messages.CronAdd) -> dict[str, Any]:
    """Add a job, or find the same one."""
    app.refuse_when_stopping()
    said = {"name": params.name, **params.job}
    return await _public(app, await app.jobs.add(said, replace=params.replace, actor=call.caller.actor))


async def update(app: App, call: Call, params: messages.CronUpdate) -> dict[str, Any]:
    """Change some of an added job."""
    app.refuse_when_stopping()
    return await _public(app, await app.jobs.update(params.name, params.job, actor=call.caller.actor))


async def remove(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """Remove an added job."""
    job = app.jobs.need(params.name)
    before = await _public(app, job)
    await app.jobs.remove(params.name, actor=call.caller.actor)
    return before


async def enable(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """Let a job fire, from now on."""
    return await _public(app, await app.jobs.switch(params.name, True, actor=call.caller.actor))


async def disable(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """Let a job fire no more."""
    return await _public(app, await app.jobs.switch(params.name, False, actor=call.caller.actor))


async def run(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """Fire a job now."""
    app.refuse_when_stopping()
    return public_fire(await app.cron.run(params.name))


async def runs(app: App, call: Call, params: messages.CronRuns) -> list[dict[str, Any]]:
    """Fires on record, newest first, each with the beginning of what it printed."""
    if params.name is None:
        rows = await app.reader.all(Q.fires_all, (params.limit,))
    else:
        rows = await app.reader.all(Q.fires_of, (params.name, params.limit))
        if not rows:
            app.jobs.need(params.name)  # a job that is gone may have left its fires
    return [await asyncio.to_thread(_with_output, app, row) for row in rows]


def _with_output(app: App, row: Any) -> dict[str, Any]:
    *fire, sha256, size, err_sha256, err_size = row
    return public_fire(Fire._make(fire), _output(app, sha256, size), _output(app, err_sha256, err_size))


def _output(app: App, sha256: str | None, size_bytes: int | None) -> dict[str, Any] | None:
    if sha256 is None or size_bytes is None:
        return None
    path, text = app.artifacts.path(sha256), None
    # only its beginning, so not verified: `pawl result` does that; one that is gone is for `pawl doctor` to say
    with contextlib.suppress(OSError), open(path, "rb") as file:
        text = head(file.read(_HEAD_BYTES))
    return {"sha256": sha256, "size_bytes": size_bytes, "path": path, "text": text}


async def _public(app: App, job: Job) -> dict[str, Any]:
    last = await last_fires(app.reader, job.name)
    return _shown(job, last.get(job.name), app.jobs.lines())


def _brief(job: dict[str, Any]) -> dict[str, Any]:
    """A job among many: a long text is cut, so that all of them fit into one answer."""
    command = job["command"]
    return job | {
        "prompt": job["prompt"] and job["prompt"][:_BRIEF],
        "command": command and [word[:_BRIEF] for word in command[:_BRIEF_WORDS]],
        "precondition": job["precondition"] and [word[:_BRIEF] for word in job["precondition"][:_BRIEF_WORDS]],
    }


def _shown(job: Job, last: Fire | None, lines: dict[str, int | None]) -> dict[str, Any]:
    line = lines.get(job.name) if job.origin == "config" else None
    return public_job(job, None if last is None else public_fire(last), line)
