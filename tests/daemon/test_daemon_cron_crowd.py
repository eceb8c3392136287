"""Many jobs due at the same second."""

from __future__ import annotations

import collections
import json
import time
from pathlib import Path

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran
from pawl.values import rfc3339

_JOBS = 200
_ENDED = "SELECT count(*) FROM cron_fire WHERE finished_at_ms IS NOT NULL"


def test_many_jobs_due_at_the_same_second(daemon: Daemon, ran: Ran) -> None:
    """All of them run, each once; no more at a time than may; and the daemon answers meanwhile."""
    Path(daemon.home.test_clock).touch()
    due = rfc3339((int(time.time()) + 3600) * 1000)
    body = f"""
at = "{due}"
agent = "sh"
prompt = 'echo $PAWL_TASK_ID >> {ran.path}'
"""
    jobs = "".join(f'[[cron]]\nname = "job-{number}"{body}' for number in range(_JOBS))
    daemon.configure('[daemon]\nmax_concurrent = 8\n[agents.sh]\ncommand = ["sh", "-c"]\nprompt = "argument"\n' + jobs)
    daemon.start()
    assert daemon.call("daemon.status")["cron"]["enabled"] == _JOBS

    running: list[int] = []
    Path(daemon.home.clock_offset).write_text("3600")

    def over() -> bool:
        running.append(daemon.call("daemon.status")["tasks"].get("running", 0))
        return bool(rows.query(daemon.home, _ENDED)[0][0] >= _JOBS)

    until(over, "not all have ended", 60)
    fires = rows.query(daemon.home, "SELECT job, status, task_id FROM cron_fire")
    assert collections.Counter(job for job, _, _ in fires) == {f"job-{number}": 1 for number in range(_JOBS)}
    assert {status for _, status, _ in fires} == {"completed"}
    assert sorted(ran.lines) == sorted(task_id for _, _, task_id in fires)
    assert 1 < max(running) <= 8
    until(lambda: daemon.call("daemon.status")["cron"]["under_way"] == 0, "not all are over")
    assert {json.loads(task.source)["job"] for task in rows.tasks(daemon.home)} == {job for job, _, _ in fires}
