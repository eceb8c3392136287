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
    refuse,
    streamed,
    task,
    waited,
)

from pawl.cli import client

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


# --- several at once -------------------------------------------------------------------------------------------------

BOTH = [task(status="running"), task(id=OTHER_ID, agent="tester", status="queued")]


def wait_of(**ended: Any) -> Callable[[Asked], dict[str, Any]]:
    """Answers ``task.wait`` from tasks by id."""
    return lambda asked: waited(*(ended[one] for one in asked.params["ids"]))


def printed(outputs: dict[str, tuple[str, bytes]]) -> Callable[[Asked], dict[str, Any]]:
    """Answers ``task.result`` by id."""

    def answer(asked: Asked) -> dict[str, Any]:
        status, data = outputs[asked.params["id"]]
        asked.data(data)
        return {"id": asked.params["id"], "status": status, "size_bytes": len(data)}

    return answer


def test_parallel_prints_an_id_a_line(daemon: Start, pawl: Pawl) -> None:
    """In the order of the agents; the only word is the prompt."""
    fake = daemon({"task.fan_out": always(BOTH)})

    text = pawl("delegate", "--parallel", "coder, tester", "do it", "--timeout", "5m", "--label", "a=b")

    assert text == (0, f"{TASK_ID}\n{OTHER_ID}\n", "")
    assert pawl("delegate", "do it", "--parallel", "coder,tester", "--json").json == BOTH
    assert fake.asked[0] == (
        "task.fan_out",
        {
            "agents": ["coder", "tester"], "prompt": "do it", "timeout_s": 300.0, "labels": {"a": "b"},
            "caller_cwd": os.getcwd(), "source": {"type": "cli"},
        },
    )  # fmt: skip


def test_parallel_reads_the_prompt_from_standard_input(daemon: Start, process: Process) -> None:
    """Where no word stands there, or ``-``."""
    fake = daemon({"task.fan_out": always(BOTH)})

    for words in (["delegate", "--parallel", "a,b"], ["delegate", "--parallel", "a,b", "-"]):
        process(*words, stdin=subprocess.PIPE).communicate(b"piped")
        assert fake.params("task.fan_out")["prompt"] == "piped"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["delegate"], "name an agent"),
        (["delegate", "--parallel", "", "x"], "behind --parallel"),
        (["delegate", "--parallel", " , ", "x"], "nothing empty between"),
        (["delegate", "--parallel", "a,", "x"], "nothing empty between"),
        (["delegate", "--parallel", "a,b", "coder", "x"], "one word follows"),
    ],
)
def test_parallel_and_agent_are_told_apart(pawl: Pawl, words: list[str], told: str) -> None:
    """Wrong words are refused before a daemon is asked."""
    text, json = pawl(*words), pawl(*words, "--json")

    assert (text.status, text.out) == (2, "")
    assert told in text.err
    assert (json.status, json.error["code"]) == (2, "usage")


def test_parallel_wait_prints_each_output_below_its_head(daemon: Start, pawl: Pawl) -> None:
    """A failed one's too, each head on a line of its own; exit 1 for any that did not complete."""
    failed = task(id=OTHER_ID, agent="tester", status="failed", exit_code=3)
    daemon(
        {
            "task.fan_out": always(BOTH),
            "task.wait": wait_of(**{TASK_ID: task(), OTHER_ID: failed}),
            "task.result": printed({TASK_ID: ("completed", b"one"), OTHER_ID: ("failed", b"two\n")}),
        }
    )

    ran = pawl("delegate", "--parallel", "coder,tester", "x", "--wait")

    assert ran.out == f"==> coder {TASK_ID} completed <==\none\n\n==> tester {OTHER_ID} failed <==\ntwo\n"
    assert ran.err == (
        f"task {TASK_ID} (coder) running\ntask {OTHER_ID} (tester) waits for a free slot\n"
        f"task {OTHER_ID} failed: exit code 3\n"
    )
    assert ran.status == 1


def test_parallel_wait_follows_the_retries_of_each(daemon: Start, pawl: Pawl) -> None:
    """The array has the last attempts, in the order of the agents; exit 0 when these completed."""
    again = task(id=OTHER_ID[:-1] + "f", attempt=2, retry_of=TASK_ID)
    tries = {
        TASK_ID: task(status="failed", retries_left=1, retried_by=again["id"]),
        OTHER_ID: task(id=OTHER_ID, agent="tester"),
        again["id"]: again,
    }
    fake = daemon(
        {
            "task.fan_out": always(BOTH),
            "task.wait": wait_of(**tries),
            "task.get": lambda asked: tries[asked.params["id"]],
        }
    )

    ran = pawl("delegate", "--parallel", "coder,tester", "x", "--wait", "--retries", "1", "--json")

    assert (ran.status, ran.json, ran.err) == (0, [again, tries[OTHER_ID]], "")
    waits = [params["ids"] for method, params in fake.asked if method == "task.wait"]
    assert waits == [[TASK_ID, OTHER_ID], [again["id"]]]


def test_parallel_whose_answer_was_lost_says_what_is_not_known(daemon: Start, pawl: Pawl) -> None:
    """Of all of them; a refusal is passed on as it is."""

    def hang_up(asked: Asked) -> None:
        raise Hangup

    answers = iter([hang_up, refuse("agent_not_found", "no agent nobody", 4)])
    daemon({"task.fan_out": lambda asked: next(answers)(asked)})

    lost = pawl("delegate", "--parallel", "a,b", "x")
    refused = pawl("delegate", "--parallel", "a,nobody", "x")

    assert lost.status == 3
    assert "Whether the tasks were accepted is not known" in lost.err
    assert refused == (4, "", "pawl: no agent nobody\n")


# --- a sub-agent -----------------------------------------------------------------------------------------------------


def test_spawn_waits_and_prints_the_output_like_delegate(daemon: Start, pawl: Pawl) -> None:
    """Bytes on stdout, id and status on stderr."""
    fake = daemon(
        {
            "task.spawn": always(task(kind="subagent", status="running")),
            "task.wait": always(waited(task(kind="subagent"))),
            "task.result": streamed({"id": TASK_ID, "status": "completed", "size_bytes": 3}, b"yes"),
        }
    )

    ran = pawl("spawn", "look")

    assert ran == (0, "yes", f"task {TASK_ID} running\ntask {TASK_ID} completed\n")
    asked = fake.params("task.spawn")
    assert len(asked.pop("request_key")) == 32
    assert asked == {"prompt": "look", "source": {"type": "cli"}}


@pytest.mark.parametrize(("status", "exit_status"), [("completed", 0), ("failed", 1), ("cancelled", 1)])
def test_spawn_json_is_the_task_when_it_has_ended(daemon: Start, pawl: Pawl, status: str, exit_status: int) -> None:
    """And nothing else."""
    ended = task(kind="subagent", status=status)
    daemon({"task.spawn": always(task(status="queued")), "task.wait": always(waited(ended))})

    ran = pawl("spawn", "look", "--json")

    assert (ran.status, ran.json, ran.err) == (exit_status, ended, "")


def test_spawn_hands_every_override_over(daemon: Start, pawl: Pawl) -> None:
    """What is given and empty is given: no tool, no variable at all."""
    fake = daemon({"task.spawn": always(task()), "task.wait": always(waited(task()))})
    words = ["--timeout", "90s", "--deny-tools", "Bash(git *), Web", "--max-actions", "0", "--json"]

    pawl("spawn", "x", "--allow-tools", "Read,Write", "--env", "PATH,HOME", *words)
    first = fake.params("task.spawn")
    pawl("spawn", "x", "--allow-tools", "", "--env", "", "--json")
    second = fake.params("task.spawn")

    assert first.pop("request_key") != second.pop("request_key")
    assert first == {
        "prompt": "x", "timeout_s": 90.0, "allow_tools": ["Read", "Write"], "deny_tools": ["Bash(git *)", "Web"],
        "env": ["PATH", "HOME"], "max_actions": 0, "source": {"type": "cli"},
    }  # fmt: skip
    assert second == {"prompt": "x", "allow_tools": [], "env": [], "source": {"type": "cli"}}


def test_spawn_takes_the_prompt_byte_for_byte(daemon: Start, process: Process) -> None:
    """From standard input, like ``delegate``."""
    fake = daemon({"task.spawn": always(task()), "task.wait": always(waited(task()))})

    process("spawn", "--json", stdin=subprocess.PIPE).communicate(b"\xff\x00")

    assert base64.b64decode(fake.params("task.spawn")["prompt_base64"]) == b"\xff\x00"


def test_spawn_at_a_terminal_without_a_prompt_explains(pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own words."""
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 0)

    ran = pawl("spawn", "--json")

    assert (ran.status, ran.error["code"]) == (2, "usage")
    assert 'pawl spawn "What to do"' in ran.error["message"]


def test_spawn_asks_again_with_the_same_key(daemon: Start, pawl: Pawl) -> None:
    """Through a loss of the daemon: one sub-agent however often it was asked for."""
    answers = iter([Hangup(), task()])

    def answer(asked: Asked) -> Any:
        found = next(answers)
        if isinstance(found, Hangup):
            raise found
        return found

    fake = daemon({"task.spawn": answer, "task.wait": always(waited(task()))})

    assert pawl("spawn", "x", "--json").status == 0
    first, second = [params for method, params in fake.asked if method == "task.spawn"]
    assert first == second


def test_spawn_that_lost_the_daemon_says_what_is_not_known(
    daemon: Start, pawl: Pawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none comes back in time; a daemon that was never there took nothing."""

    def hang_up(asked: Asked) -> None:
        fake.stop()
        raise Hangup

    patient = client.through_restarts
    monkeypatch.setattr(
        "pawl.cli.commands.delegate.through_restarts", lambda home, act: patient(home, act, patience_s=0.1)
    )
    fake = daemon({"task.spawn": hang_up})

    lost = pawl("spawn", "x")
    nobody = pawl("spawn", "x")

    assert (lost.status, nobody.status) == (3, 3)
    assert "pawl list --kind subagent` shows it" in lost.err
    assert "not known" not in nobody.err


def test_spawn_passes_a_refusal_on(daemon: Start, pawl: Pawl) -> None:
    """Called outside a task: exit 6, and nothing is waited for."""
    fake = daemon({"task.spawn": refuse("inside_only", "cannot spawn from outside a task", 6)})

    ran = pawl("spawn", "x", "--json")

    assert (ran.status, ran.out, ran.error["code"]) == (6, "", "inside_only")
    assert fake.methods() == ["task.spawn"]


def test_a_prompt_over_the_limit_for_a_sub_agent_names_no_option_that_it_has_not(
    daemon: Start, process: Process
) -> None:
    """``--input`` is for ``delegate`` only."""
    daemon({})

    err = process("spawn", stdin=subprocess.PIPE).communicate(b"x" * 9_000_000)[1]

    assert b"cannot send a prompt of 9000000 bytes" in err
    assert b"--input" not in err
