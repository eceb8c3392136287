"""``why``: gates, policy and refusals, whole in a pipe and within a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import TASK_ID, FakeDaemon, always, refuse

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]

LONG = "the calling task has depth 1, below the limit of 3 (the policy of coder), and its budget has room for all of it"
VALUES = {
    "delegation": "allow", "max_depth": 3, "max_cost_per_day": 2.5, "env": ["HOME", "LANG", "PATH"] * 6,
    "workspace": None, "max_output_bytes": 67_108_864, "memory_bytes": 1000, "cpu_s": 5400.0, "processes": None,
    "allowed_tools": None, "denied_tools": [], "limits": {"open_files": 64},
}  # fmt: skip
SOURCES = {name: "[policies.work], line 7" for name in VALUES} | {"max_depth": f"agent coder, task {TASK_ID}"}
FOUND: dict[str, Any] = {
    "id": TASK_ID, "kind": "task", "agent": "tester", "status": "queued",
    "steps": [
        {"gate": "agent", "outcome": "passed", "message": "tester is known and enabled"},
        {"gate": "depth", "outcome": "passed", "message": LONG},
        {"gate": "approval", "outcome": "skipped", "message": "bounded"},
        {"gate": "sandbox", "outcome": "refused", "message": "no\x1b[2J"},
        {"gate": "slot", "outcome": "waits", "message": "all 8 places are taken"},
    ],
    "policy": {"sha256": "3f2a9c01b2d4" + "0" * 52, "mode": "bounded", "values": VALUES, "sources": SOURCES},
    "refusals": [
        {"at": "2026-01-31T09:30:00.000Z", "agent": "release", "code": "not_reachable", "message": LONG, "steps": []}
    ],
}  # fmt: skip


def test_why_tells_gates_policy_and_refusals(daemon: Start, pawl: Pawl) -> None:
    """Into a pipe: a line each, nothing cut, text of others made harmless."""
    fake = daemon({"task.why": always(FOUND)})

    ran = pawl("why", TASK_ID[:13])

    assert (ran.status, ran.err) == (0, "")
    assert ran.out.split("\n") == [
        f"task {TASK_ID}  tester  queued",
        "",
        "ok  agent  tester is known and enabled",
        f"ok  depth  {LONG}",
        "-  approval  bounded",
        "no  sandbox  no\\x1b[2J",
        "waits  slot  all 8 places are taken",
        "",
        "policy 3f2a9c01b2d4… (bounded: its agent's, cut down to what its caller may do):",
        "delegation  allow  [policies.work], line 7",
        f"max_depth  3  agent coder, task {TASK_ID}",
        "max_cost_per_day  2.5  [policies.work], line 7",
        f"env  {', '.join(['HOME', 'LANG', 'PATH'] * 6)}  [policies.work], line 7",
        "workspace  any directory  [policies.work], line 7",
        "max_output_bytes  64 MiB  [policies.work], line 7",
        "memory_bytes  1000 B  [policies.work], line 7",
        "cpu_s  1h30m  [policies.work], line 7",
        "processes  no limit  [policies.work], line 7",
        "allowed_tools  every tool  [policies.work], line 7",
        "denied_tools  none  [policies.work], line 7",
        "limits.open_files  64  [policies.work], line 7",
        "",
        "it asked for this and was refused:",
        f"2026-01-31T09:30:00.000Z  release  not_reachable  {LONG}",
        "",
    ]
    assert fake.params("task.why") == {"id": TASK_ID[:13]}
    assert pawl("why", TASK_ID, "--json").json == FOUND


@pytest.mark.parametrize("columns", [80, 60])
def test_why_fits_a_terminal_and_loses_nothing(
    daemon: Start, pawl: Pawl, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """Wrapped, not cut."""
    daemon({"task.why": always(FOUND)})
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")

    out = pawl("why", TASK_ID).out

    assert max(map(len, out.splitlines())) <= columns
    assert "FIELD" in out
    assert "…" not in out.replace("3f2a9c01b2d4…", "")
    assert out.count("PATH") == 6
    for word in LONG.split():
        assert word in out


def test_why_without_a_policy_or_refusals_says_little(daemon: Start, pawl: Pawl) -> None:
    """A row that is older than the record of policies."""
    daemon({"task.why": always(FOUND | {"policy": None, "refusals": [], "steps": []})})

    assert pawl("why", TASK_ID).out == f"task {TASK_ID}  tester  queued\n\n\nno policy is recorded with it\n"


def test_why_of_no_task(daemon: Start, pawl: Pawl) -> None:
    """As every other command about one."""
    daemon({"task.why": refuse("task_not_found", "cannot find a task", 4)})

    assert pawl("why", "0193f2a1") == (4, "", "pawl: cannot find a task\n")
    assert pawl("why", "0193f2a1", "--json").error["code"] == "task_not_found"
