"""A thousand jobs due in the same second, and a thousand that wait for tomorrow."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Report, percentile

from harness import rows
from harness.daemon import Daemon
from pawl.home import Home
from pawl.values import rfc3339

JOBS = 1_000
SLOTS = 8
IDLE_S = 20
BARE = "python -c pass, beside the jobs"
STATUS = f"pawl status, while {JOBS:,} jobs run"
ALONE = f"pawl status, while {JOBS:,} jobs wait"
_ENDED = "SELECT count(*) FROM cron_fire WHERE finished_at_ms IS NOT NULL"


def run(report: Report, folder: str) -> None:
    home = Home(tempfile.mkdtemp(dir=folder))
    home.prepare()
    Path(home.test_clock).touch()
    ran = os.path.join(folder, "ran")
    work = f"""agent = "sh"\nprompt = 'echo $PAWL_TASK_ID >> {ran}'\n"""
    daemon = Daemon(home, _config(work, f'at = "{rfc3339((int(time.time()) + 86_400) * 1000)}"'))
    daemon.start()
    try:
        for _ in range(5):
            report.add(ALONE, _once(daemon, "status"), "ms")
        Path(home.clock_offset).write_text("86400")
        start = time.perf_counter()
        bare, asked = [], []
        while (done := rows.query(home, _ENDED)[0][0]) < JOBS:
            bare.append(_bare())
            asked.append(_once(daemon, "status"))
        report.add(f"{JOBS:,} jobs due in one second, {SLOTS} at once", time.perf_counter() - start, "s")
        _check(daemon, ran, done)
        report.add(BARE, percentile(bare, 0.5), "ms")
        report.add(f"{BARE}, worst", max(bare), "ms")
        report.add(STATUS, percentile(asked, 0.5), "ms")
        report.add(f"{STATUS}, worst", max(asked), "ms")
        report.ratio(STATUS, BARE)
        report.ratio(f"{STATUS}, worst", f"{BARE}, worst")
    finally:
        daemon.close()
    report.add(f"CPU of a daemon in {IDLE_S} s, no job", _idle(folder, 0), "ticks")
    report.add(f"CPU of a daemon in {IDLE_S} s, {JOBS:,} jobs for tomorrow", _idle(folder, JOBS), "ticks")


def _config(work: str, when: str, jobs: int = JOBS) -> str:
    declared = "".join(f'[[cron]]\nname = "job-{number}"\n{when}\n{work}' for number in range(jobs))
    return f'[daemon]\nmax_concurrent = {SLOTS}\n[agents.sh]\ncommand = ["sh", "-c"]\nprompt = "argument"\n{declared}'


def _check(daemon: Daemon, ran: str, done: int) -> None:
    """Each ran once, and none is lost."""
    fires = rows.query(daemon.home, "SELECT job, status, task_id FROM cron_fire")
    lines = Path(ran).read_text().splitlines()
    assert done == len(fires) == len({job for job, _, _ in fires}) == JOBS, done
    assert {status for _, status, _ in fires} == {"completed"}
    assert sorted(lines) == sorted(task_id for _, _, task_id in fires)


def _idle(folder: str, jobs: int) -> float:
    """Ticks of the processor that a daemon uses which waits on the machine's own clock."""
    daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)), _config('agent = "sh"\nprompt = ":"\n', 'every = "1d"', jobs))
    daemon.start(exec=True)
    try:
        time.sleep(2)  # what comes with a start is over
        before = _ticks(daemon.pid)
        time.sleep(IDLE_S)
        return _ticks(daemon.pid) - before
    finally:
        daemon.close()


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _once(daemon: Daemon, command: str) -> float:
    pawl = os.path.join(os.path.dirname(sys.executable), "pawl")
    return _time([pawl, "--home", daemon.home.path, command])


def _bare() -> float:
    return _time([sys.executable, "-c", "pass"])


def _time(words: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - start) * 1000
