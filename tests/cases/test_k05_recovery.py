"""K5: recovery after a crash or a restart."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from scenes import Gate, Marker, command, config, pawl, said

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran
from pawl.runner.identity import Liveness, ProcessIdentity, probe


def _worker(daemon: Daemon, task_id: str) -> ProcessIdentity:
    found: ProcessIdentity = until(lambda: rows.task(daemon.home, task_id).worker, "its worker is not recorded")
    return found


def _kill(worker: ProcessIdentity) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: probe(worker) is Liveness.GONE, "the worker does not die")


@pytest.mark.parametrize("keeper", ["alive", "dead"])
def test_b053_work_that_died_with_its_daemon_is_lost_and_frees_its_slot(
    daemon: Daemon, marker: Marker, keeper: str
) -> None:
    """B-053: daemon and worker are killed; the next daemon says `lost`, why and when, at once, and the slot is free.

    A signal from outside while no daemon watched proves nothing about the work, with or without an exit record.
    """
    daemon.configure(config(max_concurrent=1))
    daemon.start()
    task_id = daemon.delegate("sh", f"exec sleep {marker}")["id"]
    worker = _worker(daemon, task_id)
    keeper_pid = daemon.keeper
    daemon.kill()
    if keeper == "dead":
        os.kill(keeper_pid, signal.SIGKILL)
    _kill(worker)

    began = time.monotonic()
    daemon.start()
    task = daemon.wait_one(task_id, timeout_s=5)

    assert time.monotonic() - began < 5
    assert task["status"] == "lost"
    assert task["finished_at"] is not None
    assert task["error"]["code"] == "lost"
    assert "restart" in task["error"]["message"]
    assert daemon.wait_one(daemon.delegate("sh", "echo next")["id"])["status"] == "completed"
    assert marker.alive() == []


def test_b055_a_plain_stop_leaves_the_work_to_the_next_daemon_and_says_so(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """B-055, as our contract has it: SIGTERM ends the daemon and not the work. The row stays `running`, its worker
    lives, the stop names it, and the next daemon takes it over: nothing is left in a state that nobody answers for.
    """
    daemon.start()
    task_id = daemon.delegate("sh", f'echo ran >> "$OUT"; {gate.wait}; echo done', env=ran.env)["id"]
    worker = _worker(daemon, task_id)
    assert daemon.process is not None

    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    left = rows.task(daemon.home, task_id)
    stopped = rows.query(daemon.home, "SELECT details FROM event WHERE event = 'stopped'")[-1][0]

    assert left.status == "running"
    assert left.worker == worker
    assert probe(worker) is Liveness.ALIVE
    assert json.loads(stopped) == {"left_running": [task_id]}

    recovery = daemon.start()["recovery"]
    adopted = daemon.get(task_id)
    gate.open()
    task = daemon.wait_one(task_id)

    assert (recovery["adopted"], recovery["lost"]) == (1, 0)
    assert (adopted["status"], adopted["worker"]["pid"]) == ("running", worker.pid)
    assert (task["status"], daemon.result(task_id)) == ("completed", b"done\n")
    assert ran.lines == ["ran"]


def test_b055_the_stop_command_names_what_it_leaves(daemon: Daemon, marker: Marker) -> None:
    """B-055: `pawl daemon stop` lists the tasks that run on; `stop --cancel` leaves none."""
    daemon.start()
    task_id = daemon.delegate("sh", f"exec sleep {marker}")["id"]
    marker.appears()

    plain = pawl(daemon.home, "daemon", "stop", "--json")
    alive = marker.alive()
    daemon.start()
    cancelling = pawl(daemon.home, "daemon", "stop", "--cancel", "--json")

    assert (plain.status, plain.json["left"], bool(alive)) == (0, [task_id], True)
    assert (cancelling.status, cancelling.json["left"], marker.alive()) == (0, [], [])


def test_b055_a_stop_with_cancel_leaves_a_terminal_row_and_no_process(daemon: Daemon, marker: Marker) -> None:
    """B-055: after `stop --cancel` the row is `cancelled` with the stop as its reason while no daemon runs, nothing is
    left alive, and the next start does not change it.
    """
    daemon.start()
    task_id = daemon.delegate("sh", f"sleep {marker}; echo never")["id"]
    marker.appears()

    daemon.stop(cancel=True)
    down = rows.task(daemon.home, task_id)

    assert down.status == "cancelled"
    assert "stopped" in (down.error_message or "")
    assert marker.alive() == []

    daemon.start()
    assert rows.task(daemon.home, task_id) == down
    assert rows.ends_of(daemon.home, task_id) == ["cancelled"]


def test_b061_a_waiter_goes_on_through_a_crash_with_the_work(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """B-061, as our contract has it: the worker outlives its daemon and is adopted, so a waiter that lost the daemon
    in the middle waits on with the next one and hears how the work really ended.
    """
    daemon.start()
    task_id = daemon.delegate("sh", f'echo ran >> "$OUT"; {gate.wait}; echo done', env=ran.env)["id"]
    _worker(daemon, task_id)
    waiter = command(daemon.home, "wait", task_id, "--json")
    until(lambda: len(_connections(daemon)) > 0, "the waiter has not come")

    daemon.kill()
    recovery = daemon.start()["recovery"]
    gate.open()
    heard = said(waiter, 20)

    assert recovery["adopted"] == 1
    assert (heard.status, heard.json["status"], heard.json["id"]) == (0, "completed", task_id)
    assert ran.lines == ["ran"]


def test_b061_a_waiter_hears_that_the_work_was_lost(daemon: Daemon, marker: Marker) -> None:
    """B-061: where the worker died with its daemon, the waiter ends within seconds of the start, non-zero, with
    `lost`; what was asked can still be read, to be sent again.
    """
    daemon.start()
    prompt = f"exec sleep {marker}"
    task_id = daemon.delegate("sh", prompt)["id"]
    worker = _worker(daemon, task_id)
    waiter = command(daemon.home, "wait", task_id, "--json")
    until(lambda: len(_connections(daemon)) > 0, "the waiter has not come")

    daemon.kill()
    _kill(worker)
    daemon.start()
    heard = said(waiter, 10)

    assert (heard.status, heard.json["status"]) == (1, "lost")
    shown = pawl(daemon.home, "status", task_id, "--json")
    assert (shown.json["agent"], shown.json["prompt"]) == ("sh", prompt)


def _connections(daemon: Daemon) -> list[str]:
    """The connections to the daemon's socket, as the kernel lists them."""
    with open("/proc/net/unix") as file:
        lines = [line.split() for line in file if daemon.home.socket in line]
    return [words[6] for words in lines if words[5] == "03"]  # connected
