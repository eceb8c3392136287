"""``delegate``: what it hands over, what it brings back."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import (
    OTHER_ID,
    TASK_ID,
    Asked,
    FakeDaemon,
    Hangup,
    always,
    streamed,
    task,
    waited,
)

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]


def test_delegate_prints_the_id_alone(daemon: Start, pawl: Pawl) -> None:
    """So that ``ID=$(pawl delegate ...)`` works."""
    fake = daemon({"task.delegate": always(task(status="running"))})

    ran = pawl("delegate", "coder", "do it")

    assert ran == (0, TASK_ID + "\n", "")
    assert fake.params("task.delegate") == {
        "agent": "coder", "prompt": "do it", "caller_cwd": os.getcwd(), "source": {"type": "cli"},
    }  # fmt: skip


def test_delegate_json_is_the_task(daemon: Start, pawl: Pawl) -> None:
    """The whole of it, on one line."""
    daemon({"task.delegate": always(task(status="running"))})

    assert pawl("delegate", "coder", "do it", "--json").json == task(status="running")


def test_delegate_hands_every_option_over(daemon: Start, pawl: Pawl, tmp_path: Any) -> None:
    """Durations as seconds, pairs as objects, paths absolute, a given 0 as 0."""
    fake = daemon({"task.delegate": always(task())})

    pawl(
        "delegate", "coder", "x", "--timeout", "1h30m", "--queue-timeout", "250ms", "--retries", "0",
        "--priority", "-5", "--cwd", "here", "--env", "A=1", "--env", "B=", "--idempotency-key", "k",
        "--parent", "0193f2a1", "--label", "ticket=42", "--input", "a.txt", "--input", "/b.txt",
    )  # fmt: skip

    here = os.getcwd()
    assert fake.params("task.delegate") == {
        "agent": "coder", "prompt": "x", "timeout_s": 5400.0, "queue_timeout_s": 0.25, "retries": 0, "priority": -5,
        "cwd": f"{here}/here", "caller_cwd": here, "env": {"A": "1", "B": ""}, "idempotency_key": "k",
        "parent": "0193f2a1", "labels": {"ticket": "42"}, "inputs": [f"{here}/a.txt", "/b.txt"],
        "source": {"type": "cli"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sent", "expected"),
    [
        (["delegate", "coder"], "piped é\n".encode(), {"prompt": "piped é\n"}),
        (["delegate", "coder", "-"], b"", {"prompt": ""}),
        (["delegate", "coder", "-"], b"\xff\x00", {"prompt_base64": base64.b64encode(b"\xff\x00").decode()}),
        (["delegate", "coder", b"\xff"], b"", {"prompt_base64": base64.b64encode(b"\xff").decode()}),
    ],
)
def test_delegate_takes_the_prompt_byte_for_byte(
    daemon: Start, process: Process, words: list[Any], sent: bytes, expected: dict[str, str]
) -> None:
    """From standard input or the command line; what is not UTF-8 goes as base64."""
    fake = daemon({"task.delegate": always(task())})

    ran = process(*words, stdin=subprocess.PIPE)
    out, err = ran.communicate(sent)

    assert (ran.returncode, out, err) == (0, TASK_ID.encode() + b"\n", b"")
    asked = fake.params("task.delegate")
    assert {key: value for key, value in asked.items() if key.startswith("prompt")} == expected


def test_delegate_at_a_terminal_without_a_prompt_explains(pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than waiting in silence for input."""
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 0)

    ran = pawl("delegate", "coder", "--json")

    assert (ran.status, ran.error["code"]) == (2, "usage")
    assert 'pawl delegate coder "What to do"' in ran.error["message"]


def test_delegate_wait_prints_the_output_and_nothing_else(daemon: Start, pawl: Pawl) -> None:
    """Bytes on stdout, id and status on stderr, exit 0 for completed."""
    fake = daemon(
        {
            "task.delegate": always(task(status="running")),
            "task.wait": always(waited(task())),
            "task.result": streamed({"id": TASK_ID, "status": "completed", "size_bytes": 6}, b"one\n", b"2\n"),
        }
    )

    ran = pawl("delegate", "coder", "x", "--wait")

    assert (ran.status, ran.out) == (0, "one\n2\n")
    assert ran.err == f"task {TASK_ID} running\ntask {TASK_ID} completed\n"
    assert fake.methods() == ["task.delegate", "task.wait", "task.result"]


@pytest.mark.parametrize("words", [["delegate", "coder", "x", "--wait"], ["result", TASK_ID]])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_output_without_a_final_newline_does_not_run_into_the_note(
    daemon: Start, process: Process, words: list[str], together: bool, status: str
) -> None:
    """With ``2>&1`` the note has a line of its own; else, and where no note follows, there is nothing but the bytes."""
    end = task(status=status)
    daemon(
        {
            "task.delegate": always(task(status="running")),
            "task.wait": always(waited(end)),
            "task.get": always(end),
            "task.result": streamed({"id": TASK_ID, "status": status, "size_bytes": 3}, b"abc"),
        }
    )

    ran = process(*words, **({"stderr": subprocess.STDOUT} if together else {}))
    out = ran.communicate()[0]

    if not together or (words[0] == "result" and status == "completed"):
        assert out == b"abc"
    else:
        assert b"abc\ntask " in out


def test_a_prompt_over_the_limit_is_told_with_its_own_size(daemon: Start, process: Process) -> None:
    """Not only with that of the request around it."""
    daemon({})

    ran = process("delegate", "coder", stdin=subprocess.PIPE)
    err = ran.communicate(b"x" * 9_000_000)[1]

    assert ran.returncode == 2
    assert b"cannot send a prompt of 9000000 bytes" in err
    assert b"the limit is 8388608" in err


def test_delegate_wait_follows_the_retries_to_the_last(daemon: Start, pawl: Pawl) -> None:
    """The output is that of the attempt that counted."""
    tries = {
        TASK_ID: task(status="failed", retries_left=1, error={"code": "exit_code", "message": "it failed"}),
        OTHER_ID: task(id=OTHER_ID, attempt=2, retry_of=TASK_ID),
    }
    fake = daemon(
        {
            "task.delegate": always(task(status="running")),
            "task.wait": lambda asked: waited(tries[asked.params["ids"][0]]),
            "task.get": always(tries[TASK_ID] | {"retried_by": OTHER_ID}),
            "task.result": streamed({"id": OTHER_ID, "status": "completed", "size_bytes": 2}, b"ok"),
        }
    )

    ran = pawl("delegate", "coder", "x", "--wait", "--retries", "1")

    assert (ran.status, ran.out) == (0, "ok")
    assert f"tried again as {OTHER_ID}" in ran.err
    assert fake.params("task.result") == {"id": OTHER_ID}


def test_delegate_wait_prints_every_byte_once_through_a_restart(daemon: Start, pawl: Pawl) -> None:
    """The output is on its way when the daemon dies; the next one sends it again."""

    def first(asked: Asked) -> None:
        asked.data(b"one ")
        raise Hangup

    answers = iter([first, streamed({"id": TASK_ID, "status": "completed", "size_bytes": 8}, b"one two\n")])
    daemon(
        {
            "task.delegate": always(task(status="running")),
            "task.wait": always(waited(task())),
            "task.result": lambda asked: next(answers)(asked),
        }
    )

    ran = pawl("delegate", "coder", "x", "--wait")

    assert (ran.status, ran.out) == (0, "one two\n")


def test_delegate_wait_json_is_the_finished_task(daemon: Start, pawl: Pawl) -> None:
    """Exit 1 where it ended badly, and the document all the same."""
    failed = task(status="failed", exit_code=3)
    daemon({"task.delegate": always(task(status="running")), "task.wait": always(waited(failed))})

    ran = pawl("delegate", "coder", "x", "--wait", "--json")

    assert (ran.status, ran.json, ran.err) == (1, failed, "")


def test_delegate_whose_answer_was_lost_says_what_is_not_known(daemon: Start, pawl: Pawl) -> None:
    """Nobody is told that nothing happened when it may have."""

    def hang_up(asked: Asked) -> None:
        raise Hangup

    daemon({"task.delegate": hang_up})

    ran = pawl("delegate", "coder", "x")

    assert ran.status == 3
    assert "not known" in ran.err
    assert "pawl list" in ran.err


def test_delegate_with_a_key_is_sent_again_after_a_loss(daemon: Start, pawl: Pawl) -> None:
    """The key makes that safe, so the caller need not do it."""
    answers = iter([Hangup(), task()])

    def answer(asked: Asked) -> dict[str, Any]:
        found = next(answers)
        if isinstance(found, Hangup):
            raise found
        return found

    fake = daemon({"task.delegate": answer})

    ran = pawl("delegate", "coder", "x", "--idempotency-key", "k")

    assert ran == (0, TASK_ID + "\n", "")
    assert fake.methods() == ["task.delegate", "task.delegate"]
