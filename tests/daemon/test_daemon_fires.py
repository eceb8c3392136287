"""The fires of jobs: what one does that meets another, what decides before it, how it runs, and what is kept of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran, gate
from harness.hands import Hands, cron, ended, findings, moves_on, runs, show
from pawl.config.cron import CronConfig
from pawl.engines.cron.model import jitter_ms
from pawl.engines.cron.store import KEPT

DAILY = {"schedule": "0 12 * * *", "timezone": "UTC"}
MINUTELY = {"schedule": "* * * * *", "timezone": "UTC"}


def _fires(daemon: Daemon, name: str, *statuses: str) -> list[dict[str, Any]]:
    """Wait until the first fires of a job stand so, oldest first. On a slow machine others may follow."""

    def first() -> list[dict[str, Any]]:
        fires = runs(daemon, name)[: len(statuses)]
        return fires if [fire["status"] for fire in fires] == list(statuses) else []

    found: list[dict[str, Any]] = until(first, f"the fires of {name} are not {statuses}")
    return found


def _waiting(ran: Ran) -> str:
    """A program that says when it begins and waits for its gate."""
    return f'OUT={ran.path}; echo ran >> "$OUT"; {gate()}'


# --- overlap ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["by hand", "by schedule"])
def second(request: pytest.FixtureRequest, daemon: Daemon, hands: Hands, ran: Ran) -> Any:
    """Let the job fire, run, and fire once more: the second way round in either way."""

    def fire(overlap: str) -> None:
        hands.set("2026-03-05T12:00:30Z")
        daemon.configure(CONFIG + cron("job", overlap=overlap, prompt=_waiting(ran), **MINUTELY))
        daemon.start()
        hands.wait_until("2026-03-05T12:01:01Z")
        _fires(daemon, "job", "running")
        if request.param == "by hand":
            daemon.call("cron.run", name="job")
        else:
            hands.wait_until("2026-03-05T12:02:01Z")
            moves_on(daemon, "job", "2026-03-05T12:02:00.000Z")

    return fire


def test_overlap_queue(second: Any, daemon: Daemon, ran: Ran) -> None:
    """The second fire waits for the end of the first."""
    second("queue")
    _fires(daemon, "job", "running", "claimed")
    ran.go()
    one, two = _fires(daemon, "job", "completed", "completed")

    assert ran.lines[:2] == ["ran"] * 2
    assert one["finished_at"] <= two["started_at"]


def test_overlap_replace(second: Any, daemon: Daemon, ran: Ran) -> None:
    """The first is cancelled and says by what; the second begins when nothing is left of it."""
    second("replace")
    one, two = _fires(daemon, "job", "cancelled", "running")
    ran.go()
    _fires(daemon, "job", "cancelled", "completed")

    assert one["reason"] == f"replaced by the fire of {two['nominal_at']}"
    assert one["finished_at"] <= two["started_at"]


def test_overlap_allow(second: Any, daemon: Daemon, ran: Ran) -> None:
    """Both run at the same time."""
    second("allow")
    _fires(daemon, "job", "running", "running")
    ran.go()
    _fires(daemon, "job", "completed", "completed")


def test_a_run_by_hand_is_refused_while_another_goes_on(daemon: Daemon, ran: Ran) -> None:
    """Under `skip`: exit 5, and a record that names the task in its way. When that is over, it runs."""
    daemon.configure(CONFIG + cron("job", prompt=_waiting(ran), **DAILY))
    daemon.start()
    first = daemon.call("cron.run", name="job")
    _fires(daemon, "job", "running")

    with pytest.raises(Refused) as refused:
        daemon.call("cron.run", name="job")
    skipped = _fires(daemon, "job", "running", "skipped")[1]
    ran.go()
    _fires(daemon, "job", "completed", "skipped")
    third = daemon.call("cron.run", name="job")

    assert (refused.value.exit, refused.value.code) == (5, "fire_refused")
    assert first["task_id"] in refused.value.message
    assert first["task_id"] in skipped["reason"]
    assert (skipped["trigger"], skipped["task_id"]) == ("manual", None)
    assert daemon.wait_one(third["task_id"])["status"] == "completed"
    assert show(daemon, "job")["last"]["task_id"] == third["task_id"]


@pytest.mark.parametrize("word", ["remove", "disable"])
def test_what_waits_of_a_job_that_is_gone_or_off_does_not_start(daemon: Daemon, ran: Ran, word: str) -> None:
    """What runs of it runs on; its history stays."""
    daemon.start()
    daemon.call("cron.add", name="job", job={**DAILY, "agent": "sh", "prompt": _waiting(ran), "overlap": "queue"})
    daemon.call("cron.run", name="job")
    daemon.call("cron.run", name="job")
    _fires(daemon, "job", "running", "claimed")

    daemon.call(f"cron.{word}", name="job")
    ran.go()
    _, waited = _fires(daemon, "job", "completed", "skipped")

    assert f"{word}d" in waited["reason"]
    assert len(ran.lines) == 1


def test_a_cancelled_run_is_a_cancelled_fire(daemon: Daemon, ran: Ran) -> None:
    """Of a run that is cancelled like any task the record says so, and why; the job is free."""
    daemon.configure(CONFIG + cron("job", prompt=_waiting(ran), **DAILY))
    daemon.start()
    daemon.cancel(daemon.call("cron.run", name="job")["task_id"], "not today")

    (fire,) = _fires(daemon, "job", "cancelled")
    ran.go()

    assert fire["reason"] == "not today"
    assert daemon.wait_one(daemon.call("cron.run", name="job")["task_id"])["status"] == "completed"


# --- the precondition -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "status", "code", "words"),
    [
        ("exit 0", "completed", 0, None),
        ("exit 10", "skipped", 10, "exit 10"),
        ("exit 1", "failed", 1, "precondition failed (exit 1)"),
        ("exec sleep 600", "failed", None, "precondition failed (timed_out)"),
        ("kill -9 $$", "failed", None, "precondition failed"),
        (None, "failed", None, "precondition failed"),
    ],
    ids=["yes", "not now", "no", "not in time", "killed", "not there"],
)
def test_the_precondition_decides(
    daemon: Daemon, tmp_path: Path, script: str | None, status: str, code: int | None, words: str | None
) -> None:
    """0 runs, 10 is skipped, anything else and an answer that does not come are failures: then nothing is started. It
    is not tried again."""
    asked, worked = tmp_path / "asked", tmp_path / "worked"
    check = ["/no/such/program"] if script is None else ["sh", "-c", f"echo asked >> {asked}; {script}"]
    timeout = {"timeout": "500ms"} if script == "exec sleep 600" else {}
    daemon.configure(
        CONFIG + cron("job", precondition=check, prompt=f"echo worked >> {worked}", retries=3, **timeout, **DAILY)
    )
    daemon.start()

    daemon.call("cron.run", name="job")
    (fire,) = ended(daemon, "job")

    assert (fire["status"], fire["exit_code"]) == (status, code) if code is not None else fire["status"] == status
    assert worked.exists() == (status == "completed") == (fire["task_id"] is not None)
    assert (asked.read_text() if asked.exists() else "") == ("" if script is None else "asked\n")
    if words is not None:
        assert words in fire["reason"]


# --- the work ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retries", "status"), [(2, "completed"), (1, "failed")])
def test_a_run_that_ends_badly_is_tried_again(daemon: Daemon, tmp_path: Path, retries: int, status: str) -> None:
    """As often as the job says, on the one record of its fire, which ends as the last attempt does."""
    out = tmp_path / "out"
    script = f"echo x >> {out}; test $(wc -l < {out}) -eq 3"
    daemon.configure(CONFIG + cron("job", prompt=script, retries=retries, **DAILY))
    daemon.start()

    daemon.call("cron.run", name="job")
    (fire,) = ended(daemon, "job")
    tasks = rows.tasks(daemon.home)

    assert (fire["status"], fire["task_id"]) == (status, tasks[-1].id)
    assert [task.status for task in tasks] == ["failed"] * retries + [status]
    assert fire["exit_code"] == (0 if status == "completed" else 1)
    assert len(out.read_text().split()) == retries + 1


def test_a_command_runs_under_the_policy_of_its_agent(daemon: Daemon, tmp_path: Path) -> None:
    """Word by word and through no shell, in the policy's workspace, with what its policy lets through; the time that
    the agent may take is the job's too."""
    place = tmp_path / "place"
    place.mkdir()
    policy = f'[policies.tight]\nenv = ["PATH", "LET"]\nworkspace = "{place}"\n'
    agent = '[agents.tight]\ncommand = ["cat"]\npolicy = "tight"\ntimeout = "42s"\n'
    job = cron(
        "job", agent="tight", command=["sh", "-c", 'pwd; echo "$LET$HIDDEN|$*|"', "it", "a b", "$HOME;"], **DAILY
    )
    asked = cron("asked", agent="tight", prompt="{task_id} $HOME `x`\n", **DAILY)
    daemon.configure(CONFIG + policy + agent + job + asked)
    daemon.start(env={"LET": "let", "HIDDEN": "hidden"})

    task = daemon.wait_one(daemon.call("cron.run", name="job")["task_id"])
    prompt = daemon.wait_one(daemon.call("cron.run", name="asked")["task_id"])
    fire = ended(daemon, "job")[0]

    assert daemon.result(task["id"]).decode() == f"{place}\nlet|a b $HOME;|\n" == fire["output"]["text"]
    assert daemon.result(prompt["id"]) == b"{task_id} $HOME `x`\n"
    assert (task["kind"], task["agent"], task["creator"]) == ("cron", "tight", "operator")
    (took,) = {_seconds(task["started_at"], task["deadline_at"])}
    assert took == pytest.approx(42, abs=1)


def _seconds(first: str, last: str) -> float:
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def test_a_job_may_go_once_it_has_run(daemon: Daemon, hands: Hands) -> None:
    """Where it has run well: an added one is removed and leaves its history, a declared one is finished. One that
    failed is there to be looked at. None of them fires again."""
    hands.set("2026-03-05T11:59:00Z")
    at = {"at": "2026-03-05T12:00:00Z", "delete_after_run": True}
    daemon.configure(CONFIG + cron("declared", **at) + cron("often", delete_after_run=True, **MINUTELY))
    daemon.start()
    for name, prompt in (("good", "true"), ("bad", "exit 3")):
        daemon.call("cron.add", name=name, job={**at, "agent": "sh", "prompt": prompt})
    hands.wait_until("2026-03-05T12:00:01Z")
    fires = {name: ended(daemon, name) for name in ("declared", "good", "bad", "often")}
    until(lambda: "good" not in _jobs(daemon), "it stays")
    until(lambda: show(daemon, "often")["next_at"] is None, "it fires on")
    jobs = _jobs(daemon)
    daemon.stop()
    hands.wait(600)
    daemon.start()

    assert {name: fire["status"] for name, (fire,) in fires.items()} == {
        "declared": "completed", "good": "completed", "bad": "failed", "often": "completed",
    }  # fmt: skip
    assert set(jobs) == {"declared", "bad", "often"}
    assert not any(job["enabled"] for job in jobs.values())
    assert _jobs(daemon) == jobs
    assert {name: runs(daemon, name) for name in fires} == fires


def _jobs(daemon: Daemon) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in daemon.call("cron.list")}


def test_jitter_moves_a_start_and_no_instant(daemon: Daemon, hands: Hands) -> None:
    """Always by the same span for one job; its instants stay on the grid, and it is neither late nor caught up."""
    hands.set("2026-03-05T11:59:00Z")
    jobs = {name: CronConfig(name=name, agent="sh", prompt="true", jitter="1h", **DAILY) for name in "abcd"}
    spans = {name: jitter_ms(job) / 1000 for name, job in jobs.items()}
    first, *_, last = sorted(spans, key=spans.__getitem__)
    daemon.configure(CONFIG + "".join(cron(name, jitter="1h", **DAILY) for name in jobs))
    daemon.start()
    assert {show(daemon, name)["next_at"] for name in jobs} == {"2026-03-05T12:00:00.000Z"}

    noon = datetime.fromisoformat("2026-03-05T12:00:00Z")
    hands.wait_until((noon + timedelta(seconds=spans[first] + 1)).isoformat())
    moves_on(daemon, first, "2026-03-05T12:00:00.000Z")
    assert runs(daemon, last) == []
    assert findings(daemon, last) == {}
    for name in sorted(spans, key=spans.__getitem__)[1:]:
        hands.wait_until((noon + timedelta(seconds=spans[name] + 1)).isoformat())
        ended(daemon, name)

    assert len(set(spans.values())) == 4
    for name, span in spans.items():
        (fire,) = runs(daemon, name)
        assert (fire["nominal_at"], fire["trigger"]) == ("2026-03-05T12:00:00.000Z", "schedule")
        assert span <= _seconds(fire["nominal_at"], fire["started_at"]) < span + 60


# --- what is kept -----------------------------------------------------------------------------------------------

_SEED = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO cron_fire (job, nominal_at_ms, manual, trigger, status, reason, recorded_at_ms, finished_at_ms)
SELECT ?, ? - i * ?, 0, 'schedule', 'skipped', 'x', 1, 1 FROM n
"""


def test_history_is_kept_by_count_and_by_age(daemon: Daemon, hands: Hands) -> None:
    """A thousand fires of a job, of ninety days, and the last fifty however old. What was forgotten is not fired again
    when the clock is set back to it."""
    hands.set("2026-03-05T11:59:50Z")
    daemon.configure(
        CONFIG + cron("many", **MINUTELY) + cron("old", **MINUTELY) + cron("other", **DAILY) + cron("tick", every="1h")
    )
    daemon.start()
    daemon.stop()
    at_ms = round(datetime.fromisoformat("2026-03-05T11:59:00Z").timestamp() * 1000)
    rows.edit(daemon.home, _SEED, 1200, "many", at_ms + 60_000, 60_000)
    rows.edit(daemon.home, _SEED, 100, "old", at_ms, 86_400_000 * 2)
    rows.edit(daemon.home, _SEED, 3, "other", at_ms, 86_400_000 * 400)
    daemon.start()
    hands.wait_until("2026-03-05T12:00:01Z")
    for name in ("many", "old", "other"):
        moves_on(daemon, name, "2026-03-05T12:00:00.000Z")

    counts = dict(rows.query(daemon.home, "SELECT job, count(*) FROM cron_fire GROUP BY job"))
    assert counts == {"many": KEPT, "old": 50, "other": 4}
    assert [len(runs(daemon, "many", limit=limit)) for limit in (1, 7, 500)] == [1, 7, 500]
    newest = daemon.call("cron.runs", name="many", limit=2)
    assert [fire["nominal_at"][11:16] for fire in newest] == ["12:00", "11:59"]
    assert len(daemon.call("cron.runs")) == 50

    hands.set("2026-03-04T16:30:30Z")
    until(lambda: show(daemon, "tick")["next_at"] < "2026-03-04T18", "the clock is not noticed")
    daemon.call("cron.disable", name="many")
    assert daemon.call("cron.enable", name="many")["next_at"] == "2026-03-05T12:01:00.000Z"

    hands.set("2026-03-05T12:00:50Z")  # right again, so that the home can be judged by its times
    for name in ("old", "tick"):
        moves_on(daemon, name, "2026-03-05T12:00:50")


# --- findings ---------------------------------------------------------------------------------------------------


def test_what_is_late_missed_or_long_is_a_finding(daemon: Daemon, hands: Hands, ran: Ran) -> None:
    """A fire that waits for a slot for more than a minute, a run beyond its expected duration, fires that nobody was
    there for: `status` and `doctor` say so. What is over is no finding, but for what was missed."""
    hands.set("2026-03-05T11:59:00Z")
    daemon.configure(
        CONFIG + cron("long", agent="one", prompt=_waiting(ran), expected_duration="2m", **DAILY)
        + cron("late", agent="one", schedule="1 12 * * *", timezone="UTC")
        + cron("missed", schedule="3 12 * * *", timezone="UTC", catch_up="skip")
    )  # fmt: skip
    daemon.start()
    hands.wait_until("2026-03-05T12:00:01Z")
    _fires(daemon, "long", "running")
    hands.wait_until("2026-03-05T12:01:05Z")
    _fires(daemon, "late", "claimed")
    assert {name: findings(daemon, name) for name in ("long", "late")} == {"long": {}, "late": {}}

    hands.wait_until("2026-03-05T12:02:30Z")
    late = until(lambda: findings(daemon, "late").get("cron_late"), "nobody says that it is late")
    long = until(lambda: findings(daemon, "long").get("cron_runs_long"), "nobody says that it takes long")
    assert "2026-03-05T12:01:00.000Z" in late
    assert runs(daemon, "long")[0]["task_id"] in long
    assert "2m" in long

    daemon.stop()
    hands.wait_until("2026-03-05T12:10:00Z")
    daemon.start()
    moves_on(daemon, "missed", "2026-03-05T12:03:00.000Z")
    ran.go()
    for name in ("long", "late"):
        ended(daemon, name)

    assert findings(daemon, "long") == findings(daemon, "late") == {}
    assert "a fire missed" in findings(daemon, "missed")["cron_missed"]
    doctor = daemon.pawl("doctor", "--json").stdout
    assert b'"cron_missed"' in doctor
