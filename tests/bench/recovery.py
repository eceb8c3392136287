"""Recovery of a home with 100,000 tasks of which 1,000 were running, beside the same home with none running."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time

from measure import Report

from harness.daemon import Daemon
from pawl.home import Home

ROWS = int(os.environ.get("PAWL_BENCH_ROWS", "100000"))
RUNNING = 1000


def run(report: Report, folder: str) -> None:
    for running in (0, RUNNING):
        daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)))
        daemon.start()
        daemon.stop()
        fill(daemon.home, ROWS, running)
        start = time.perf_counter()
        ready = daemon.start()
        name = f"start with {ROWS:,} rows, {running:,} to recover"
        report.add(name, (time.perf_counter() - start) * 1000, "ms")
        assert ready["recovery"]["lost"] == running, ready
        daemon.close()
    report.ratio(f"start with {ROWS:,} rows, {RUNNING:,} to recover", f"start with {ROWS:,} rows, 0 to recover")


def fill(home: Home, rows: int, running: int) -> None:
    """Write finished tasks, and running ones of an owner that is gone, spread evenly among them."""
    connection = sqlite3.connect(home.database)
    now = time.time_ns() // 1_000_000
    every = rows // running if running else rows + 1
    columns = (
        "id, kind, agent, status, created_at_ms, started_at_ms, finished_at_ms, timeout_ms, creator, prompt,"
        " owner_pid, owner_start, owner_boot, output_sha256, output_bytes"
    )
    sql = f"INSERT INTO task ({columns}) VALUES ({', '.join('?' * 15)})"
    gone = (2**22 + 1, "1", _boot())
    for at in range(rows):
        alive = running and at % every == 0 and at // every < running
        ended = (None, None) if alive else ("e" * 64, 0)
        values = (
            f"00000000-0000-7000-8000-{at:012x}", "delegate", "echo", "running" if alive else "completed", now, now,
            None if alive else now, 1000, "operator", b"x" * 100, *gone, *ended,
        )  # fmt: skip
        connection.execute(sql, values)
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _boot() -> str:
    from pawl.runner.identity import own_identity

    return own_identity().boot_id
