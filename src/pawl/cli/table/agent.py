"""The commands about agents."""

from __future__ import annotations

from pawl.cli.table.model import Command, Positional

LIST = Command(
    "agent list",
    "agent:list_agents",
    """List the agents that work can be given to.
    Agents are declared in config.toml; `echo`, which answers with its prompt, is always there.""",
    examples=(("pawl agent list", "who is there"),),
    json="an array of agents",
)

SHOW = Command(
    "agent show",
    "agent:show",
    """Show one agent: its command and the policy it works under.""",
    positionals=(Positional("name", "The agent's name.", complete="agent"),),
    examples=(("pawl agent show echo", "everything about one"),),
    json="the agent and its policy",
)

COMMANDS = (LIST, SHOW)
