"""The whole configuration, as it is in force: defaults filled in, names resolved.

A value of these classes cannot be changed; a new file makes a new ``Config``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from pawl.config.agents import (
    BUILTIN_AGENT,
    DEFAULT_POLICY,
    PLACEHOLDER,
    RESERVED,
    AgentConfig,
    DelegateConfig,
    LimitsConfig,
    PolicyConfig,
)
from pawl.config.cron import CronConfig
from pawl.config.fields import HOUR, SECOND, Duration, Name, Slots, duration_toml
from pawl.config.lines import Origin
from pawl.config.section import Named, Section, Slip
from pawl.config.sop import ApprovalConfig, ApprovalPolicyConfig, GroupConfig, SopConfig
from pawl.config.wording import found, listed, nearest, nearest_few, quoted
from pawl.errors import AgentNotFound

__all__ = [
    "AgentConfig",
    "ApprovalConfig",
    "ApprovalPolicyConfig",
    "Config",
    "CronConfig",
    "DaemonConfig",
    "DelegateConfig",
    "GroupConfig",
    "LimitsConfig",
    "PolicyConfig",
    "SopConfig",
]

_INTERVAL = Duration(most_ms=60 * SECOND)
_TIMEOUT = Duration()
_INTERVAL_DEFAULT, _TIMEOUT_DEFAULT = 30 * SECOND, HOUR


class DaemonConfig(Section):
    """The daemon itself."""

    max_concurrent: Slots = 8
    """Running tasks at most, all agents together."""
    shutdown_grace_ms: Annotated[int, Duration(least_ms=0)] = 30 * SECOND
    """How long a stopping daemon waits for what it has in hand."""
    heartbeat_interval_ms: Annotated[int, _INTERVAL] = _INTERVAL_DEFAULT
    """How often running rows are marked as owned by a living daemon; at most a minute."""
    heartbeat_timeout_ms: Annotated[int, _TIMEOUT] = _TIMEOUT_DEFAULT
    """The age of a mark at which its row is timed out; longer than the interval."""
    kill_grace_ms: Annotated[int, Duration(least_ms=0)] = 10 * SECOND
    """The time between TERM and KILL when a task is ended."""

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        try:
            interval = _INTERVAL.read(raw.get("heartbeat_interval", duration_toml(_INTERVAL_DEFAULT)))
            timeout = _TIMEOUT.read(raw.get("heartbeat_timeout", duration_toml(_TIMEOUT_DEFAULT)))
        except ValueError:
            return  # each has its own fault then
        if timeout <= interval:
            text = f"{found(raw['heartbeat_timeout'])} is too short; it must be longer than heartbeat_interval"
            yield Slip(("heartbeat_timeout",), text)


class Config(Section):
    """Everything the file says, and the defaults where it says nothing.

    ``agents`` always holds ``echo`` and ``policies`` always holds ``default``; every policy that an agent
    names and every agent that a delegate names is there.
    """

    daemon: DaemonConfig = Field(default_factory=DaemonConfig)
    """The daemon itself."""
    agents: dict[Name, AgentConfig] = Field(default_factory=dict)
    """The agents by name."""
    policies: dict[Name, PolicyConfig] = Field(default_factory=dict)
    """The policies by name."""
    cron: tuple[CronConfig, ...] = ()
    """Declared jobs, in the order of the file."""
    sop: SopConfig = Field(default_factory=SopConfig)
    """Procedures and approvals."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        agents = {name: agent for name, agent in _table(raw, "agents").items() if isinstance(agent, dict)}
        policies = {DEFAULT_POLICY, *_table(raw, "policies")}
        known = {BUILTIN_AGENT, *_table(raw, "agents")}
        for name, agent in agents.items():
            if name in RESERVED:
                yield Slip(
                    ("agents", name), f"{quoted(name)} is taken: it stands for the person or for Pawl itself in records"
                )
            yield from _unfilled(name, agent, _table(raw, "policies"))
            if "command" not in AgentConfig.as_meant(agent) and name != BUILTIN_AGENT:
                yield Slip(("agents", name, "command"), 'is missing; write it like command = ["program", "argument"]')
            yield from _unknown(("agents", name, "policy"), agent.get("policy"), known=policies, kind="policy")
            for path, delegate in _delegates(agent):
                yield from _unknown(("agents", name, *path), delegate, known=known, kind="agent")
        yield from _unknown(("sop", "agent"), _table(raw, "sop").get("agent"), known=known, kind="agent")
        yield from _repeated_jobs(raw.get("cron"))

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.agents.setdefault(BUILTIN_AGENT, AgentConfig())
        self.policies.setdefault(DEFAULT_POLICY, PolicyConfig())
        approval = self.sop.approval
        tables: tuple[Mapping[str, Named], ...] = (
            self.agents,
            self.policies,
            approval.groups,
            approval.policies,
        )
        for table in tables:
            for name, section in table.items():
                section._name = name
        return self

    def agent(self, name: str, among: Iterable[str] | None = None) -> AgentConfig:
        """The agent of this name, enabled or not. Raises ``agent_not_found``, naming those that are near.

        ``among``: the only ones that the message may name, where not everybody is to know all.
        """
        if name in self.agents:
            return self.agents[name]
        known = sorted(self.agents if among is None else among)
        near = nearest_few(name, known, count=3)
        if near:
            hint = f"did you mean {listed(near)}?"
        elif among is None:
            hint = f"there are {listed(known[:10], last='and')}"
        else:
            hint = f"this task may hand work to {listed(known[:10], last='and') if known else 'nobody'}"
        raise AgentNotFound(f"cannot find the agent {quoted(name)}: {hint}", agent=name, nearest=near, known=known)

    def policy_of(self, agent: str | AgentConfig) -> PolicyConfig:
        """The policy that an agent's work runs under. Raises ``agent_not_found`` for an unknown name."""
        return self.policies[(self.agent(agent) if isinstance(agent, str) else agent).policy]

    def line_of(self, *path: str | int) -> int | None:
        """The line of the file, from 1, where this key stands (``line_of("cron", 0, "name")``), or else that
        of the table around it; None where the file says nothing of it."""
        return self._origin.line_of(path)

    @property
    def path(self) -> str | None:
        """The file this was read from, as it was named; None where there was none."""
        return self._origin.path


def _table(raw: dict[str, Any], key: str) -> dict[str, Any]:
    table = raw.get(key)
    return table if isinstance(table, dict) else {}


def _delegates(agent: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    entries = agent.get("delegates")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield ("delegates", index, "agent"), entry.get("agent")
        else:
            yield ("delegates", index), entry


def _unfilled(name: str, agent: dict[str, Any], policies: dict[str, Any]) -> Iterator[Slip]:
    """Placeholders in a command that nothing would be filled in for."""
    command = agent.get("command")
    words = [word for word in command if isinstance(word, str)] if isinstance(command, list) else []
    asked = {found for word in words for found in PLACEHOLDER.findall(word)}
    meant = AgentConfig.as_meant(agent)
    policy = meant.get("policy", DEFAULT_POLICY)
    section = {DEFAULT_POLICY: {}, **policies}.get(policy) if isinstance(policy, str) else None
    # A policy that is misspelt, unknown or no table has a fault of its own, which says what is wrong.
    if "allowed_tools" in asked and isinstance(section, dict) and "allowed_tools" not in PolicyConfig.as_meant(section):
        text = f"asks for {{allowed_tools}}, and the policy {quoted(policy)} allows every tool; set allowed_tools there"
        yield Slip(("agents", name, "command"), text)
    if "model" in asked and meant.get("model", "") == "":
        yield Slip(("agents", name, "command"), 'asks for {model}, and this agent has none; set model = "NAME"')


def _unknown(path: tuple[str | int, ...], name: object, *, known: set[str], kind: str) -> Iterator[Slip]:
    if not isinstance(name, str) or name in known:
        return
    near = nearest(name, sorted(known))
    hint = f"did you mean {quoted(near)}?" if near else f"there is {listed(sorted(known)[:10], last='and')}"
    yield Slip(path, f"there is no {kind} {quoted(name)}; {hint}", near)


def _repeated_jobs(jobs: object) -> Iterator[Slip]:
    seen: dict[str, int] = {}
    for index, job in enumerate(jobs if isinstance(jobs, list) else ()):
        name = job.get("name") if isinstance(job, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            text = f"{quoted(name)} is the name of cron[{seen[name]}] already; every job needs its own"
            yield Slip(("cron", index, "name"), text)
        seen.setdefault(name, index)
