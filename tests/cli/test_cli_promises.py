"""What holds for every command: one document on stdout, quiet ends, errors that are told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from cli_runs import SOURCE, Ran
from fake_daemon import (
    TASK_ID,
    FakeDaemon,
    always,
    event,
    overview,
    task,
)

from pawl.home import Home

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", TASK_ID],
        ["list"],
        ["agent", "list"],
        ["agent", "show", "x"],
        ["events"],
        ["daemon", "status"],
    ],
    ids=" ".join,
)
def test_b124_stdout_is_one_document_whatever_the_surroundings(
    daemon: Start, process: Process, words: list[str]
) -> None:
    """B-124: colours forced on, a locale of ASCII, verbose Python: one JSON document on stdout."""
    import json

    nasty = task(labels={"é": "\x1b[31m"}, agent="日本")
    daemon(
        {
            "daemon.status": always(overview()), "task.get": always(nasty), "task.list": always([nasty]),
            "agent.list": always([{"name": "x"}]), "agent.show": always({"name": "x"}), "event.list": always([event()]),
        }
    )  # fmt: skip

    ran = process(*words, "--json", env={"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "LC_ALL": "C", "PYTHONUTF8": "0",
                                        "PYTHONIOENCODING": "ascii", "PYTHONVERBOSE": ""})  # fmt: skip
    out, err = ran.communicate()

    assert (ran.returncode, err) == (0, b"")
    assert out.count(b"\n") == 1
    json.loads(out)
    assert b"\x1b" not in out


def test_a_closed_pipe_ends_quietly(daemon: Start, process: Process) -> None:
    """``pawl list | head -1``: no traceback, the exit status of a program that a signal ended."""
    daemon({"task.list": lambda asked: [task() for _ in range(0 if "before" in asked.params else 5000)]})
    ran = process("list", "--all")
    assert ran.stdout is not None

    ran.stdout.readline()
    ran.stdout.close()

    assert ran.wait() == 141
    assert ran.stderr is not None
    assert ran.stderr.read() == b""


def test_a_full_disk_under_stdout_is_an_error(daemon: Start, process: Process) -> None:
    """Output that could not be written is never exit 0."""
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    daemon({"task.list": always([task()])})
    with open("/dev/full", "wb") as full:
        ran = process("list", "--json", stdout=full)
        err = ran.communicate()[1]

    assert ran.returncode == 1
    assert b'"code": "disk_full"' in err


def test_closed_standard_files_do_not_hurt(daemon: Start, home: Home) -> None:
    """With stdin, stdout and stderr closed no socket takes their place and is written to."""
    import sys

    fake = daemon({"task.list": always([task()])})
    command = f'exec "{sys.executable}" -m pawl list --json <&- >&- 2>&-'

    assert subprocess.run(["sh", "-c", command], env={**os.environ, "PYTHONPATH": SOURCE}).returncode == 0
    assert fake.methods() == ["task.list"]


def test_a_bug_is_told_as_one(daemon: Start, pawl: Pawl) -> None:
    """Exit 1, code ``internal``, with the traceback in the details; never a bare traceback on stdout."""
    daemon({"task.list": always([{"no": "task"}]), "task.wait": always({})})

    text = pawl("list")
    json = pawl("wait", "x", "--json")

    assert (text.status, text.out) == (1, "")
    assert "a bug, sorry" in text.err
    assert (json.status, json.out, json.error["code"]) == (1, "", "internal")
    assert "Traceback" in json.error["details"]["traceback"]
