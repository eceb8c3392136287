"""What nobody was there for: which fires run after all, which are missed, and what a wrong clock leaves."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.daemon import CONFIG, Daemon, until
from harness.hands import Hands, cron, ended, findings, moves_on, ran, show

MINUTELY = {"schedule": "* * * * *", "timezone": "UTC"}


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_all_are_caught_up_one_after_another(daemon: Daemon, hands: Hands, overlap: str) -> None:
    """Whatever the overlap policy says, oldest first, as many as the cap allows, of the window; the rest is missed."""
    limits = {"catch_up": "all", "catch_up_window": "10m", "catch_up_max": 4, "overlap": overlap}
    hands.set("2026-03-05T12:00:30Z")
    daemon.configure(CONFIG + cron("job", prompt="sleep 0.1", **limits, **MINUTELY))
    daemon.start()
    daemon.stop()

    hands.wait(20 * 60)
    daemon.start()
    moves_on(daemon, "job", "2026-03-05T12:20:00.000Z")
    fires = [fire for fire in ended(daemon, "job") if fire["nominal_at"] < "2026-03-05T12:20:00"]

    assert [fire["status"] for fire in fires] == ["missed"] * 15 + ["completed"] * 4
    assert {fire["trigger"] for fire in fires[15:]} == {"catch_up"}
    assert "catch_up_max" in fires[14]["reason"]
    caught = fires[15:]
    assert all(one["finished_at"] <= two["started_at"] for one, two in pairwise(caught))
    assert "15 fires missed" in findings(daemon, "job")["cron_missed"]
    assert "4 fires caught up" in findings(daemon, "job")["cron_caught_up"]


def test_a_long_gap_is_one_record(daemon: Daemon, hands: Hands) -> None:
    """Of more than a thousand fires: the first, the last and their number; each of them is on record by it."""
    hands.set("2026-03-05T12:00:30Z")
    daemon.configure(CONFIG + cron("job", **MINUTELY))
    daemon.start()
    daemon.stop()

    hands.wait(2 * 86_400)
    daemon.start()
    moves_on(daemon, "job", "2026-03-07T12:00:00.000Z")
    gap, run = ended(daemon, "job", 2)[:2]

    assert (gap["status"], gap["nominal_at"], gap["until_at"], gap["count"]) == (
        "missed", "2026-03-05T12:01:00.000Z", "2026-03-07T11:59:00.000Z", 2 * 1440 - 1,
    )  # fmt: skip
    assert (run["nominal_at"], run["status"]) == ("2026-03-07T12:00:00.000Z", "completed")


@pytest.mark.parametrize(
    "ahead", ["2026-03-05T13:30:30Z", "2026-03-07T12:00:30Z"], ids=["a record each", "one for all"]
)
@pytest.mark.parametrize("meanwhile", ["on", "off"])
def test_a_clock_that_was_wrong_for_a_while_stops_no_job(
    daemon: Daemon, hands: Hands, ahead: str, meanwhile: str
) -> None:
    """It jumps ahead and is put right: what was recorded as missed meanwhile is still to come, and comes, also of a job
    that was off when the clock was put right. What ran does not run again."""
    hands.set("2026-03-05T12:00:30Z")
    daemon.configure(CONFIG + cron("job", **MINUTELY) + cron("other", **MINUTELY))
    daemon.start()
    hands.wait_until("2026-03-05T12:01:01Z")
    ended(daemon, "job")

    hands.set(ahead)
    moves_on(daemon, "job", ahead)
    wrong = ran(ended(daemon, "job"))
    if meanwhile == "off":
        daemon.call("cron.disable", name="job")
        moves_on(daemon, "other", ahead)
    hands.set("2026-03-05T12:02:30Z")
    if meanwhile == "off":
        until(lambda: show(daemon, "other")["next_at"] < "2026-03-05T12:04", "the clock is not noticed")
        daemon.call("cron.enable", name="job")
    until(lambda: show(daemon, "job")["next_at"] == "2026-03-05T12:03:00.000Z", "the job waits for the old time")
    hands.wait_until("2026-03-05T12:03:01Z")
    for name in ("job", "other"):
        moves_on(daemon, name, "2026-03-05T12:03:00.000Z")
    fires = ended(daemon, "job")

    assert [(fire["nominal_at"][:16], fire["status"]) for fire in fires[:3]] == [
        ("2026-03-05T12:01", "completed"), ("2026-03-05T12:02", "missed"), ("2026-03-05T12:03", "completed"),
    ]  # fmt: skip
    assert all(fire["count"] == 1 for fire in fires)
    assert {fire["nominal_at"] for fire in wrong} <= {fire["nominal_at"] for fire in ran(fires)}
    assert not [fire for fire in fires if fire["status"] == "missed" and fire["nominal_at"] > "2026-03-05T12:03"]
