"""K8: races about the end of a task."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scenes import wrote

from harness import rows
from harness.daemon import Daemon

ROUNDS = 60


def test_b080_a_cancel_at_the_end_loses_no_result(daemon: Daemon) -> None:
    """B-080: cancelled at about the moment it ends by itself, a task is `completed` with its output or `cancelled`,
    never half of each; the cancel's answer is what the row says, and no row changes after its first end.
    """
    daemon.start()
    moments = random.Random(80)

    def once(delay_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
        with daemon.connect() as connection:
            task_id = connection.call("task.delegate", agent="sh", prompt="sleep 0.3; echo done")["id"]
            threading.Event().wait(delay_s)
            answer = connection.call("task.cancel", ids=[task_id])[0]
            return answer, connection.call("task.get", id=task_id)

    delays = [0.0, 1.5, *(moments.uniform(0.25, 0.4) for _ in range(ROUNDS - 2))]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(once, delays))

    for answer, task in answers:
        assert (answer["outcome"], task["status"]) in {
            ("cancelled", "cancelled"),
            ("already_completed", "completed"),
        }
        if task["status"] == "completed":
            assert (task["exit_code"], daemon.result(task["id"])) == (0, b"done\n")
        else:
            assert daemon.result(task["id"]) in (b"", b"done\n")
        assert rows.ends_of(daemon.home, task["id"]) == [task["status"]]
    assert {task["status"] for _, task in answers} == {"cancelled", "completed"}


def test_b082_a_cancelled_program_that_exits_0_was_cancelled(daemon: Daemon) -> None:
    """B-082: it hears TERM, says goodbye and exits 0; the task is `cancelled`, with the exit code and the output kept
    as details.
    """
    daemon.start()
    prompt = 'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.2; done'
    task_id = daemon.delegate("sh", prompt)["id"]
    wrote(daemon, task_id, b"ready")

    answer = daemon.cancel(task_id, "enough")

    assert (answer["status"], answer["exit_code"], answer["reason"]) == ("cancelled", 0, "enough")
    assert daemon.result(task_id) == b"ready\nbye\n"
