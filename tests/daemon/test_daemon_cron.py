"""Scheduled jobs: where they come from, what changes them, and what does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon
from harness.hands import Hands, cron, ended, findings, moves_on, runs, show

DAILY = {"schedule": "0 12 * * *", "timezone": "UTC"}
ADDED = {"schedule": "0 12 * * *", "timezone": "UTC", "agent": "sh", "prompt": "true"}


def _names(daemon: Daemon) -> list[str]:
    return [job["name"] for job in daemon.call("cron.list")]


def _refused(daemon: Daemon, method: str, **params: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        daemon.call(method, **params)
    return refused.value


def _line(daemon: Daemon, name: str) -> int:
    """The line at which the file declares a job."""
    lines = Path(daemon.home.config).read_text().splitlines()
    return lines.index(f'name = "{name}"')  # the table's own line is the one above, counted from 1


def _events(daemon: Daemon, name: str) -> list[str]:
    """What the audit log tells of a job."""
    sql = "SELECT event FROM event WHERE subject_kind = 'cron_job' AND subject_id = ? ORDER BY seq"
    return [row[0] for row in rows.query(daemon.home, sql, name)]


# --- declared ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_declared_jobs_become_what_the_file_says(daemon: Daemon, how: str) -> None:
    """Added, changed and removed ones are told apart by name and reported; the same file again is no change."""
    daemon.configure(CONFIG + cron("kept", **DAILY) + cron("changed", **DAILY) + cron("removed", **DAILY))
    daemon.start()
    daemon.call("cron.add", name="mine", job=ADDED)
    nothing = {"added": [], "changed": [], "removed": [], "conflicts": []}
    assert daemon.call("config.reload")["cron"] == nothing

    daemon.configure(CONFIG + cron("added", **DAILY) + cron("changed", every="1h") + cron("kept", **DAILY))
    if how == "reload":
        said = daemon.call("config.reload")["cron"]
    else:
        daemon.stop()
        daemon.start()
        lines = [json.loads(line) for line in daemon.log().splitlines() if "the declared jobs have changed" in line]
        said = {key: lines[-1][key] for key in nothing}

    assert said == {"added": ["added"], "changed": ["changed"], "removed": ["removed"], "conflicts": []}
    assert _names(daemon) == ["added", "changed", "kept", "mine"]
    for name in ("added", "changed", "kept"):
        assert show(daemon, name)["line"] == _line(daemon, name)
    assert show(daemon, "changed")["schedule"] == "every 1h"
    assert [_events(daemon, name) for name in ("kept", "changed", "removed")] == [
        ["added"], ["added", "changed"], ["added", "removed"],
    ]  # fmt: skip


def test_what_is_not_the_schedule_changes_no_state(daemon: Daemon, hands: Hands) -> None:
    """Another prompt, while the daemon is down and the job overdue: the fire is caught up, the beat goes on, and what
    the operator switched off stays off."""
    hands.set("2026-03-05T10:00:00Z")
    daemon.configure(CONFIG + cron("beat", every="1h") + cron("off", **DAILY))
    daemon.start()
    daemon.call("cron.disable", name="off")
    due = show(daemon, "beat")["next_at"]
    daemon.stop()

    hands.wait(3600 + 300)
    daemon.configure(CONFIG + cron("beat", every="1h", prompt="echo other") + cron("off", prompt="echo", **DAILY))
    daemon.start()
    job = moves_on(daemon, "beat", due)
    (fire,) = ended(daemon, "beat")

    assert (fire["nominal_at"], fire["status"], fire["trigger"]) == (due, "completed", "catch_up")
    assert fire["output"]["text"] == "other\n"
    assert (due[:14], due[14:], job["next_at"][14:]) == ("2026-03-05T11:", due[14:], due[14:])
    assert job["next_at"][:14] == "2026-03-05T12:"
    assert (show(daemon, "off")["override"], show(daemon, "off")["next_at"]) == (False, None)


def test_a_finished_one_shot_does_not_fire_again(daemon: Daemon, hands: Hands) -> None:
    """Not after a restart, a reload, nor a change of its prompt; with another instant it is another schedule."""
    hands.set("2026-03-05T10:00:00Z")
    once = {"at": "2026-03-05T10:05:00", "timezone": "UTC"}
    daemon.configure(CONFIG + cron("once", **once))
    daemon.start()
    hands.wait(301)
    first = ended(daemon, "once")

    daemon.stop()
    daemon.start()
    daemon.call("config.reload")
    daemon.configure(CONFIG + cron("once", prompt="echo other", **once))
    assert daemon.call("config.reload")["cron"]["changed"] == ["once"]
    after = show(daemon, "once")

    assert (after["enabled"], after["next_at"], after["disabled_reason"]) == (False, None, "it has fired")
    assert runs(daemon, "once") == first
    assert findings(daemon, "once") == {}
    assert _refused(daemon, "cron.enable", name="once").code == "cron_job_disabled"

    daemon.configure(CONFIG + cron("once", **(once | {"at": "2026-03-05T11:00:00"})))
    daemon.call("config.reload")
    assert show(daemon, "once")["next_at"] == "2026-03-05T11:00:00.000Z"


def test_a_declared_job_is_changed_in_its_file(daemon: Daemon) -> None:
    """Exit 5 with the file and the line, and nothing changed."""
    daemon.configure(CONFIG + cron("other", **DAILY) + cron("declared", **DAILY))
    daemon.start()
    before = daemon.call("cron.list")
    line = _line(daemon, "declared")
    calls: list[tuple[str, dict[str, Any]]] = [("remove", {}), ("update", {"job": {"prompt": "other"}})]
    calls += [("add", {"job": ADDED}), ("add", {"job": ADDED, "replace": True})]

    for word, params in calls:
        refused = _refused(daemon, f"cron.{word}", name="declared", **params)
        assert (refused.exit, refused.code) == (5, "cron_job_declared")
        assert refused.details == {"name": "declared", "file": daemon.home.config, "line": line}
        assert f"{daemon.home.config}, line {line}" in refused.message
    assert daemon.call("cron.list") == before


def test_of_two_jobs_of_one_name_the_added_one_stays(daemon: Daemon) -> None:
    """A declared job takes nothing over: the conflict is a finding that names both, over reloads and restarts. When the
    added one is removed, the declared one is in force."""
    daemon.start()
    daemon.call("cron.add", name="mine", job={**ADDED, "agent": "cat", "prompt": "added"})
    before = show(daemon, "mine")

    daemon.configure(CONFIG + cron("other", **DAILY) + cron("mine", every="1h"))
    said = daemon.call("config.reload")["cron"]
    daemon.stop()
    daemon.start()

    assert (said["conflicts"], said["added"]) == (["mine"], ["other"])
    assert show(daemon, "mine") == before
    message = findings(daemon, "mine")["cron_name_taken"]
    assert f"line {_line(daemon, 'mine')}," in message
    assert "agent cat" in message

    assert daemon.call("cron.remove", name="mine")["origin"] == "runtime"
    after = show(daemon, "mine")
    assert (after["origin"], after["schedule"], after["agent"]) == ("config", "every 1h", "sh")
    assert after["enabled"]
    assert findings(daemon, "mine") == {}


# --- on and off -------------------------------------------------------------------------------------------------


def test_the_operator_has_the_last_word_on_and_off(daemon: Daemon) -> None:
    """Of declared and of added jobs, over restarts and reloads, until it is taken back."""
    daemon.configure(CONFIG + cron("on", **DAILY) + cron("off", enabled=False, **DAILY))
    daemon.start()
    daemon.call("cron.add", name="mine", job=ADDED)
    assert show(daemon, "off")["disabled_reason"] == "its definition says enabled = false"

    for name, word in (("on", "disable"), ("off", "enable"), ("mine", "disable")):
        daemon.call(f"cron.{word}", name=name)
        daemon.call(f"cron.{word}", name=name)
    daemon.stop()
    daemon.start()
    daemon.call("config.reload")
    switched = {job["name"]: (job["enabled"], job["override"]) for job in daemon.call("cron.list")}

    assert switched == {"on": (False, False), "off": (True, True), "mine": (False, False)}
    assert "pawl cron disable" in show(daemon, "on")["disabled_reason"]
    assert show(daemon, "on")["next_at"] is None
    assert show(daemon, "off")["next_at"] is not None
    back = daemon.call("cron.enable", name="on")
    assert (back["enabled"], back["override"], back["disabled_reason"]) == (True, None, None)


def test_enabling_springs_nothing_overdue(daemon: Daemon, hands: Hands) -> None:
    """Two fires go by while a job is off. Then its next one is that to come, and of those there is no record."""
    hands.set("2026-03-05T11:00:00Z")
    daemon.configure(CONFIG + cron("daily", catch_up="all", catch_up_window="7d", **DAILY) + cron("tick", every="1h"))
    daemon.start()
    daemon.call("cron.disable", name="daily")
    hands.wait(2 * 86_400)
    moves_on(daemon, "tick", hands.now.isoformat())

    enabled = daemon.call("cron.enable", name="daily")
    daemon.stop()
    daemon.start()

    assert enabled["next_at"] == show(daemon, "daily")["next_at"] == "2026-03-07T12:00:00.000Z"
    assert runs(daemon, "daily") == []


@pytest.mark.parametrize("gone", ["not in the file", "disabled"])
@pytest.mark.parametrize("origin", ["config", "runtime"])
def test_a_job_whose_agent_is_gone_waits_for_it(daemon: Daemon, gone: str, origin: str) -> None:
    """It is disabled with the reason, a finding says so, and nothing runs; when the agent is back, so is the job."""
    writer = '[agents.writer]\ncommand = ["cat"]\n'
    job = cron("works", agent="writer", **DAILY) if origin == "config" else ""
    daemon.configure(CONFIG + writer + job)
    daemon.start()
    if origin == "runtime":
        daemon.call("cron.add", name="works", job={**ADDED, "agent": "writer"})
    before = show(daemon, "works")

    daemon.configure(CONFIG + (writer + "enabled = false\n" if gone == "disabled" else "") + job)
    daemon.call("config.reload")
    without = show(daemon, "works")
    finding = findings(daemon, "works")["cron_job_disabled"]
    refused = _refused(daemon, "cron.run", name="works"), _refused(daemon, "cron.enable", name="works")
    daemon.stop()
    daemon.configure(CONFIG + writer + job)
    daemon.start()

    assert (without["enabled"], without["next_at"]) == (False, None)
    assert "writer" in without["disabled_reason"]
    assert without["disabled_reason"] in finding
    assert [(each.exit, each.code) for each in refused] == [(5, "cron_job_disabled")] * 2
    line = {"line": show(daemon, "works")["line"]}
    assert show(daemon, "works") == before | line
    assert findings(daemon, "works") == {}
    assert runs(daemon, "works") == []


def test_one_bad_entry_leaves_the_others_alone(daemon: Daemon) -> None:
    """A schedule that cannot be read, an unknown zone, an unknown agent: each is disabled with its reason, and a
    finding; the good one runs. Mended, they are jobs like any other."""
    good = cron("good", **DAILY)
    daemon.configure(
        CONFIG + cron("schedule", schedule="61 * * * *", timezone="UTC") + cron("zone", every="1h", timezone="Mars/X")
        + good + cron("agent", agent="nobody", **DAILY) + cron("instant", at="soon", timezone="UTC")
    )  # fmt: skip
    daemon.start()
    jobs = {job["name"]: job for job in daemon.call("cron.list")}

    for name, word in (("schedule", "minute"), ("zone", "Mars/X"), ("agent", "nobody"), ("instant", "soon")):
        assert not jobs[name]["enabled"]
        assert word in jobs[name]["disabled_reason"]
        assert word in findings(daemon, name)["cron_job_disabled"]
        assert _refused(daemon, "cron.run", name=name).exit == 5
    assert jobs["good"]["enabled"]
    daemon.call("cron.run", name="good")
    assert ended(daemon, "good")[0]["status"] == "completed"

    daemon.configure(CONFIG + cron("schedule", schedule="6 * * * *", timezone="UTC") + good)
    daemon.call("config.reload")
    assert show(daemon, "schedule")["enabled"]
    assert [each for each in daemon.call("daemon.status")["findings"] if each["code"].startswith("cron")] == []


# --- added ------------------------------------------------------------------------------------------------------


def test_the_same_add_again_is_the_same_job(daemon: Daemon) -> None:
    """However often, and over a restart; another body is refused, and `replace` puts it in its place."""
    daemon.start()
    first = daemon.call("cron.add", name="mine", job=ADDED)
    again = daemon.call("cron.add", name="mine", job=ADDED)
    refused = _refused(daemon, "cron.add", name="mine", job={**ADDED, "prompt": "other"})
    daemon.stop()
    daemon.start()

    assert first == again == show(daemon, "mine") == daemon.call("cron.add", name="mine", job=ADDED)
    assert (refused.exit, refused.code) == (5, "cron_job_exists")
    assert _events(daemon, "mine") == ["added"]
    other = daemon.call("cron.add", name="mine", job={**ADDED, "prompt": "other"}, replace=True)
    assert (other["prompt"], other["next_at"]) == ("other", first["next_at"])
    assert _names(daemon) == ["mine"]


def test_an_update_keeps_what_it_does_not_name(daemon: Daemon) -> None:
    """One kind of schedule and one kind of work take the place of another; the rest stays."""
    daemon.start()
    daemon.call("cron.add", name="mine", job={**ADDED, "retries": 2, "overlap": "queue"})

    daemon.call("cron.update", name="mine", job={"every": "1h", "command": ["true"]})
    job = show(daemon, "mine")

    assert (job["schedule"], job["command"], job["prompt"]) == ("every 1h", ["true"], None)
    assert (job["retries"], job["overlap"], job["timezone"], job["agent"]) == (2, "queue", "UTC", "sh")
    assert _refused(daemon, "cron.update", name="nobody", job={"every": "1h"}).exit == 4


_BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "schedule": ({"schedule": "0 25 * * *"}, 2, "0 to 23"),
    "schedule without its fields": ({"schedule": "0 12"}, 2, "like 30 2 * * 1-5"),
    "never": ({"schedule": "0 0 30 2 *"}, 2, "day of month"),
    "zone": ({"timezone": "Europe/Pariss"}, 2, "like Europe/Paris"),
    "agent": ({"agent": "shh"}, 4, "did you mean"),
    "negative window": ({"catch_up_window": "-1h"}, 2, "catch_up_window"),
    "negative window in seconds": ({"catch_up_window": -5}, 2, "catch_up_window"),
    "period of nothing": ({"schedule": None, "every": "0s"}, 2, "15m"),
    "instant that the zone skips": (
        {"schedule": None, "at": "2030-03-31T02:30", "timezone": "Europe/Paris"}, 2, "skip it",
    ),
    "instant that has passed": ({"schedule": None, "at": "2020-01-01T00:00:00Z"}, 2, "has passed"),
    "no instant": ({"schedule": None, "at": "tomorrow"}, 2, "2026-12-24T18:00:00+01:00"),
    "two schedules": ({"every": "1h"}, 2, "only one of"),
    "no schedule": ({"schedule": None}, 2, "one of them says when"),
    "two works": ({"command": ["true"]}, 2, "only one of"),
    "no work": ({"prompt": None}, 2, "one of them says what"),
    "overlap": ({"overlap": "sometimes"}, 2, "overlap"),
    "unknown key": ({"retry": 3}, 2, "did you mean"),
    "retries": ({"retries": -1}, 2, "retries"),
}  # fmt: skip


def test_bad_input_stores_nothing(daemon: Daemon) -> None:
    """It is refused with what is wrong and the right form, whether it is a new job or a change of one."""
    daemon.start()
    daemon.call("cron.add", name="mine", job=ADDED)
    before, events = daemon.call("cron.list"), _events(daemon, "mine")

    for what, (change, exit_, words) in _BAD.items():
        job = {key: value for key, value in {**ADDED, **change}.items() if value is not None}
        for method, more in (("cron.add", {"name": "new"}), ("cron.add", {"name": "mine", "replace": True})):
            refused = _refused(daemon, method, job=job, **more)
            assert refused.exit == exit_, what
            assert words in refused.message, what
        if None not in change.values():
            assert _refused(daemon, "cron.update", name="mine", job=change | _both(change)).exit == exit_, what
    assert _refused(daemon, "cron.add", name="a b", job=ADDED).exit == 2
    assert daemon.call("cron.list") == before
    assert _events(daemon, "mine") == events


def _both(change: dict[str, Any]) -> dict[str, Any]:
    """A change names both of what may stand once only, where that is its fault."""
    return {key: ADDED[key] for key, other in (("schedule", "every"), ("prompt", "command")) if other in change}


# --- from inside a task -----------------------------------------------------------------------------------------

_INSIDE = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
lines = s.makefile("rw")
for number, (method, params) in enumerate([["hello", {"protocol": 1}], *json.loads(sys.argv[2])]):
    print(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}), file=lines, flush=True)
    answer = json.loads(lines.readline())
    if number:
        print(method, answer.get("error", {}).get("data", {}).get("code"))
"""


def test_a_task_has_no_say_in_jobs(daemon: Daemon, tmp_path: Path) -> None:
    """Every call about jobs is the operator's: a job would outlive the task that adds it, and its policy."""
    daemon.configure(CONFIG + cron("declared", **DAILY))
    daemon.start()
    named = ("show", "remove", "enable", "disable", "run")
    calls: list[Any] = [[f"cron.{word}", {"name": "declared"}] for word in named]
    calls += [["cron.list", {}], ["cron.runs", {}], ["cron.add", {"name": "mine", "job": ADDED}]]
    calls += [["cron.update", {"name": "declared", "job": {"prompt": "other"}}]]
    script = tmp_path / "inside.py"
    script.write_text(_INSIDE)
    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps(calls))

    task = daemon.delegate("sh", f'{sys.executable} {script} {daemon.home.socket} "$(cat {asked})"', wait=True)

    assert daemon.result(task["id"]).decode().splitlines() == [f"{method} operator_only" for method, _ in calls]
    assert _names(daemon) == ["declared"]
    assert runs(daemon) == []
