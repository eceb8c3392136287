"""Work and daemons that come and go: what outlives what, and what a restart must not change."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from crashing import QUICK, worker_of

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate


def test_a_long_run_through_three_kills(daemon: Daemon, ran: Ran) -> None:
    """A program runs on while its daemon is killed and started three times: one run, it completes, and no line of its
    output is missing, doubled or out of order."""
    daemon.start()
    lines = 'n=0; while [ ! -e "$OUT.end" ]; do n=$((n+1)); echo line $n; echo err $n >&2; sleep 0.05; done'
    task_id = daemon.delegate("sh", lines, env=ran.env)["id"]
    worker = worker_of(daemon, task_id)
    for _ in range(3):
        seen = len(daemon.logs(task_id).splitlines())
        until(lambda seen=seen: len(daemon.logs(task_id).splitlines()) > seen + 10, "it writes nothing")
        before = daemon.logs(task_id)
        daemon.kill()
        assert daemon.start()["recovery"]["adopted"] == 1
        assert daemon.get(task_id)["worker"]["pid"] == worker
        assert daemon.logs(task_id).startswith(before)

    Path(f"{ran.env['OUT']}.end").touch()
    task = daemon.wait_one(task_id, timeout_s=60)

    assert task["status"] == "completed"
    written = daemon.result(task_id).decode().splitlines()
    assert len(written) > 30
    assert written == [f"line {n}" for n in range(1, len(written) + 1)]
    errors = daemon.logs(task_id, "stderr").decode().splitlines()
    assert errors == [f"err {n}" for n in range(1, len(written) + 1)]
    assert rows.events_of(daemon.home, task_id).count("started") == 0  # it was started with its submission, and once
    assert rows.events_of(daemon.home, task_id).count("adopted") == 3


def test_slots_are_counted_right_after_recovery(daemon: Daemon, ran: Ran) -> None:
    """Rows that recovery adopts, settles or gives up take and give back their slots: no more run than may, and all
    that is queued gets its turn."""
    daemon.configure(QUICK.replace("max_concurrent = 32", "max_concurrent = 6"))
    daemon.start()
    alive = [daemon.delegate("sh", gate("later"), env=ran.env)["id"] for _ in range(2)]
    ended = [daemon.delegate("sh", gate("now"), env=ran.env)["id"] for _ in range(2)]
    dead = [daemon.delegate("sh", "exec sleep 600")["id"] for _ in range(2)]
    workers = {task_id: worker_of(daemon, task_id) for task_id in (*alive, *ended, *dead)}
    queued = [daemon.delegate("sh", _ALONE, env=ran.env)["id"] for _ in range(4)]
    daemon.kill()
    ran.go("now")
    for task_id in dead:
        os.kill(workers[task_id], signal.SIGKILL)
    until(lambda: all((daemon.spool(each) / "exit").exists() for each in (*ended, *dead)), "not all ended")
    daemon.configure(QUICK.replace("max_concurrent = 32", "max_concurrent = 1"))

    daemon.start()
    assert daemon.wait(*ended, *dead)
    ran.go("later")
    tasks = daemon.wait(*alive, *ended, *dead, *queued)

    assert [task["status"] for task in tasks] == ["completed"] * 4 + ["lost"] * 2 + ["completed"] * 4
    assert ran.lines == ["in", "out"] * 4, "two ran at once where one may"


_ALONE = 'echo in >> "$OUT"; sleep 0.1; echo out >> "$OUT"'


def test_queued_work_survives_and_keeps_its_order(daemon: Daemon, ran: Ran) -> None:
    """What waited for a slot waits on after a crash, and starts in the order of priority, then age."""
    daemon.start()
    first = daemon.delegate("one", "exec sleep 600")["id"]
    order = [("b", 0), ("c", 0), ("a", 5), ("d", -5)]
    ids = [daemon.delegate("one", f'echo {name} >> "$OUT"', env=ran.env, priority=p)["id"] for name, p in order]
    daemon.kill()
    daemon.start()
    assert [daemon.get(each)["status"] for each in (first, *ids)] == ["running"] + ["queued"] * 4

    assert daemon.cancel(first)["outcome"] == "cancelled"
    daemon.wait(*ids)

    assert ran.lines == ["a", "b", "c", "d"]


def test_retries_go_on_after_a_crash(daemon: Daemon, ran: Ran) -> None:
    """The next attempt is stored with the end of the one before: killed in between, it is neither lost nor doubled."""
    daemon.start(bent="")
    first = daemon.delegate("sh", 'echo ran >> "$OUT"; exit 3', env=ran.env, retries=2)["id"]
    until(lambda: len(rows.tasks(daemon.home)) == 3 and rows.tasks(daemon.home)[-1].ended, "it was not tried again")
    assert len(ran.lines) == 3
    daemon.wait_one(rows.tasks(daemon.home)[-1].id)  # all of it is over: the failpoint is for the next chain
    daemon.bend(failpoints="settle.after_commit=kill")
    with pytest.raises(ConnectionError):
        daemon.delegate("sh", 'echo ran >> "$OUT"; exit 3', env=ran.env, retries=2, wait=True)
    assert daemon.died() == -9

    daemon.start()
    chain = [task for task in until(lambda: _over(daemon, 6), "the chain stops")]

    assert [task.attempt for task in chain] == [1, 2, 3, 1, 2, 3]
    assert [task.retry_of for task in chain[1:3]] == [first, chain[1].id]
    assert len(ran.lines) == 6


def _over(daemon: Daemon, count: int) -> list[rows.Task]:
    found = rows.tasks(daemon.home)
    return found if len(found) == count and all(task.ended for task in found) else []


def test_recovery_of_many_rows_is_done_once_each(daemon: Daemon, ran: Ran) -> None:
    """A hundred rows of every sort: each ends once, and a second restart changes none of them."""
    daemon.configure(QUICK.replace("max_concurrent = 32", "max_concurrent = 100"))
    daemon.start(bent="")
    done = [daemon.delegate("sh", 'echo ran >> "$OUT"; echo hello', env=ran.env)["id"] for _ in range(30)]
    daemon.wait(*done)
    slow = [daemon.delegate("sh", f'echo ran >> "$OUT"; {gate()}; echo hello', env=ran.env)["id"] for _ in range(20)]
    for task_id in slow:
        worker_of(daemon, task_id)
    daemon.bend(hold="apply")
    promised = [daemon.delegate("echo", f"hello {n}")["id"] for n in range(30)]
    until(lambda: len(rows.intents(daemon.home)) == 30, "not all are promised")
    daemon.bend(hold="promise")
    lost = [daemon.delegate("echo", "hello")["id"] for _ in range(20)]
    daemon.kill()

    daemon.start()
    ran.go()
    daemon.wait(*done, *slow, *promised, *lost)
    before = rows.tasks(daemon.home)
    daemon.kill()
    daemon.start()

    status = {task.id: task.status for task in before}
    assert {status[each] for each in (*done, *slow)} == {"completed"}
    assert {status[each] for each in promised} <= {"completed", "failed"}  # failed: its bytes were not published yet
    assert {status[each] for each in lost} == {"lost"}
    assert rows.tasks(daemon.home) == before
    assert all(len(rows.ends_of(daemon.home, task.id)) == 1 for task in before)
    assert len(ran.lines) == 50
