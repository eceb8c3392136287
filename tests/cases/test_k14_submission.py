"""K14: submitting, and submitting again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from scenes import Gate, pawl

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon
from harness.fixtures import Ran


def test_b133_the_same_key_is_the_same_task(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """B-133: a key and its request give one task and one process, however often and from however many it comes, after
    a restart and after its end too; the key with another request is a conflict that starts nothing.
    """
    daemon.start()
    prompt = f'echo ran >> "$OUT"; {gate.wait}; echo done'
    request = {"env": ran.env, "idempotency_key": "k1"}
    first = daemon.delegate("sh", prompt, **request)["id"]

    assert daemon.delegate("sh", prompt, **request)["id"] == first
    with pytest.raises(Refused) as refused:
        daemon.delegate("sh", f"{prompt}; echo other", **request)
    assert (refused.value.code, refused.value.exit) == ("idempotency_conflict", 5)
    assert refused.value.details["task_id"] == first
    conflict = pawl(daemon.home, "delegate", "sh", "echo other", "--idempotency-key", "k1", "--json")
    assert (conflict.status, conflict.error["code"]) == (5, "idempotency_conflict")

    daemon.kill()
    daemon.start()
    assert daemon.delegate("sh", prompt, **request)["id"] == first
    gate.open()
    daemon.wait_one(first)
    again = daemon.delegate("sh", prompt, **request)
    assert (again["id"], again["status"]) == (first, "completed")

    with ThreadPoolExecutor(20) as pool:
        request = {"env": ran.env, "idempotency_key": "k2"}
        calls = [pool.submit(daemon.delegate, "sh", 'echo two >> "$OUT"', **request) for _ in range(20)]
        ids = {call.result()["id"] for call in calls}
    assert len(ids) == 1
    daemon.wait_one(ids.pop())
    assert ran.lines == ["ran", "two"]
    assert len(rows.tasks(daemon.home)) == 2


def test_b135_work_that_may_have_taken_effect_is_not_tried_again(daemon: Daemon, ran: Ran) -> None:
    """B-135: a task that timed out says that its effect is unknown, and is not repeated by itself."""
    daemon.start()
    task_id = daemon.delegate("sh", 'echo sent >> "$OUT"; exec sleep 30', env=ran.env, timeout_s=1)["id"]
    task = daemon.wait_one(task_id)

    assert (task["status"], task["error"]["code"], task["retries_left"]) == ("timed_out", "timeout", 0)
    assert "what it had done by then is not known" in task["error"]["message"]
    assert daemon.get(task_id)["retried_by"] is None
    assert len(rows.tasks(daemon.home)) == 1
    assert ran.lines == ["sent"]


def test_b135_only_work_declared_safe_to_repeat_is_repeated(daemon: Daemon, ran: Ran) -> None:
    """B-135: `--retries` is that declaration, and each attempt is a task of its own."""
    daemon.start()
    request = {"env": ran.env, "timeout_s": 0.5, "retries": 1}
    task_id = daemon.delegate("sh", 'echo sent >> "$OUT"; exec sleep 30', **request)["id"]
    daemon.wait_one(task_id)
    second = daemon.get(task_id)["retried_by"]

    assert daemon.wait_one(second)["status"] == "timed_out"
    assert daemon.get(second)["retried_by"] is None
    assert ran.lines == ["sent", "sent"]
