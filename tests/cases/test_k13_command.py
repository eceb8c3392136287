"""K13: what the command line promises to scripts."""

from __future__ import annotations

import os
import signal

from scenes import Gate, Marker, command, pawl, said

from harness import rows
from harness.daemon import Daemon, until
from pawl.runner.identity import Liveness, ProcessIdentity, probe


def test_b126_the_exit_of_wait_is_the_outcome(daemon: Daemon, gate: Gate, marker: Marker) -> None:
    """B-126: `pawl wait` exits 0 for `completed` only. Whatever ended badly is 1, and its JSON tells the one from the
    other; its own time over is 124, and leaves the task as it is.
    """
    daemon.start()
    completed = daemon.delegate("sh", "exit 0")["id"]
    failed = daemon.delegate("sh", "exit 3")["id"]
    cancelled = daemon.delegate("sh", "exec sleep 600")["id"]
    timed_out = daemon.delegate("sh", "exec sleep 600", timeout_s=0.2)["id"]
    lost = daemon.delegate("sh", f"exec sleep {marker}")["id"]
    waiting = daemon.delegate("sh", gate.wait)["id"]
    daemon.cancel(cancelled)
    daemon.wait(completed, failed, timed_out)
    worker: ProcessIdentity = until(lambda: rows.task(daemon.home, lost).worker, "its worker is not recorded")
    daemon.kill()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: probe(worker) is Liveness.GONE, "the worker does not die")
    daemon.start()

    ended = {"completed": completed, "failed": failed, "cancelled": cancelled, "timed_out": timed_out, "lost": lost}
    for status, task_id in ended.items():
        plain, document = pawl(daemon.home, "wait", task_id), pawl(daemon.home, "wait", task_id, "--json")
        assert plain.status == document.status == (0 if status == "completed" else 1), status
        assert document.json["status"] == status
        assert status in plain.out.decode()
    assert pawl(daemon.home, "wait", *ended.values()).status == 1

    before = daemon.get(waiting)
    over = pawl(daemon.home, "wait", waiting, "--timeout", "1s", "--json")
    assert (over.status, over.error["code"]) == (124, "wait_timeout")
    assert daemon.get(waiting) == before | {"heartbeat_at": daemon.get(waiting)["heartbeat_at"]}

    waiter = command(daemon.home, "wait", waiting)
    gate.open()
    assert said(waiter).status == 0
    assert pawl(daemon.home, "wait", "00000000-0000-7000-8000-000000000000").status == 4
