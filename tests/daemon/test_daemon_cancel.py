"""Cancelling, and the process trees that it ends (K7, K8)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import psutil

from harness import rows
from harness.daemon import Daemon

_ROUNDS = int(os.environ.get("PAWL_CANCEL_ROUNDS", "50"))  # B-080 asks for 300


def _marker(number: int) -> str:
    """An argument of ``sleep`` that no other test run on this machine uses."""
    return f"{number}.{os.getpid()}"


def _with(marker: str) -> list[int]:
    """Living processes that have the marker in their arguments and are no shell that merely mentions it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if marker in words and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _zombies(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_cancel_from_many_clients_has_one_winner(daemon: Daemon) -> None:
    """Twenty cancel the same task: one says cancelled, the others that it was already."""
    daemon.start()
    task_id = daemon.delegate("sh", "exec sleep 600")["id"]

    with ThreadPoolExecutor(20) as threads:
        outcomes = sorted(threads.map(lambda _: daemon.cancel(task_id)["outcome"], range(20)))

    assert outcomes == ["already_cancelled"] * 19 + ["cancelled"]
    assert rows.ends_of(daemon.home, task_id) == ["cancelled"]
