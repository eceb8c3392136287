"""``agent list`` and ``agent show``."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.output import clean
from pawl.values import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADS = ("NAME", "COMMAND", "POLICY", "AT ONCE", "TIMEOUT", "ABOUT")


def list_agents(call: Call) -> int:
    agents = call.ask("agent.list")
    call.show(agents, call.screen.table(_HEADS, [_row(agent) for agent in agents]))
    return 0


def show(call: Call, *, name: str) -> int:
    agent = call.ask("agent.show", name=name)
    call.show(agent, call.screen.facts(_facts(agent)))
    return 0


def _row(agent: dict[str, Any]) -> tuple[str | None, ...]:
    most, timeout_s = agent.get("max_concurrent"), agent.get("timeout_s")
    return (
        agent["name"],
        _command(agent),
        agent.get("policy"),
        str(most) if most else None,
        duration_text(round(timeout_s * 1000)) if timeout_s else None,
        agent.get("description") if agent.get("enabled", True) else "disabled",
    )


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
