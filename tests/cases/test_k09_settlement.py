"""K9: settlement, artifacts and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scenes import HELLO_SHA256, pawl

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon
from harness.fixtures import Ran


@pytest.mark.parametrize("agent", ["echo", "sh"])
@pytest.mark.parametrize("point", ["settle.after_intent", "settle.after_publish"])
def test_b088_a_driver_that_dies_while_settling_leaves_no_row_running(
    daemon: Daemon, ran: Ran, point: str, agent: str
) -> None:
    """B-088: what drove the task dies of a bug between the promise and the row, and the daemon lives: the task ends
    as promised, with exactly the promised bytes, once; a waiter hears it, and a restart changes nothing.
    """
    prompt = "hello\n" if agent == "echo" else 'echo ran >> "$OUT"; echo hello'
    daemon.start(f"{point}=crash")

    task_id = daemon.delegate(agent, prompt, env=ran.env)["id"]
    task = daemon.wait_one(task_id, timeout_s=10)
    if point == "settle.after_intent":
        # the promised bytes were never given their name: what is inline lives in the promise's daemon alone
        assert task["status"] == ("completed" if agent == "sh" else "failed")
    else:
        assert task["status"] == "completed"
    if task["status"] == "completed":
        assert task["output"]["sha256"] == HELLO_SHA256
        assert daemon.result(task_id) == b"hello\n"
    assert rows.ends_of(daemon.home, task_id) == [task["status"]]
    assert ran.lines == (["ran"] if agent == "sh" else [])
    assert daemon.wait_one(daemon.delegate("sh", "true")["id"])["status"] == "completed"

    row = rows.task(daemon.home, task_id)
    daemon.stop()
    daemon.start()
    assert rows.task(daemon.home, task_id) == row
    assert rows.intents(daemon.home) == []


def _truncate(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


@pytest.mark.parametrize(
    ("harm", "code"),
    [(_truncate, "artifact_altered"), (_flip, "artifact_altered"), (Path.unlink, "artifact_missing")],
    ids=["b-empty", "c-one-bit", "d-missing"],
)
def test_b090_bytes_that_are_not_the_result_are_not_passed_off_as_it(
    daemon: Daemon, harm: Callable[[Path], None], code: str
) -> None:
    """B-090 b to d: the artifact is emptied, altered or removed after the settlement: asking for the result fails,
    says which, and prints nothing; the status stays. With the right bytes back, the result is there again.
    """
    daemon.start()
    task_id = daemon.wait_one(daemon.delegate("sh", "echo hello")["id"])["id"]
    path = daemon.artifact(HELLO_SHA256)
    harm(path)

    with pytest.raises(Refused) as refused:
        daemon.result(task_id)
    shown = pawl(daemon.home, "result", task_id, "--json")
    plain = pawl(daemon.home, "result", task_id)

    assert refused.value.code == shown.error["code"] == code
    assert (shown.status, shown.out, plain.status, plain.out) == (1, b"", 1, b"")
    assert HELLO_SHA256 in plain.err
    assert daemon.get(task_id)["status"] == "completed"
    with pytest.raises(Refused):
        daemon.logs(task_id)

    path.write_bytes(b"hello\n")
    path.chmod(0o600)
    assert daemon.result(task_id) == b"hello\n"


def test_b093_a_result_can_be_asked_for_again(daemon: Daemon) -> None:
    """B-093: the same bytes and exit code each time, after a restart too; an id that never was is another answer.

    Nothing is removed by age yet, so there is no `expired` to tell from `unknown`.
    """
    daemon.start()
    task_id = daemon.wait_one(daemon.delegate("sh", "printf 'a\\nb'")["id"])["id"]

    before = [pawl(daemon.home, "result", task_id) for _ in range(2)]
    daemon.stop()
    daemon.start()
    after = pawl(daemon.home, "result", task_id)
    unknown = pawl(daemon.home, "result", "00000000-0000-7000-8000-000000000000", "--json")

    assert {(each.status, each.out) for each in (*before, after)} == {(0, b"a\nb")}
    assert (unknown.status, unknown.out, unknown.error["code"]) == (4, b"", "task_not_found")
