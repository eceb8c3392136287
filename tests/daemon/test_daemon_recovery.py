"""Restarts as users meet them: what is left of the work, of the waiting, and of stale files (K5, K6)."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from harness import rows
from harness.daemon import Daemon, NotStarted, until
from harness.fixtures import Ran
from harness.invariants import processes_of

SLEEP = "exec sleep 600"


def _worker(daemon: Daemon, task_id: str) -> int:
    pid: int = until(lambda: rows.task(daemon.home, task_id).worker_pid, "its worker is not recorded")
    return pid


def _connected(pid: int) -> bool:
    """Whether that client has its connection: from then on a dead daemon is one that it waits for."""
    with contextlib.suppress(FileNotFoundError):
        return any(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:") for fd in os.listdir(f"/proc/{pid}/fd"))
    return False


def test_a_second_daemon_is_refused_and_told_the_pid(daemon: Daemon, another: Daemon) -> None:
    """One home, one daemon: the second exits with 5, names the first, and disturbs nothing of it."""
    daemon.start()
    task_id = daemon.delegate("sh", "sleep 0.5; echo hello")["id"]

    with pytest.raises(NotStarted) as refused:
        another.start(exec=True)

    assert refused.value.code == "daemon_already_running"
    assert str(daemon.pid) in refused.value.error["message"]
    assert refused.value.error["exit"] == 5
    assert another.died() == 5
    assert daemon.wait_one(task_id)["status"] == "completed"


def test_a_dead_keeper_takes_no_work_with_it(daemon: Daemon, ran: Ran) -> None:
    """The process that starts programs is killed while some run: they run on, their ends are still known, new work
    starts under another keeper, and no process is left."""
    daemon.start()
    kept = [daemon.delegate("sh", f"sleep 1; echo {n}; exit {n}")["id"] for n in (0, 3)]
    endless = daemon.delegate("sh", SLEEP)["id"]
    for task_id in (*kept, endless):
        _worker(daemon, task_id)
    keeper = daemon.keeper

    os.kill(keeper, signal.SIGKILL)
    until(lambda: daemon.keeper != keeper, "there is no other keeper")
    after = daemon.delegate("sh", "echo hello", wait=True)
    good, bad = daemon.wait(*kept)

    assert after["status"] == "completed"
    assert (good["status"], bad["status"], bad["exit_code"]) == ("completed", "failed", 3)
    assert daemon.result(kept[1]) == b"3\n"
    assert daemon.cancel(endless)["outcome"] == "cancelled"
    assert processes_of(daemon.home) == {}


def test_keepers_that_are_killed_again_and_again(daemon: Daemon) -> None:
    """Work that is submitted while keepers die ends, well or with a reason, and is never run twice."""
    daemon.start()
    ids = []
    for _ in range(5):
        ids += [daemon.delegate("sh", "echo hello")["id"] for _ in range(4)]
        with contextlib.suppress(ProcessLookupError):  # the one before is still being replaced
            os.kill(daemon.keeper, signal.SIGKILL)
        ids += [daemon.delegate("sh", "echo hello")["id"] for _ in range(4)]

    tasks = daemon.wait(*ids)

    for task in tasks:
        assert task["status"] in ("completed", "failed"), task
        if task["status"] == "completed":
            assert daemon.result(task["id"]) == b"hello\n"
        else:
            assert task["error"]["code"] in ("keeper_lost", "exit_unknown"), task
    assert daemon.delegate("sh", "echo hello", wait=True)["status"] == "completed"
