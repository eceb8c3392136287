"""Whether a job can run as the configuration has it: its schedule can be read, its zone is known, its agent is there.

A job that cannot is well formed all the same: it is disabled with the reason, and the others run.
"""

from __future__ import annotations

from collections.abc import Iterator

from pawl.config import Config, Fault
from pawl.config.cron import SCHEDULES, CronConfig
from pawl.config.wording import nearest
from pawl.engines.cron import zones
from pawl.engines.cron.model import plan_of
from pawl.errors import InvalidValue


def unsound(job: CronConfig, config: Config) -> Iterator[tuple[str, str]]:
    """The keys of a job that keep it from running, each with what is wrong."""
    try:
        zones.zone(job.timezone)
    except InvalidValue as error:
        yield "timezone", error.message
        job = job.model_copy(update={"timezone": "UTC"})  # so that the schedule is judged too
    try:
        plan_of(job, 0)
    except InvalidValue as error:
        yield next(key for key in SCHEDULES if getattr(job, key) is not None), error.message
    if job.agent not in config.agents:
        yield "agent", f"there is no agent {job.agent}"


def faults(config: Config) -> list[Fault]:
    """Every fault of the declared jobs, with the line of its key."""
    return [
        Fault(
            f"cron[{index}].{key}", config.line_of("cron", index, key), f"{message} (the job {job.name})",
            nearest(job.agent, config.agents) if key == "agent" else None,
        )
        for index, job in enumerate(config.cron)
        for key, message in unsound(job, config)
    ]  # fmt: skip
