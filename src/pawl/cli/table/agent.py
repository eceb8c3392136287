"""The commands about agents."""

from __future__ import annotations

from pawl.cli.table.model import Command, Positional

LIST = Command(
    "agent list",
    "agent:list_agents",
    """List the agents that work can be given to.
    Agents are declared in config.toml; `echo`, which answers with its prompt, is always there. From
    inside a task: only those that it may hand work to, and in which mode.""",
    examples=(("pawl agent list", "who is there"),),
    json="an array of agents; from inside a task each with its `mode`",
)

SHOW = Command(
    "agent show",
    "agent:show",
    """Show one agent: its command and the policy it works under.
    Each value of the policy stands with where it comes from. Below it: whom its work may hand work to.""",
    positionals=(Positional("name", "The agent's name.", complete="agent"),),
    examples=(("pawl agent show echo", "everything about one"),),
    json='the agent with `"effective_policy"`, `"policy_sources": {field: text}`,'
    ' `"delegates_to": [{"agent", "mode", "why"}]` and `"sandbox_works": true, false or null`',
)

COMMANDS = (LIST, SHOW)
