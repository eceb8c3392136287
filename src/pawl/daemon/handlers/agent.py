"""The calls about agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pawl.config.render import effective
from pawl.engines.delegation.model import Caller
from pawl.engines.delegation.roster import names, roster
from pawl.errors import AgentNotFound
from pawl.ipc import messages
from pawl.ipc.server import Call
from pawl.policy import of

if TYPE_CHECKING:
    from pawl.daemon.app import App


async def list_(app: App, call: Call, params: messages.Nothing) -> list[dict[str, Any]]:
    """Every agent of the configuration in force; for a task those that it may hand work to."""
    agents = effective(app.config)["agents"]
    caller: Caller = call.caller
    if caller.task is None:
        return [{"name": name, **agent} for name, agent in sorted(agents.items())]
    own = app.config.agents.get(caller.creator)
    reached = roster(app.config, own) if own is not None else {}
    return [{"name": name, **agents[name], "mode": how.mode, "why": how.why} for name, how in reached.items()]


async def show(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """One agent, the policy that its work runs under with where each value comes from, and whom it may hand work to.

    To a task only its own agent and those it reaches exist.
    """
    caller: Caller = call.caller
    if caller.task is not None and params.name not in {caller.creator, *names(app.config, caller.creator)}:
        raise AgentNotFound(
            f"cannot find the agent {params.name!r} among those that {caller.creator} may hand work to",
            agent=params.name,
        )
    agent = app.config.agent(params.name)
    policy = of(app.config, params.name)
    offer = await app.delegation.sandbox_offer()
    return {
        "name": params.name,
        **effective(app.config)["agents"][params.name],
        "effective_policy": {"name": agent.policy, **policy.policy.public()},
        "policy_sha256": policy.policy.sha256,
        "policy_sources": policy.public_sources(),
        "delegates_to": [
            {"agent": name, "mode": how.mode, "why": how.why} for name, how in roster(app.config, agent).items()
        ],
        "sandbox_works": offer.works,
    }
