"""What an engine tells the control plane about its tasks: how to do one, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pawl.control_plane.model import Task
from pawl.runner.launcher import Limits
from pawl.runner.spool import Spool


class Program(NamedTuple):
    """Do it with a program. ``stdin`` is the bytes it reads; None is an empty input.

    ``max_output_bytes`` bounds each of the two output streams; more than that fails the task with ``output_limit``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    prompt: bytes | None
    reads_prompt: bool
    max_output_bytes: int
    limits: Limits | None = None


class Inline(NamedTuple):
    """Do it here and now, with no process: the output is known."""

    output: bytes


class Refusal(NamedTuple):
    """It cannot be done: the task fails with this code and message."""

    code: str
    message: str


Plan = Program | Inline | Refusal
Planner = Callable[[Task, Spool], Plan]


class Settings(NamedTuple):
    """What the configuration says to the control plane. Durations in milliseconds (monotonic clock)."""

    max_concurrent: int = 8
    kill_grace_ms: int = 10_000
    heartbeat_interval_ms: int = 30_000
    heartbeat_timeout_ms: int = 3_600_000


class Roster(NamedTuple):
    """How the tasks of each kind are done and how many of an agent's may run at once (None: no limit of its own)."""

    planners: Mapping[str, Planner]
    slots_of: Callable[[str], int | None]
    max_output_of: Callable[[str], int]
