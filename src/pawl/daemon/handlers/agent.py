"""The calls about agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pawl.config.render import effective
from pawl.ipc import messages
from pawl.ipc.server import Call

if TYPE_CHECKING:
    from pawl.daemon.app import App


async def list_(app: App, call: Call, params: messages.Nothing) -> list[dict[str, Any]]:
    """Every agent of the configuration in force."""
    return [{"name": name, **agent} for name, agent in sorted(effective(app.config)["agents"].items())]


async def show(app: App, call: Call, params: messages.Name) -> dict[str, Any]:
    """One agent with the policy that its work runs under."""
    agent = app.config.agent(params.name)
    rendered = effective(app.config)
    return {
        "name": params.name,
        **rendered["agents"][params.name],
        "effective_policy": {"name": agent.policy, **rendered["policies"][agent.policy]},
    }
