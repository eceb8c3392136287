"""What the tests of delegation share: agents that delegate, and what they are told to do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness import tree_agent
from harness.daemon import CONFIG, Daemon

AGENT = json.dumps([sys.executable, tree_agent.__file__])


def config(policies: str, **agents: str) -> str:
    """A configuration with these policies and, by name, what stands in the tables of agents that delegate."""
    tables = [f"[agents.{name}]\ncommand = {AGENT}\n{more}\n" for name, more in agents.items()]
    return "\n".join([CONFIG, policies, *tables])


TEAM = config(
    '[policies.team]\ndelegation = "allow"\nmax_depth = 3\nmax_actions_per_hour = 20\n',
    lead='policy = "team"\ndelegates = ["sh", "cat", "echo", "one"]',
    coder='policy = "team"\ndelegates = ["sh", "echo"]',
    tester='policy = "team"\ndelegates = ["sh"]',
)


def call(*words: str, input: Any = "", **env: str) -> dict[str, Any]:
    """One call of ``pawl`` that an agent is told to make."""
    return {"words": list(words), "input": input, "env": env}


def plan(*calls: dict[str, Any], gate: Path | None = None) -> dict[str, Any]:
    """What an agent is told to do: all these calls at once."""
    return {"do": list(calls)} | ({"gate": str(gate)} if gate else {})


def run(daemon: Daemon, agent: str, *calls: dict[str, Any], **params: Any) -> list[dict[str, Any]]:
    """Let an agent make these calls; what came of each."""
    task = daemon.delegate(agent, json.dumps(plan(*calls)), wait=True, **params)
    assert task["status"] == "completed", daemon.logs(task["id"], "stderr").decode()
    did: list[dict[str, Any]] = json.loads(daemon.result(task["id"]))["did"]
    return did


def refused(did: dict[str, Any]) -> tuple[int, str]:
    """Exit status and code of a call with ``--json`` that was refused."""
    error = did["error"]
    return did["exit"], error["error"]["code"] if isinstance(error, dict) else f"no error object: {error}"
