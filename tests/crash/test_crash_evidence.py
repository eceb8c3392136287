"""What lies in a spool is evidence only while it is whole, of this task and of this worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashing import worker_of

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate
from harness.invariants import processes_of

Spoil = Callable[[Path], Any]


def _change(**fields: Any) -> Spoil:
    """The exit record with other fields; a field that is ``...`` is left out."""

    def spoil(spool: Path) -> None:
        record = json.loads((spool / "exit").read_text()) | fields
        kept = {name: value for name, value in record.items() if value is not ...}
        (spool / "exit").write_text(json.dumps(kept) + "\n")

    return spoil


def _text(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda spool: (spool / "exit").write_bytes(change((spool / "exit").read_bytes()))


def _directory(spool: Path) -> None:
    (spool / "exit").unlink()
    (spool / "exit").mkdir()


_RECORDS: dict[str, tuple[Spoil, str]] = {
    "whole": (lambda spool: None, "completed"),
    "gone": (lambda spool: (spool / "exit").unlink(), "lost"),
    "empty": (_text(lambda text: b""), "lost"),
    "torn": (_text(lambda text: text[: len(text) // 2]), "lost"),
    "without its end": (_text(lambda text: text[:-1]), "lost"),
    "twice": (_text(lambda text: text + text), "lost"),
    "zeros, as after a power cut": (_text(lambda text: bytes(len(text))), "lost"),
    "not UTF-8": (_text(lambda text: b"\xff" + text), "lost"),
    "a list": (_text(lambda text: b"[]\n"), "lost"),
    "deeply nested": (_text(lambda text: b"[" * 100_000 + b"\n"), "lost"),
    "a directory": (_directory, "lost"),
    "of another task": (_change(task="0190c0de-0000-7000-8000-000000000000"), "lost"),
    "of another process": (_change(pid=1), "lost"),
    "of an earlier process of that pid": (_change(start="1"), "lost"),
    "code as text": (_change(code="0"), "lost"),
    "code as truth": (_change(code=False), "lost"),
    "code too large": (_change(code=256), "lost"),
    "code and signal": (_change(signal=9), "lost"),
    "neither": (_change(code=None), "lost"),
    "a size below zero": (_change(stdout_bytes=-1), "lost"),
    "a field more": (_change(more=1), "lost"),
    "a field less": (_change(cpu_s=...), "lost"),
    "an endless time": (_change(cpu_s=float("inf")), "lost"),
    "a size larger than the file": (_change(stdout_bytes=7), "failed"),
    "a huge size": (_change(stdout_bytes=2**62), "failed"),
    "an error size larger than the file": (_change(stderr_bytes=7), "failed"),
    "of an output that was removed": (_change(stdout_bytes=None), "failed"),
    "with an output cut since": (lambda spool: os.truncate(spool / "stdout", 5), "failed"),
    "with an output removed since": (lambda spool: (spool / "stdout").unlink(), "failed"),
    "with an output grown since": (lambda spool: (spool / "stdout").write_bytes(b"hello\nforged\n"), "completed"),
    "of a task whose spool is gone": (
        lambda spool: [path.rename(spool.parent.parent / f"gone-{spool.name}") for path in (spool,)],
        "lost",
    ),
}


def test_exit_records_that_are_torn_forged_or_contradicted(daemon: Daemon, ran: Ran) -> None:
    """A record that is not exactly one, or not of this task and worker, proves nothing: lost. One that its files
    contradict is no success: failed. What was written behind the recorded size is no output."""
    daemon.start()
    ids = {name: daemon.delegate("sh", f"{gate()}; echo hello", env=ran.env)["id"] for name in _RECORDS}
    for task_id in ids.values():
        worker_of(daemon, task_id)
    daemon.kill()
    ran.go()
    until(lambda: all((daemon.spool(each) / "exit").exists() for each in ids.values()), "not all ended")
    for name, (spoil, _) in _RECORDS.items():
        spoil(daemon.spool(ids[name]))

    daemon.start()
    daemon.wait(*ids.values())
    found = {name: daemon.get(task_id) for name, task_id in ids.items()}

    assert {name: task["status"] for name, task in found.items()} == {n: status for n, (_, status) in _RECORDS.items()}
    assert {task["error"]["code"] for task in found.values() if task["status"] == "failed"} == {"output_altered"}
    assert {task["error"]["code"] for task in found.values() if task["status"] == "lost"} == {"lost"}
    for name in ("whole", "with an output grown since"):
        assert daemon.result(ids[name]) == b"hello\n"
    assert all(len(rows.ends_of(daemon.home, task_id)) == 1 for task_id in ids.values())


_MARKS: dict[str, Spoil] = {
    "whole": lambda spool: None,
    "empty": lambda spool: (spool / "worker").write_bytes(b""),
    "torn": lambda spool: os.truncate(spool / "worker", 20),
    "garbage": lambda spool: (spool / "worker").write_bytes(os.urandom(64)),
    "of a stranger": lambda spool: (spool / "worker").write_text("claimed 1 1 x\n\nlaunched 1 1 x\n"),
    "barred": lambda spool: (spool / "worker").write_text("barred\n"),
    "gone": lambda spool: (spool / "worker").unlink(),
}


@pytest.mark.parametrize("alive", [True, False], ids=["worker lives", "worker is gone"])
def test_launch_marks_that_are_torn_or_forged(daemon: Daemon, ran: Ran, alive: bool) -> None:
    """The row names the worker: whatever the mark in the spool says by now, a living worker is adopted, one that ended
    is known by its record, and no process is left behind."""
    daemon.start()
    ids = {name: daemon.delegate("sh", f"{gate()}; echo hello", env=ran.env)["id"] for name in _MARKS}
    for task_id in ids.values():
        worker_of(daemon, task_id)
    daemon.kill()
    if not alive:
        ran.go()
        until(lambda: all((daemon.spool(each) / "exit").exists() for each in ids.values()), "not all ended")
    for name, spoil in _MARKS.items():
        spoil(daemon.spool(ids[name]))

    ready = daemon.start()
    ran.go()
    found = dict(zip(ids, daemon.wait(*ids.values()), strict=True))

    assert ready["recovery"]["adopted" if alive else "finished"] == len(_MARKS)
    forged = found.pop("of a stranger")  # whoever is to write its record is said to be gone: it may not be waited for
    assert forged["status"] == "completed" or (alive and forged["error"]["code"] == "exit_unknown")
    assert {task["status"] for task in found.values()} == {"completed"}
    assert processes_of(daemon.home) == {}


def test_workers_that_nobody_recorded_are_found(daemon: Daemon, ran: Ran) -> None:
    """Neither row nor mark names the worker, and it lives: it is found by the task's id in its environment, and
    adopted, not called lost and left behind."""
    daemon.start()
    task_id = daemon.delegate("sh", f"{gate()}; echo hello", env=ran.env)["id"]
    pid = worker_of(daemon, task_id)
    daemon.kill()
    (daemon.spool(task_id) / "worker").write_bytes(b"")
    rows.edit(daemon.home, "UPDATE task SET worker_pid = NULL, worker_start = NULL, worker_boot = NULL")

    daemon.start()

    assert daemon.get(task_id)["worker"]["pid"] == pid
    ran.go()
    assert daemon.wait_one(task_id)["status"] == "completed"
    assert daemon.result(task_id) == b"hello\n"


def test_a_row_of_an_earlier_boot_is_lost_whatever_lives(daemon: Daemon) -> None:
    """After a reboot the numbers mean nothing: owner and worker are gone though their PIDs live, and are left alone."""
    daemon.start()
    task_id = daemon.delegate("sh", "exec sleep 600")["id"]
    pid = worker_of(daemon, task_id)
    daemon.kill()
    os.kill(pid, signal.SIGKILL)
    until(lambda: (daemon.spool(task_id) / "exit").exists(), "it never ended")
    (daemon.spool(task_id) / "exit").unlink()
    rows.edit(
        daemon.home,
        "UPDATE task SET owner_pid = ?, owner_boot = 'earlier', worker_pid = ?, worker_boot = 'earlier'",
        os.getpid(), os.getpid(),
    )  # fmt: skip

    daemon.start()

    assert daemon.wait_one(task_id)["status"] == "lost"
