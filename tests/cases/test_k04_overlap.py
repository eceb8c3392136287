"""K4: one launch for one instant, and what a fire does that meets another."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from scenes import Gate, config

from harness import rows
from harness.daemon import Daemon, until
from harness.hands import Hands, cron, ended, moves_on, ran, runs, show
from pawl.config.cron import CronConfig
from pawl.control_plane import store as tasks
from pawl.control_plane.model import NewTask
from pawl.engines.cron import store
from pawl.engines.cron.model import Job, NewFire, definition_of
from pawl.home import Home
from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Database, Transaction

MINUTELY = {"schedule": "* * * * *", "timezone": "UTC"}


def _runs_now(daemon: Daemon, name: str) -> dict[str, Any]:
    """Wait until a fire of the job has begun to run; that fire."""
    return dict(until(lambda: _last(daemon, name, "running"), f"{name} does not run"))


def _last(daemon: Daemon, name: str, status: str) -> dict[str, Any] | None:
    last: dict[str, Any] | None = show(daemon, name)["last"]
    return last if last is not None and last["status"] == status else None


def test_b045_a_long_run_is_started_once(daemon: Daemon, hands: Hands, gate: Gate) -> None:
    """B-045: a daily job runs through ten looks and more of the scheduler. It shows as running all the while, with its
    next fire tomorrow, and there is one record and one task for that instant.
    """
    daily = cron("daily", schedule="0 12 * * *", timezone="UTC", prompt=f"{gate.wait}; echo done")
    daemon.configure(config(more=daily + cron("tick", overlap="allow", **MINUTELY)))
    hands.set("2026-03-05T11:58:50Z")
    daemon.start()
    hands.wait_until("2026-03-05T12:00:01Z")
    running = _runs_now(daemon, "daily")

    for _ in range(3):
        hands.wait(241)
        moves_on(daemon, "tick", hands.now.isoformat())
        assert show(daemon, "daily")["last"] == running
    assert show(daemon, "daily")["next_at"] == "2026-03-06T12:00:00.000Z"
    gate.open()
    (fire,) = ended(daemon, "daily")

    assert (fire["status"], fire["task_id"]) == ("completed", running["task_id"])
    assert [task.id for task in rows.tasks(daemon.home) if "daily" in task.labels] == [running["task_id"]]


def test_b047_a_one_shot_runs_once_however_it_ends(daemon: Daemon, hands: Hands) -> None:
    """B-047: two one-shots, one of which fails. One run each; then they are finished, without a next fire, and what the
    failed one left can be read. Minutes later, and after a restart, there is no other.
    """
    daemon.configure(config(more=cron("tick", overlap="allow", **MINUTELY)))
    hands.set("2026-03-05T12:00:30Z")
    daemon.start()
    for name, script in (("good", "true"), ("bad", "echo hi >&2; exit 1")):
        job = {"at": "2026-03-05T12:01:30Z", "agent": "sh", "command": ["sh", "-c", script]}
        daemon.call("cron.add", name=name, job=job)

    hands.wait_until("2026-03-05T12:01:31Z")
    first = {name: ended(daemon, name) for name in ("good", "bad")}
    hands.wait(361)
    moves_on(daemon, "tick", hands.now.isoformat())
    daemon.stop()
    hands.wait(361)
    daemon.start()
    moves_on(daemon, "tick", hands.now.isoformat())

    for name, status, code in (("good", "completed", 0), ("bad", "failed", 1)):
        (fire,) = runs(daemon, name)
        job = show(daemon, name)
        assert first[name] == [fire]
        assert (fire["status"], fire["exit_code"]) == (status, code)
        assert (job["enabled"], job["next_at"], job["disabled_reason"]) == (False, None, "it has fired")
    assert fire["stderr"]["text"] == "hi\n"


def test_b050_slots_that_meet_a_run_are_skipped_and_name_it(daemon: Daemon, hands: Hands, gate: Gate) -> None:
    """B-050: a job of every minute runs for two and a half. No two runs overlap, the two instants in between are on
    record as skipped because of that very task, and after its end the next one runs.
    """
    daemon.configure(config(more=cron("minutely", prompt=gate.wait, **MINUTELY)))
    hands.set("2026-03-05T12:00:30Z")
    daemon.start()
    hands.wait_until("2026-03-05T12:01:01Z")
    running = _runs_now(daemon, "minutely")
    for minute in ("02", "03"):
        hands.wait_until(f"2026-03-05T12:{minute}:01Z")
        moves_on(daemon, "minutely", f"2026-03-05T12:{minute}:00.000Z")
    gate.open()
    ended(daemon, "minutely")
    hands.wait_until("2026-03-05T12:04:01Z")
    moves_on(daemon, "minutely", "2026-03-05T12:04:00.000Z")
    fires = ended(daemon, "minutely")

    assert [fire["nominal_at"][11:16] for fire in fires] == ["12:01", "12:02", "12:03", "12:04"]
    assert [fire["status"] for fire in fires] == ["completed", "skipped", "skipped", "completed"]
    assert [running["task_id"] in (fire["reason"] or "") for fire in fires] == [False, True, True, False]
    first, second = ran(fires)
    assert first["finished_at"] <= second["started_at"]


# --- many claimers ----------------------------------------------------------------------------------------------

_CLAIMERS = 10
_ROUNDS = 200


def _claim(path: str, number: int, together: Barrier, job: Job, answer: Connection) -> None:
    """One of the processes: claims whatever task is queued, and the next fire of the job, round by round."""
    connection = Database(path).open_writer()
    connection.execute("PRAGMA synchronous = OFF")  # what survives a power cut is not the claim here
    owner = ProcessIdentity(1000 + number, "5000", "boot-1")
    got: list[tuple[list[str], bool]] = []
    for round_ in range(_ROUNDS):
        if number == 0:
            new_task = NewTask(new_id(), "delegate", "writer", b"do it", 60_000, creator="operator", principal="uid:0")
            connection.execute("BEGIN IMMEDIATE")
            tasks.submit(Transaction(connection, 1), new_task, None, 0)
            connection.execute("COMMIT")
        together.wait(60)
        connection.execute("BEGIN IMMEDIATE")
        claimed = tasks.claim(Transaction(connection, 1), owner, 0, 5, {"writer": 5})
        connection.execute("COMMIT")
        due = job._replace(next_at_ms=60_000 * (round_ + 1))
        new = [NewFire(60_000 * (round_ + 1), "schedule", "claimed")]
        connection.execute("BEGIN IMMEDIATE")
        taken = store.take(Transaction(connection, 1), due, new, 60_000 * (round_ + 2), "it has fired", owner)
        connection.execute("COMMIT")
        got.append(([task.id for task in claimed], taken is not None))
        together.wait(60)
    connection.close()
    answer.send(got)


def test_b051_of_ten_claimers_one_gets_it(home: Home) -> None:
    """B-051: 200 times a task is queued and a fire is due, and ten processes claim both at the same moment. Each time
    one of them gets the task and one the fire; the others get nothing, and no error.
    """
    home.prepare()
    connection = Database(home.database).open_writer()
    connection.execute("PRAGMA synchronous = OFF")
    config = CronConfig(name="minutely", schedule="* * * * *", agent="writer", prompt="x")
    values = {
        "name": config.name, "origin": "runtime", "definition": definition_of(config), "disabled_reason": None,
        "finished": 0, "first_seen_ms": 1, "next_at_ms": 60_000,
    }  # fmt: skip
    connection.execute("BEGIN IMMEDIATE")
    job = store.put_job(Transaction(connection, 1), None, values, "operator", "added")
    connection.execute("COMMIT")
    connection.close()

    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(_CLAIMERS)
    pipes = [fork.Pipe(duplex=False) for _ in range(_CLAIMERS)]
    claimers = [
        fork.Process(target=_claim, args=(home.database, number, together, job, sending), daemon=True)
        for number, (_, sending) in enumerate(pipes)
    ]
    for claimer in claimers:
        claimer.start()
    answers = [reading.recv() for reading, _ in pipes]
    for claimer in claimers:
        claimer.join()

    for round_ in zip(*answers, strict=True):
        assert Counter(len(claimed) for claimed, _ in round_) == {1: 1, 0: _CLAIMERS - 1}
        assert sum(taken for _, taken in round_) == 1
    assert {task.status for task in rows.tasks(home)} == {"running"}
    assert rows.query(home, "SELECT count(*), count(DISTINCT nominal_at_ms) FROM cron_fire") == [(_ROUNDS, _ROUNDS)]
