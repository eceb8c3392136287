"""What one task may take of what all share: connections, and room in an answer."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran
from harness.trees import TEAM, call, config, run

_CROWD = """
import contextlib, json, os, socket, sys
path, out = os.environ["PAWL_SOCKET"], os.environ["OUT"]
hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "hello", "params": {"protocol": 1}}).encode()
held, codes = [], []
for _ in range(int(sys.argv[1])):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    with contextlib.suppress(BrokenPipeError):  # closed already: why can be read
        client.sendall(hello + b"\\n")
    answer = json.loads(client.makefile("rb").readline())
    codes.append(answer["error"]["data"] if "error" in answer else "taken")
    held.append(client)
open(out, "w").write(json.dumps(codes) + "\\n")
open(out + ".go").readline()
"""
_CROWDS = CONFIG + f"[agents.crowd]\ncommand = {json.dumps([sys.executable, '-c', _CROWD, '200'])}\n"


def test_one_task_cannot_take_every_connection(daemon: Daemon, ran: Ran) -> None:
    """It has so many and no more, is told so in words that a program can act on, and the operator gets through."""
    daemon.configure(_CROWDS)
    daemon.start()
    task = daemon.delegate("crowd", "", env=ran.env)["id"]
    until(lambda: ran.lines, "it never connected")
    codes = json.loads(ran.lines[0])

    assert codes[:64] == ["taken"] * 64
    assert {(each["code"], each["exit"], each["retryable"]) for each in codes[64:]} == {
        ("too_many_connections", 5, True)
    }
    assert codes[64]["details"] == {"limit": 64, "task": task}
    assert daemon.pawl("list").returncode == 0
    ran.go()
    assert daemon.wait_one(task)["status"] == "completed"


# --- room in an answer --------------------------------------------------------------------------------------------

# As much as is taken of each, in characters that JSON spells with six bytes.
_FAT: dict[str, Any] = {
    "source": {"type": "\x01" * 330}, "labels": {"k": "\x01" * 200, "l": "\x01" * 200, "m": "\x01" * 200},
    "cwd": "/tmp/" + "/./" * 1300, "idempotency_key": "\x01" * 199,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", {"type": "x" * 3000}),
        ("source", {str(number): "x" * 200 for number in range(20)}),
        ("labels", {str(number): "x" * 200 for number in range(30)}),
        ("cwd", "/" + "\x01" * 4000),
    ],
)
def test_what_is_kept_in_a_row_is_bounded(daemon: Daemon, name: str, value: Any) -> None:
    """The refusal names the parameter and the limit, and nothing is stored."""
    daemon.start()

    with pytest.raises(Refused) as refused:
        daemon.delegate("echo", "x", **{name: value})

    assert (refused.value.code, refused.value.exit) == ("invalid_params", 2)
    assert f"parameter {name}: it may take at most" in refused.value.message
    assert rows.tasks(daemon.home) == []


def test_fat_rows_break_no_list(daemon: Daemon) -> None:
    """Three hundred rows with as much in each as is taken: every one is in the list, and the list is an array."""
    daemon.start()
    made = []
    for number in range(3):
        key = {"idempotency_key": f"{number}" + "\x01" * 190}
        made += daemon.call("task.fan_out", agents=["echo"] * 100, prompt="x", **_FAT | key)

    assert len({task["id"] for task in made}) == 300
    for words, count in ((["--all"], 300), (["--limit", "250"], 250), ([], 50)):
        found = json.loads(daemon.pawl("list", "--json", *words).stdout)
        assert [task["id"] for task in found] == [task["id"] for task in made[::-1]][:count]
        assert found[0]["source"] == _FAT["source"]
    waited = daemon.call("task.wait", ids=[task["id"] for task in made], timeout_s=20)
    assert [task["id"] for task in waited["completed"]] == [task["id"] for task in made]
    with daemon.connect() as connection:
        page = connection.call("task.list", limit=7, before=made[50]["id"], statuses=["completed"])
        assert [task["id"] for task in page] == [task["id"] for task in made[49:42:-1]]


def test_what_was_done_is_never_answered_with_an_error(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a thousand rows would not fit into one answer they stand without their free texts, and say so."""
    daemon.start()
    ids = []
    for number in range(8):
        key = {"idempotency_key": f"{number}" + "\x01" * 190}
        ids += [task["id"] for task in daemon.call("task.fan_out", agents=["echo"] * 125, prompt="x", **_FAT | key)]
    assert len(ids) == 1000

    waited = daemon.call("task.wait", ids=ids, timeout_s=30)
    cancelled = daemon.call("task.cancel", ids=ids, reason="\x01" * 600)

    assert [task["id"] for task in waited["completed"]] == ids
    assert {task["outcome"] for task in cancelled} == {"already_completed"}
    for task in (*waited["completed"], *cancelled):
        assert (task["cut"], task["source"], task["status"]) == (True, None, "completed")
    assert daemon.get(ids[0])["source"] == _FAT["source"]


def test_a_task_that_names_ever_new_models_keeps_its_row_small(daemon: Daemon) -> None:
    """Everything it spent is counted; what comes of the twenty-first model on stands under `other`."""
    daemon.configure(TEAM)
    daemon.start()

    run(daemon, "lead", *(call("usage", "--tokens", "1", "--model", f"m{number}" * 30) for number in range(25)))

    usage = daemon.get(rows.tasks(daemon.home)[0].id)["usage"]
    assert usage["tokens"] == 25
    assert len(usage["models"]) == 21
    assert usage["models"]["other"]["tokens"] == 5


def test_a_refusal_keeps_few_of_the_names_that_were_asked_for(daemon: Daemon) -> None:
    """It stays in the audit log and in `pawl why`: a thousand names do not."""
    daemon.configure(config('[policies.p]\ndelegation = "allow"\nallowed_tools = ["Read"]\n', lead='policy = "p"'))
    daemon.start()

    (did,) = run(daemon, "lead", call("spawn", "x", "--allow-tools", ",".join(f"T{n}" for n in range(900)), "--json"))

    assert "T4 and 895 more" in did["error"]["error"]["message"]
    assert len(json.dumps(daemon.call("task.why", id=rows.tasks(daemon.home)[0].id))) < 20_000
