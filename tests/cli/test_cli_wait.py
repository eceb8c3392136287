"""``wait``, and every other command that waits: outcomes, restarts, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import (
    OTHER_ID,
    TASK_ID,
    Asked,
    FakeDaemon,
    always,
    task,
    waited,
)

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (waited(task()), 0, "completed"),
        (waited(task(status="failed", exit_code=3)), 1, "failed  (exit code 3)"),
        (waited(task(status="cancelled")), 1, "cancelled"),
        (waited(task(status="timed_out", error={"code": "t", "message": "after 2s"})), 1, "timed_out  (after 2s)"),
        (waited(task(status="lost", error={"code": "l", "message": "gone"})), 1, "lost  (gone)"),
        (waited(pending=(TASK_ID,)), 124, "not ended"),
    ],
    ids=["completed", "failed", "cancelled", "timed_out", "lost", "timeout"],
)
def test_b126_wait_exits_zero_only_for_completed(
    daemon: Start, pawl: Pawl, answer: dict[str, Any], status: int, text: str
) -> None:
    """B-126: the outcomes are told apart, by exit status and by word."""
    daemon({"task.wait": always(answer)})

    ran = pawl("wait", TASK_ID, "--timeout", "1s")

    assert (ran.status, ran.out) == (status, f"{TASK_ID}  {text}\n")


def test_b126_a_wait_that_runs_out_leaves_the_task_alone(daemon: Start, pawl: Pawl) -> None:
    """B-126: it asks for nothing but waiting; with ``--json`` the task as it stands, and the error beside it."""
    running = task(status="running", finished_at=None)
    fake = daemon({"task.wait": always(waited(pending=(TASK_ID,))), "task.get": always(running)})

    ran = pawl("wait", TASK_ID, "--timeout", "1s", "--json")

    assert (ran.status, ran.json, ran.error["code"]) == (124, running, "wait_timeout")
    assert fake.methods() == ["task.wait", "task.get"]
    assert fake.params("task.wait")["timeout_s"] <= 1


def test_wait_for_several_prints_the_whole_answer(daemon: Start, pawl: Pawl) -> None:
    """One object with all of them; exit 1 for any that ended badly, 4 for any that is missing."""
    answer = waited(task(), task(id=OTHER_ID, status="failed"))
    daemon({"task.wait": lambda asked: answer if len(asked.params["ids"]) == 2 else waited(missing=("nope",))})

    ran = pawl("wait", TASK_ID, OTHER_ID, "--json")
    missing = pawl("wait", "nope", "--json")

    assert (ran.status, ran.json, ran.err) == (1, answer, "")
    assert (missing.status, missing.out, missing.error["code"]) == (4, "", "task_not_found")


@pytest.mark.parametrize(
    ("statuses", "status"),
    [(["completed"], 0), (["failed"], 1), (["failed", "completed"], 0), (["lost", "cancelled"], 1)],
)
def test_wait_any_is_answered_by_what_has_ended(daemon: Start, pawl: Pawl, statuses: list[str], status: int) -> None:
    """Exit 0 if one that ended completed, 1 if none did; the answer as it is, with what is still pending."""
    ended = [task(id=f"{TASK_ID[:-1]}{at}", status=one, exit_code=None) for at, one in enumerate(statuses)]
    failed = [one["id"] for one in ended if one["status"] != "completed"]
    answer = waited(*ended) | {"pending": [OTHER_ID], "failed": failed}
    fake = daemon({"task.wait": always(answer)})

    json = pawl("wait", "--any", *(one["id"] for one in ended), OTHER_ID, "--json")
    text = pawl("wait", *(one["id"] for one in ended), OTHER_ID, "--any")

    assert (json.status, json.json, json.err) == (status, answer, "")
    lines = [f"{one['id']}  {one['status']}" for one in ended]
    assert (text.status, text.out.splitlines()) == (status, [*lines, f"{OTHER_ID}  not ended"])
    assert fake.params("task.wait")["any"] is True


def test_wait_any_runs_out_like_any_wait(daemon: Start, pawl: Pawl) -> None:
    """124 where none has ended in time, 4 where one is not there."""
    answers = iter([waited(pending=(TASK_ID, OTHER_ID)), waited(missing=(TASK_ID,))])
    daemon({"task.wait": lambda asked: next(answers)})

    assert pawl("wait", "--any", TASK_ID, OTHER_ID, "--timeout", "1s").status == 124
    assert pawl("wait", "--any", TASK_ID, OTHER_ID).status == 4


def test_wait_all_is_what_is_usual(daemon: Start, pawl: Pawl) -> None:
    """The same question with and without it; together with ``--any`` it is refused before anything is asked."""
    fake = daemon({"task.wait": always(waited(task()))})

    assert pawl("wait", TASK_ID, "--all").status == 0
    assert fake.asked == [("task.wait", {"ids": [TASK_ID]})]
    both = pawl("wait", TASK_ID, "--all", "--any", "--json")
    assert (both.status, both.out, both.error["code"]) == (2, "", "usage")
    assert len(fake.asked) == 1


def test_an_unknown_id_is_told_as_elsewhere(daemon: Start, pawl: Pawl) -> None:
    """In the words of the daemon, which answers ``result``."""
    daemon({"task.wait": lambda asked: waited(missing=tuple(asked.params["ids"]))})

    assert pawl("wait", TASK_ID[:13]).err == f"pawl: cannot find a task whose id begins with {TASK_ID[:13]}\n"
    assert pawl("wait", TASK_ID).err == f"pawl: cannot find a task with the id {TASK_ID}\n"


def test_wait_goes_on_through_a_restart(daemon: Start, pawl: Pawl) -> None:
    """The daemon is killed under the waiter; the next one knows the answer."""
    first = daemon({"task.wait": lambda asked: threading.Event().wait(5)})
    threading.Timer(0.2, lambda: (first.stop(), daemon({"task.wait": always(waited(task()))}))).start()

    assert pawl("wait", TASK_ID) == (0, f"{TASK_ID}  completed\n", "")


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (["wait", TASK_ID], "task.wait"),
        (["logs", "-f", TASK_ID], "task.logs"),
        (["events", "-f"], "event.list"),
        (["delegate", "coder", "x", "--wait"], "task.wait"),
        (["delegate", "--parallel", "a,b", "x", "--wait"], "task.wait"),
        (["spawn", "x"], "task.wait"),
        (["wait", "--any", TASK_ID, OTHER_ID], "task.wait"),
    ],
)
@pytest.mark.parametrize("json", [False, True])
def test_an_interrupted_wait_says_that_the_work_goes_on(
    daemon: Start, process: Process, words: list[str], method: str, json: bool
) -> None:
    """Ctrl-C: exit 130, one line, nothing on stdout."""
    asked = threading.Event()

    def hang(request: Asked) -> None:
        asked.set()
        threading.Event().wait(20)

    running = task(status="running")
    starts = {"task.delegate": running, "task.spawn": running, "task.fan_out": [running, running | {"id": OTHER_ID}]}
    daemon({method: hang, **{name: always(answer) for name, answer in starts.items()}})
    waiting = process(*words, *(["--json"] if json else []))
    assert asked.wait(10)

    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=10)

    assert (waiting.returncode, out) == (130, b"")
    assert b"the work goes on" in err
    assert b"Traceback" not in err
    assert (b'"code": "interrupted"' in err) is json
