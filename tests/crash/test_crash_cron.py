"""Death at every point of a fire's life: afterwards it has one record with one outcome, and the next one runs.

Time is a test clock's, so that hours pass at once. Every program writes the id of its task when it begins, so that
nothing begins twice unseen.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from firing import HOUR_S, chain, configure, fires, job, now_ms, over, pass_time, program, ran_once

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, Stranger, gate
from pawl.engines.cron.model import Fire
from pawl.values import rfc3339

_CATCH_UPS = ("skip", "once", "all")


def at(*names: str) -> Any:
    """One case for each failpoint at which the daemon of a test dies."""
    return pytest.mark.parametrize("point", [pytest.param(name, marks=pytest.mark.dies_at(name)) for name in names])


def _next_one_runs(daemon: Daemon, ran: Ran, *names: str, after_s: int = HOUR_S) -> None:
    """An hour after the last one each of these jobs fires once more, and completes."""
    before = {name: len(fires(daemon, name)) for name in names}
    pass_time(daemon, after_s)
    for name in names:
        last = over(daemon, before[name] + 1, name)[-1]
        assert (last.status, last.trigger) == ("completed", "schedule"), last
        assert len(fires(daemon, name)) == before[name] + 1
    ran_once(daemon, ran)


def _end_with_their_tasks(daemon: Daemon) -> None:
    """No commit ends a task and not its fire, or the other way round."""
    for fire in fires(daemon):
        if fire.task_id is not None:
            assert fire.status == rows.task(daemon.home, fire.task_id).status


def _outcome(daemon: Daemon, ran: Ran, fire: Fire) -> str:
    """What a fire that had a task when its daemon died must have come to: nothing was begun twice."""
    assert fire.task_id is not None
    assert rows.ends_of(daemon.home, fire.task_id) == [fire.status]
    return "completed" if fire.task_id in ran.lines else "lost"


# --- a scheduled fire -----------------------------------------------------------------------------------------------


@at(
    "cron.before_claim", "cron.after_claim", "delegate.before_commit", "delegate.after_commit", "cron.after_task",
    "launch.after_spawn", "launch.after_record", "settle.before_intent", "settle.after_intent", "settle.after_publish",
    "settle.in_transaction", "settle.after_commit",
)  # fmt: skip
def test_a_scheduled_fire(daemon: Daemon, ran: Ran, point: str) -> None:
    """What had no task runs now, or is missed where the job asks for nothing else; what had one ends as every task
    does: adopted, settled, or lost where nothing was begun."""
    configure(daemon, *(job(mode, ran, catch_up=mode) for mode in _CATCH_UPS))
    daemon.start(f"{point}=kill")
    pass_time(daemon, HOUR_S)
    assert daemon.died() == -9
    had = {fire.job for fire in fires(daemon) if fire.task_id is not None}
    _end_with_their_tasks(daemon)

    daemon.start()
    found = over(daemon, 3)

    assert [fire.job for fire in sorted(found, key=lambda fire: fire.job)] == sorted(_CATCH_UPS)
    for fire in found:
        if fire.job in had:
            assert fire.status == _outcome(daemon, ran, fire)
        else:
            assert fire.status == ("missed" if fire.job == "skip" else "completed"), fire
    _next_one_runs(daemon, ran, *_CATCH_UPS)


# --- fires that are caught up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "pass_"),
    [
        pytest.param(name, pass_, marks=pytest.mark.dies_at(name))
        for name, pass_ in (
            ("cron.before_claim", 2), ("cron.after_claim", 3), ("cron.after_task", 2), ("settle.after_intent", 2)
        )
    ],
)  # fmt: skip
def test_a_fire_that_is_caught_up(daemon: Daemon, ran: Ran, point: str, pass_: int) -> None:
    """A daemon dies while it catches up three fires: the next one goes on with them, in their order, one after
    another."""
    configure(daemon, *(job(mode, ran, catch_up=mode, catch_up_window="1d") for mode in _CATCH_UPS))
    daemon.start()
    daemon.kill()
    pass_time(daemon, 3 * HOUR_S + 120)  # the newest of the three is no prompt one either
    daemon.begin(f"{point}=kill@{pass_}")
    assert daemon.died() == -9
    had = {fire.seq for fire in fires(daemon) if fire.task_id is not None}

    daemon.start()
    found = over(daemon, 9)

    assert len(found) == 9
    by_job = {mode: [fire for fire in found if fire.job == mode] for mode in _CATCH_UPS}
    assert [fire.status for fire in by_job["skip"]] == ["missed"] * 3
    assert [fire.status for fire in by_job["once"][:2]] == ["missed"] * 2
    ran_ones = [by_job["once"][2], *by_job["all"]]
    assert {fire.trigger for fire in ran_ones} == {"catch_up"}
    for fire in ran_ones:
        assert fire.status == (_outcome(daemon, ran, fire) if fire.seq in had else "completed"), fire
    began = [(fire.started_at_ms or 0, fire.finished_at_ms or 0) for fire in by_job["all"]]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(began)), began
    _next_one_runs(daemon, ran, *_CATCH_UPS, after_s=HOUR_S - 120)


# --- a fire by hand -------------------------------------------------------------------------------------------------


@at("cron.before_claim", "cron.after_claim", "cron.after_task", "settle.after_intent")
def test_a_fire_by_hand(daemon: Daemon, ran: Ran, point: str) -> None:
    """Whoever asked hears nothing, and what is on record runs all the same, whatever the job says of fires that were
    missed: somebody asked for it."""
    configure(daemon, job("skip", ran, catch_up="skip"))
    daemon.start(f"{point}=kill")
    with contextlib.suppress(ConnectionError):  # the answer may come before the work is settled
        daemon.call("cron.run", name="skip")
    assert daemon.died() == -9
    left = fires(daemon)

    daemon.start()
    found = over(daemon, len(left))

    assert len(left) == (0 if point == "cron.before_claim" else 1)
    for fire in found:
        had = left[0].task_id is not None
        assert fire.trigger == "manual"
        assert fire.status == (_outcome(daemon, ran, fire) if had else "completed"), fire
    _next_one_runs(daemon, ran, "skip")


# --- a precondition -------------------------------------------------------------------------------------------------


def test_death_while_a_precondition_runs(daemon: Daemon, ran: Ran) -> None:
    """It is adopted, asked once and heard: it runs, is skipped or fails by what it says."""
    answers = {"yes": 0, "no": 10, "bad": 3}
    asked = {
        name: ["sh", "-c", f"{program(ran)}; {gate()}; exit {code}"] for name, code in answers.items()
    }  # it waits at the gate
    configure(daemon, *(job(name, ran, catch_up="once", precondition=asked[name]) for name in answers))
    daemon.start()
    pass_time(daemon, HOUR_S)
    until(lambda: len(ran.lines) == 3, "not all are asked")
    checks = {fire.job: fire.check_id for fire in fires(daemon)}
    daemon.kill()

    daemon.start()
    ran.go()
    found = {fire.job: fire for fire in over(daemon, 3)}

    assert {name: fire.status for name, fire in found.items()} == {
        "yes": "completed", "no": "skipped", "bad": "failed"
    }  # fmt: skip
    assert {name: fire.check_id for name, fire in found.items()} == checks
    assert sorted(ran.lines) == sorted([*(str(check) for check in checks.values()), str(found["yes"].task_id)])
    assert {name: fire.exit_code for name, fire in found.items()} == answers
    _next_one_runs(daemon, ran, "yes")


# --- its task -------------------------------------------------------------------------------------------------------


def test_death_while_one_task_runs_and_another_is_queued(daemon: Daemon, ran: Ran) -> None:
    """The running one is adopted, the queued one gets its turn, both once."""
    configure(daemon, *(job(name, ran, gate()) for name in ("a", "b")), slots=1)
    daemon.start()
    pass_time(daemon, HOUR_S)
    until(lambda: {fire.status for fire in fires(daemon) if fire.task_id} == {"running", "claimed"}, "none waits")
    until(lambda: len(ran.lines) == 1, "none runs")
    daemon.kill()

    daemon.start()
    assert {fire.status for fire in fires(daemon)} == {"running", "claimed"}
    ran.go()

    assert [fire.status for fire in over(daemon, 2)] == ["completed"] * 2
    assert len(ran.lines) == 2
    _next_one_runs(daemon, ran, "a", "b")


@at("settle.after_commit", "dispatch.after_claim")
def test_death_between_two_attempts(daemon: Daemon, ran: Ran, point: str) -> None:
    """The fire is open until its last attempt has ended, and has the status of that one."""
    configure(daemon, job("flaky", ran, '[ $(wc -l < "$OUT") -ge 2 ] || exit 3', retries=2))
    daemon.start(f"{point}=kill")
    pass_time(daemon, HOUR_S)
    assert daemon.died() == -9
    (left,) = fires(daemon)
    assert left.status in ("claimed", "running")
    assert left.finished_at_ms is None

    daemon.start()
    (fire,) = over(daemon, 1)

    assert fire.status == "completed"
    attempts = chain(daemon, fire)
    assert [task.status for task in attempts if task.status == "completed"] == ["completed"]
    assert [task.attempt for task in attempts] == list(range(len(attempts), 0, -1))
    _next_one_runs(daemon, ran, "flaky")


# --- fires that wait ------------------------------------------------------------------------------------------------


def test_death_while_fires_wait_for_each_other(daemon: Daemon, ran: Ran) -> None:
    """One runs and two wait: all of them run, in their order and one after another."""
    configure(daemon, job("line", ran, gate(), overlap="queue", catch_up_window="1d", timeout="7d"))
    daemon.start()
    for count in (1, 2, 3):
        pass_time(daemon, HOUR_S)
        until(lambda count=count: len(fires(daemon)) == count, "it does not fire")
    until(lambda: len(ran.lines) == 1, "none runs")
    daemon.kill()

    daemon.start()
    assert [fire.status for fire in fires(daemon)] == ["running", "claimed", "claimed"]
    ran.go()
    found = over(daemon, 3)

    assert [fire.status for fire in found] == ["completed"] * 3
    assert [fire.task_id for fire in found] == ran.lines
    _next_one_runs(daemon, ran, "line")


def test_death_while_a_fire_replaces_another(daemon: Daemon, ran: Ran) -> None:
    """The old one was told to go and does not: the new one starts when its whole tree has ended, and not before."""
    stubborn = 'trap "" TERM; [ -e "$OUT.old" ] && exit 0; touch "$OUT.old"; while :; do sleep 0.05; done'
    configure(daemon, job("change", ran, stubborn, overlap="replace", timeout="7d"))
    daemon.start()
    pass_time(daemon, HOUR_S)
    until(lambda: len(ran.lines) == 1, "none runs")
    pass_time(daemon, HOUR_S)
    until(lambda: [fire.status for fire in fires(daemon)] == ["cancelled", "claimed"], "it is not replaced")
    daemon.kill()
    old, new = fires(daemon)

    daemon.start()
    found = over(daemon, 2)

    assert [fire.status for fire in found] == ["cancelled", "completed"]
    assert "replaced" in str(found[0].reason)
    assert ran.lines == [old.task_id, found[1].task_id]
    done = rows.query(daemon.home, "SELECT at_ms FROM event WHERE subject_id = ? AND event = 'cleaned'", old.task_id)[
        0
    ][0]
    assert (found[1].started_at_ms or 0) >= done, "it began beside the one that it replaces"
    assert new.seq == found[1].seq
    _next_one_runs(daemon, ran, "change")


# --- jobs that fire once --------------------------------------------------------------------------------------------


@at("cron.after_claim", "settle.after_commit")
def test_jobs_that_fire_once(daemon: Daemon, ran: Ran, point: str) -> None:
    """One-shots fire once and say why they fire no more; one that deletes itself is gone after its success."""
    configure(daemon)
    daemon.start()
    instant = rfc3339(now_ms(daemon) + HOUR_S * 1000)
    for name, more in (("stays", {}), ("goes", {"delete_after_run": True})):
        daemon.call("cron.add", name=name, job={"at": instant, "agent": "sh", "prompt": program(ran), **more})
    daemon.kill()
    daemon.start(f"{point}=kill")
    pass_time(daemon, HOUR_S)
    assert daemon.died() == -9

    daemon.start()
    assert [fire.status for fire in over(daemon, 2)] == ["completed"] * 2
    jobs = until(lambda: len(jobs := daemon.call("cron.list")) == 1 and jobs, "it does not go")
    pass_time(daemon, HOUR_S)
    daemon.kill()
    daemon.start()

    assert [(each["name"], each["disabled_reason"]) for each in jobs] == [("stays", "it has fired")]
    assert [each["name"] for each in daemon.call("cron.list")] == ["stays"]
    assert len(fires(daemon)) == 2
    ran_once(daemon, ran)


# --- a store that does not tell -------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["take", "submit_all", "close", "settle_from_task"])
def test_a_commit_that_reads_as_an_error(daemon: Daemon, ran: Ran, step: str) -> None:
    """Whether a step of a fire is on the disk is not known: it goes on from what is there, once, in this daemon."""
    keys = {"precondition": ["sh", "-c", "exit 10"]} if step == "close" else {}
    configure(daemon, job("hourly", ran, **keys))
    daemon.start(bent="")
    daemon.bend(unheard={step: 1})
    pass_time(daemon, HOUR_S)

    (fire,) = over(daemon, 1)

    assert fire.status == ("skipped" if step == "close" else "completed")
    until(lambda: daemon.call("daemon.status")["cron"]["under_way"] == 0, "it is not seen to its end")
    pass_time(daemon, HOUR_S)
    assert over(daemon, 2)[-1].status == fire.status
    ran_once(daemon, ran)


@pytest.mark.parametrize("keys", [{}, {"precondition": ["sh", "-c", "exit 0"]}], ids=["work", "precondition"])
def test_a_task_that_reads_as_an_error(daemon: Daemon, ran: Ran, keys: dict[str, Any]) -> None:
    """A fire was given its task, and reads as if it was not: it gets no second one, and is seen to its end."""
    configure(daemon, job("hourly", ran, gate(), overlap="queue", timeout="7d", **keys))
    daemon.start("cron.after_task=error*1")
    pass_time(daemon, HOUR_S)
    until(lambda: len(ran.lines) == 1, "it does not run")
    until(lambda: "cannot write to a fire" in daemon.log(), "it is not tried again")
    pass_time(daemon, HOUR_S)
    until(lambda: len(fires(daemon)) == 2, "the next one is not claimed")

    assert daemon.call("daemon.status")["cron"]["under_way"] == 2
    ran.go()
    assert [fire.status for fire in over(daemon, 2)] == ["completed"] * 2
    assert [fire.task_id for fire in fires(daemon)] == ran.lines
    ran_once(daemon, ran)


def test_a_claim_by_hand_that_reads_as_an_error(daemon: Daemon, ran: Ran) -> None:
    """The claim is there though the store said no: it runs, once, and is shown to whoever asked."""
    configure(daemon, job("hourly", ran))
    daemon.start(bent="")
    daemon.bend(unheard={"take_by_hand": 1})

    answer = daemon.call("cron.run", name="hourly")

    (fire,) = over(daemon, 1)
    assert (fire.status, fire.trigger, fire.task_id) == ("completed", "manual", answer["task_id"])
    _next_one_runs(daemon, ran, "hourly")


@pytest.mark.parametrize("point", ["cron.before_claim", "cron.after_claim", "cron.after_task"])
def test_a_bug_in_the_scheduler(daemon: Daemon, ran: Ran, point: str) -> None:
    """Whoever saw to a fire dies of a bug, and the daemon lives: the fire goes on, runs once, and is in the way of the
    next one as long as it runs."""
    configure(daemon, job("hourly", ran, gate(), catch_up="skip"))
    daemon.start(f"{point}=crash*1")
    pass_time(daemon, HOUR_S)
    until(lambda: len(ran.lines) == 1, "it does not run")
    until(lambda: f"failpoint {point}" in daemon.log(), "there was no bug")

    assert daemon.call("daemon.status")["cron"]["under_way"] == 1
    ran.go()
    (fire,) = over(daemon, 1)

    assert (fire.status, ran.lines) == ("completed", [fire.task_id])
    until(lambda: daemon.call("daemon.status")["cron"]["under_way"] == 0, "it is not seen to its end")
    _next_one_runs(daemon, ran, "hourly")


def test_a_fire_of_an_owner_that_may_live(daemon: Daemon, ran: Ran, stranger: Callable[[], Stranger]) -> None:
    """It is kept and nothing else is done with it until that owner is proven gone and the store takes it; then it
    runs, in the same daemon."""
    configure(daemon, job("hourly", ran))
    daemon.start("cron.after_claim=kill")
    pass_time(daemon, HOUR_S)
    assert daemon.died() == -9
    other = stranger()
    rows.edit(daemon.home, "UPDATE cron_fire SET owner_pid = ?, owner_start = ?, owner_boot = ?", *other.identity)
    daemon.start(bent="")
    daemon.bend(refused={"adopt": 1})
    other.end()

    pass_time(daemon, 11)
    until(lambda: "cannot take over a fire yet" in daemon.log(), "it is not tried again")
    pass_time(daemon, 11)
    (fire,) = over(daemon, 1)

    assert fire.status == "completed"
    _next_one_runs(daemon, ran, "hourly", after_s=HOUR_S - 22)
