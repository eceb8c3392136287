"""K6: who owns a home and its rows: numbers are not identities."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scenes import Marker, config

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Stranger
from pawl.home import Home
from pawl.runner.identity import Liveness, ProcessIdentity, identity_of, probe


@pytest.mark.parametrize("form", ["json", "number", "text"])
def test_b063_a_stale_lock_file_keeps_nobody_out(daemon: Daemon, stranger: Callable[[], Stranger], form: str) -> None:
    """B-063: the lock file names a living program that is no daemon (or says nonsense): the daemon starts within
    seconds, says that it took over a stale record, and leaves the stranger alone.
    """
    alien = stranger()
    pid = alien.process.pid
    said = {"json": json.dumps({"pid": pid, "start": "1", "boot_id": "x"}), "number": f"{pid}\n", "text": "pid?"}[form]
    Path(daemon.home.lock).write_text(said)

    began = time.monotonic()
    ready = daemon.start()

    assert time.monotonic() - began < 10
    assert ready["pid"] == daemon.pid
    assert "took over a stale lock file" in daemon.log()
    assert json.loads(Path(daemon.home.lock).read_text())["pid"] == daemon.pid
    assert alien.process.poll() is None


@pytest.fixture
def other() -> Iterator[Daemon]:
    """A second daemon, at a home of its own."""
    path = tempfile.mkdtemp(prefix="pw", dir="/tmp")
    made = Daemon(Home(path))
    yield made
    try:
        made.close()
    finally:
        shutil.rmtree(path)


def test_b066_a_living_foreign_owner_keeps_its_row_and_a_dead_one_loses_it(
    daemon: Daemon, other: Daemon, marker: Marker
) -> None:
    """B-066: a running row whose owner is another living daemon is not touched by our recovery, pass after pass; as
    soon as that owner is dead, the next pass says `lost`.
    """
    other.start()
    task_id = _owned_by(daemon, other, marker)
    before = rows.task(daemon.home, task_id)

    daemon.start(bent="")
    daemon.beats(3)

    assert rows.task(daemon.home, task_id) == before
    assert "rows_kept" in {each["code"] for each in daemon.call("daemon.status")["findings"]}

    other.kill()
    assert daemon.wait_one(task_id)["status"] == "lost"
    assert rows.ends_of(daemon.home, task_id) == ["lost"]


def test_b066_an_owner_whose_start_cannot_be_read_is_not_robbed(daemon: Daemon, other: Daemon, marker: Marker) -> None:
    """B-066: where the system does not tell when the owner began, nothing is taken from it, and the log says why."""
    other.start()
    task_id = _owned_by(daemon, other, marker)
    before = rows.task(daemon.home, task_id)

    daemon.start(bent=f"blind={other.pid}")
    daemon.beats(3)

    assert rows.task(daemon.home, task_id) == before
    assert "kept a row of an unclear owner" in daemon.log()

    daemon.bend()  # it can be read again
    other.kill()
    assert daemon.wait_one(task_id)["status"] == "lost"


def _owned_by(daemon: Daemon, other: Daemon, marker: Marker) -> str:
    """Leave a running row in the home of ``daemon`` that belongs to ``other``; nobody works on it."""
    daemon.configure(config(heartbeat="250ms"))
    daemon.start()
    task_id: str = daemon.delegate("sh", f"exec sleep {marker}")["id"]
    worker: ProcessIdentity = until(lambda: rows.task(daemon.home, task_id).worker, "its worker is not recorded")
    keeper = daemon.keeper
    daemon.kill()
    for pid in (keeper, worker.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: probe(worker) is Liveness.GONE, "the worker does not die")
    owner = identity_of(other.pid)
    assert owner is not None
    rows.edit(daemon.home, "UPDATE task SET owner_pid = ?, owner_start = ?, owner_boot = ?", *owner)
    return task_id
