"""Outputs: captured whole, kept whole, and never passed off when they are not (K9, K10)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from harness import rows
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran, gate
from harness.invariants import processes_of

_HELLO = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
_UNKNOWN = "0190c0de-0000-7000-8000-000000000000"


_CAPPED = CONFIG + '\n[agents.small]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "small"\n'
_CAPPED += '\n[policies.small]\nmax_output = "1KiB"\n'


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("hangs", [False, True], ids=["ends", "goes on"])
def test_the_output_cap_holds_for_each_stream(daemon: Daemon, stream: int, hangs: bool) -> None:
    """One byte over the cap fails the task and keeps the first bytes, whether it ends or would go on for ever."""
    daemon.configure(_CAPPED)
    daemon.start()
    prompt = f"head -c 1025 /dev/zero | tr '\\0' x >&{stream}" + ("; exec sleep 600" if hangs else "")

    task = daemon.delegate("small", prompt, wait=True)

    assert (task["status"], task["error"]["code"], task["truncated"]) == ("failed", "output_limit", True)
    assert task["output" if stream == 1 else "stderr"]["size_bytes"] == 1024
    assert daemon.logs(task["id"], "stdout" if stream == 1 else "stderr") == b"x" * 1024
    assert processes_of(daemon.home) == {}


def test_the_output_cap_is_no_limit_below_it(daemon: Daemon) -> None:
    """Exactly the cap on both streams is allowed."""
    daemon.configure(_CAPPED)
    daemon.start()

    task = daemon.delegate("small", "head -c 1024 /dev/zero; head -c 1024 /dev/zero >&2", wait=True)

    assert (task["status"], task["truncated"]) == ("completed", False)


def test_the_output_cap_holds_for_adopted_work_too(daemon: Daemon, ran: Ran) -> None:
    """What a restart adopts is capped by the policy of its agent, also what it wrote while no daemon watched."""
    daemon.configure(_CAPPED)
    daemon.start()
    ids = [
        daemon.delegate("small", f"{gate()}; head -c 5000 /dev/zero; {end}", env=ran.env)["id"]
        for end in ("exit 0", "sleep 600")
    ]
    until(lambda: all(rows.task(daemon.home, each).worker_pid for each in ids), "not all ran")
    daemon.kill()
    ran.go()
    until(lambda: all(_size(daemon, each) == 5000 for each in ids), "not all wrote")
    daemon.start()

    for task in daemon.wait(*ids):
        assert (task["status"], task["error"]["code"], task["truncated"]) == ("failed", "output_limit", True)
        assert task["output"]["size_bytes"] == 1024


def _size(daemon: Daemon, task_id: str) -> int:
    path = Path(daemon.home.spool, task_id, "stdout")
    return path.stat().st_size if path.exists() else -1


def test_an_output_that_was_removed_or_cut_while_it_ran(daemon: Daemon, ran: Ran) -> None:
    """The program ends well, and the file that it wrote to is gone: failed, ``output_altered``. A cut before the end is
    what the exit record saw: nobody can tell."""
    daemon.start()
    ids = [daemon.delegate("sh", f"echo hello; {gate()}; echo there", env=ran.env)["id"] for _ in range(2)]
    until(lambda: all(_size(daemon, each) == 6 for each in ids), "not all wrote")
    (Path(daemon.home.spool, ids[0]) / "stdout").unlink()
    os.truncate(Path(daemon.home.spool, ids[1]) / "stdout", 0)
    ran.go()

    removed, cut = daemon.wait(*ids)

    assert (removed["status"], removed["error"]["code"]) == ("failed", "output_altered")
    assert cut["status"] == "completed"
    assert daemon.result(ids[1]) == b"there\n"


def test_logs_follow_and_end_with_the_task(daemon: Daemon, ran: Ran) -> None:
    """Everything, in order, whatever it was when one began to look; also for a task that waits for its slot."""
    daemon.start()
    blocker = daemon.delegate("one", gate(), env=ran.env)["id"]
    queued = daemon.delegate("one", "for n in 1 2 3; do echo $n; sleep 0.1; done")["id"]
    assert daemon.get(queued)["status"] == "queued"
    ran.go()

    seen = daemon.logs(queued, follow=True)

    assert seen == b"1\n2\n3\n"
    assert daemon.logs(blocker, follow=True) == b""
    assert hashlib.sha256(seen).hexdigest() == daemon.get(queued)["output"]["sha256"]
