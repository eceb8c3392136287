"""K16: time limits and heartbeats."""

from __future__ import annotations

import signal
import time

from scenes import Gate, Marker, config, wrote

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran
from pawl.runner.identity import Liveness, probe


def test_b141_a_long_quiet_job_is_not_rescued(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """B-141: ten heartbeats long a program writes nothing, longer than the heartbeat's own timeout: it is left alone,
    runs once and completes. Whether it lives is asked of the process, not of the clock.
    """
    text = config(heartbeat="250ms").replace("heartbeat_interval", 'heartbeat_timeout = "1s"\nheartbeat_interval')
    daemon.configure(text)
    daemon.start(bent="")
    task_id = daemon.delegate("sh", f'echo ran >> "$OUT"; {gate.wait}', env=ran.env)["id"]
    first = daemon.get(task_id)["heartbeat_at"]

    daemon.beats(10)
    middle = daemon.get(task_id)
    gate.open()
    task = daemon.wait_one(task_id)

    assert middle["status"] == "running"
    assert middle["heartbeat_at"] > first
    assert task["status"] == "completed"
    assert rows.events_of(daemon.home, task_id) == ["submitted", "completed"]
    assert ran.lines == ["ran"]


def test_b144_a_hung_task_gives_its_slot_back(daemon: Daemon, marker: Marker) -> None:
    """B-144, the part of tasks: what hangs is timed out, nothing of it is left, and the next task gets the slot."""
    daemon.start()
    hung = daemon.delegate("one", f"sleep {marker}", timeout_s=1)["id"]
    behind = daemon.delegate("one", "echo next")["id"]
    assert daemon.get(behind)["status"] == "queued"

    ended, following = daemon.wait(hung, behind)

    assert (ended["status"], ended["error"]["code"]) == ("timed_out", "timeout")
    assert (following["status"], daemon.result(behind)) == ("completed", b"next\n")
    assert following["started_at"] >= ended["finished_at"]
    assert marker.alive() == []


def test_b144_cancel_works_before_the_timeout(daemon: Daemon, marker: Marker) -> None:
    """B-144: nobody has to wait for the timeout of what hangs."""
    daemon.start()
    hung = daemon.delegate("one", f"sleep {marker}", timeout_s=600)["id"]
    behind = daemon.delegate("one", "echo next")["id"]
    marker.appears()

    assert daemon.cancel(hung)["status"] == "cancelled"
    assert daemon.wait_one(behind)["status"] == "completed"
    assert marker.alive() == []


def test_b146_a_plain_stop_does_not_wait_for_what_does_not_listen(daemon: Daemon, marker: Marker) -> None:
    """B-146, as our contract has it: SIGTERM takes the grace at most, exit code 0, and leaves the worker to the next
    daemon: its row stays `running` and true, and the next daemon can end it, by force.
    """
    daemon.configure(config(shutdown_grace="1s", kill_grace="1s"))
    daemon.start()
    task_id = daemon.delegate("sh", f'trap "" TERM; echo ready; sleep {marker}')["id"]
    wrote(daemon, task_id, b"ready")
    worker = until(lambda: rows.task(daemon.home, task_id).worker, "its worker is not recorded")
    assert daemon.process is not None

    began = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    status = daemon.process.wait(30)

    assert (status, time.monotonic() - began < 1 + 3) == (0, True)
    assert rows.task(daemon.home, task_id).status == "running"
    assert probe(worker) is Liveness.ALIVE

    assert daemon.start()["recovery"]["adopted"] == 1
    answer = daemon.cancel(task_id)
    assert (answer["status"], answer["leftovers"]["left"]) == ("cancelled", [])
    assert answer["leftovers"]["killed"] >= 1
    assert marker.alive() == []


def test_b146_a_stop_with_cancel_ends_what_does_not_listen(daemon: Daemon, marker: Marker) -> None:
    """B-146: `stop --cancel` is over within the grace and a little; the row is terminal and no process is left."""
    daemon.configure(config(shutdown_grace="1s", kill_grace="1s"))
    daemon.start()
    task_id = daemon.delegate("sh", f'trap "" TERM; echo ready; sleep {marker}')["id"]
    wrote(daemon, task_id, b"ready")

    began = time.monotonic()
    daemon.stop(cancel=True)

    assert time.monotonic() - began < 1 + 1 + 3
    assert rows.task(daemon.home, task_id).status == "cancelled"
    assert rows.task(daemon.home, task_id).cleanup == "done"
    assert marker.alive() == []
