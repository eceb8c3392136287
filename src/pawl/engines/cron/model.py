"""What can be true of a job and of a fire: the records, the state machine of fires, and how both are shown."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pawl.config.cron import SCHEDULES, CronConfig
from pawl.config.section import toml_key
from pawl.engines.cron import schedule, zones
from pawl.engines.cron.schedule import Schedule
from pawl.runner.identity import ProcessIdentity
from pawl.state_machine import StateMachine, Transition
from pawl.values import duration_text, rfc3339

FIRE = StateMachine(
    "fire",
    [
        Transition(None, "claim", "claimed", "the scheduler", "its instant has come, or somebody asked for it"),
        Transition(None, "skip", "skipped", "the scheduler", "an earlier one goes on, and overlap is skip"),
        Transition(None, "miss", "missed", "the scheduler", "nobody was there, and it is not caught up"),
        Transition("claimed", "start", "running", "its task", "the task began to run"),
        Transition(
            "claimed", "skip", "skipped", "the scheduler", "its precondition said so, or a newer one replaced it"
        ),
        Transition("claimed", "miss", "missed", "recovery", "its daemon died first, and it is not caught up"),
        Transition("claimed", "fail", "failed", "the scheduler", "its precondition failed, or it could not be started"),
        Transition("claimed", "cancel", "cancelled", "its task", "the task was cancelled before it began"),
        Transition("running", "retry", "claimed", "its task", "an attempt ended badly, and another one follows"),
        Transition("running", "complete", "completed", "its task", "the task completed"),
        Transition("running", "fail", "failed", "its task", "the task failed"),
        Transition("running", "cancel", "cancelled", "its task", "the task was cancelled"),
        Transition("running", "time_out", "timed_out", "its task", "the task took longer than it may"),
        Transition("running", "lose", "lost", "its task", "the task was lost"),
    ],
)
OPEN = tuple(state for state in FIRE.states if state not in FIRE.terminal)
_TEXT_MAX = 2_000  # characters of an output that a list of fires repeats


class Job(NamedTuple):
    """A row of ``cron_job``; the fields stand in the order of its columns. Times in milliseconds of the wall clock."""

    seq: int
    name: str
    origin: str
    definition: str
    override: int | None
    disabled_reason: str | None
    finished: int
    first_seen_ms: int
    next_at_ms: int | None

    @property
    def config(self) -> CronConfig:
        """The job as the configuration file would say it."""
        return read(self.definition)

    @property
    def wanted(self) -> bool:
        """Whether it should fire, as far as its definition and the operator decide."""
        return self.config.enabled if self.override is None else bool(self.override)

    @property
    def fires(self) -> bool:
        """Whether it does fire."""
        return self.wanted and self.disabled_reason is None and not self.finished

    @property
    def one_shot(self) -> bool:
        """Whether it has one instant only."""
        return self.config.at is not None


class Fire(NamedTuple):
    """A row of ``cron_fire``; the fields stand in the order of its columns."""

    seq: int
    job: str
    nominal_at_ms: int
    manual: int
    trigger: str
    status: str
    reason: str | None
    fires: int
    until_at_ms: int | None
    recorded_at_ms: int
    waits: str | None
    owner_pid: int | None
    owner_start: str | None
    owner_boot: str | None
    check_id: str | None
    task_id: str | None
    started_at_ms: int | None
    finished_at_ms: int | None
    exit_code: int | None

    @property
    def owner(self) -> ProcessIdentity | None:
        """The daemon that claimed it."""
        if self.owner_pid is None or self.owner_start is None or self.owner_boot is None:
            return None
        return ProcessIdentity(self.owner_pid, self.owner_start, self.owner_boot)


class NewFire(NamedTuple):
    """A fire as it is recorded first."""

    nominal_at_ms: int
    trigger: str
    status: str
    reason: str | None = None
    fires: int = 1
    until_at_ms: int | None = None
    waits: str | None = None


def definition_of(config: CronConfig) -> str:
    """A job as it is stored: what is not the default, in the file's own keys, durations in seconds."""
    said: dict[str, Any] = {}
    for attribute, field in type(config).model_fields.items():
        value = getattr(config, attribute)
        if value != field.default:
            said[toml_key(attribute)] = value / 1000 if attribute.endswith("_ms") else value
    return json.dumps(said, sort_keys=True)


@lru_cache(maxsize=4096)
def read(definition: str) -> CronConfig:
    """The job that a stored definition says."""
    return CronConfig.model_validate(json.loads(definition))


def timing(config: CronConfig) -> tuple[str | None, ...]:
    """What decides when a job fires: where this is the same, a change of the job leaves its next fire alone."""
    return (*(getattr(config, key) for key in SCHEDULES), config.timezone)


def plan_of(config: CronConfig, first_seen_ms: int) -> Schedule:
    """The schedule of a job. A period is counted from when the job was first seen. Raises ``invalid_value``."""
    where = zones.zone(config.timezone)
    if config.schedule is not None:
        return _cron(config.schedule, where)
    if config.every is not None:
        every = schedule.every(config.every, first_seen_ms)
        return schedule.Every(every.period_ms, first_seen_ms + every.period_ms)
    assert config.at is not None, "a job has one of the three"
    return schedule.at(config.at, where)


def seen_by(config: CronConfig, first_seen_ms: int, now_ms: int) -> int:
    """When a job was first seen, by a clock that may have been set back since: then whole periods earlier, so that it
    keeps its beat and does not wait until the old time comes again."""
    if config.every is None or first_seen_ms <= now_ms:
        return first_seen_ms
    period_ms = schedule.every(config.every, 0).period_ms
    return first_seen_ms - -(-(first_seen_ms - now_ms) // period_ms) * period_ms


@lru_cache(maxsize=4096)
def _cron(text: str, where: ZoneInfo) -> schedule.Cron:
    return schedule.Cron(text, where)


def jitter_ms(config: CronConfig) -> int:
    """How much later than its instant a job starts: always the same for one job, spread over jobs by their names."""
    if not config.jitter_ms:
        return 0
    spread = 0
    for letter in config.name.encode():  # FNV-1a: the same in every process, which Python's own hash is not
        spread = (spread ^ letter) * 0x100000001B3 % 2**64
    return spread % (config.jitter_ms + 1)


def schedule_text(config: CronConfig) -> str:
    """When a job fires, in the words of the file."""
    if config.schedule is not None:
        return config.schedule
    return f"every {config.every}" if config.every is not None else f"at {config.at}"


def public_job(job: Job, last: dict[str, Any] | None, line: int | None) -> dict[str, Any]:
    """A job as the contract shows it."""
    config = job.config
    return {
        "name": job.name,
        "origin": job.origin,
        "line": line,
        "agent": config.agent,
        "schedule": schedule_text(config),
        "timezone": zone_name(config.timezone),
        "prompt": config.prompt,
        "command": list(config.command) or None,
        "enabled": job.fires,
        "override": None if job.override is None else bool(job.override),
        "next_at": rfc3339(job.next_at_ms),
        "last": last,
        "disabled_reason": job.disabled_reason or _not_firing(job),
        "catch_up": config.catch_up,
        "catch_up_window_s": config.catch_up_window_ms / 1000,
        "catch_up_max": config.catch_up_max,
        "overlap": config.overlap,
        "jitter_s": config.jitter_ms / 1000,
        "timeout_s": None if config.timeout_ms is None else config.timeout_ms / 1000,
        "retries": config.retries,
        "precondition": list(config.precondition) or None,
        "delete_after_run": config.delete_after_run,
        "expected_duration_s": None if config.expected_duration_ms is None else config.expected_duration_ms / 1000,
    }


def zone_name(timezone: str | None) -> str:
    """The IANA name of a job's zone; the host's own where it names none."""
    return timezone or zones.zone(None).key


def _not_firing(job: Job) -> str | None:
    if job.wanted:
        return None
    return (
        "it was disabled with `pawl cron disable`"
        if job.override is not None
        else "its definition says enabled = false"
    )


def public_fire(
    fire: Fire, output: dict[str, Any] | None = None, stderr: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A fire as the contract shows it."""
    return {
        "job": fire.job,
        "nominal_at": rfc3339(fire.nominal_at_ms),
        "status": fire.status,
        "reason": fire.reason,
        "task_id": fire.task_id,
        "trigger": fire.trigger,
        "started_at": rfc3339(fire.started_at_ms),
        "finished_at": rfc3339(fire.finished_at_ms),
        "exit_code": fire.exit_code,
        "count": fire.fires,
        "until_at": rfc3339(fire.until_at_ms),
        "precondition_task_id": fire.check_id,
        "output": output,
        "stderr": stderr,
    }


def late_text(late_ms: int) -> str:
    """How late something is, in words."""
    return duration_text(max(1000, late_ms // 1000 * 1000))


def head(data: bytes) -> str:
    """The beginning of an output, as text."""
    return data.decode("utf-8", "replace")[:_TEXT_MAX]
