"""Kill -9 at random moments while jobs fire every second, and then look for fires that were lost or doubled.

``PAWL_KILL_ROUNDS`` and ``PAWL_KILL_SEED`` as for ``test_random_kill``.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import random
import time

from crashing import QUICK
from firing import fires, job, over, ran_once

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, until
from harness.fixtures import Ran

_ROUNDS = int(os.environ.get("PAWL_KILL_ROUNDS", "8"))
_SEED = int(os.environ.get("PAWL_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
_SECOND = "* * * * * *"
_EACH = {
    "skip": {"overlap": "skip", "catch_up": "once"},
    "queue": {"overlap": "queue", "catch_up": "all"},
    "replace": {"overlap": "replace", "catch_up": "once"},
    "allow": {"overlap": "allow", "catch_up": "all"},
    "never": {"overlap": "allow", "catch_up": "skip"},
    "asks": {"overlap": "queue", "catch_up": "all", "precondition": ["sh", "-c", "exit $(($$ % 2 * 10))"]},
    "again": {"overlap": "skip", "catch_up": "once", "retries": 1},
}
_WORK = {"skip": "sleep 1.2", "queue": "sleep 0.3", "replace": "sleep 1.2", "again": "exit $(($$ % 2))"}


def test_random_kill_of_jobs(daemon: Daemon, ran: Ran) -> None:
    """Each second of each job is on record exactly once, none ran twice, all that is open ends, and every invariant
    holds."""
    print(f"PAWL_KILL_SEED={_SEED} PAWL_KILL_ROUNDS={_ROUNDS}")
    moments = random.Random(_SEED)
    jobs = [job(name, ran, _WORK.get(name, "sleep 0.1"), schedule=_SECOND, **keys) for name, keys in _EACH.items()]
    daemon.configure(QUICK.replace("2s", "500ms") + "\n".join(jobs))
    daemon.start()
    for _ in range(_ROUNDS):
        time.sleep(moments.random() * 1.2)
        for name in moments.sample(list(_EACH), moments.choice((0, 1, 3))):
            with contextlib.suppress(Refused):  # another one goes on
                daemon.call("cron.run", name=name)
        daemon.kill()
        for _ in range(moments.choice((0, 0, 1, 2))):  # now and then in the middle of starting
            daemon.begin()
            time.sleep(moments.random() * 0.2)
            daemon.kill()
        daemon.start()
    newest = {name: max(fire.nominal_at_ms for fire in fires(daemon, name)) for name in _EACH}
    until(lambda: all(fires(daemon, name)[-1].nominal_at_ms > newest[name] for name in _EACH), "some fire no more")
    for name in _EACH:
        daemon.call("cron.disable", name=name)

    found = over(daemon, 0, timeout_s=60)

    for name in _EACH:
        _without_gaps(name, sorted(fire.nominal_at_ms for fire in fires(daemon, name) if not fire.manual))
    assert {fire.fires for fire in found} == {1}
    firsts = [json.loads(task.source) for task in rows.tasks(daemon.home) if task.retry_of is None]
    parts = collections.Counter(
        (it["job"], it["nominal_at"], it["trigger"] == "manual", it.get("part")) for it in firsts
    )
    assert [part for part, times in parts.items() if times > 1] == [], "an instant had two tasks"
    ran_once(daemon, ran)
    status = collections.Counter(fire.status for fire in found)
    print(status)
    assert status["completed"] > len(_EACH)


def _without_gaps(name: str, instants: list[int]) -> None:
    gaps = [(before, after) for before, after in itertools.pairwise(instants) if after - before != 1000]
    assert gaps == [], f"{name} has gaps or doubles: {gaps}"
