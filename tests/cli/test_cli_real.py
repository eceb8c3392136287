"""The command line against the real daemon: what a person does on the first day."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import SOURCE, Ran

from harness.daemon import until
from pawl.cli import daemon_process
from pawl.cli.client import Client
from pawl.errors import PawlError
from pawl.home import Home

Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]

CONFIG = '[daemon]\nshutdown_grace = "0s"\nkill_grace = "1s"\n\n[agents.sh]\ncommand = ["sh"]\nmax_concurrent = 1\n'


@pytest.fixture
def real(home: Home, pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pawl]:
    """A real daemon in the test's home; it and its work are ended at the end."""
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    home.prepare()
    Path(home.config).write_text(CONFIG)
    ran = pawl("daemon", "start")
    assert ran.status == 0, ran.err
    yield pawl
    try:
        daemon_process.stop(home, cancel=True)
    except PawlError:
        daemon_process.start(home)
        daemon_process.stop(home, cancel=True)


def test_the_tour_is_true(process: Process, tmp_path: Path) -> None:
    """Every step is as it claims, nothing is left behind."""
    ran = process("demo", "--json", env={"TMPDIR": str(tmp_path)})
    out, err = ran.communicate(timeout=100)

    document = json.loads(out)
    assert (ran.returncode, err, document["ok"]) == (0, b"", True), document
    names = [step["step"] for step in document["steps"]]
    assert names == ["daemon", "hello", "work", "cancel", "crash", "look", "clean_up"]
    assert list(tmp_path.glob("pawl-demo-*")) == []


def test_an_interrupted_tour_cleans_up(process: Process, tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit 130, no home and no daemon left."""
    ran = process("demo", env={"TMPDIR": str(tmp_path)})
    assert ran.stdout is not None
    while b"counting: 2" not in ran.stdout.readline():
        pass

    ran.send_signal(signal.SIGINT)
    err = ran.communicate(timeout=60)[1]

    assert ran.returncode == 130
    assert b"cleaned up" in err
    assert list(tmp_path.glob("pawl-demo-*")) == []
    assert "pawl-demo" not in _commands_with(str(tmp_path))


def test_work_from_the_first_word_to_the_last(real: Pawl) -> None:
    """Delegate, wait, read; every command agrees on the task."""
    task = real("delegate", "sh", "echo one; echo two >&2; exit 0", "--label", "a=b", "--json").json

    assert real("wait", task["id"]).status == 0
    assert real("result", task["id"]) == (0, "one\n", "")
    assert real("logs", "--stderr", task["id"][:18]) == (0, "two\n", "")
    assert [one["id"] for one in real("list", "--label", "a=b", "--json").json] == [task["id"]]
    assert real("status", task["id"], "--json").json["status"] == "completed"
    assert task["id"] in real("status", task["id"]).out
    assert "completed" in real("events", "--task", task["id"]).out
    assert real("cancel", task["id"]).status == 5
    assert real("delegate", "echo", "x\ny", "--wait").out == "x\ny"


def test_a_fault_is_told_by_each_command(real: Pawl) -> None:
    """Unknown agent, unknown task, ambiguous id, a task that failed, one that has not ended."""
    running = real("delegate", "sh", "sleep 60").out.strip()

    assert (real("delegate", "nobody", "x").status, real("agent", "show", "nobody").status) == (4, 4)
    assert (real("status", running[:7]).status, real("status", "0" * 12).status) == (2, 4)
    assert real("result", running).status == 5
    assert real("wait", running, "--timeout", "100ms").status == 124
    assert real("cancel", running).status == 0
    failed = real("delegate", "sh", "echo half; exit 3", "--wait")
    assert (failed.status, failed.out) == (1, "half\n")


def test_every_try_is_followed_to_the_last(real: Pawl, tmp_path: Path) -> None:
    """The first attempt fails, the second completes: its output, exit 0."""
    ran = real("delegate", "sh", f"mkdir {tmp_path}/seen && exit 1; echo again", "--wait", "--retries", "3")

    assert (ran.status, ran.out) == (0, "again\n")
    assert "tried again as" in ran.err


@pytest.mark.crash
def test_waits_outlive_a_daemon_that_is_killed(real: Pawl, process: Process, home: Home, tmp_path: Path) -> None:
    """``wait``, ``logs -f`` and ``delegate --wait`` go on with the next daemon, every byte once."""
    go = tmp_path / "go"
    script = f"echo before; until [ -e {go} ]; do sleep 0.05; done; echo after"
    delegated = process("delegate", "sh", script, "--wait")
    task = _started(home)
    waiters = [process("wait", task["id"]), process("logs", "-f", task["id"])]
    assert waiters[1].stdout is not None
    assert waiters[1].stdout.readline() == b"before\n"
    _connected(waiters[0])

    pid = real("daemon", "status", "--json").json["pid"]
    os.kill(pid, signal.SIGKILL)
    assert daemon_process.wait_gone(home, pid, 10)
    assert real("daemon", "start").status == 0
    go.touch()

    assert delegated.communicate(timeout=30)[0] == b"before\nafter\n"
    assert waiters[0].communicate(timeout=30)[0].split()[1] == b"completed"
    assert waiters[1].communicate(timeout=30)[0] == b"after\n"
    assert [one.returncode for one in (delegated, *waiters)] == [0, 0, 0]


def test_stop_leaves_work_running_and_says_so(real: Pawl) -> None:
    """The next daemon takes it over; ``--cancel`` ends it."""
    task = real("delegate", "sh", "sleep 60", "--json").json

    stopped = real("daemon", "stop", "--json").json

    assert stopped["left"] == [task["id"]]
    assert real("daemon", "start").status == 0
    worker = real("status", task["id"], "--json").json["worker"]["pid"]
    assert real("daemon", "stop", "--cancel", "--json").json["left"] == []
    assert not daemon_process.alive(worker)
    assert real("daemon", "start").status == 0
    assert real("status", task["id"], "--json").json["status"] == "cancelled"


def test_work_without_a_daemon_is_told_of_and_cancel_says_what_it_did(real: Pawl, home: Home) -> None:
    """A killed daemon leaves work: ``stop`` names it; ``stop --cancel`` counts what it ended and what stays."""
    task = real("delegate", "sh", "sleep 60").out.strip()
    real("delegate", "sh", "sleep 61")
    pid = real("daemon", "status", "--json").json["pid"]
    until(lambda: real("status", task, "--json").json["worker"], "its worker is not recorded")
    os.kill(pid, signal.SIGKILL)
    assert daemon_process.wait_gone(home, pid, 10)

    text, json = real("daemon", "stop"), real("daemon", "stop", "--json")

    assert (text.status, json.status, json.error["details"]["running"]) == (3, 3, [task])
    assert "1 task still runs without a daemon" in text.err
    assert "`pawl daemon start`, then `pawl daemon stop --cancel`" in text.err
    assert real("daemon", "start").status == 0
    assert (
        "1 task cancelled; 1 stays queued and starts with the next daemon\n" in real("daemon", "stop", "--cancel").out
    )


def test_b129_following_a_queued_task_waits_for_it(real: Pawl, process: Process) -> None:
    """B-129: and shows all of it when it has run; an unknown id fails at once."""
    first = real("delegate", "sh", "sleep 60").out.strip()
    queued = real("delegate", "sh", "echo at last").out.strip()
    following = process("logs", "-f", queued)
    with pytest.raises(subprocess.TimeoutExpired):
        following.wait(1)

    assert real("cancel", first).status == 0

    assert following.communicate(timeout=30)[0] == b"at last\n"
    assert real("logs", "-f", "0" * 12).status == 4


def test_b132_a_fresh_home_lists_nothing(real: Pawl) -> None:
    """B-132: empty arrays, exit 0, and a hint for people."""
    assert real("list", "--json").json == []
    assert "delegate echo hello" in real("status").out
    assert real("doctor").status == 0


def test_a_second_daemon_is_refused(real: Pawl) -> None:
    """Exit 5, naming the first."""
    pid = real("daemon", "status", "--json").json["pid"]

    ran = real("daemon", "start", "--json")

    assert (ran.status, ran.error["code"], ran.error["details"]["pid"]) == (5, "daemon_already_running", pid)


def _started(home: Home) -> dict[str, Any]:
    """The one running task, as soon as it has printed something."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        client = Client(home)
        for task in client.call("task.list", statuses=["running"]):
            if b"".join(client.stream("task.logs", id=task["id"], stream="stdout")):
                return dict(task)
        time.sleep(0.02)
    raise AssertionError("no task began")


def _connected(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has a socket open: what it asks is on its way then."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        files = Path("/proc", str(process.pid), "fd")
        if any("socket:" in str(os.readlink(file)) for file in files.iterdir()):
            return
        time.sleep(0.02)
    raise AssertionError("it did not connect")


def _commands_with(text: str) -> str:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return "\n".join(found)
