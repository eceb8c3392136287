"""The jobs of one daemon: those that the file declares, those that were added, and what becomes of both.

Declared jobs are told by their names. Their state survives a change that leaves the schedule alone; a job that was
added is never taken over by a declared one of its name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from pawl.config import Config
from pawl.config.cron import CronConfig
from pawl.config.faults import faults_of
from pawl.config.lines import Origin
from pawl.control_plane import store as tasks
from pawl.engines.cron import store
from pawl.engines.cron.due import NOTHING, OnRecord, last_before, next_free
from pawl.engines.cron.model import Job, definition_of, plan_of, seen_by, timing, zone_name
from pawl.engines.cron.schedule import Schedule
from pawl.engines.cron.soundness import unsound
from pawl.engines.cron.store import Q
from pawl.errors import (
    CronJobDeclared,
    CronJobDisabled,
    CronJobExists,
    CronJobNotFound,
    InvalidValue,
    StorageError,
)
from pawl.log import logger
from pawl.storage import Reader, Writer
from pawl.timers import Timers
from pawl.values import rfc3339

log = logger("cron")
_DEFINITION_MAX = 256 * 1024  # bytes of an added job, as it is stored


class Jobs:
    """The jobs in memory; the rows are the authority. ``config`` answers with the configuration in force."""

    def __init__(self, writer: Writer, reader: Reader, timers: Timers, config: Callable[[], Config]) -> None:
        self._writer = writer
        self._reader = reader
        self._timers = timers
        self._config = config
        self._jobs: dict[str, Job] = {}
        self._newest: dict[str, int] = {}  # the newest instant that is on record, by job
        self._changing = asyncio.Lock()
        self.conflicts: dict[str, str] = {}  # declared jobs that cannot be stored, and why
        self.moved: Callable[[Job], None] = lambda job: None

    async def load(self) -> None:
        """Read them from the database."""
        for *row, single, span in await self._reader.all(Q.jobs):
            job = Job._make(row)
            self._jobs[job.name] = job
            self._newest[job.name] = max(single or 0, span or 0)

    # --- looking ----------------------------------------------------------------------------------------------------

    def all(self) -> list[Job]:
        """Every job, by name."""
        return [self._jobs[name] for name in sorted(self._jobs)]

    def get(self, name: str) -> Job | None:
        """One job, if there is one of this name."""
        return self._jobs.get(name)

    def need(self, name: str) -> Job:
        """One job. Raises ``cron_job_not_found``."""
        job = self._jobs.get(name)
        if job is None:
            known = ", ".join(sorted(self._jobs)[:10]) or "none"
            raise CronJobNotFound(f"cannot find a job named {name!r}; there is {known}", name=name)
        return job

    def lines(self) -> dict[str, int | None]:
        """Where the file declares each job."""
        config = self._config()
        return {job.name: config.line_of("cron", index) for index, job in enumerate(config.cron)}

    def runnable(self, job: Job) -> None:
        """Raises ``cron_job_disabled`` where a job cannot run at all; one that is merely switched off can, by hand."""
        reason = self._broken(job.config)
        if reason is not None:
            raise CronJobDisabled(f"cannot run {job.name}: {reason}", name=job.name)

    async def on_record(self, job: Job, from_ms: int) -> OnRecord:
        """The instants of a job from here on that are on record: none, as long as the clock only goes forward."""
        return NOTHING if self._newest.get(job.name, 0) < from_ms else await self._all_on_record(job.name, from_ms)

    # --- the scheduler's changes ------------------------------------------------------------------------------------

    def put(self, job: Job) -> None:
        """A row as it is now."""
        before = self._jobs.get(job.name)
        self._jobs[job.name] = job
        if before is not None and before.next_at_ms is not None:
            self._newest[job.name] = max(self._newest.get(job.name, 0), before.next_at_ms, self._now())
        self.moved(job)

    async def refresh(self, name: str) -> None:
        """Read one job anew."""
        async with self._changing:  # or a change that is on its way would be undone in memory
            row = await self._reader.one(Q.job, (name,))
            if row is None:
                self._jobs.pop(name, None)
            else:
                self.put(Job._make(row))

    async def reschedule(self, job: Job, since_ms: int | None = None) -> None:
        """Let an instant come that lies before the next fire and did not run: the clock was set back, ``since_ms`` at
        the earliest (without it: now)."""
        async with self._changing:
            job = self._jobs.get(job.name, job)
            now_ms = self._now()
            if job.next_at_ms is None or job.next_at_ms <= now_ms:
                return
            first_seen_ms = seen_by(job.config, job.first_seen_ms, now_ms)
            plan = plan_of(job.config, first_seen_ms)
            await self._take_back(job.name, plan, now_ms)
            from_ms = now_ms if since_ms is None else min(since_ms, now_ms)
            sooner = next_free(plan, from_ms, await self.on_record(job, from_ms))
            if sooner is not None and sooner < job.next_at_ms:
                values = job._asdict() | {"next_at_ms": sooner, "first_seen_ms": first_seen_ms}
                await self._store(job, values, tasks.DAEMON, "rescheduled")

    async def has_run(self, name: str) -> None:
        """A job that goes once it has run may be gone now: that happened in the transaction that ended its fire."""
        await self.refresh(name)
        if name not in self._jobs:
            await self._writer.submit(store.tell, name, "removed", "it has run, and delete_after_run is set")
            async with self._changing:
                await self._make_way(name)

    # --- the file ---------------------------------------------------------------------------------------------------

    async def reconcile(self) -> dict[str, list[str]]:
        """Make the declared jobs what the file says. What changed: ``added``, ``changed``, ``removed``, ``conflicts``.

        One job's trouble is no other's; agents and zones may have come or gone, so added jobs are judged anew too.
        """
        said: dict[str, list[str]] = {"added": [], "changed": [], "removed": [], "conflicts": []}
        async with self._changing:
            self.conflicts = {}
            declared = {job.name: job for job in self._config().cron}
            gone = [job for job in self.all() if job.origin == "config" and job.name not in declared]
            added = [job for job in self.all() if job.origin == "runtime"]
            # all at once: their commits are shared
            work = {name: self._reconcile(name, config, said) for name, config in declared.items()}
            work |= {job.name: self._undeclare(job, said) for job in gone}
            work |= {job.name: self._judge(job) for job in added if job.name not in work}
            faults = dict(zip(work, await asyncio.gather(*work.values(), return_exceptions=True), strict=True))
        for name, fault in faults.items():
            if isinstance(fault, BaseException) and not isinstance(fault, StorageError):
                log.error("a job cannot be judged", job=name, exc_info=fault)
                self.conflicts[name] = f"it cannot be judged, which is a bug in the daemon: {fault!r}"
        for fault in faults.values():
            if isinstance(fault, StorageError):
                raise fault
        if any(said.values()):
            log.info("the declared jobs have changed", **said)
        return said

    async def _reconcile(self, name: str, config: CronConfig, said: dict[str, list[str]]) -> None:
        job = self._jobs.get(name)
        if job is not None and job.origin == "runtime":
            self.conflicts[name] = (
                f"config.toml, line {self.lines()[name]}, declares a job of the name {name}, and one was added under "
                f"that name with `pawl cron add` (agent {job.config.agent}); the added one stays: rename "
                "the one in the file, or `pawl cron remove` the other"
            )
            said["conflicts"].append(name)
        elif job is None:
            await self._store(None, await self._values(None, config, "config"), tasks.DAEMON, "added")
            said["added"].append(name)
        elif job.definition != definition_of(config):
            await self._store(job, await self._values(job, config, "config"), tasks.DAEMON, "changed")
            said["changed"].append(name)
        else:
            await self._judge(job)

    async def _undeclare(self, job: Job, said: dict[str, list[str]]) -> None:
        await self._writer.submit(store.remove_job, job, tasks.DAEMON, "the file does not declare it any more")
        del self._jobs[job.name]
        said["removed"].append(job.name)

    async def _judge(self, job: Job) -> None:
        """Whether a job that did not change can still run, or can again."""
        values = await self._values(job, job.config, job.origin)
        if values["disabled_reason"] != job.disabled_reason:
            event = "disabled" if values["disabled_reason"] else "enabled"
            await self._store(job, values, tasks.DAEMON, event)

    # --- people -----------------------------------------------------------------------------------------------------

    async def add(self, said: dict[str, Any], *, replace: bool, actor: str) -> Job:
        """Add a job, or find the same one. Raises ``cron_job_exists`` (another has the name), ``cron_job_declared``,
        ``invalid_value`` and ``agent_not_found``; then nothing was stored."""
        async with self._changing:
            config = self._read(said)
            job = self._jobs.get(config.name)
            if job is not None and job.origin == "config":
                raise self._declared(job, "add a job of this name")
            if job is not None and job.definition == definition_of(config):
                return job
            if job is not None and not replace:
                raise CronJobExists(
                    f"cannot add {config.name}: there is another job of this name; `pawl cron show {config.name}` "
                    "shows it, --replace puts this one in its place",
                    name=config.name,
                )
            self._refuse_past(config)
            event = "added" if job is None else "changed"
            return await self._store(job, await self._values(job, config, "runtime"), actor, event)

    async def update(self, name: str, said: dict[str, Any], *, actor: str) -> Job:
        """Change some of an added job. Raises what ``add`` does, and ``cron_job_not_found``."""
        async with self._changing:
            job = self.need(name)
            if job.origin == "config":
                raise self._declared(job, "change it")
            before = _said(job.config)
            for keys in (("schedule", "every", "at"), ("prompt", "command")):
                if any(key in said for key in keys):
                    before = {key: value for key, value in before.items() if key not in keys}
            config = self._read({**before, **said, "name": name})
            if timing(config) != timing(job.config):
                self._refuse_past(config)
            return await self._store(job, await self._values(job, config, "runtime"), actor, "changed")

    async def remove(self, name: str, *, actor: str) -> Job:
        """Remove an added job. What runs of it runs on."""
        async with self._changing:
            job = self.need(name)
            if job.origin == "config":
                raise self._declared(job, "remove it")
            await self._writer.submit(store.remove_job, job, actor, "removed with `pawl cron remove`")
            del self._jobs[name]
            await self._make_way(name)
            return job

    async def _make_way(self, name: str) -> None:
        """An added job is gone: a declared one that it kept the name from is in force."""
        if self.conflicts.pop(name, None) is not None:
            config = next((declared for declared in self._config().cron if declared.name == name), None)
            if config is None:
                return
            await self._store(None, await self._values(None, config, "config"), tasks.DAEMON, "added")

    async def switch(self, name: str, on: bool, *, actor: str) -> Job:
        """Enable or disable a job, declared ones too. Enabling counts from now: nothing overdue springs up.

        Raises ``cron_job_disabled`` where a job can never fire, whatever anybody says.
        """
        async with self._changing:
            job = self.need(name)
            if on and job.disabled_reason is not None:
                self.runnable(job)
                raise CronJobDisabled(
                    f"cannot enable {name}: {job.disabled_reason}; give it another schedule", name=name
                )
            override = None if on == job.config.enabled else int(on)
            if override == job.override:
                return job
            values = await self._values(job._replace(override=override), job.config, job.origin)
            return await self._store(job, values, actor, "enabled" if on else "disabled")

    def _read(self, said: dict[str, Any]) -> CronConfig:
        """A job from what somebody wrote, or the first fault of it."""
        try:
            config = CronConfig.model_validate(said)
        except ValidationError as error:
            fault = faults_of(error, Origin())[0]
            raise InvalidValue(
                f"cannot use {fault.path or 'the job'}: {fault.message}", field=fault.path or None
            ) from None
        if len(definition_of(config)) > _DEFINITION_MAX:
            raise InvalidValue(
                f"cannot use a job of more than {_DEFINITION_MAX // 1024} KiB: put a long prompt into a file that the "
                "agent reads",
                field="prompt",
            )  # fmt: skip
        self._config().agent(config.agent)  # raises agent_not_found
        plan = plan_of(config, self._now())
        if plan.after(self._now()) is None and config.at is None:
            raise InvalidValue("cannot use the schedule: it never fires any more", field="schedule")
        return config

    def _refuse_past(self, config: CronConfig) -> None:
        if config.at is not None and plan_of(config, 0).after(self._now()) is None:
            raise InvalidValue(
                f"cannot use the instant {config.at!r}: it has passed; it is {rfc3339(self._now())} now "
                f"(and the job's zone is {zone_name(config.timezone)})",
                value=config.at, field="at",
            )  # fmt: skip

    def _declared(self, job: Job, what: str) -> CronJobDeclared:
        config = self._config()
        line = self.lines().get(job.name)
        return CronJobDeclared(
            f"cannot {what}: {job.name} is declared in {config.path or 'config.toml'}, line {line}; change it there, "
            "then `pawl config reload`",
            name=job.name, file=config.path, line=line,
        )  # fmt: skip

    # --- rows -------------------------------------------------------------------------------------------------------

    def _broken(self, config: CronConfig) -> str | None:
        """Why a job cannot run, whatever anybody says."""
        for _, message in unsound(config, self._config()):
            return message
        agent = self._config().agents[config.agent]
        return None if agent.enabled else f"the agent {config.agent} is disabled"

    async def _values(self, job: Job | None, config: CronConfig, origin: str) -> dict[str, Any]:
        """The row that a definition makes of a job. Where the schedule is the same, so is the next fire."""
        now_ms = self._now()
        same = job is not None and timing(job.config) == timing(config)
        first_seen_ms = job.first_seen_ms if job is not None and same else now_ms
        # what has fired its one instant has finished for good; what goes once it has run, as long as it says so
        stays = job is not None and same and (config.at is not None or config.delete_after_run)
        finished = job.finished if job is not None and stays else 0
        reason = job.disabled_reason if finished and job is not None else self._broken(config)
        made = Job(0, config.name, origin, definition_of(config), None if job is None else job.override, reason,
                   finished, first_seen_ms, None)  # fmt: skip
        next_at_ms = None
        if made.fires:
            if job is not None and same and job.next_at_ms is not None:
                next_at_ms = job.next_at_ms
            else:
                made = made._replace(first_seen_ms=seen_by(config, first_seen_ms, now_ms))
                plan = plan_of(config, made.first_seen_ms)
                await self._take_back(config.name, plan, now_ms)
                next_at_ms = next_free(plan, now_ms, await self._all_on_record(config.name, now_ms))
                if next_at_ms is None:
                    made = made._replace(finished=1, disabled_reason="its instant had passed when it could have fired")
        return made._asdict() | {"next_at_ms": next_at_ms}

    async def _all_on_record(self, name: str, from_ms: int) -> OnRecord:
        """As ``on_record``, of a name that may have had another job before."""
        single = await self._reader.all(Q.on_record, (name, from_ms))
        spans = await self._reader.all(Q.spans, (name, from_ms))
        found = OnRecord(frozenset(row[0] for row in single), tuple((a, b) for a, b in spans))
        newest = max([*found.single, *(last for _, last in found.spans)], default=0)
        self._newest[name] = max(self._newest.get(name, 0), newest)
        return found

    async def _take_back(self, name: str, plan: Schedule, now_ms: int) -> None:
        """A clock that was wrong for a while had fires recorded as missed that are still to come: nobody missed them.

        Were they left on record, a clock that jumps a year ahead and is put right would stop a job for a year.
        """
        cuts = []
        for seq, first_ms in await self._reader.all(Q.spans_over, {"job": name, "now": now_ms}):
            last_ms = last_before(plan, first_ms, now_ms) or first_ms
            cuts.append((seq, plan.count(first_ms, last_ms), last_ms))
        if cuts or await self._reader.one(Q.missed_after, (name, now_ms)) is not None:
            await self._writer.submit(store.take_back, name, now_ms, cuts)

    async def _store(self, job: Job | None, values: dict[str, Any], actor: str, event: str) -> Job:
        stored = await self._writer.submit(store.put_job, job, values, actor, event)
        self.put(stored)
        return stored

    def _now(self) -> int:
        return self._timers.clock.wall_ms()


def _said(config: CronConfig) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(definition_of(config))
    return said
