"""The usual calls import next to nothing: their cost is the interpreter's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import SOURCE
from fake_daemon import TASK_ID, FakeDaemon, always, overview, task

Start = Callable[..., FakeDaemon]

FORBIDDEN = {
    "typer", "click", "rich", "pydantic", "structlog", "asyncio", "dataclasses", "inspect", "typing", "pathlib", "enum",
    "argparse", "socket", "logging", "subprocess", "hashlib", "json", "re", "contextlib", "functools", "collections",
    "datetime", "traceback", "tempfile", "shutil",
}  # fmt: skip
CALLS = [
    ["status", "--json"], ["status"], ["list", "--json"], ["list"], ["delegate", "echo", "hello"],
    ["delegate", "echo", "hello", "--wait"], ["wait", TASK_ID], ["result", TASK_ID], ["logs", TASK_ID],
    ["cancel", TASK_ID], ["agent", "list"], ["events", "--json"], ["delegate", "--parallel", "a,b", "hello", "--wait"],
    ["spawn", "hello"], ["usage", "--tokens", "1"], ["progress", "half"], ["why", TASK_ID], ["agent", "show", "echo"],
]  # fmt: skip


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_usual_call_imports_nothing_dear(daemon: Start, words: list[str]) -> None:
    """Beyond what the interpreter itself has loaded by then, only cheap modules."""

    def bytes_of_it(asked: Any) -> dict[str, Any]:
        asked.data(b"x")
        return {"id": TASK_ID, "status": "completed", "stream": "stdout", "size_bytes": 1}

    daemon(
        {
            "daemon.status": always(overview()),
            "task.list": always([task()]),
            "task.delegate": always(task()),
            "task.wait": always({"status": "complete", "completed": [task()], "pending": [], "missing": []}),
            "task.result": bytes_of_it,
            "task.logs": bytes_of_it,
            "task.cancel": always([task(outcome="cancelled", status="cancelled")]),
            "task.fan_out": always([task()]),
            "task.spawn": always(task()),
            "task.usage": always({"tokens": 1, "cost": 0, "tree": {"tokens": 1, "cost": 0}, "left": {"cost": None}}),
            "task.progress": always({}),
            "task.why": always({"id": TASK_ID, "agent": "a", "status": "queued", "steps": [], "refusals": []}),
            "agent.show": always({"name": "echo", "effective_policy": {"name": "default"}}),
            "agent.list": always([]),
            "event.list": always([]),
        }
    )
    # -S: what site and its .pth files load is not ours.
    code = f"import sys; sys.path.insert(0, {SOURCE!r}); from pawl.cli.main import main; main()"
    ran = subprocess.run([sys.executable, "-S", "-X", "importtime", "-c", code, *words], capture_output=True, text=True)

    imported = {line.split("|")[-1].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert ran.returncode == 0, ran.stderr
    assert "pawl.cli.client" in imported
    assert not FORBIDDEN & imported
    assert not {name for name in imported if name.startswith(("pawl.cli.app", "pawl.config", "pawl.cli.table.config"))}
