"""K3: instants that went by unseen, catching up, and clocks that jump."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenes import Marker, config

from harness import rows
from harness.daemon import Daemon, until
from harness.hands import Hands, cron, ended, moves_on, ran, runs, show

DAILY = {"schedule": "30 8 * * *", "timezone": "America/New_York"}
MINUTELY = {"schedule": "* * * * *", "timezone": "UTC"}


def _nominal(fires: list[dict[str, Any]]) -> list[str]:
    return [fire["nominal_at"] for fire in fires]


def _comes(daemon: Daemon, name: str, nominal_at: str) -> dict[str, Any]:
    """Wait until the fire of this instant has ended."""
    (fire,) = until(
        lambda: [each for each in runs(daemon, name) if each["nominal_at"] == nominal_at and each["finished_at"]],
        f"{name} does not fire at {nominal_at}",
    )
    return dict(fire)


@pytest.mark.parametrize("catch_up", ["once", "skip"])
def test_b034_a_restart_over_the_due_time_loses_no_fire(daemon: Daemon, hands: Hands, catch_up: str) -> None:
    """B-034: down for a minute around its instant. Caught up it runs once, for that instant and after the restart;
    else it is on record as missed. The next fire is tomorrow's.
    """
    daemon.configure(config(more=cron("daily", catch_up=catch_up, **DAILY)))
    hands.set("2026-03-05T13:20:00Z")
    daemon.start()
    assert show(daemon, "daily")["next_at"] == "2026-03-05T13:30:00.000Z"

    hands.wait_until("2026-03-05T13:29:47Z")
    daemon.stop()
    hands.wait_until("2026-03-05T13:31:05Z")
    daemon.start()
    job = moves_on(daemon, "daily", "2026-03-05T13:30:00.000Z")
    (fire,) = ended(daemon, "daily")

    assert job["next_at"] == "2026-03-06T13:30:00.000Z"
    assert fire["nominal_at"] == "2026-03-05T13:30:00.000Z"
    if catch_up == "once":
        assert (fire["status"], fire["trigger"]) == ("completed", "catch_up")
        assert fire["started_at"] > "2026-03-05T13:31:05"
    else:
        assert (fire["status"], fire["task_id"]) == ("missed", None)
        assert "catch_up is skip" in fire["reason"]


def test_b036_without_catch_up_nothing_overdue_runs_ever(daemon: Daemon, hands: Hands) -> None:
    """B-036: down for five minutes. Neither the start nor the loop after it runs what was due before; each such fire
    is on record. The job goes on at the next minute. A one-shot that passed is closed with its reason.
    """
    jobs = cron("minutely", catch_up="skip", **MINUTELY) + cron("once", at="2026-03-05T12:03:00Z", catch_up="skip")
    daemon.configure(config(more=jobs))
    hands.set("2026-03-05T12:00:20Z")
    daemon.start()
    hands.wait_until("2026-03-05T12:01:01Z")
    ended(daemon, "minutely")
    daemon.stop()

    hands.wait_until("2026-03-05T12:06:10Z")
    daemon.start()
    for minute in ("07", "08"):
        hands.wait_until(f"2026-03-05T12:{minute}:01Z")
        _comes(daemon, "minutely", f"2026-03-05T12:{minute}:00.000Z")
    fires = runs(daemon, "minutely")
    once = show(daemon, "once")

    assert _nominal(fires) == [f"2026-03-05T12:0{minute}:00.000Z" for minute in range(1, 9)]
    assert [fire["status"] for fire in fires] == ["completed", *["missed"] * 5, "completed", "completed"]
    assert {fire["trigger"] for fire in ran(fires)} == {"schedule"}
    assert (once["enabled"], once["next_at"], once["last"]["status"]) == (False, None, "skipped")
    assert "catch_up is skip" in once["disabled_reason"]
    assert ran(runs(daemon, "once")) == []


@pytest.mark.parametrize("how", ["down for a day", "written"])
@pytest.mark.parametrize(("window", "status"), [("1h", "missed"), ("2d", "completed")])
def test_b038_a_next_fire_in_the_past_kills_no_job(
    daemon: Daemon, hands: Hands, how: str, window: str, status: str
) -> None:
    """B-038: a next fire of yesterday, because nobody was there or because the row says so. It is run or recorded at
    once, and the job goes on.
    """
    daemon.configure(config(more=cron("noon", schedule="0 12 * * *", timezone="UTC", catch_up_window=window)))
    hands.set("2026-03-05T11:00:00Z")
    daemon.start()
    daemon.stop()

    if how == "written":
        day_ms = 86_400_000
        assert rows.edit(daemon.home, f"UPDATE cron_job SET next_at_ms = next_at_ms - {day_ms}") == 1
        yesterday, today = "2026-03-04T12:00:00.000Z", "2026-03-05T12:00:00.000Z"
    else:
        hands.wait(86_400)
        yesterday, today = "2026-03-05T12:00:00.000Z", "2026-03-06T12:00:00.000Z"
    daemon.start()
    job = moves_on(daemon, "noon", yesterday)
    (fire,) = ended(daemon, "noon")

    assert (job["enabled"], job["next_at"]) == (True, today)
    assert (fire["nominal_at"], fire["status"]) == (yesterday, status)
    assert fire["trigger"] == ("catch_up" if status == "completed" else "schedule")


def test_b041_a_clock_that_is_set_stops_no_job_and_repeats_none(daemon: Daemon, hands: Hands, marker: Marker) -> None:
    """B-041: two hours back: jobs fire within two minutes of the new time, periods too, and no instant twice. Two hours
    forward: one run for all that went by. A timeout of running work moves with neither.
    """
    jobs = cron("minutely", **MINUTELY) + cron("period", every="1m", timezone="UTC")
    daemon.configure(config(more=jobs))
    hands.set("2026-06-01T16:58:40Z")
    daemon.start()
    task_id = daemon.delegate("sh", f"exec sleep {marker}", timeout_s=3600)["id"]
    hands.wait_until("2026-06-01T17:00:01Z")
    _comes(daemon, "minutely", "2026-06-01T17:00:00.000Z")
    ended(daemon, "period")

    hands.set("2026-06-01T15:01:10Z")
    for name in ("minutely", "period"):
        until(lambda: show(daemon, name)["next_at"] < "2026-06-01T15:02:15", f"{name} waits for the old time")  # noqa: B023
    hands.wait(65)
    _comes(daemon, "minutely", "2026-06-01T15:02:00.000Z")
    until(lambda: [at for at in _nominal(ran(runs(daemon, "period"))) if at < "2026-06-01T15:03"], "the period waits")

    before = {name: len(ran(runs(daemon, name))) for name in ("minutely", "period")}
    hands.set("2026-06-01T17:03:30Z")
    for name, count in before.items():
        moves_on(daemon, name, "2026-06-01T17:03:30")
        fires = ended(daemon, name)
        assert len(ran(fires)) == count + 1, name
        assert len(set(_nominal(fires))) == len(fires)
    assert daemon.get(task_id)["status"] == "running"
    daemon.cancel(task_id)


@pytest.mark.parametrize("clocks", ["both go on", "only the wall clock does"])
def test_b042_a_sleep_over_the_due_time_is_caught_up_once(
    daemon: Daemon, hands: Hands, tmp_path: Path, clocks: str
) -> None:
    """B-042: the daemon is stopped before the instant of three jobs and wakes up after it, with one slot. Each runs
    once, and never two at the same time.
    """
    out = tmp_path / "out"
    prompt = f"echo begin >> {out}; sleep 0.1; echo end >> {out}"
    names = ["a", "b", "c"]
    jobs = [cron(name, schedule="30 12 * * *", timezone="UTC", prompt=prompt) for name in names]
    daemon.configure(config(max_concurrent=1, more="".join(jobs)))
    hands.set("2026-03-05T12:20:00Z")
    daemon.start()

    daemon.signal(signal.SIGSTOP)
    move: Callable[[str], None] = hands.wait_until if clocks == "both go on" else hands.set
    move("2026-03-05T12:32:00Z")
    daemon.signal(signal.SIGCONT)
    fires = [ended(daemon, name) for name in names]

    for (fire,) in fires:
        assert (fire["nominal_at"], fire["status"]) == ("2026-03-05T12:30:00.000Z", "completed")
        assert fire["trigger"] == "catch_up"
        assert show(daemon, fire["job"])["next_at"] == "2026-03-06T12:30:00.000Z"
    assert out.read_text().split() == ["begin", "end"] * 3


def test_b043_a_change_that_is_not_of_the_schedule_moves_no_fire(daemon: Daemon, hands: Hands) -> None:
    """B-043: in the evening somebody edits a job of the early morning: another name, another prompt, in the file or by
    command. It fires that next morning, before and after.
    """
    when = {"schedule": "25 6 * * *", "timezone": "America/New_York"}
    daemon.configure(config(more=cron("old", **when) + cron("kept", **when)))
    hands.set("2026-02-07T03:37:00Z")
    daemon.start()
    daemon.call("cron.add", name="added", job={"agent": "sh", "prompt": "true", **when})
    before = [show(daemon, name)["next_at"] for name in ("old", "kept", "added")]

    daemon.configure(config(more=cron("new", **when) + cron("kept", prompt="echo other", **when)))
    daemon.call("config.reload")
    daemon.call("cron.update", name="added", job={"prompt": "echo other"})
    after = [show(daemon, name)["next_at"] for name in ("new", "kept", "added")]

    assert before == after == ["2026-02-07T11:25:00.000Z"] * 3
    assert [show(daemon, name)["prompt"] for name in ("kept", "added")] == ["echo other"] * 2
