"""Time limits, heartbeats, stopping in time, and the clock that tests may move (K16)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, NotStarted
from harness.fixtures import Ran, gate

DEAF = 'trap "" TERM INT HUP; echo deaf; while :; do sleep 1; done'


def test_the_timeout_of_an_agent_is_the_default(daemon: Daemon) -> None:
    """A task without one has its agent's."""
    daemon.configure(CONFIG + '\n[agents.short]\ncommand = ["sleep", "600"]\ntimeout = "300ms"\n')
    daemon.start()

    assert daemon.delegate("short", "", wait=True)["status"] == "timed_out"
    assert daemon.delegate("sh", "true")["timeout_s"] == 3600


def test_a_stopping_daemon_takes_no_new_work(daemon: Daemon, ran: Ran) -> None:
    """It says so, answers questions as long as it is there, and lets what ends within the grace end well."""
    daemon.configure(CONFIG.replace('shutdown_grace = "1s"', 'shutdown_grace = "30s"'))
    daemon.start()
    task_id = daemon.delegate("sh", gate(), env=ran.env)["id"]
    with daemon.connect() as connection:
        connection.call("daemon.stop")

        with pytest.raises(Refused) as refused:
            connection.call("task.delegate", agent="echo", prompt="x")
        assert connection.call("daemon.status")["daemon"]["stopping"]
        assert connection.call("task.get", id=task_id)["status"] == "running"
        ran.go()

    assert daemon.died() == 0
    assert (refused.value.code, refused.value.exit) == ("daemon_stopping", 5)
    assert rows.task(daemon.home, task_id).status == "completed"


def test_work_that_is_queued_when_the_daemon_stops_stays_queued(daemon: Daemon, ran: Ran) -> None:
    """With and without ``--cancel``; the next daemon starts it."""
    daemon.start()
    daemon.delegate("one", "exec sleep 600")
    queued = daemon.delegate("one", 'echo ran >> "$OUT"', env=ran.env)["id"]

    daemon.stop(cancel=True)

    assert rows.task(daemon.home, queued).status == "queued"
    assert ran.lines == []
    daemon.start()
    assert daemon.wait_one(queued)["status"] == "completed"
    assert ran.lines == ["ran"]


# --- the test clock -------------------------------------------------------------------------------------------------


@pytest.fixture
def moved(daemon: Daemon) -> Daemon:
    """A home with a clock that moves, as ``pawl init --test-clock`` makes it."""
    os.unlink(daemon.home.config)
    done = daemon.pawl("init", "--test-clock")
    assert done.returncode == 0, done.stderr
    daemon.configure(CONFIG)
    return daemon


def test_the_clock_of_a_test_home_fires_a_timeout_of_an_hour_at_once(moved: Daemon) -> None:
    """An hour passes: within two seconds the task is timed out, and not a moment earlier."""
    moved.start()
    task_id = moved.delegate("sh", "exec sleep 600")["id"]
    Path(moved.home.clock_offset).write_text("3500")
    time.sleep(1)
    assert moved.get(task_id)["status"] == "running"

    Path(moved.home.clock_offset).write_text("3600")
    began = time.monotonic()
    task = moved.wait_one(task_id, timeout_s=7200)  # the same clock

    assert time.monotonic() - began < 2.5
    assert (task["status"], task["error"]["code"]) == ("timed_out", "timeout")
    assert task["finished_at"] > task["deadline_at"]


def test_the_clock_of_a_test_home_ends_queue_times(moved: Daemon) -> None:
    """They are wall times, and pass with both offsets."""
    moved.start()
    blocker = moved.delegate("one", "exec sleep 600", timeout_s=86_400)["id"]
    late = moved.delegate("one", "true", queue_timeout_s=1800)["id"]
    Path(moved.home.clock_offset).write_text("1801")

    assert moved.wait_one(late, timeout_s=5 + 1801)["error"]["code"] == "queue_timeout"
    assert moved.get(blocker)["status"] == "running"
    moved.cancel(blocker)


def test_a_wall_clock_that_is_set_moves_no_timeout(moved: Daemon) -> None:
    """Forward or back by a day: timeouts are monotonic."""
    moved.start()
    task_id = moved.delegate("sh", "sleep 2.2; echo hello", timeout_s=60)["id"]
    for offset in ("86400", "-86400"):
        Path(moved.home.wall_offset).write_text(offset)
        time.sleep(0.7)

    task = moved.wait_one(task_id)

    assert task["status"] == "completed"


def test_a_clock_offset_never_falls(moved: Daemon) -> None:
    """Time does not run backwards: a lower offset, garbage or no file at all changes nothing."""
    moved.start()
    Path(moved.home.clock_offset).write_text("1000")
    time.sleep(0.6)
    first = moved.delegate("echo", "x", wait=True)["created_at"]
    for text in ("10", "garbage", "-5", "nan", "inf", ""):
        Path(moved.home.clock_offset).write_text(text)
        time.sleep(0.55)
        assert moved.delegate("echo", "x", wait=True)["created_at"] > first


@pytest.mark.parametrize("name", ["clock-offset", "wall-offset"])
def test_another_home_refuses_such_a_file(daemon: Daemon, name: str) -> None:
    """It does not start beside it, so that nobody is fooled."""
    Path(daemon.home.run, name).write_text("0")
    daemon.checked = False

    with pytest.raises(NotStarted) as refused:
        daemon.start()

    assert refused.value.code == "home_refused"
    assert name in refused.value.error["message"]
