"""What the shell offers on TAB: task ids and agent names of the running daemon.

Quick and silent: where no daemon answers at once there is nothing to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pawl.cli.client import Client
from pawl.home import Home

_PATIENCE_S = 0.3
_TASKS_MAX = 50

Offer = list[tuple[str, str]]


def completer(what: str, choices: Sequence[str] = ()) -> Callable[..., Offer] | None:
    """The function that offers words of that sort, or nothing where the shell's own will do."""
    if choices:
        return _fixed(choices)
    return {"task": tasks, "agent": agents, "agents": several_agents}.get(what)


def tasks(ctx: Any, incomplete: str) -> Offer:
    """Ids of the newest tasks, each with its agent and status."""
    found = _ask(ctx, "task.list", limit=_TASKS_MAX)
    return [(task["id"], f"{task['agent']} {task['status']}") for task in found]


def agents(ctx: Any, incomplete: str) -> Offer:
    """Names of the agents, each with its command."""
    return [(agent["name"], " ".join(agent.get("command") or ())) for agent in _ask(ctx, "agent.list")]


def several_agents(ctx: Any, incomplete: str) -> Offer:
    """The same, behind the names that stand there already with commas between them."""
    before, comma, _ = incomplete.rpartition(",")
    taken = before.split(",")
    return [(before + comma + name, about) for name, about in agents(ctx, "") if name not in taken]


def _fixed(choices: Sequence[str]) -> Callable[..., Offer]:
    def offer(ctx: Any, incomplete: str) -> Offer:
        return [(choice, "") for choice in choices]

    return offer


def _ask(ctx: Any, method: str, **params: Any) -> Any:
    client = Client(Home(_home(ctx)), patience_s=_PATIENCE_S)
    try:
        return client.call(method, **params)
    except Exception:  # a shell's command line is no place for anybody's errors
        return []
    finally:
        client.close()


def _home(ctx: Any) -> str | None:
    while ctx is not None:
        if ctx.params.get("home"):
            return str(ctx.params["home"])
        ctx = ctx.parent
    return None
