"""What was tried to break the scheduler: each held since it was mended."""

from __future__ import annotations

from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until

REPLACE = """
[[cron]]
name = "rep"
every = "10h"
agent = "sh"
prompt = "exec sleep 600"
overlap = "replace"

[[cron]]
name = "queue"
every = "10h"
agent = "sh"
prompt = "exec sleep 600"
overlap = "queue"
"""


def fires(daemon: Daemon, job: str) -> list[dict[str, Any]]:
    """The fires of a job, oldest first."""
    return list(reversed(daemon.call("cron.runs", name=job)))


def test_a_replaced_fire_stays_replaced_after_a_crash(daemon: Daemon) -> None:
    """What waits is ended in the transaction of the fire that replaces it; that one replaces what runs, too."""
    daemon.configure(CONFIG + REPLACE.replace("exec sleep 600", "trap '' TERM; sleep 600 & wait; wait", 1))
    daemon.start()
    daemon.call("cron.run", name="rep")
    for _ in range(2):
        daemon.call("cron.run", name="rep")
    assert [fire["status"] for fire in fires(daemon, "rep")][1:] == ["skipped", "claimed"]
    daemon.kill()

    daemon.start()

    until(lambda: fires(daemon, "rep")[2]["status"] == "running", "the newest never starts", 40)
    found = fires(daemon, "rep")
    assert [fire["status"] for fire in found] == ["cancelled", "skipped", "running"]
    assert found[1]["reason"].startswith("replaced by the fire of ")
    daemon.cancel(found[2]["task_id"])


@pytest.mark.parametrize("how", ["remove", "disable"])
def test_what_waits_does_not_outlive_its_job(daemon: Daemon, how: str) -> None:
    """A job that is removed or disabled starts nothing more, and another job of its name none of its fires."""
    daemon.configure(CONFIG)
    daemon.start()
    body = {"every": "10h", "agent": "sh", "prompt": "exec sleep 600", "overlap": "queue"}
    daemon.call("cron.add", name="q", job=body)
    for _ in range(3):
        daemon.call("cron.run", name="q")
    running = fires(daemon, "q")[0]["task_id"]

    daemon.call(f"cron.{how}", name="q")
    if how == "remove":
        daemon.call("cron.add", name="q", job=body | {"prompt": "echo another"})
    daemon.cancel(running)

    assert [fire["status"] for fire in fires(daemon, "q")] == ["cancelled", "skipped", "skipped"]
    assert {fire["reason"] for fire in fires(daemon, "q")[1:]} == {f"the job was {how}d before it started"}
    assert len(rows.tasks(daemon.home)) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"every": "1h", "prompt": "half \ud800"}, "prompt"),
        ({"every": "1h", "command": ["half \udfff"]}, "command[0]"),
        ({"every": "1h", "prompt": "long " * 100_000}, "prompt"),
        ({"at": "9999-12-31T23:59:59", "timezone": "Pacific/Pago_Pago", "prompt": "x"}, "at"),
        ({"at": "9999-12-31T23:59:59-12:00", "prompt": "x"}, "at"),
        ({"at": "0001-01-01T00:00:00+14:00", "prompt": "x"}, "at"),
        ({"every": "1h", "prompt": "x", "catch_up_window": -1}, "catch_up_window"),
        ({"every": "1h", "prompt": "x", "nonsense": 1}, "nonsense"),
        ({"schedule": "* * * *", "prompt": "x"}, "schedule"),
        ({"schedule": "0 0 31 2 *", "prompt": "x"}, None),
        ({"every": "0.1s", "prompt": "x"}, "every"),
        ({"every": "1h", "prompt": "x", "timezone": "Mars/Olympus"}, "timezone"),
    ],
)
def test_what_makes_no_job_is_refused_and_stores_nothing(daemon: Daemon, body: Any, field: str | None) -> None:
    """With the field that is at fault; no fire of it can come to be that nobody could start."""
    daemon.configure(CONFIG)
    daemon.start()

    with pytest.raises(Refused) as refused:
        daemon.call("cron.add", name="odd", job=body | {"agent": "sh"})

    assert (refused.value.code, refused.value.exit) == ("invalid_value", 2)
    if field is not None:
        assert refused.value.details["field"] == field
    assert daemon.call("cron.list") == []


def test_big_jobs_fit_into_a_list(daemon: Daemon) -> None:
    """A list shows the beginning of each text; `cron show` has the whole."""
    daemon.configure(CONFIG)
    daemon.start()
    prompt = "x" * 200_000
    for number in range(50):
        daemon.call("cron.add", name=f"big{number}", job={"every": "10h", "agent": "sh", "prompt": prompt})

    assert len(daemon.call("cron.list")) == 50
    assert daemon.call("cron.show", name="big0")["prompt"] == prompt


def test_a_job_that_can_never_fire_keeps_neither_the_daemon_nor_the_others_from_working(daemon: Daemon) -> None:
    """An instant beyond the calendar, an unknown zone and an agent that is not there: each is one disabled job."""
    bad = "".join(
        f'[[cron]]\nname = "{name}"\n{keys}\nprompt = "x"\n'
        for name, keys in {
            "late": 'at = "9999-12-31T23:59:59"\ntimezone = "Pacific/Pago_Pago"\nagent = "sh"',
            "nowhere": 'every = "1h"\ntimezone = "Mars/Olympus"\nagent = "sh"',
            "nobody": 'every = "1h"\nagent = "gone"',
        }.items()
    )
    good = '[[cron]]\nname = "good"\nevery = "1s"\nagent = "echo"\nprompt = "x"\n'
    daemon.configure(CONFIG + bad + good)
    daemon.start()

    until(lambda: [fire for fire in fires(daemon, "good") if fire["status"] == "completed"], "the good one never ran")

    jobs = {job["name"]: job for job in daemon.call("cron.list")}
    assert [name for name, job in jobs.items() if not job["enabled"]] == ["late", "nobody", "nowhere"]
    assert all(jobs[name]["disabled_reason"] for name in ("late", "nobody", "nowhere"))
    found = {each["subject"] for each in daemon.call("daemon.status")["findings"]}
    assert {"late", "nobody", "nowhere"} <= found
