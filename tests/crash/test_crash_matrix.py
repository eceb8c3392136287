"""The crash matrix: every point at which a daemon can die in the life of a task, and what the next one makes of it.

"Echo" is work done inside the daemon, "program" is a process of its own. Death is SIGKILL at a failpoint of the real
daemon process. Two things differ from systems whose work dies with its daemon: a program outlives the daemon and is
adopted, and the exit record in its spool is evidence of how it ended. So a program's task is ``lost`` only where the
worker is gone too and left no evidence, or where an outside signal ended it while no daemon watched.

| line | what happens | shown by |
| --- | --- | --- |
| 1 | before the row is committed | test_line_01_* |
| 2 | whether the row is committed is unknown | test_line_02_* |
| 3 | after the row, before the spawn | test_line_03_* |
| 4 | the driver dies before anybody attached to it | test_line_04_* (there is no such window: it fails like 6) |
| 5 | while running | test_line_05_* |
| 6 | the driver dies, the daemon lives, no promise | test_line_06_* |
| 7 | the daemon is shut down | test_line_07_* |
| 8 | the result is there, the promise is not | test_line_08_* |
| 9 | a store error writes no promise | test_line_09_* |
| 10 | whether the promise is committed is unknown | test_line_10_* |
| 11 | the promise is durable, no bytes | test_line_11_* |
| 12 | the temporary file is half written | test_line_12_* |
| 13 | the temporary file is complete and not renamed | test_line_13_* |
| 14 | renamed and not synced, the power fails | test_line_14_* |
| 15 | the artifact is durable, the row is not settled | test_line_15_* |
| 16 | inside the settling transaction | test_line_16_* |
| 17 | whether that is committed is unknown | test_line_17_* |
| 18 | a store error settles nothing, the daemon lives | test_line_18_* |
| 19 | the driver dies between the bytes and the row | test_line_19_* |
| 20 | after the row is settled | test_line_20_* |
| 21 | a cancel commits before the promise | test_line_21_22_23_* |
| 22 | a cancel commits between the promise and the bytes | test_line_21_22_23_* |
| 23 | a cancel commits after the bytes | test_line_21_22_23_* |
| 24 | a cancel loses | test_line_24_* |
| 25 | a store error cancels nothing | test_line_25_* |
| 26 | after the cancel, before the signal | test_line_26_* |
| 27 | the artifact is altered before recovery | test_line_27_* |
| 28 | the promise is malformed | test_line_28_* |
| 29 | the owner lives | test_line_29_* |
| 30 | the owner's PID is somebody else's by now | test_line_30_* |
| 31 | whether it is, is not to be told | test_line_31_* |
| 32 | the kernel refuses to tell | test_line_32_* |
| 33 | the row went to another owner | test_line_33_* |
| 34 | two recoveries at once | test_line_34_* |
| 35 | recovery dies in the middle | test_line_35_* |
| 36 | the flusher of the heartbeats dies | test_line_36_* |
| 37 | the work hangs | test_line_37_* |
| 38 | the disk is full at the bytes | test_line_38_* |
| 39 | the store is read-only or damaged | test_line_39_* |
| 40 | an older program opens the home | test_line_40_* |

``test_every_failpoint_is_reached`` holds this file and ``test_crash_cron`` to the list of failpoints.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_crash_cron
from crashing import (
    ECHO,
    FAILING,
    PROGRAM,
    QUICK,
    SLEEP,
    SLOW,
    Work,
    crash,
    die,
    ended,
    recovered,
    submit,
    unowned,
    worker_of,
)

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, NotStarted, until
from harness.fixtures import Ran, Stranger, gate
from harness.invariants import processes_of
from pawl import failpoints
from pawl.runner.identity import ProcessIdentity

BOTH = pytest.mark.parametrize("work", [ECHO, PROGRAM], ids=str)
STORE = pytest.mark.parametrize("work", [ECHO, PROGRAM, FAILING], ids=["echo", "program", "failing"])


dies_at = pytest.mark.dies_at  # the daemon of this test dies at that failpoint: ``conftest`` checks that it does


def at(*names: str) -> Any:
    """One case for each failpoint at which the daemon of a test dies."""
    return pytest.mark.parametrize("point", [pytest.param(name, marks=pytest.mark.dies_at(name)) for name in names])


def test_every_failpoint_is_reached() -> None:
    """Each name in the code is a place where some test here kills the daemon and sees it die there."""
    marks = [mark for each in (globals() | vars(test_crash_cron)).values() for mark in getattr(each, "pytestmark", ())]
    cases = [case for mark in marks if mark.name == "parametrize" for case in mark.args[1]]
    marks += [mark for case in cases for mark in getattr(case, "marks", ())]

    assert {mark.args[0] for mark in marks if mark.name == "dies_at"} == failpoints.NAMES


# --- 1 to 4: the start ----------------------------------------------------------------------------------------------


@dies_at("delegate.before_commit")
@BOTH
def test_line_01_before_the_row_is_committed_nothing_exists(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The caller never got an id, no row exists, nothing ran; the same call again works."""
    assert crash(daemon, "delegate.before_commit", work, ran) is None

    daemon.start()
    assert rows.tasks(daemon.home) == []
    assert ran.lines == []
    again = submit(daemon, work, ran)

    assert again is not None
    assert ended(daemon, again["id"]).status == "completed"


@dies_at("writer.before_commit")
@BOTH
def test_line_01_inside_the_transaction_of_the_row_nothing_exists(daemon: Daemon, ran: Ran, work: Work) -> None:
    """A batch that was executed and not committed leaves nothing."""
    daemon.start(bent="")
    daemon.bend(failpoints="writer.before_commit=kill")

    assert submit(daemon, work, ran) is None
    assert daemon.died() == -9

    daemon.start()
    assert rows.tasks(daemon.home) == []
    assert ran.lines == []


@BOTH
@at("writer.after_commit", "delegate.after_commit")
def test_line_02_the_caller_of_a_committed_row_hears_nothing(daemon: Daemon, ran: Ran, work: Work, point: str) -> None:
    """The row is there and nothing ran; asking again with the same key brings that row back and starts nothing."""
    daemon.start(bent="")
    daemon.bend(failpoints=f"{point}=kill")
    assert submit(daemon, work, ran, idempotency_key="k") is None
    assert daemon.died() == -9
    (left,) = rows.tasks(daemon.home)
    assert left.status == "running"

    task = recovered(daemon, left.id)
    again = submit(daemon, work, ran, idempotency_key="k")

    assert (task.status, task.error_code) == ("lost", "lost")
    assert again is not None
    assert again["id"] == left.id
    assert ran.lines == []


@BOTH
def test_line_02_a_committed_row_that_reads_as_an_error_is_found_again(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The store says no though the row is there: it is read again by its id, and the work is done, once."""
    daemon.start(bent="")
    daemon.bend(unheard={"submit": 1})

    answer = submit(daemon, work, ran)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert task.status == "completed"
    assert len(rows.tasks(daemon.home)) == 1
    assert ran.lines == ["ran"] * (work is PROGRAM)


def test_line_02_a_row_that_its_own_daemon_has_not_heard_of_yet(daemon: Daemon, ran: Ran) -> None:
    """A recovery pass reads a row of this very daemon before the submitter hears of its commit: it is left alone."""
    daemon.configure(QUICK)
    daemon.start(bent="")
    daemon.bend(late={"submit": 0.2})

    ids = [answer["id"] for _ in range(5) if (answer := submit(daemon, PROGRAM, ran))]

    assert [ended(daemon, each).status for each in ids] == ["completed"] * 5
    assert len(ran.lines) == 5


@dies_at("supervisor.driver")
@BOTH
def test_line_03_after_the_row_before_any_work(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The row says running, and nothing was begun: lost, with a reason that says so."""
    left = crash(daemon, "supervisor.driver", work, ran)
    assert left is not None

    task = recovered(daemon, left.id)

    assert task.status == "lost"
    assert "restart" in str(task.error_message)
    assert ran.lines == []


@dies_at("dispatch.after_claim")
def test_line_03_after_the_row_before_the_spawn(daemon: Daemon, ran: Ran) -> None:
    """The spool is laid out, no process exists: lost, and its launch is barred for ever."""
    left = crash(daemon, "dispatch.after_claim", PROGRAM, ran)
    assert left is not None

    task = recovered(daemon, left.id)

    assert task.status == "lost"
    assert ran.lines == []


@at("launch.after_spawn", "launch.after_record")
@pytest.mark.parametrize("work", [PROGRAM, SLOW], ids=["ended meanwhile", "lives"])
def test_line_03_after_the_spawn_the_work_is_known(daemon: Daemon, ran: Ran, point: str, work: Work) -> None:
    """The process exists, whether the row knows it or not: its mark names it, and it is seen to its end, run once."""
    left = crash(daemon, point, work, ran)
    assert left is not None
    if work is PROGRAM:
        until((daemon.spool(left.id) / "exit").exists, "it never ended")

    ready = daemon.start()
    ran.go()
    task = ended(daemon, left.id)

    done = ready["recovery"]
    if work is PROGRAM:  # so quick that its end may be promised, or written, in the commit that names its worker
        assert done["finished"] + done["settled"] + left.ended == 1
    else:
        assert done["adopted"] == 1
    assert task.status == "completed"
    assert daemon.result(task.id) == work.output
    assert ran.lines == ["ran"]


@BOTH
def test_line_04_a_driver_that_dies_at_birth_fails_its_task(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The driver dies of a bug before it does anything; the daemon lives and the task fails, naming the bug."""
    daemon.start("supervisor.driver=crash")

    answer = submit(daemon, work, ran)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert (task.status, task.error_code) == ("failed", "driver_died")
    assert ran.lines == []


# --- 5 to 7: while running ------------------------------------------------------------------------------------------


def test_line_05_while_running_the_worker_lives_on(daemon: Daemon, ran: Ran) -> None:
    """The daemon dies, the worker does not: it is adopted, and completes with all its output."""
    daemon.start()
    task_id = daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.kill()

    ready = daemon.start()
    ran.go()
    task = ended(daemon, task_id)

    assert ready["recovery"]["adopted"] == 1
    assert task.status == "completed"
    assert task.owner_pid == daemon.pid
    assert daemon.result(task_id) == SLOW.output
    assert ran.lines == ["ran"]


@pytest.mark.parametrize(
    ("prompt", "status", "code"),
    [
        ("echo hello", "completed", 0),
        ("echo hello; exit 3", "failed", 3),
        ("echo hello; kill -SEGV $$", "failed", None),
    ],
    ids=["well", "badly", "of a fault of its own"],
)
def test_line_05_ended_by_itself_while_no_daemon_watched(
    daemon: Daemon, ran: Ran, prompt: str, status: str, code: int | None
) -> None:
    """The exit record tells how it ended, as if a daemon had watched."""
    daemon.start()
    task_id = daemon.delegate("sh", f"{gate()}; {prompt}", env=ran.env)["id"]
    worker_of(daemon, task_id)
    daemon.kill()
    ran.go()
    until(lambda: not processes_of(daemon.home), "it never ended")

    task = recovered(daemon, task_id)

    assert (task.status, task.exit_code) == (status, code)
    assert task.signal == (signal.SIGSEGV if code is None else None)
    assert daemon.result(task_id) == b"hello\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_line_05_ended_from_outside_while_no_daemon_watched(daemon: Daemon, ran: Ran, number: int) -> None:
    """A signal from outside may have been the end of the session or the machine: lost, with what it wrote kept."""
    daemon.start()
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    worker = worker_of(daemon, task_id)
    daemon.kill()
    os.kill(worker, number)
    until(lambda: not processes_of(daemon.home), "it never ended")

    task = recovered(daemon, task_id)

    assert (task.status, task.error_code, task.signal) == ("lost", "lost", number)
    assert "restart" in str(task.error_message)
    assert daemon.result(task_id) == SLEEP.output


def test_line_05_daemon_keeper_and_worker_gone(daemon: Daemon, ran: Ran) -> None:
    """Nobody is left who could say how it ended: lost."""
    daemon.start()
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    worker, keeper = worker_of(daemon, task_id), daemon.keeper
    daemon.kill()
    os.kill(keeper, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)

    task = recovered(daemon, task_id)

    assert task.status == "lost"
    assert ran.lines == ["ran"]


def test_line_05_daemon_and_keeper_gone_worker_lives(daemon: Daemon, ran: Ran) -> None:
    """An orphan that nobody of ours will collect runs on, owned; how it ends nobody can know, so it is no success."""
    daemon.start()
    task_id = daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    keeper = daemon.keeper
    daemon.kill()
    os.kill(keeper, signal.SIGKILL)

    daemon.start()
    assert daemon.get(task_id)["status"] == "running"
    ran.go()
    task = ended(daemon, task_id)

    assert (task.status, task.error_code) == ("failed", "exit_unknown")
    assert daemon.result(task_id) == SLOW.output


@BOTH
def test_line_06_the_driver_dies_and_the_daemon_lives(daemon: Daemon, ran: Ran, work: Work) -> None:
    """No promise was made: the task fails, owner-bound, and says that it was Pawl's own fault."""
    daemon.start("settle.before_intent=crash")

    answer = submit(daemon, work, ran)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert (task.status, task.error_code) == ("failed", "driver_died")
    assert rows.intents(daemon.home) == []


def test_line_06_a_living_worker_of_a_dead_driver_is_ended(daemon: Daemon, ran: Ran) -> None:
    """The driver dies with its worker alive: the task fails and no process is left."""
    daemon.start(bent="")
    daemon.bend(failpoints="launch.after_spawn=crash")

    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    task = ended(daemon, task_id)

    assert (task.status, task.error_code) == ("failed", "driver_died")
    assert processes_of(daemon.home) == {}


def test_line_07_a_shutdown_leaves_the_work_to_the_next_daemon(daemon: Daemon, ran: Ran) -> None:
    """A clean stop waits for its grace, says what it leaves running, and the next daemon sees that to its end."""
    daemon.configure(QUICK.replace('shutdown_grace = "1s"', 'shutdown_grace = "0s"'))
    daemon.start()
    task_id = daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")

    daemon.stop()
    left = rows.query(daemon.home, "SELECT details FROM event WHERE event = 'stopped'")
    ran.go()
    task = recovered(daemon, task_id)

    assert left == [(f'{{"left_running":["{task_id}"]}}',)]
    assert task.status == "completed"
    assert daemon.result(task_id) == SLOW.output
    assert ran.lines == ["ran"]


def test_line_07_a_shutdown_with_cancel_ends_the_work(daemon: Daemon, ran: Ran) -> None:
    """``stop --cancel``: the row is terminal and no process is left when the daemon is gone; nothing changes then."""
    daemon.start()
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")

    daemon.stop(cancel=True)
    before = rows.task(daemon.home, task_id)
    daemon.start()

    assert (before.status, before.cleanup) == ("cancelled", "done")
    assert processes_of(daemon.home) == {}
    assert rows.task(daemon.home, task_id) == before


# --- 8 to 14: before the row can be settled -------------------------------------------------------------------------


@dies_at("settle.before_intent")
@pytest.mark.parametrize(("work", "status"), [(ECHO, "lost"), (PROGRAM, "completed"), (FAILING, "failed")], ids=str)
def test_line_08_the_result_is_there_and_not_promised(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """Echo's result died with its daemon: lost. A program's exit record and spool still say it all."""
    left = crash(daemon, "settle.before_intent", work, ran)
    assert left is not None

    task = recovered(daemon, left.id)

    assert task.status == status
    assert daemon.result(left.id) == (b"" if work is ECHO else work.output)
    assert ran.lines == ["ran"] * (work is not ECHO)


@BOTH
def test_line_09_a_store_error_before_the_promise_is_tried_again(daemon: Daemon, ran: Ran, work: Work) -> None:
    """Nothing is published while the store refuses the promise; when it takes it, the task completes."""
    daemon.start(bent="")
    daemon.bend(refused={"promise": 3})

    answer = submit(daemon, work, ran)
    assert answer is not None
    until(lambda: _finding(daemon, "settlement_waits"), "no finding tells of it")
    assert [path.name[:4] for path in Path(daemon.home.artifacts).iterdir() if path.name[0] != "."] == []

    assert ended(daemon, answer["id"]).status == "completed"
    assert daemon.result(answer["id"]) == work.output
    assert not _finding(daemon, "settlement_waits")


@pytest.mark.parametrize(("work", "status"), [(ECHO, "lost"), (PROGRAM, "completed")], ids=str)
def test_line_09_death_while_the_store_refuses_the_promise(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """The same as line 8."""
    daemon.start(bent="")
    daemon.bend(refused={"promise": 1_000_000})
    answer = submit(daemon, work, ran)
    assert answer is not None
    until(lambda: _finding(daemon, "settlement_waits"), "no finding tells of it")
    daemon.kill()

    assert recovered(daemon, answer["id"]).status == status


@STORE
def test_line_10_a_promise_that_reads_as_an_error_is_made_again(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The store says no though the promise is there: making it again is harmless."""
    daemon.start(bent="")
    daemon.bend(unheard={"promise": 2})

    answer = submit(daemon, work, ran)

    assert answer is not None
    assert ended(daemon, answer["id"]).status == ("failed" if work is FAILING else "completed")
    assert daemon.result(answer["id"]) == work.output


@pytest.mark.parametrize(("work", "status"), [(ECHO, "failed"), (PROGRAM, "completed")], ids=str)
def test_line_10_death_before_the_promise_was_heard(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """The commit is on the disk, its caller is not told: as line 11."""
    daemon.start(bent="")
    daemon.bend(hold="promise")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    daemon.bend(failpoints="writer.after_commit=kill")
    assert daemon.died() == -9
    assert [intent.task_id for intent in rows.intents(daemon.home)] == [answer["id"]]

    assert recovered(daemon, answer["id"]).status == status


@dies_at("settle.after_intent")
@pytest.mark.parametrize(("work", "status"), [(ECHO, "failed"), (PROGRAM, "completed"), (FAILING, "failed")], ids=str)
def test_line_11_a_promise_without_bytes(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """Echo's bytes are gone: failed, never completed. A program's are still in its spool and match the digest."""
    left = crash(daemon, "settle.after_intent", work, ran)
    assert left is not None

    task = recovered(daemon, left.id)

    assert task.status == status
    assert (task.error_code == "settlement_failed") == (work is ECHO)
    assert daemon.result(left.id) == (b"" if work is ECHO else work.output)
    assert rows.intents(daemon.home) == []


@pytest.mark.parametrize("change", ["altered", "cut", "grown", "deleted"])
def test_line_11_a_promise_whose_spool_does_not_match(daemon: Daemon, ran: Ran, change: str) -> None:
    """Only bytes that match the promised digest count; what was written behind them does not."""
    left = crash(daemon, "settle.after_intent", PROGRAM, ran)
    assert left is not None
    _spoil(daemon.spool(left.id) / "stdout", change)

    task = recovered(daemon, left.id)

    if change == "grown":
        assert task.status == "completed"
        assert daemon.result(left.id) == PROGRAM.output
    else:
        assert (task.status, task.error_code) == ("failed", "settlement_failed")


@dies_at("artifact.before_sync")
@pytest.mark.parametrize(("work", "status"), [(ECHO, "lost"), (PROGRAM, "completed")], ids=str)
def test_line_12_a_temporary_file_not_synced(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """Bytes are staged before they are promised: death there is line 8, and the temporary file is swept."""
    left = crash(daemon, "artifact.before_sync", work, ran)
    assert left is not None
    assert _temporary(daemon)

    assert recovered(daemon, left.id).status == status
    assert not _temporary(daemon)


@pytest.mark.parametrize(("work", "status"), [(ECHO, "failed"), (PROGRAM, "completed")], ids=str)
def test_line_12_a_promised_temporary_file_half_written(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """The power failed and left half of it: no part of it ever becomes an output."""
    left = crash(daemon, "settle.after_intent", work, ran)
    assert left is not None
    for path in _temporary(daemon):
        os.truncate(path, path.stat().st_size // 2)

    assert recovered(daemon, left.id).status == status
    assert not _temporary(daemon)


@dies_at("artifact.before_rename")
@pytest.mark.parametrize(("work", "status"), [(ECHO, "failed"), (PROGRAM, "completed")], ids=str)
def test_line_13_a_temporary_file_complete_and_not_renamed(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """Echo: failed, to be on the safe side. A program's bytes are taken from its spool again."""
    left = crash(daemon, "artifact.before_rename", work, ran)
    assert left is not None
    assert _temporary(daemon)

    task = recovered(daemon, left.id)

    assert task.status == status
    assert not _temporary(daemon)


@dies_at("artifact.after_rename")
@BOTH
def test_line_14_renamed_and_whole(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The bytes arrived all the same: they match the digest, and that is what counts."""
    left = crash(daemon, "artifact.after_rename", work, ran)
    assert left is not None

    task = recovered(daemon, left.id)

    assert task.status == "completed"
    assert daemon.result(left.id) == work.output


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize(("work", "status"), [(ECHO, "failed"), (PROGRAM, "completed")], ids=str)
def test_line_14_renamed_and_torn(daemon: Daemon, ran: Ran, work: Work, status: str, size: int) -> None:
    """The power failed before the bytes were on the disk: the digest shows it."""
    left = crash(daemon, "artifact.after_rename", work, ran)
    assert left is not None
    for intent in rows.intents(daemon.home):
        for artifact in intent.artifacts:
            if daemon.artifact(artifact.sha256).exists():
                os.truncate(daemon.artifact(artifact.sha256), min(size, artifact.size_bytes))
    if work is ECHO:
        daemon.checked = False  # the torn file stays under its name; nothing refers to it

    task = recovered(daemon, left.id)

    assert task.status == status
    if status == "completed":
        assert daemon.result(left.id) == work.output


# --- 15 to 20: the row ----------------------------------------------------------------------------------------------


@dies_at("settle.after_publish")
@STORE
def test_line_15_the_bytes_are_durable_and_the_row_is_not_settled(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The case that the promise exists for: it is kept."""
    left = crash(daemon, "settle.after_publish", work, ran)
    assert left is not None
    assert left.status == "running"

    task = recovered(daemon, left.id)

    assert task.status == ("failed" if work is FAILING else "completed")
    assert task.exit_code == (3 if work is FAILING else None if work is ECHO else 0)
    assert daemon.result(left.id) == work.output


@dies_at("settle.in_transaction")
@STORE
def test_line_16_inside_the_settling_transaction(daemon: Daemon, ran: Ran, work: Work) -> None:
    """It is atomic: as if it had not been begun."""
    left = crash(daemon, "settle.in_transaction", work, ran)
    assert left is not None
    assert left.status == "running"
    assert len(rows.intents(daemon.home)) == 1

    assert recovered(daemon, left.id).status == ("failed" if work is FAILING else "completed")
    assert daemon.result(left.id) == work.output


@STORE
def test_line_17_a_settlement_that_reads_as_an_error(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The store says no though the row is settled: it is read again, and what follows from it follows, retries too."""
    daemon.start(bent="")
    daemon.bend(unheard={"settle": 1})

    answer = submit(daemon, work, ran, retries=1)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert task.status == ("failed" if work is FAILING else "completed")
    if work is FAILING:
        again = until(lambda: daemon.get(task.id)["retried_by"], "it was not tried again")
        assert ended(daemon, again).status == "failed"
        assert ran.lines == ["ran", "ran"]


@BOTH
def test_line_17_death_before_the_settlement_was_heard(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The commit is on the disk, its caller is not told: done."""
    daemon.start(bent="")
    daemon.bend(hold="apply")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    daemon.bend(failpoints="writer.after_commit=kill")
    assert daemon.died() == -9
    before = rows.task(daemon.home, answer["id"])
    assert before.status == "completed"

    daemon.start()

    assert unowned(rows.task(daemon.home, answer["id"])) == unowned(before)


@STORE
def test_line_18_a_store_error_while_settling_is_tried_again(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The row stays running and a finding says why, until the store takes it."""
    daemon.start(bent="")
    daemon.bend(refused={"settle": 3})

    answer = submit(daemon, work, ran)
    assert answer is not None
    until(lambda: _finding(daemon, "settlement_waits"), "no finding tells of it")
    assert daemon.get(answer["id"])["status"] == "running"

    assert ended(daemon, answer["id"]).status == ("failed" if work is FAILING else "completed")
    assert daemon.result(answer["id"]) == work.output


@BOTH
def test_line_18_a_writer_that_cannot_commit_for_a_while(daemon: Daemon, ran: Ran, work: Work) -> None:
    """Every commit fails for a while: what was accepted ends all the same, and new work is refused meanwhile."""
    daemon.start(bent="")
    daemon.bend(hold="promise")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    daemon.bend(failpoints="writer.before_commit=error")

    with pytest.raises(Refused) as refused:
        daemon.delegate("echo", "more")
    until(lambda: _finding(daemon, "settlement_waits"), "no finding tells of it")
    daemon.bend(failpoints="")

    assert refused.value.code == "storage_error"
    assert ended(daemon, answer["id"]).status == "completed"


@STORE
def test_line_19_the_driver_dies_between_the_bytes_and_the_row(daemon: Daemon, ran: Ran, work: Work) -> None:
    """The daemon lives and recovery leaves the row alone; the supervisor keeps the promise."""
    daemon.start("settle.after_publish=crash")

    answer = submit(daemon, work, ran)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert task.status == ("failed" if work is FAILING else "completed")
    assert daemon.result(task.id) == work.output


@BOTH
@pytest.mark.parametrize("status", ["lost", "taken"])
def test_line_19_the_driver_dies_with_bad_evidence(daemon: Daemon, ran: Ran, work: Work, status: str) -> None:
    """The promised bytes are gone when the driver dies: never completed, unless the spool still has them."""
    daemon.start(bent="")
    daemon.bend(hold="apply")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    (intent,) = rows.intents(daemon.home)
    daemon.artifact(intent.output_sha256).unlink()
    if status == "lost" and work is PROGRAM:
        (daemon.spool(answer["id"]) / "stdout").unlink()
    daemon.bend(failpoints="settle.in_transaction=crash*2")  # tried with its batch, and by itself

    task = ended(daemon, answer["id"])

    if work is PROGRAM and status == "taken":
        assert task.status == "completed"
        assert daemon.result(task.id) == work.output
    else:
        assert task.status == "failed"


@dies_at("settle.after_commit")
@STORE
def test_line_20_after_the_row_is_settled(daemon: Daemon, ran: Ran, work: Work) -> None:
    """Nothing is left to do: the row does not change any more, whatever dies."""
    left = crash(daemon, "settle.after_commit", work, ran)
    assert left is not None
    assert left.status == ("failed" if work is FAILING else "completed")

    daemon.start()
    until(lambda: rows.task(daemon.home, left.id).cleanup != "pending", "it is not cleaned up after")

    assert unowned(rows.task(daemon.home, left.id)) == unowned(left)
    assert daemon.result(left.id) == work.output


@STORE
def test_line_20_the_driver_dies_after_the_row_is_settled(daemon: Daemon, ran: Ran, work: Work) -> None:
    """Whoever waits is told, the slot is free, and a retry follows."""
    daemon.start("settle.after_commit=crash")

    answer = submit(daemon, work, ran, retries=1)

    assert answer is not None
    task = ended(daemon, answer["id"])
    assert task.status == ("failed" if work is FAILING else "completed")
    if work is FAILING:
        again = until(lambda: daemon.get(task.id)["retried_by"], "it was not tried again")
        assert ended(daemon, again).status == "failed"


# --- 21 to 26: cancelling -------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("step", ["promise", "publish", "apply"])
def test_line_21_22_23_a_cancel_wins_before_the_row_is_settled(daemon: Daemon, ran: Ran, work: Work, step: str) -> None:
    """Whether nothing, the promise, or the bytes too were there: cancelled is final, and the promise goes with it."""
    daemon.start(bent="")
    daemon.bend(hold=step)
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()

    with daemon.connect() as connection:
        connection.send("task.cancel", ids=[answer["id"]])
        until(lambda: rows.task(daemon.home, answer["id"]).status == "cancelled", "the cancel is not committed")
        daemon.bend()
        told = connection.read()["result"][0]

    task = ended(daemon, answer["id"])
    assert (told["outcome"], task.status) == ("cancelled", "cancelled")
    assert rows.intents(daemon.home) == []
    if work is ECHO:
        assert task.output is None


@BOTH
def test_line_24_a_cancel_that_comes_after_the_settlement(daemon: Daemon, ran: Ran, work: Work) -> None:
    """It reports what the task is, and changes nothing."""
    daemon.start(bent="")
    daemon.bend(hold="tell")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    before = rows.task(daemon.home, answer["id"])

    with daemon.connect() as connection:
        connection.send("task.cancel", ids=[answer["id"]])
        connection.send("daemon.status")
        daemon.bend()
        answers = {message["id"]: message for message in (connection.read(), connection.read())}

    (told,) = (found["result"][0] for found in answers.values() if isinstance(found["result"], list))
    assert told["outcome"] == "already_completed"
    assert unowned(rows.task(daemon.home, answer["id"])) == unowned(before)


def test_line_25_a_store_error_cancels_nothing(daemon: Daemon, ran: Ran) -> None:
    """Not reported cancelled, not signalled: the work goes on to its own end."""
    daemon.start(bent="")
    task_id = daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.bend(refused={"end_running": 1})

    with pytest.raises(Refused) as refused:
        daemon.cancel(task_id)

    ran.go()
    assert refused.value.code == "storage_error"
    assert ended(daemon, task_id).status == "completed"
    assert daemon.result(task_id) == SLOW.output


@pytest.mark.parametrize("by", ["cancel", "timeout"])
def test_line_25_a_decision_that_reads_as_an_error_is_carried_out(daemon: Daemon, ran: Ran, by: str) -> None:
    """The store says no though the row says cancelled (or timed out): its processes are ended all the same."""
    daemon.start(bent="")
    daemon.bend(unheard={"end_running": 1})
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env, timeout_s=0.5 if by == "timeout" else 60)["id"]
    until(lambda: ran.lines, "it never ran")

    if by == "cancel":
        told = daemon.cancel(task_id)
        assert told["outcome"] == "cancelled"
    task = ended(daemon, task_id)

    assert task.status == ("cancelled" if by == "cancel" else "timed_out")
    assert processes_of(daemon.home) == {}


@dies_at("cancel.after_commit")
def test_line_26_after_the_cancel_before_the_signal(daemon: Daemon, ran: Ran) -> None:
    """Cancelled is final, and the next daemon ends the processes before it says so to anybody who waits."""
    daemon.start(bent="")
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.bend(failpoints="cancel.after_commit=kill")
    with pytest.raises(ConnectionError):
        daemon.cancel(task_id)
    assert daemon.died() == -9
    before = rows.task(daemon.home, task_id)
    assert (before.status, before.cleanup) == ("cancelled", "pending")
    assert processes_of(daemon.home)

    task = recovered(daemon, task_id)

    assert (task.status, task.cleanup) == ("cancelled", "done")
    assert processes_of(daemon.home) == {}
    assert daemon.result(task_id) == SLEEP.output


@dies_at("cleanup.before_commit")
def test_line_26_after_the_signals_before_the_clean_up_is_recorded(daemon: Daemon, ran: Ran) -> None:
    """The processes are gone and the row does not say so yet: the next daemon looks again, and records it."""
    daemon.start(bent="")
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.bend(failpoints="cleanup.before_commit=kill")
    with pytest.raises(ConnectionError):
        daemon.cancel(task_id)
    assert daemon.died() == -9
    assert rows.task(daemon.home, task_id).cleanup == "pending"

    task = recovered(daemon, task_id)

    assert (task.status, task.cleanup) == ("cancelled", "done")
    assert daemon.result(task_id) == SLEEP.output


# --- 27 to 28: bad evidence -----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("change", ["altered", "cut", "grown", "deleted"])
def test_line_27_the_artifact_is_bad_before_recovery(daemon: Daemon, ran: Ran, work: Work, change: str) -> None:
    """Echo: failed. A program's bytes are taken from its spool again, where that still matches."""
    left = crash(daemon, "settle.after_publish", work, ran)
    assert left is not None
    (intent,) = rows.intents(daemon.home)
    _spoil(daemon.artifact(intent.output_sha256), change)
    daemon.checked = work is PROGRAM or change == "deleted"  # else the bad file stays; nothing refers to it

    task = recovered(daemon, left.id)

    if work is PROGRAM:
        assert task.status == "completed"
        assert daemon.result(left.id) == work.output
    else:
        assert (task.status, task.error_code) == ("failed", "settlement_failed")
        assert daemon.result(left.id) == b""


@pytest.mark.parametrize("change", ["altered", "cut", "deleted"])
def test_line_27_artifact_and_spool_are_bad_before_recovery(daemon: Daemon, ran: Ran, change: str) -> None:
    """No evidence is left: failed, and nothing is passed off as the result."""
    left = crash(daemon, "settle.after_publish", PROGRAM, ran)
    assert left is not None
    (intent,) = rows.intents(daemon.home)
    _spoil(daemon.artifact(intent.output_sha256), change)
    _spoil(daemon.spool(left.id) / "stdout", change)
    daemon.checked = change == "deleted"

    task = recovered(daemon, left.id)

    assert (task.status, task.error_code) == ("failed", "settlement_failed")


_BAD_INTENTS = {
    "status": "status = 'cancelled'",
    "status nobody knows": "status = 'good'",
    "digest": "output_sha256 = upper(output_sha256)",
    "digest that climbs": "output_sha256 = '../../config.toml'",
    "digest of other bytes": f"output_sha256 = '{'0' * 64}'",
    "size": "output_bytes = -1",
    "other size": "output_bytes = output_bytes + 1",
    "huge size": "output_bytes = 9223372036854775807",
    "other owner": "owner_pid = 1",
    "other start": "owner_start = '1'",
    "no reason": "status = 'failed'",
}


@BOTH
@pytest.mark.parametrize("fault", _BAD_INTENTS)
def test_line_28_a_malformed_promise_fails_its_own_task_only(daemon: Daemon, ran: Ran, work: Work, fault: str) -> None:
    """One promise is bad, the other is good: the first fails, the pass goes on, the second completes."""
    daemon.start(bent="")
    daemon.bend(hold="apply")
    bad, good = submit(daemon, work, ran), submit(daemon, ECHO, ran)
    assert bad is not None
    assert good is not None
    until(lambda: len(rows.intents(daemon.home)) == 2, "there are not two promises")
    until(lambda: not _temporary(daemon), "not all is published")
    daemon.kill()
    assert rows.edit(daemon.home, f"UPDATE settlement_intent SET {_BAD_INTENTS[fault]} WHERE task_id = ?", bad["id"])

    daemon.start()

    assert ended(daemon, good["id"]).status == "completed"
    assert ended(daemon, bad["id"]).status == "failed"
    assert rows.intents(daemon.home) == []


def test_line_28_malformed_rows_do_not_stop_the_pass(daemon: Daemon, ran: Ran) -> None:
    """Rows that no code of ours would write stand between sound ones: those are recovered, and the daemon serves."""
    daemon.start(bent="")
    daemon.bend(hold="promise")
    ids = [answer["id"] for _ in range(len(_BAD_ROWS) + 2) if (answer := submit(daemon, PROGRAM, ran))]
    until(lambda: len(ran.lines) == len(ids), "not all ran")
    until(lambda: all((daemon.spool(each) / "exit").exists() for each in ids), "not all ended")
    daemon.kill()
    for task_id, fault in zip(ids[1:-1], _BAD_ROWS, strict=True):
        assert rows.edit(daemon.home, f"UPDATE task SET {fault} WHERE id = ?", task_id)
    daemon.checked = False

    daemon.start()

    for task_id in (ids[0], ids[-1]):
        assert ended(daemon, task_id).status == "completed"
        assert daemon.result(task_id) == PROGRAM.output
    after = submit(daemon, PROGRAM, ran)
    assert after is not None
    assert ended(daemon, after["id"]).status == "completed"
    assert len(ran.lines) == len(ids) + 1


@pytest.mark.parametrize("name", ["", ".", "..", "../artifacts", "../../../../tmp", "a/b", "\0"], ids=repr)
def test_line_28_a_row_whose_id_is_a_path_deletes_nothing(daemon: Daemon, ran: Ran, name: str) -> None:
    """The id of a task names its spool, which is removed in the end: what is no id is left to a person."""
    left = crash(daemon, "settle.before_intent", PROGRAM, ran)
    assert left is not None
    rows.edit(daemon.home, "UPDATE task SET id = ? WHERE id = ?", name, left.id)
    other = daemon.spool("0190c0de-0000-7000-8000-000000000000")
    other.mkdir()
    kept = daemon.artifact("kept")
    kept.touch()
    daemon.checked = False

    assert daemon.start()["recovery"]["unreadable"] == 1

    assert ended(daemon, daemon.delegate("echo", "x")["id"]).status == "completed"
    assert other.exists()
    assert kept.exists()
    assert Path(daemon.home.database).exists()


def test_line_28_a_row_that_cannot_be_written_is_left_to_a_person(daemon: Daemon, ran: Ran) -> None:
    """The schema allows neither the settlement nor the cleaning of this row: it is not called done, it eats neither log
    nor processor, others go on, and the daemon stops when it is told to."""
    daemon.start(bent="")
    daemon.bend(hold="promise")
    bad, good = submit(daemon, PROGRAM, ran), submit(daemon, PROGRAM, ran)
    assert bad is not None
    assert good is not None
    until(lambda: all((daemon.spool(each["id"]) / "exit").exists() for each in (bad, good)), "not all ended")
    daemon.kill()
    rows.edit(daemon.home, "UPDATE task SET timeout_ms = -1 WHERE id = ?", bad["id"])
    daemon.checked = False
    size = len(daemon.log())

    daemon.start(bent="margin=0.2")
    task = ended(daemon, good["id"])
    daemon.call("daemon.stop", cancel=True)

    assert daemon.died(15) == 0
    assert task.status == "completed"
    assert rows.task(daemon.home, bad["id"]).cleanup == "pending"  # cancelled, and not proven to be cleaned up after
    assert len(daemon.log()) - size < 100_000


_BAD_ROWS = [
    "owner_pid = -1",
    "owner_pid = 0",
    "owner_pid = 9223372036854775807",
    "owner_start = ''",
    "owner_start = 'x'",
    "owner_boot = ''",
    "worker_pid = -1, worker_start = '1', worker_boot = owner_boot",
    "worker_pid = 9223372036854775807, worker_start = '1', worker_boot = owner_boot",
    "worker_start = 'x'",
    "worker_boot = 'x'",
    "deadline_mono_ms = -9223372036854775808",
    "deadline_mono_ms = 9223372036854775807",
    "agent = ''",
    "agent = 'nobody'",
    "kind = 'nothing'",
    "env = '{'",
    "labels = 'x'",
    "chain = '{}'",
    "source = ''",
    "priority = 9223372036854775807",
]


# --- 29 to 34: owners -----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("promised", [True, False], ids=["promised", "not promised"])
def test_line_29_a_living_owner_keeps_its_row(
    daemon: Daemon, ran: Ran, work: Work, promised: bool, stranger: Callable[[], Stranger]
) -> None:
    """Nothing of a living process's row is touched, at the start or later; when it ends, its row is taken up."""
    daemon.configure(QUICK)
    left = crash(daemon, "settle.after_publish" if promised else "settle.before_intent", work, ran)
    assert left is not None
    owner = stranger()
    _give_to(daemon, left.id, owner.identity)
    before = rows.task(daemon.home, left.id)

    ready = daemon.start(bent="")
    assert ready["recovery"]["kept"] == 1
    assert _finding(daemon, "rows_kept")
    daemon.beats(3)
    assert rows.task(daemon.home, left.id) == before
    assert len(rows.intents(daemon.home)) == promised
    with daemon.connect() as waiting:
        waiting.send("task.wait", ids=[left.id], timeout_s=20)
        owner.end()
        answer = waiting.read()["result"]

    assert answer["status"] == "complete"
    assert ended(daemon, left.id).status == ("completed" if promised or work is PROGRAM else "lost")


@BOTH
@pytest.mark.parametrize("promised", [True, False], ids=["promised", "not promised"])
def test_line_30_a_reused_pid_is_no_owner(
    daemon: Daemon, ran: Ran, work: Work, promised: bool, stranger: Callable[[], Stranger]
) -> None:
    """A living process has the owner's PID and another start: it is a stranger, and it is left in peace."""
    left = crash(daemon, "settle.after_publish" if promised else "settle.before_intent", work, ran)
    assert left is not None
    other = stranger()
    _give_to(daemon, left.id, other.identity._replace(start=str(int(other.identity.start) - 1)))

    task = recovered(daemon, left.id)

    assert task.status == ("completed" if promised or work is PROGRAM else "lost")
    assert other.process.poll() is None


@pytest.mark.parametrize("column", ["start", "boot_id"])
def test_line_31_an_ambiguous_owner_keeps_its_row(
    daemon: Daemon, ran: Ran, column: str, stranger: Callable[[], Stranger]
) -> None:
    """A living process has the owner's PID, and the row does not say when (or in which boot) that began: kept."""
    daemon.configure(QUICK)
    left = crash(daemon, "settle.after_publish", PROGRAM, ran)
    assert left is not None
    other = stranger()
    _give_to(daemon, left.id, other.identity._replace(**{column: ""}))

    ready = daemon.start()
    assert ready["recovery"]["kept"] == 1
    assert rows.task(daemon.home, left.id).status == "running"
    assert "unclear" in daemon.log()
    other.end()

    assert ended(daemon, left.id).status == "completed"


def test_line_32_a_refused_probe_keeps_the_row(daemon: Daemon, ran: Ran, stranger: Callable[[], Stranger]) -> None:
    """The kernel does not tell whether the owner lives: kept, and the log says why; once it tells, it is taken up."""
    daemon.configure(QUICK)
    left = crash(daemon, "settle.after_publish", PROGRAM, ran)
    assert left is not None
    other = stranger()
    _give_to(daemon, left.id, other.identity._replace(start="1"))

    ready = daemon.start(bent=f"blind={other.identity.pid}")
    assert ready["recovery"]["kept"] == 1
    assert "unclear" in daemon.log()
    assert rows.task(daemon.home, left.id).status == "running"
    daemon.bend()

    assert ended(daemon, left.id).status == "completed"


@BOTH
def test_line_33_a_row_that_went_to_another_owner_is_not_overwritten(
    daemon: Daemon, ran: Ran, work: Work, stranger: Callable[[], Stranger]
) -> None:
    """The old owner's settlement changes nothing; the old promise does not become the new owner's result."""
    daemon.configure(QUICK)
    daemon.start(bent="")
    daemon.bend(hold="apply")
    answer = submit(daemon, work, ran)
    assert answer is not None
    daemon.held()
    other = stranger()
    rows.edit(daemon.home, _GIVE, *other.identity, answer["id"])
    daemon.bend()

    until(lambda: not Path(daemon.home.run, "held").exists(), "it still holds")
    daemon.call("daemon.status")
    assert rows.task(daemon.home, answer["id"]).status == "running"
    other.end()

    assert ended(daemon, answer["id"]).status == "failed"


def test_line_34_two_recoveries_at_once(daemon: Daemon, another: Daemon, ran: Ran) -> None:
    """Two daemons recover one home in the same moment: each row is taken by one of them, and ends once."""
    daemon.configure(QUICK)
    daemon.start(bent="")
    alive = [daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"] for _ in range(4)]
    until(lambda: len(ran.lines) == 4, "not all ran")
    daemon.bend(hold="apply")
    done = [answer["id"] for _ in range(4) for work in (ECHO, PROGRAM) if (answer := submit(daemon, work, ran))]
    until(lambda: len(rows.intents(daemon.home)) >= 8, "not all are promised")
    until(lambda: not _temporary(daemon), "not all is published")
    daemon.kill()

    daemon.begin(bent="no_lock")
    another.begin(bent="no_lock")
    daemon.ready()
    another.ready()
    ran.go()
    until(lambda: all(task.ended and task.cleanup != "pending" for task in rows.tasks(daemon.home)), "not all end")

    assert {rows.task(daemon.home, each).status for each in [*alive, *done]} == {"completed"}
    assert all(rows.ends_of(daemon.home, each) == ["completed"] for each in [*alive, *done])
    assert [rows.events_of(daemon.home, each).count("adopted") for each in alive] == [1] * 4
    assert len(ran.lines) == 8
    for each in (daemon, another):
        each.signal(signal.SIGTERM)
        assert each.died() == 0


@at("recovery.before_row", "recovery.after_row")
def test_line_35_recovery_dies_in_the_middle_and_runs_again(daemon: Daemon, ran: Ran, point: str) -> None:
    """Killed at the first row, the second, ... of a mixed lot: what the last pass makes of each is what one would."""
    daemon.configure(QUICK)
    daemon.start(bent="")
    alive = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    gone = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    cancelled = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: len(ran.lines) == 3, "not all ran")
    worker = worker_of(daemon, gone)
    daemon.bend(hold="apply")
    promised = [answer["id"] for work in (ECHO, PROGRAM, FAILING) if (answer := submit(daemon, work, ran))]
    until(lambda: len(rows.intents(daemon.home)) == 3, "not all are promised")
    until(lambda: not _temporary(daemon), "not all is published")
    daemon.bend(hold="apply", failpoints="cancel.after_commit=kill")
    with pytest.raises(ConnectionError):
        daemon.cancel(cancelled)
    assert daemon.died() == -9
    os.kill(worker, signal.SIGKILL)

    for pass_ in (1, 2):
        die(daemon, point, pass_)
    daemon.start()

    assert [ended(daemon, each).status for each in promised] == ["completed", "completed", "failed"]
    assert ended(daemon, gone).status == "lost"
    assert ended(daemon, cancelled).status == "cancelled"
    assert daemon.get(alive)["status"] == "running"
    daemon.kill()
    before = [task for task in rows.tasks(daemon.home) if task.ended]
    daemon.start()
    assert [task for task in rows.tasks(daemon.home) if task.ended] == before
    assert daemon.cancel(alive)["outcome"] == "cancelled"
    assert len(ran.lines) == 5


# --- 36 to 37: time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["error", "crash"])
def test_line_36_a_flusher_that_fails_comes_back(daemon: Daemon, ran: Ran, fault: str) -> None:
    """The heartbeat stops for a while, of a store error or of a bug: it goes on, and nobody is timed out."""
    daemon.configure(QUICK.replace("[daemon]", '[daemon]\nheartbeat_timeout = "1s"'))
    daemon.start(bent="")
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.bend(failpoints=f"heartbeat.flush={fault}*2")
    last = rows.task(daemon.home, task_id).heartbeat_mono_ms
    assert last is not None

    until(lambda: (rows.task(daemon.home, task_id).heartbeat_mono_ms or 0) > last + 1500, "the heart beats no more")

    assert daemon.get(task_id)["status"] == "running"
    assert daemon.cancel(task_id)["outcome"] == "cancelled"


@dies_at("heartbeat.flush")
def test_line_36_death_at_the_heartbeat(daemon: Daemon, ran: Ran) -> None:
    """Nothing hangs on a heartbeat: the work is adopted."""
    daemon.configure(QUICK)
    daemon.start("heartbeat.flush=kill")
    task_id = daemon.delegate("sh", SLOW.prompt, env=ran.env)["id"]
    assert daemon.died() == -9

    ran.go()
    assert recovered(daemon, task_id).status == "completed"
    assert daemon.result(task_id) == SLOW.output


def test_line_36_a_stale_row_of_an_unclear_owner_is_timed_out(
    daemon: Daemon, ran: Ran, stranger: Callable[[], Stranger]
) -> None:
    """Nobody can say whether its owner lives, and it gave no sign of life for the whole window: timed out, once."""
    daemon.configure(QUICK.replace("[daemon]", '[daemon]\nheartbeat_timeout = "1s"'))
    left = crash(daemon, "settle.before_intent", PROGRAM, ran)
    assert left is not None
    other = stranger()
    _give_to(daemon, left.id, other.identity._replace(start=""))
    daemon.start()

    with daemon.connect() as waiting:
        answer = waiting.call("task.wait", ids=[left.id], timeout_s=15)

    assert answer["status"] == "complete"
    task = rows.task(daemon.home, left.id)
    assert (task.status, task.error_code) == ("timed_out", "heartbeat_timeout")
    other.end()
    until(lambda: rows.task(daemon.home, left.id).cleanup == "done", "it is not cleaned up after")


def test_line_37_work_that_hangs_is_bounded_by_its_timeout(daemon: Daemon, ran: Ran) -> None:
    """A fresh heartbeat shows the owner, not progress: the timeout ends it, across a restart too."""
    daemon.start()
    task_id = daemon.delegate("sh", SLEEP.prompt, env=ran.env, timeout_s=1)["id"]
    until(lambda: ran.lines, "it never ran")
    daemon.kill()
    daemon.start()

    task = ended(daemon, task_id)

    assert (task.status, task.error_code) == ("timed_out", "timeout")
    assert processes_of(daemon.home) == {}


# --- 38 to 40: the store --------------------------------------------------------------------------------------------


def test_line_39_a_damaged_store_is_refused(daemon: Daemon, ran: Ran) -> None:
    """The daemon does not start on a damaged database, leaves it as it is, and says what to do."""
    daemon.start()
    for _ in range(50):
        submit(daemon, ECHO, ran)
    daemon.stop()
    daemon.checked = False
    with open(daemon.home.database, "r+b") as file:
        file.seek(os.path.getsize(daemon.home.database) // 2 // 4096 * 4096)
        file.write(os.urandom(4096))
    before = Path(daemon.home.database).read_bytes()

    with pytest.raises(NotStarted) as refused:
        daemon.start()

    assert refused.value.code == "database_damaged"
    assert daemon.home.database in refused.value.error["message"]
    assert Path(daemon.home.database).read_bytes() == before


def test_line_40_an_older_program_refuses_a_newer_store(daemon: Daemon, ran: Ran) -> None:
    """It says both versions, and neither settles nor loses anything."""
    left = crash(daemon, "settle.after_publish", PROGRAM, ran)
    assert left is not None
    with rows.editing(daemon.home) as connection:
        known = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {known + 1}")

    with pytest.raises(NotStarted) as refused:
        daemon.start()

    assert refused.value.code == "database_newer"
    assert (refused.value.error["details"]["found"], refused.value.error["details"]["known"]) == (known + 1, known)
    with rows.editing(daemon.home) as connection:
        connection.execute(f"PRAGMA user_version = {known}")
    assert recovered(daemon, left.id).status == "completed"


# --- what the tests above stand on ----------------------------------------------------------------------------------

_GIVE = "UPDATE task SET owner_pid = ?, owner_start = ?, owner_boot = ? WHERE id = ?"


def _give_to(daemon: Daemon, task_id: str, owner: ProcessIdentity) -> None:
    """Let a row and its promise say that this process is their owner."""
    rows.edit(daemon.home, _GIVE, *owner, task_id)
    rows.edit(
        daemon.home,
        _GIVE.replace("task SET", "settlement_intent SET").replace("WHERE id", "WHERE task_id"),
        *owner,
        task_id,
    )


def _finding(daemon: Daemon, code: str) -> list[dict[str, Any]]:
    return [each for each in daemon.call("daemon.status")["findings"] if each["code"] == code]


def _temporary(daemon: Daemon) -> list[Path]:
    return [path for path in Path(daemon.home.artifacts).iterdir() if path.name.startswith(".tmp")]


def _spoil(path: Path, change: str) -> None:
    if change == "altered":
        data = bytearray(path.read_bytes())
        data[0] ^= 1
        path.write_bytes(data)
    elif change == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif change == "grown":
        with path.open("ab") as file:
            file.write(b"x")
    else:
        path.unlink()
