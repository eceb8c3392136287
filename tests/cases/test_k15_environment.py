"""K15: what a program is started with."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenes import config, pawl

from harness.daemon import Daemon

ENV_AGENTS = """
[policies.open]
env = ["SECRET_TOKEN"]

[agents.env]
command = ["env"]

[agents.open]
command = ["env"]
policy = "open"
"""


def _environment(daemon: Daemon, agent: str) -> dict[str, str]:
    task = daemon.wait_one(daemon.delegate(agent, "")["id"])
    assert task["status"] == "completed"
    lines = daemon.result(task["id"]).decode().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_b137_secrets_of_the_daemon_stay_with_it(daemon: Daemon) -> None:
    """B-137: a variable of the daemon's reaches a program only where its policy names it; PATH, HOME and LANG are
    there whether the daemon has them or not. (Delegation is the only way to start work yet.)
    """
    daemon.configure(config(more=ENV_AGENTS))
    daemon.start(env={"SECRET_TOKEN": "abc", "ANOTHER_SECRET": "def", "LANG": "C.UTF-8"})

    plain, allowed = _environment(daemon, "env"), _environment(daemon, "open")

    assert "SECRET_TOKEN" not in plain
    assert allowed["SECRET_TOKEN"] == "abc"
    for found in (plain, allowed):
        assert "ANOTHER_SECRET" not in found
        assert not [name for name in found if name.startswith("PAWL_FAIL") or name.startswith("PYTEST")]
        assert {"PATH", "HOME", "LANG"} <= set(found)
        assert {name for name in found if name.startswith("PAWL_")} == {
            "PAWL_HOME", "PAWL_SOCKET", "PAWL_TASK_ID", "PAWL_AGENT", "PAWL_DEPTH", "PAWL_IDEMPOTENCY_KEY",
            "PAWL_TASK_DIR", "PAWL_WORKSPACE", "PAWL_TASK_TOKEN",
        }  # fmt: skip


def test_b137_not_even_a_forgotten_variable_of_the_client_passes(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B-137: neither does what the caller of the command has in its environment."""
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    daemon.configure(config(more=ENV_AGENTS))
    daemon.start(env={"SECRET_TOKEN": ""})

    ran = pawl(daemon.home, "delegate", "env", "x", "--wait")

    assert ran.status == 0
    assert b"SECRET_TOKEN" not in ran.out
    assert b"PAWL_AGENT=env" in ran.out


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_b140_no_profile_runs_and_no_terminal_is_asked(daemon: Daemon, tmp_path: Path, shell: str) -> None:
    """B-140: profiles that print, sleep and leave a trace are not read, and standard input is at its end."""
    for name in (".profile", ".bash_profile", ".bash_login", ".bashrc", ".shrc", ".zshenv"):
        (tmp_path / name).write_text(f"touch {tmp_path}/read; echo profile; sleep 5\n")
    profile = str(tmp_path / ".profile")
    daemon.configure(config(more='[agents.bash]\ncommand = ["bash", "-c"]\nprompt = "argument"'))
    daemon.start(env={"HOME": str(tmp_path), "ENV": profile, "BASH_ENV": profile})

    task = daemon.wait_one(daemon.delegate(shell, "cat; echo after", timeout_s=4)["id"])

    assert (task["status"], daemon.result(task["id"])) == ("completed", b"after\n")
    assert not (tmp_path / "read").exists()
