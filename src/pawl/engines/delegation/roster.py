"""Whom an agent may hand work to."""

from __future__ import annotations

from typing import NamedTuple

from pawl.config import AgentConfig, Config


class Reach(NamedTuple):
    """How an agent reaches another: in which mode, and by what right."""

    mode: str
    why: str


def reach(config: Config, caller: AgentConfig, target: AgentConfig) -> Reach | None:
    """How ``caller`` reaches ``target``; None where it does not. An entry in ``delegates`` goes before the policy."""
    for entry in caller.delegates:
        if entry.agent == target.name:
            return Reach(entry.mode, f"[agents.{caller.name}] names it in delegates")
    if caller.delegate_same_policy and caller.policy == target.policy and caller.name != target.name:
        return Reach("bounded", f"both have the policy {caller.policy}")
    return None


def names(config: Config, alias: str) -> list[str]:
    """The names of those that work of this agent may hand work to: the only ones that it is told."""
    own = config.agents.get(alias)
    return [] if own is None else list(roster(config, own))


def roster(config: Config, caller: AgentConfig) -> dict[str, Reach]:
    """Everybody whom an agent may hand work to, by name: nobody where its policy forbids delegation."""
    if config.policy_of(caller).delegation == "forbid":
        return {}
    found = {name: reach(config, caller, agent) for name, agent in sorted(config.agents.items()) if agent.enabled}
    return {name: how for name, how in found.items() if how is not None}
