"""An agent that delegates: it reads what to do as JSON, calls ``pawl`` for each of it, all at once, and reports.

    {"do": [{"words": ["delegate", "worker", "--wait"], "input": {...} or "text", "env": {...}}, ...], "gate": PATH}

Its report is ``{"task", "agent", "depth", "did": [{"exit", "out", "error"}, ...]}``: what each call printed, read as
JSON where it is that. With a gate it waits for a line of that pipe before it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def read(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


def main() -> None:
    plan = json.load(sys.stdin)
    calls = []
    for each in plan.get("do", []):
        words = [sys.executable, "-m", "pawl", *each["words"]]
        call = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | each.get("env", {}),
        )  # fmt: skip
        given = each.get("input", "")
        assert call.stdin is not None
        call.stdin.write((given if isinstance(given, str) else json.dumps(given)).encode())
        call.stdin.close()
        calls.append(call)
    did = []
    for call in calls:
        assert call.stdout is not None
        assert call.stderr is not None
        out, err = call.stdout.read(), call.stderr.read()
        did.append({"exit": call.wait(), "out": read(out), "error": read(err)})
    if "gate" in plan:
        with open(plan["gate"]) as gate:
            gate.readline()
    names = {"task": "PAWL_TASK_ID", "agent": "PAWL_AGENT", "depth": "PAWL_DEPTH"}
    print(json.dumps({name: os.environ[variable] for name, variable in names.items()} | {"did": did}))


if __name__ == "__main__":
    main()
