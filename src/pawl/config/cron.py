"""``[[cron]]``: jobs that the file declares.

Only the form is judged here. Whether the schedule can be read, the zone is known and the agent exists is for
the scheduler to say: such a job is disabled with its reason, and the others run. So schedules stay the text that
they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict

from pawl.config.fields import HOUR, Command, Count, CountFrom1, Duration, Flag, Name, ScheduleText, Text
from pawl.config.section import Section, Slip
from pawl.config.wording import listed

SCHEDULES = ("schedule", "every", "at")
WORK = ("prompt", "command")


def _one_of(keys: tuple[str, ...]) -> dict[str, Any]:
    return {"oneOf": [{"required": [key]} for key in keys]}


class CronConfig(Section):
    """One declared job."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_one_of(SCHEDULES), _one_of(WORK)]})

    name: Name
    """The job's name, once in the file."""
    schedule: ScheduleText | None = None
    """When it fires, in crontab form or as ``@daily`` and the like."""
    every: ScheduleText | None = None
    """The period, as a duration."""
    at: ScheduleText | None = None
    """The one instant at which it fires, RFC 3339."""
    timezone: Text | None = None
    """The zone in which the schedule is read; without it the host's."""
    agent: Text
    """The agent that gets the prompt, and whose policy a command runs under."""
    prompt: Text | None = None
    """What the agent is asked, as it stands here."""
    command: Command = ()
    """The program to run in place of an agent, one list entry for each argument."""
    enabled: Flag = True
    """Whether it fires."""
    timeout_ms: Annotated[int, Duration()] | None = None
    """How long one run may take; without it the agent's timeout."""
    retries: Count = 0
    """How often a run that ended badly is tried again."""
    catch_up: Literal["skip", "once", "all"] = "once"
    """What becomes of fires that nobody was there for: a record only, one run for all, or one for each."""
    catch_up_window_ms: Annotated[int, Duration(least_ms=0)] = HOUR
    """How far back fires are caught up; older ones are recorded as missed. Wall clock."""
    catch_up_max: CountFrom1 = 100
    """The number of fires that ``all`` catches up at most."""
    overlap: Literal["skip", "queue", "replace", "allow"] = "skip"
    """What a fire does while the last run goes on: nothing, wait for its end, cancel it, or run beside it."""
    jitter_ms: Annotated[int, Duration(least_ms=0)] = 0
    """A fire starts up to this much later than it is due."""
    precondition: Command = ()
    """A program that decides whether the fire runs, one list entry for each argument."""
    delete_after_run: Flag = False
    """Whether the job goes once it has run."""
    expected_duration_ms: Annotated[int, Duration()] | None = None
    """How long a run usually takes; a run that takes much longer is reported."""

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        yield from _exactly_one(raw, SCHEDULES, purpose="when the job fires")
        yield from _exactly_one(raw, WORK, purpose="what the job does")


def _exactly_one(raw: dict[str, Any], keys: tuple[str, ...], *, purpose: str) -> Iterator[Slip]:
    given = [key for key in keys if key in raw]
    if not given:
        yield Slip((), f"{listed(keys)} is missing: one of them says {purpose}")
    written = [key for key in given if raw[key] is not None]
    for extra in written[1:]:
        yield Slip(
            (extra,),
            f"stands beside {listed(written[:1])}; only one of {listed(keys, last='and')} may say {purpose}",
        )
