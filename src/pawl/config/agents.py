"""``[agents.NAME]`` and ``[policies.NAME]``: what does the work, and what that work may do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from pawl.config.fields import (
    HOUR,
    MIB,
    SECOND,
    Capability,
    Command,
    Cost,
    Count,
    CountFrom1,
    Directory,
    Duration,
    EnvName,
    Flag,
    Name,
    Size,
    Slots,
    Text,
    Tools,
)
from pawl.config.section import Named, Section, Slip, slip
from pawl.config.wording import found, quoted

BUILTIN_AGENT = "echo"
DEFAULT_POLICY = "default"
# Names that stand for the person and for Pawl itself wherever it is recorded who did something.
RESERVED = ("operator", "daemon")
# What is filled in where it stands in a command. The "${model}" of a shell is the shell's.
PLACEHOLDER = re.compile(
    r"(?<!\$)\{(prompt_file|allowed_tools|denied_tools|always_ask|workspace|model|agent|task_id|task_dir|depth)\}"
)
# What a program needs to find its files, its language and its time zone, and nothing that might be a secret.
DEFAULT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class DelegateConfig(Section):
    """One agent that another may hand work to."""

    agent: Name
    """The agent that takes the work."""
    mode: Literal["bounded", "independent"] = "bounded"
    """``bounded``: under its own policy, cut down to the caller's, and within the caller's budgets; ``independent``:
    under its own policy and budgets alone."""


def _delegate(value: object) -> object:
    if isinstance(value, str):
        return {"agent": value}
    if not isinstance(value, dict | DelegateConfig):
        raise slip(f'found {found(value)}, expected the name of an agent or {{ agent = "NAME", mode = "bounded" }}')
    return value


Delegate = Annotated[
    DelegateConfig,
    BeforeValidator(_delegate),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"agent": {"type": "string"}, "mode": {"enum": ["bounded", "independent"]}},
                    "required": ["agent"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class AgentConfig(Named):
    """An agent: a command that reads a prompt and prints a result."""

    description: Text = ""
    """A line for people: what this agent is good at."""
    command: Command = ()
    """The program and its arguments, one list entry each, for no shell. Only ``echo`` may have none. Filled in:
    ``{allowed_tools}``, ``{denied_tools}``, ``{always_ask}`` (each a list with commas), ``{workspace}``, ``{model}``,
    ``{agent}``, ``{task_id}``, ``{task_dir}``, ``{depth}``."""
    prompt: Literal["stdin", "argument", "file"] = "stdin"
    """How the prompt reaches the command: on standard input, as its last argument, or in a file, whose path
    stands for ``{prompt_file}`` in the command or is its last argument."""
    model: Text | None = None
    """The language model behind the command: it stands for ``{model}``, and in ``PAWL_MODEL``."""
    policy: Name = DEFAULT_POLICY
    """The policy that its work runs under, one of ``[policies.NAME]`` or the built-in ``default``."""
    enabled: Flag = True
    """Whether it takes new work."""
    worker: Flag = False
    """Whether it is a Worker, which receives offers of WorkItems."""
    max_concurrent: Slots | None = None
    """Its running tasks at most; without it only ``[daemon] max_concurrent`` counts."""
    timeout_ms: Annotated[int, Duration()] = HOUR
    """How long one task may run, on the monotonic clock, unless the task says otherwise."""
    delegates: tuple[Delegate, ...] = ()
    """The agents that it may hand work to, each a name or ``{ agent = NAME, mode = MODE }``."""
    delegate_same_policy: Flag = True
    """Whether it may hand work to other agents under the same policy without naming them in ``delegates``."""
    accepts_env: tuple[EnvName, ...] = ()
    """The variables that a task which hands it work may set for that work (``--env``), by their names; without an entry
    none. What you start yourself may set any."""
    capabilities: tuple[Capability, ...] = ()
    """What it can do, as ``id@version``; parts of the version that are left out are 0."""

    @property
    def builtin(self) -> bool:
        """Whether Pawl itself is the agent: it returns its prompt and starts no program."""
        return not self.command

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        entries = raw.get("delegates")
        seen: set[str] = set()
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            name = entry.get("agent") if isinstance(entry, dict) else entry
            if not isinstance(name, str):
                continue
            if name in seen:
                yield Slip(("delegates", index), f"{quoted(name)} stands in this list already; name each agent once")
            seen.add(name)


class LimitsConfig(Section):
    """Limits that the operating system holds a task's processes to. What is left out is not limited."""

    cpu_ms: Annotated[int, Duration(least_ms=SECOND)] | None = None
    """Processor time of one process; the system counts whole seconds."""
    memory_bytes: Annotated[int, Size()] | None = None
    """Address space of one process."""
    processes: CountFrom1 | None = None
    """Processes and threads."""
    open_files: CountFrom1 | None = None
    """Open files of one process."""


class PolicyConfig(Named):
    """What an agent's work may do. A child's policy may only narrow its parent's."""

    delegation: Literal["forbid", "allow"] = "forbid"
    """Whether the work may hand work to other agents."""
    max_depth: Count = 3
    """The depth at which a task may not delegate any more, nor be the one that an agent under this policy is
    delegated to from; what the operator starts has depth 0."""
    max_actions_per_hour: Count = 100
    """How often a task and all that shares its budget may ask for work from inside within an hour; each retry that is
    asked for counts too. Kept through restarts, on the wall clock."""
    max_cost_per_day_micros: Cost | None = None
    """What a task and all that shares its budget may report to have cost within a day before they may start no more
    work, in the currency that the agents report in (``pawl usage``). Without it nothing is limited."""
    allowed_tools: Tools | None = None
    """The tools that an agent may use, by the names that its command line has for them; ``[]`` is none. Without it all
    of them. Pawl passes the list on, and the agent keeps to it."""
    denied_tools: Tools = ()
    """The tools that it may not use, whatever ``allowed_tools`` says. ``spawn`` forbids sub-agents."""
    always_ask: Tools = ()
    """The tools for which a person must be asked each time. An agent that has any is not delegated to independently."""
    env: tuple[EnvName, ...] = DEFAULT_ENV
    """The variables of the daemon's environment that are passed on; all else is withheld."""
    workspace: Directory | None = None
    """The directory that work starts in, ``~`` expanded; without it the directory of whoever asked. In a sandbox it
    cannot be ``/``, nor one of the system's such as ``/run`` or ``/dev``."""
    max_output_bytes: Annotated[int, Size()] = 64 * MIB
    """The size of one task's output at most."""
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    """Limits that the operating system holds the processes to."""
    sandbox: Literal["off", "preferred", "required"] = "off"
    """Whether the work runs in a sandbox, where it can write to its workspace only: ``preferred``: where this machine
    makes one; ``required``: not at all without."""
    network: Literal["on", "off"] = "on"
    """Whether the work has a network. Taken away inside a sandbox only."""

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        if raw.get("network") == "off" and raw.get("sandbox", "off") == "off":
            text = '"off" needs a sandbox: set sandbox = "required" (or "preferred") beside it'
            yield Slip(("network",), text)
        workspace = raw.get("workspace")
        if raw.get("sandbox", "off") != "off" and isinstance(workspace, str) and defeats_sandbox(workspace):
            text = f"{quoted(workspace)} as the workspace leaves a sandbox nothing to hold back"
            yield Slip(("workspace",), f"{text}; name a directory for the work")


# By real paths: everything; where sockets lie; what is the kernel's and the machine's, /dev/shm but for what is in it.
_DEFEATING = re.compile(r"/|/run(/user(/[^/]+)?)?|/(proc|sys)(/.*)?|/dev(/(?!shm/).*)?", re.DOTALL)


def defeats_sandbox(workspace: str) -> bool:
    """Whether a sandbox around this workspace would open what it is there to close, as it is written or where it leads
    now."""
    path = os.path.expanduser(workspace)
    if "\0" in path or not os.path.isabs(path):
        return False  # it is none: said elsewhere
    if _DEFEATING.fullmatch(os.path.normpath(f"/{path.lstrip('/')}")):
        return True
    try:
        return _DEFEATING.fullmatch(os.path.realpath(path)) is not None
    except OSError:
        return True  # only links in /proc lead on and cannot be read
