"""``agent list`` and ``agent show``."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.commands.why import policy_table
from pawl.cli.output import clean
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADS = ("NAME", "COMMAND", "POLICY", "AT ONCE", "TIMEOUT", "ABOUT")
_REACHED = ("AGENT", "MODE", "WHY")
# Shown as tables below the facts; what `delegates` of the configuration comes to is `delegates_to`.
_APART = {"effective_policy", "policy_sources", "policy_sha256", "delegates", "delegates_to", "sandbox_works"}


def list_agents(call: Call) -> int:
    agents = call.ask("agent.list")
    # Asked by a task: those that it may hand work to, each with the mode that it would work in.
    modes = any("mode" in agent for agent in agents)
    heads = _HEADS if not modes else (_HEADS[0], "MODE", *_HEADS[1:])
    rows = [_row(agent, modes=modes) for agent in agents]
    call.show(agents, call.screen.table(heads, rows, whole=0) if agents else [])
    if not agents:
        call.note("there is no agent that this task may hand work to")
    return 0


def show(call: Call, *, name: str) -> int:
    agent = call.ask("agent.show", name=name)
    call.show(agent, [] if call.json else _lines(call, agent))
    return 0


def _lines(call: Call, agent: dict[str, Any]) -> list[str]:
    facts = {key: value for key, value in agent.items() if key not in _APART}
    lines = call.screen.facts(_facts(facts))
    policy = agent.get("effective_policy") or {}
    values = {key: value for key, value in policy.items() if key != "name"}
    lines += ["", f"its work runs under the policy {clean(str(policy.get('name')), one_line=True)}:"]
    lines += policy_table(call, values, agent.get("policy_sources") or {})
    if agent.get("sandbox_works") is False and values.get("sandbox") != "off":
        lines += ["", f"this machine makes no sandbox: {call.command('doctor')} says why"]
    if "delegates_to" not in agent:
        return lines
    rows = [(each["agent"], each["mode"], each["why"]) for each in agent["delegates_to"]]
    if not rows:
        return [*lines, "", "its work may hand work to nobody"]
    return [*lines, "", "its work may hand work to:", *call.screen.table(_REACHED, rows, whole=0, wrap=True)]


def _row(agent: dict[str, Any], *, modes: bool) -> list[str | None]:
    most, timeout_s = agent.get("max_concurrent"), agent.get("timeout_s")
    return [
        agent["name"],
        *([agent.get("mode")] if modes else []),
        _command(agent),
        agent.get("policy"),
        str(most) if most else None,
        duration_text(round(timeout_s * 1000)) if timeout_s else None,
        agent.get("description") if agent.get("enabled", True) else "disabled",
    ]


def _command(agent: dict[str, Any]) -> str:
    return " ".join(agent.get("command") or ()) or "(built in)"


def _facts(values: dict[str, Any], under: str = "") -> list[tuple[str, str | None]]:
    """Every key and value, with dots for what lies deeper."""
    facts: list[tuple[str, str | None]] = []
    for key, value in values.items():
        name = f"{under}.{key}" if under else key
        if isinstance(value, dict):
            facts += _facts(value, name)
        else:
            facts.append((name, _text(value)))
    return facts


def _text(value: Any) -> str | None:
    if value is None or value == [] or value == "":
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return clean(", ".join(map(_entry, value)), one_line=True)
    return clean(str(value), one_line=True)


def _entry(value: Any) -> str:
    return " ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
