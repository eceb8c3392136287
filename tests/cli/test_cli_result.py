"""``result`` and ``logs``: the bytes that a task wrote."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

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
)

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]


def test_b093_result_is_the_bytes_exactly_every_time(daemon: Start, process: Process) -> None:
    """B-093: twice the same, also what is no text."""
    data = bytes(range(256)) * 3
    daemon({"task.result": streamed({"id": TASK_ID, "status": "completed", "size_bytes": len(data)}, data)})

    for _ in range(2):
        ran = process("result", TASK_ID)
        assert ran.communicate() == (data, b"")
        assert ran.returncode == 0


def test_b093_an_unknown_id_is_another_answer_than_an_empty_result(daemon: Start, pawl: Pawl) -> None:
    """B-093: exit 4 and a message, against exit 0 and nothing."""
    daemon(
        {
            "task.result": lambda asked: (
                streamed({"id": TASK_ID, "status": "completed", "size_bytes": 0})(asked)
                if asked.params["id"] == TASK_ID
                else refuse("task_not_found", "no task x", 4)(asked)
            )
        }
    )

    assert pawl("result", TASK_ID) == (0, "", "")
    assert pawl("result", OTHER_ID) == (4, "", "pawl: no task x\n")


def test_result_of_a_task_that_ended_badly_prints_what_it_wrote(daemon: Start, pawl: Pawl) -> None:
    """Exit 1, the bytes, and on stderr why."""
    daemon(
        {
            "task.result": streamed({"id": TASK_ID, "status": "failed", "size_bytes": 4}, b"half"),
            "task.get": always(task(status="failed", error={"code": "exit_code", "message": "exit code 3"})),
        }
    )

    assert pawl("result", TASK_ID) == (1, "half", f"task {TASK_ID} failed: exit code 3\n")


def test_result_before_the_end_prints_nothing(daemon: Start, pawl: Pawl) -> None:
    """Exit 5; stdout stays empty."""
    daemon({"task.result": refuse("task_not_ended", "it is running", 5)})

    assert pawl("result", TASK_ID) == (5, "", "pawl: it is running\n")


def test_result_json_has_text_or_base64(daemon: Start, pawl: Pawl) -> None:
    """Text where it is UTF-8, base64 where it is not; never both."""
    end = {"id": TASK_ID, "status": "completed", "sha256": "0" * 64, "size_bytes": 2}
    pieces = iter([["é".encode()], [b"\xff", b"\x00"]])
    daemon({"task.result": lambda asked: streamed(end, *next(pieces))(asked)})

    assert pawl("result", TASK_ID, "--json").json == {**end, "text": "é"}
    assert pawl("result", TASK_ID, "--json").json == {**end, "base64": "/wA="}


def test_a_result_that_is_cut_short_is_not_passed_off_as_whole(daemon: Start, pawl: Pawl) -> None:
    """Fewer bytes than there should be: exit 1 and an error."""
    daemon({"task.result": streamed({"id": TASK_ID, "status": "completed", "size_bytes": 9}, b"half")})

    ran = pawl("result", TASK_ID, "--json")

    assert (ran.status, ran.out, ran.error["code"]) == (1, "", "storage_error")


def test_logs_shows_what_is_there(daemon: Start, pawl: Pawl) -> None:
    """Exit 0 while it runs; ``--stderr`` asks for the other stream; ``--json`` has both forms."""
    end = {"id": TASK_ID, "status": "running", "stream": "stdout", "size_bytes": 3}
    fake = daemon({"task.logs": streamed(end, b"so ")})

    assert pawl("logs", TASK_ID) == (0, "so ", "")
    assert pawl("logs", TASK_ID, "--json").json == {**end, "text": "so "}
    assert fake.params("task.logs") == {"id": TASK_ID, "stream": "stdout"}
    pawl("logs", TASK_ID, "--stderr")
    assert fake.params("task.logs") == {"id": TASK_ID, "stream": "stderr"}


def test_b129_follow_waits_for_a_queued_task_and_fails_at_once_for_an_unknown_one(daemon: Start, pawl: Pawl) -> None:
    """B-129: the first streams when it starts, the second exits 4 without waiting."""

    def answer(asked: Asked) -> dict[str, Any]:
        if asked.params["id"] != TASK_ID:
            return refuse("task_not_found", "no task", 4)(asked)  # type: ignore[no-any-return]
        time.sleep(0.2)
        return streamed({"id": TASK_ID, "status": "completed", "stream": "stdout", "size_bytes": 4}, b"late")(asked)

    fake = daemon({"task.logs": answer})

    assert pawl("logs", "-f", TASK_ID) == (0, "late", "")
    assert fake.params("task.logs") == {"id": TASK_ID, "stream": "stdout", "follow": True}
    assert pawl("logs", "-f", OTHER_ID) == (4, "", "pawl: no task\n")


def test_followed_logs_show_every_byte_once_through_a_restart(daemon: Start, pawl: Pawl) -> None:
    """The second daemon begins anew; what was shown already is not shown again."""
    end = {"id": TASK_ID, "status": "completed", "stream": "stdout", "size_bytes": 12}

    def first(asked: Asked) -> None:
        asked.data(b"one two ")
        raise Hangup

    answers = iter([first, streamed(end, b"one ", b"two thr", b"ee\n")])
    daemon({"task.logs": lambda asked: next(answers)(asked)})

    assert pawl("logs", "-f", TASK_ID) == (0, "one two three\n", "")


def test_followed_logs_as_json_are_one_object_a_line(daemon: Start, pawl: Pawl) -> None:
    """Pieces, then the end; a character that came in two pieces is whole."""
    import json

    end = {"id": TASK_ID, "status": "completed", "stream": "stdout", "size_bytes": 4}
    daemon({"task.logs": streamed(end, b"a\xc3", b"\xa9b", b"\xff")})

    ran = pawl("logs", "-f", TASK_ID, "--json")

    about = {"id": TASK_ID, "stream": "stdout"}
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {**about, "text": "a"}, {**about, "text": "éb"}, {**about, "base64": "/w=="}, end,
    ]  # fmt: skip
