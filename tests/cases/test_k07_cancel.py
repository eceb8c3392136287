"""K7: cancelling, and every process that a task started."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from scenes import Marker, config, pawl, stripped, wrote

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, until


def test_b069_cancel_ends_what_the_shell_started(daemon: Daemon, marker: Marker) -> None:
    """B-069: a shell in a shell in a shell: when the cancel answers, none of them and nothing they started lives."""
    daemon.start()
    prompt = f"sh -c 'sh -c \"sleep {marker}\"; :'; :"
    task_id = daemon.delegate("sh", prompt)["id"]
    marker.appears()

    answer = daemon.cancel(task_id)

    assert (answer["outcome"], answer["status"]) == ("cancelled", "cancelled")
    assert marker.alive() == []


def test_b071_a_program_that_ignores_term_is_killed(daemon: Daemon, marker: Marker) -> None:
    """B-071: neither the shell nor its child hears TERM; after the grace both are killed, and the task says so."""
    daemon.configure(config(kill_grace="2s"))
    daemon.start()
    task_id = daemon.delegate("sh", f'trap "" TERM; sleep {marker} & echo ready; wait; wait')["id"]
    wrote(daemon, task_id, b"ready")
    marker.appears()

    began = time.monotonic()
    answer = daemon.cancel(task_id)
    took = time.monotonic() - began

    assert 1.9 < took < 2 + 2
    assert marker.alive() == []
    assert answer["status"] == "cancelled"
    assert answer["leftovers"]["killed"] >= 2
    assert answer["leftovers"]["left"] == []


def test_b074_no_zombie_and_no_descriptor_is_left(daemon: Daemon) -> None:
    """B-074: after two hundred short tasks, fifty cancelled ones and twenty that leave a child behind, neither the
    daemon nor its keeper has a zombie, and as many descriptors are open as before.
    """
    daemon.start()
    daemon.wait_one(daemon.delegate("sh", "true")["id"])
    before = {pid: _descriptors(pid) for pid in (daemon.pid, daemon.keeper)}

    with daemon.connect() as connection:
        short = [connection.call("task.delegate", agent="sh", prompt="true")["id"] for _ in range(200)]
        stray = [connection.call("task.delegate", agent="sh", prompt="sleep 0.1 & exit 0")["id"] for _ in range(20)]
    long = [daemon.delegate("sh", "exec sleep 100")["id"] for _ in range(50)]
    with daemon.connect() as connection:
        cancelled = connection.call("task.cancel", ids=long)
    ended = daemon.wait(*short, *stray, timeout_s=60)

    assert {task["status"] for task in ended} == {"completed"}
    assert {task["outcome"] for task in cancelled} == {"cancelled"}
    until(lambda: _zombies(before) == [], "zombies are left")
    until(
        lambda: all(abs(_descriptors(pid) - count) <= 5 for pid, count in before.items()),
        f"descriptors are left: {before} before, {[_descriptors(pid) for pid in before]} now",
    )


def _descriptors(pid: int) -> int:
    return psutil.Process(pid).num_fds()


def _zombies(pids: dict[int, int]) -> list[int]:
    found = []
    for pid in pids:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if child.status() == psutil.STATUS_ZOMBIE:
                    found.append(child.pid)
    return found


def test_b077_a_cancel_is_not_remembered(daemon: Daemon) -> None:
    """B-077: cancelling what is not there is `not found`, cancelling what has ended says how it had ended and changes
    nothing; and neither touches the task that comes next.
    """
    daemon.start()
    done = daemon.wait_one(daemon.delegate("echo", "x")["id"])
    row = rows.task(daemon.home, done["id"])

    for unknown in ("no-such-id", "00000000-0000-7000-8000-000000000000"):
        with pytest.raises(Refused) as refused:
            daemon.cancel(unknown)
        assert (refused.value.code, refused.value.exit) == ("task_not_found", 4)
    assert pawl(daemon.home, "cancel", "no-such-id").status == 4

    again = daemon.cancel(done["id"])
    assert again["outcome"] == "already_completed"
    assert pawl(daemon.home, "cancel", done["id"]).status == 5
    assert rows.task(daemon.home, done["id"]) == row

    after = daemon.wait_one(daemon.delegate("sh", "echo next")["id"])
    assert (after["status"], daemon.result(after["id"])) == ("completed", b"next\n")


def test_b078_one_verb_cancels_in_every_state(daemon: Daemon) -> None:
    """B-078: a hundred tasks, cancelled at any moment from queued to ended: no call is refused, each answer is what
    the row says, and each task is cancelled or ended as it would have.
    """
    daemon.configure(config(max_concurrent=6))
    daemon.start()
    moments = random.Random(78)

    def once(delay_s: float) -> dict[str, Any]:
        task_id = daemon.delegate("sh", "sleep 0.1; echo done")["id"]
        threading.Event().wait(delay_s)
        return daemon.cancel(task_id)

    delays = [0.0, 1.5, *(moments.uniform(0, 0.5) for _ in range(98))]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(once, delays))
    ended = daemon.wait(*(answer["id"] for answer in answers))

    for answer, task in zip(answers, ended, strict=True):
        assert answer["outcome"] == ("cancelled" if task["status"] == "cancelled" else "already_completed")
        assert task["status"] in ("cancelled", "completed")
        assert stripped(answer) == task
        assert rows.ends_of(daemon.home, task["id"]) == [task["status"]]
    assert {task["status"] for task in ended} == {"cancelled", "completed"}
    until(lambda: os.listdir(daemon.home.spool) == [], "spools are left")
