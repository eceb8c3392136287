"""What an engine tells the control plane about its tasks: how to do one, and how many at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from pawl.control_plane.model import PolicyText, Task
from pawl.runner.launcher import Limits
from pawl.runner.spool import Spool


class Program(NamedTuple):
    """Do it with a program. ``prompt`` is laid into its spool, and is its standard input where ``reads_prompt``.

    ``max_output_bytes`` bounds each of the two output streams; more than that fails the task with ``output_limit``.
    ``wrapper``: words put before the command, a sandbox's. ``policy``: the one that it starts under, where that is not
    the one in its row; it is recorded before the start. ``bare``: asked when the wrapper has failed; whether it may
    start without.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    prompt: bytes | None
    reads_prompt: bool
    max_output_bytes: int
    limits: Limits | None = None
    wrapper: tuple[str, ...] = ()
    policy: PolicyText | None = None
    bare: Callable[[], Awaitable[bool]] | None = None


class Inline(NamedTuple):
    """Do it here and now, with no process: the output is known."""

    output: bytes


class Refusal(NamedTuple):
    """It cannot be done: the task fails with this code and message."""

    code: str
    message: str


Plan = Program | Inline | Refusal
Planner = Callable[[Task, Spool], Awaitable[Plan]]


class Settings(NamedTuple):
    """What the configuration says to the control plane. Durations in milliseconds (monotonic clock)."""

    max_concurrent: int = 8
    kill_grace_ms: int = 10_000
    heartbeat_interval_ms: int = 30_000
    heartbeat_timeout_ms: int = 3_600_000


ONLY_ZERO = frozenset({0})


class Roster(NamedTuple):
    """How the tasks of each kind are done, how many of an agent's may run at once (None: no limit of its own), how many
    bytes a task may write to each stream, and which exit codes say that it ended well."""

    planners: Mapping[str, Planner]
    slots_of: Callable[[str], int | None]
    max_output_of: Callable[[Task], Awaitable[int]]
    good_codes: Callable[[Task], frozenset[int]] = lambda task: ONLY_ZERO
