"""K11: the database in operation."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scenes import TERMINAL, config, pawl, wrote

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, NotStarted, until
from pawl.home import Home
from pawl.storage.database import newest_version, read_only_uri

BY_COMMAND, BY_SOCKET = 10, 40  # of each of the eight: a command costs a process


def test_b105_parallel_load_is_never_told_of_a_lock(daemon: Daemon) -> None:
    """B-105: eight submit fifty tasks each (ten of them with the real command) while eight look at the status over and
    over, with four slots: every submission is taken, every task ends, and nobody hears of a locked database.
    """
    daemon.configure(config(max_concurrent=4))
    daemon.start()
    over = threading.Event()

    def submit(number: int) -> list[str]:
        heard = []
        with daemon.connect() as connection:
            for each in range(BY_SOCKET):
                connection.call("task.delegate", agent="echo", prompt=f"{number}.{each}")
                if each % (BY_SOCKET // BY_COMMAND) == 0:
                    ran = pawl(daemon.home, "delegate", "echo", f"{number}.{each}")
                    heard.append(f"{ran.status} {ran.err}")
        return heard

    def look(command_too: bool) -> list[str]:
        heard = []
        with daemon.connect() as connection:
            while not over.is_set():
                connection.call("daemon.status")
                connection.call("task.list", limit=20)
                if command_too:
                    ran = pawl(daemon.home, "status")
                    heard.append(f"{ran.status} {ran.err}")
        return heard

    with ThreadPoolExecutor(16) as pool:
        looking = [pool.submit(look, each == 0) for each in range(8)]
        submitting = [pool.submit(submit, each) for each in range(8)]
        heard = [line for each in submitting for line in each.result(90)]
        over.set()
        heard += [line for each in looking for line in each.result(30)]

    assert set(heard) == {"0 "}
    ids = [task.id for task in rows.tasks(daemon.home)]
    assert len(ids) == 8 * (BY_COMMAND + BY_SOCKET)
    assert {task["status"] for task in daemon.wait(*ids)} == {"completed"}
    assert "locked" not in daemon.log()


def test_b109_a_full_disk_refuses_new_work_and_loses_none(small_disk: Callable[[str], Path]) -> None:
    """B-109: 32 MiB, filled while three tasks run. A submission is refused in words (also by the command), the daemon
    stays and answers; when there is space again the three end by themselves, without a restart.
    """
    disk = small_disk("32m")
    daemon = Daemon(Home(str(disk / "h")))
    daemon.start()
    try:
        pid = daemon.pid
        go, ready = disk / "go", disk / "ready"
        ready.touch()
        prompt = f"echo before; until [ -e {go} ]; do sleep 0.05; done; echo after"
        ids = [daemon.delegate("sh", prompt)["id"] for _ in range(3)]
        for each in ids:
            wrote(daemon, each, b"before")
        ballast = _fill(disk)

        with pytest.raises(Refused) as refused:
            _delegate_until_refused(daemon)
        shown = pawl(daemon.home, "delegate", "echo", "x" * 5000)
        status = pawl(daemon.home, "status", "--json")

        assert (refused.value.code, refused.value.exit) == ("disk_full", 1)
        assert shown.status == 1
        assert "disk is full" in shown.err
        assert (status.status, status.json["daemon"]["pid"]) == (0, pid)
        assert status.json["tasks"]["running"] == 3

        ready.rename(go)
        ballast.unlink()
        for task in daemon.wait(*ids):  # whose last word found no space in time says so with its exit code
            wanted = {"completed": b"before\nafter\n", "failed": b"before\n"}
            assert daemon.result(task["id"]) == wanted[task["status"]]
        assert daemon.pid == pid
        assert daemon.wait_one(daemon.delegate("sh", "true")["id"])["status"] == "completed"
    finally:
        daemon.close()


def _delegate_until_refused(daemon: Daemon) -> None:
    """The write-ahead log has some room of its own."""
    for _ in range(2000):
        daemon.delegate("echo", "x" * 5000)


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


def _stamp(path: str, version: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_b112_a_database_of_a_newer_version_is_left_as_it_is(daemon: Daemon) -> None:
    """B-112: the daemon refuses it and names both versions, however it is started; every other command finds no daemon
    and fails too; and not a byte of the file is changed.
    """
    daemon.checked = False  # it cannot be started any more
    daemon.start()
    task_id = daemon.wait_one(daemon.delegate("echo", "x")["id"])["id"]
    daemon.stop()
    known, path = newest_version(), daemon.home.database
    _stamp(path, known + 1)
    digest = _digest(path)

    with pytest.raises(NotStarted) as refused:
        daemon.start()
    assert refused.value.code == "database_newer"
    versions = f"has schema version {known + 1}, this Pawl knows {known}"
    assert versions in str(refused.value)
    for words in (["daemon", "start"], ["daemon", "run"], ["daemon", "restart"]):
        ran = pawl(daemon.home, *words)
        assert (ran.status, ran.out) == (1, b""), words
        assert versions in ran.err, words
    for words in (
        ["status"], ["status", task_id], ["list"], ["delegate", "echo", "y"], ["result", task_id], ["logs", task_id],
        ["wait", task_id, "--timeout", "1s"], ["cancel", task_id], ["agent", "list"], ["agent", "show", "echo"],
        ["events"], ["config", "reload"], ["daemon", "status"], ["daemon", "stop"],
    ):  # fmt: skip
        ran = pawl(daemon.home, *words)
        assert (ran.status, ran.out) == (3, b""), words
        assert f"schema version {known + 1}, this Pawl knows {known}" in ran.err, words

    assert _digest(path) == digest
    _stamp(path, known)  # the same file is good for the version that made it
    daemon.checked = True
    daemon.start()
    assert daemon.get(task_id)["status"] == "completed"


def test_b112_the_check_up_finds_a_database_of_a_newer_version(daemon: Daemon) -> None:
    """B-112: `pawl doctor` says that the daemon will not start with it, and why."""
    daemon.start()
    daemon.stop()
    known, path = newest_version(), daemon.home.database
    _stamp(path, known + 1)
    digest = _digest(path)

    ran = pawl(daemon.home, "doctor", "--json")
    kept = _digest(path)
    _stamp(path, known)

    assert kept == digest
    assert "error" in {each["severity"] for each in ran.json["findings"] if each["subject"] == path}


def test_b114_a_damaged_database_is_refused_with_the_way_out(daemon: Daemon) -> None:
    """B-114: 4 KiB in the middle are overwritten: the daemon refuses within seconds, the message names the file and
    says what to do, and the file is left as it is. Moved aside as the message says, the daemon starts.
    """
    daemon.start()
    for _ in range(50):
        daemon.delegate("echo", "x" * 3000)
    until(lambda: {task.status for task in rows.tasks(daemon.home)} == {"completed"}, "not all have ended")
    daemon.stop()
    path = Path(daemon.home.database)
    data = path.read_bytes()
    middle = len(data) // 2 // 4096 * 4096
    path.write_bytes(data[:middle] + b"\xa5" * 4096 + data[middle + 4096 :])
    digest = _digest(str(path))

    began = time.monotonic()
    ran = pawl(daemon.home, "daemon", "run")

    assert time.monotonic() - began < 20
    assert ran.status == 1
    assert str(path) in ran.err
    assert "backup" in ran.err
    assert "aside" in ran.err
    assert _digest(str(path)) == digest

    for name in ("", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)
    daemon.start()
    assert daemon.call("task.list") == []


@pytest.fixture
def elsewhere() -> Iterator[Home]:
    path = tempfile.mkdtemp(prefix="pw", dir="/tmp")
    yield Home(path)
    shutil.rmtree(path)


def test_b114_a_half_copied_database_is_refused_or_sound(daemon: Daemon, elsewhere: Home) -> None:
    """B-114: only the main file of a live database is copied. SQLite cannot tell such a copy from an older, whole
    database; so it is refused with the way out, or it is sound as it stands, and what it says of tasks is a part of
    the truth. It is never repaired by guessing. (There is no verb for a backup yet.)
    """
    daemon.start()
    for _ in range(50):
        daemon.delegate("echo", "x" * 3000)
    until(lambda: {task.status for task in rows.tasks(daemon.home)} == {"completed"}, "not all have ended")
    elsewhere.prepare()
    shutil.copyfile(daemon.home.database, elsewhere.database)
    Path(elsewhere.database).chmod(0o600)
    shutil.copytree(daemon.home.artifacts, elsewhere.artifacts, dirs_exist_ok=True)
    truth = {task.id: task for task in rows.tasks(daemon.home)}

    other = Daemon(elsewhere)
    other.checked = False
    try:
        refusal = _refusal(other)
        if refusal is None:
            with sqlite3.connect(read_only_uri(elsewhere.database), uri=True) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            for task in other.call("task.list", all=True):
                assert task["id"] in truth
                assert task["status"] in TERMINAL
        else:
            assert refusal.code == "database_damaged"
            assert elsewhere.database in str(refusal)
    finally:
        other.close()


def _refusal(daemon: Daemon) -> NotStarted | None:
    try:
        daemon.start()
    except NotStarted as refused:
        return refused
    return None
