"""The cost of a task with 1,000 rows in the table, and with a million."""

from __future__ import annotations

import os
import tempfile

from load import callers
from measure import Report
from recovery import fill

from harness.daemon import Daemon
from pawl.home import Home

SIZES = (1_000, int(os.environ.get("PAWL_BENCH_MANY", "1000000")))


def run(report: Report, folder: str) -> None:
    for rows in SIZES:
        daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)), "[daemon]\nmax_concurrent = 200\n")
        daemon.start()
        daemon.stop()
        fill(daemon.home, rows, 0)
        daemon.start()
        rate, _ = callers(daemon.home.socket, 2000, 100, agent="echo")
        report.add(f"pawl echo, 100 callers, {rows:,} rows", rate, "tasks/s")
        daemon.close()
    report.ratio(*(f"pawl echo, 100 callers, {rows:,} rows" for rows in SIZES), "at most 1.5")
