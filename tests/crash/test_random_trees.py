"""Trees of tasks that grow, are cancelled here and there, and lose their daemon: whatever happened, all ends well."""

from __future__ import annotations

import json
import random

import pytest

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate
from harness.trees import call, config, plan

pytestmark = pytest.mark.crash

_CONFIG = config(
    '[policies.team]\ndelegation = "allow"\nmax_depth = 4\nmax_actions_per_hour = 100000\n',
    lead='policy = "team"\ndelegates = ["echo", "sh"]\nmax_concurrent = 2',
    coder='policy = "team"\ndelegates = ["echo", "sh"]',
).replace("max_concurrent = 32", "max_concurrent = 3")


@pytest.mark.parametrize("seed", range(4))
def test_every_tree_ends_and_every_slot_comes_back(daemon: Daemon, ran: Ran, seed: int) -> None:
    """Rows, processes and the audit log are sound (the fixture looks), and as many run at once as before."""
    chance = random.Random(seed)
    daemon.configure(_CONFIG)
    daemon.start()
    for _ in range(4):
        before = len(rows.tasks(daemon.home))
        for _ in range(3):
            helper = call("spawn", input=plan(call("delegate", "echo", "--wait", "x")))
            inner = plan(call("delegate", "sh", "--wait", "sleep 0.1"), helper)
            both = plan(
                call("delegate", "coder", "--wait", input=inner), call("delegate", "lead", "--wait", input=plan())
            )
            daemon.delegate(chance.choice(["lead", "coder"]), json.dumps(both))
        grown = before + chance.randint(4, 9)
        until(lambda: _over(daemon) or len(rows.tasks(daemon.home)) >= grown, "nothing grows")  # noqa: B023
        living = [task for task in rows.tasks(daemon.home) if not task.ended]
        for task in chance.sample(living, min(2, len(living))):
            daemon.cancel(task.id)
        if chance.random() < 0.4:
            daemon.kill()
            daemon.start()
    until(lambda: _over(daemon), "not every tree has ended", 60)

    held = [daemon.delegate("sh", gate(), env=ran.env) for _ in range(4)]

    assert [task["status"] for task in held] == ["running"] * 3 + ["queued"]
    ran.go()
    assert {task["status"] for task in daemon.wait(*(task["id"] for task in held))} == {"completed"}


def _over(daemon: Daemon) -> bool:
    return all(task.ended and task.cleanup != "pending" for task in rows.tasks(daemon.home))
