"""A store that is full, read-only or slow to come back: new work is refused, questions are answered, truth is kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, NotStarted, until
from pawl.home import Home

Mount = Callable[[str], Path]


def _fill(disk: Path) -> Path:
    """Take every byte that is left."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return ballast


@pytest.fixture
def disk(small_disk: Mount) -> Path:
    return small_disk("32m")


def test_line_38_b109_the_disk_is_full_when_the_bytes_are_written(disk: Path) -> None:
    """Nothing is published and nothing is lost: the tasks stay running until there is space, and complete then."""
    daemon = Daemon(Home(str(disk / "h")))
    daemon.start()
    try:
        go = disk / "go"
        prompt = f"echo before; until [ -e {go} ]; do sleep 0.05; done; exit 0"
        ids = [daemon.delegate("sh", prompt)["id"] for _ in range(3)]
        until(lambda: all(_wrote(daemon, each) for each in ids), "not all ran")
        go_later = disk / "go_later"
        go_later.touch()
        ballast = _fill(disk)
        go_later.rename(go)

        with pytest.raises(Refused) as refused:
            _delegate_much(daemon)
        overview = daemon.call("daemon.status")

        assert refused.value.code == "disk_full"
        assert "disk is full" in refused.value.message
        assert {"disk_nearly_full"} <= {each["code"] for each in overview["findings"]}

        ballast.unlink()
        assert [task["status"] for task in daemon.wait(*ids)] == ["completed"] * 3
        assert all(daemon.result(each) == b"before\n" for each in ids)
        assert daemon.wait_one(daemon.delegate("echo", "again")["id"])["status"] == "completed"
    finally:
        daemon.close()


def test_line_38_death_on_a_full_disk(disk: Path) -> None:
    """Killed while the disk is full, started while it is full, started again when there is space: each row ends."""
    daemon = Daemon(Home(str(disk / "h")))
    daemon.start()
    try:
        task_id = daemon.delegate("sh", "echo before; sleep 0.5; echo after")["id"]
        until(lambda: _wrote(daemon, task_id), "it never ran")
        worker = until(lambda: rows.task(daemon.home, task_id).worker_pid, "its worker is not recorded")
        daemon.kill()
        ballast = _fill(disk)
        until(lambda: not _alive(worker), "it never ended")  # a reader of the database may want space of its own
        assert _start(daemon) in ("ready", "disk_full")
        daemon.kill()
        assert rows.task(daemon.home, task_id).status == "running"

        ballast.unlink()
        daemon.start()

        # the keeper's record waits for space too; where it could not, nobody knows how the work ended
        assert daemon.wait_one(task_id)["status"] in ("completed", "failed", "lost")
        assert rows.ends_of(daemon.home, task_id) == [rows.task(daemon.home, task_id).status]
    finally:
        daemon.close()


def _start(daemon: Daemon) -> str:
    """Start it: ready, or the code of its refusal."""
    try:
        daemon.start()
    except NotStarted as refused:
        return refused.code
    return "ready"


def _delegate_much(daemon: Daemon) -> None:
    """The write-ahead log has room of its own for a while."""
    for _ in range(2000):
        daemon.delegate("echo", "x" * 5000)


def _wrote(daemon: Daemon, task_id: str) -> int:
    path = daemon.spool(task_id) / "stdout"
    return path.stat().st_size if path.exists() else 0


def _alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_line_39_a_read_only_home_refuses_the_daemon(disk: Path) -> None:
    """It does not start and says why; nothing is put anywhere else."""
    daemon = Daemon(Home(str(disk / "h")))
    daemon.start()
    try:
        daemon.wait_one(daemon.delegate("echo", "x")["id"])
        daemon.stop()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        command = [sys.executable, "-m", "pawl.daemon", "--home", daemon.home.path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode != 0
        assert "read-only" in done.stderr.lower()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        daemon.close()
