"""``config``: checked and shown without a daemon, read anew with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Ran
from fake_daemon import FakeDaemon, always, refuse

from pawl.home import Home

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]

BAD = '[daemon]\nmax_concurent = 3\n\n[agents.x]\ncommand = "sh -c true"\n'


@pytest.fixture
def config(home: Home) -> Path:
    Path(home.path).mkdir()
    return Path(home.config)


def test_every_fault_stands_on_its_own_line_with_its_place(
    config: Path, pawl: Pawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the form that editors jump to; exit 2."""
    config.write_text(BAD)
    monkeypatch.chdir(config.parent)

    ran = pawl("config", "check")

    assert ran.status == 2
    first, second = ran.out.splitlines()
    assert first.startswith("config.toml:2: daemon.max_concurent: ")
    assert "max_concurrent" in first
    assert second.startswith("config.toml:5: agents.x.command: ")


def test_faults_as_json_are_an_array_on_stdout(config: Path, pawl: Pawl) -> None:
    """With exit 2 too."""
    config.write_text(BAD)

    ran = pawl("config", "check", "--json")

    assert (ran.status, ran.err) == (2, "")
    assert [(fault["path"], fault["line"]) for fault in ran.json] == [
        ("daemon.max_concurent", 2),
        ("agents.x.command", 5),
    ]
    assert ran.json[0]["nearest"] == "max_concurrent"


def test_a_good_file_or_none_has_no_faults(config: Path, pawl: Pawl) -> None:
    """Exit 0 and an empty array; absent means defaults."""
    assert pawl("config", "check", "--json") == (0, "[]\n", "")
    config.write_text("[daemon]\nmax_concurrent = 3\n")
    assert pawl("config", "check").status == 0


def test_another_file_can_be_checked(config: Path, pawl: Pawl, tmp_path: Path) -> None:
    """One that is named must exist."""
    draft = tmp_path / "draft.toml"

    assert pawl("config", "check", str(draft)).status == 2
    draft.write_text(BAD)
    assert len(pawl("config", "check", str(draft), "--json").json) == 2


def test_what_is_in_force_can_be_shown(config: Path, pawl: Pawl) -> None:
    """Defaults included, as a document or indented; a bad file is refused."""
    config.write_text("[daemon]\nmax_concurrent = 3\n")

    document = pawl("config", "show", "--json").json

    assert document["daemon"]["max_concurrent"] == 3
    assert "echo" in document["agents"]
    assert json.loads(pawl("config", "show").out) == document
    config.write_text(BAD)
    ran = pawl("config", "show", "--json")
    assert (ran.status, ran.out, ran.error["code"]) == (2, "", "config_invalid")


def test_the_schema_can_be_printed(pawl: Pawl) -> None:
    """For editors."""
    assert pawl("config", "schema", "--json").json["type"] == "object"


def test_reload_asks_the_daemon(daemon: Start, pawl: Pawl) -> None:
    """And says what is in force now; a refusal is passed on."""
    fake = daemon(
        {"config.reload": always({"agents": ["coder", "echo"], "policies": ["default"], "path": "/h/config.toml"})}
    )

    assert pawl("config", "reload").out == "in force: /h/config.toml, agents coder, echo, policies default\n"

    fake.answers["config.reload"] = refuse("config_invalid", "config.toml:2: unknown key", 2)
    assert pawl("config", "reload") == (2, "", "pawl: config.toml:2: unknown key\n")


JOB = '[[cron]]\nname = "{0}"\n{1} = "{2}"\ntimezone = "{3}"\nagent = "{4}"\nprompt = "x"\n'


def test_a_job_that_cannot_run_is_a_fault(config: Path, pawl: Pawl) -> None:
    """A schedule that cannot be read, an unknown zone, an unknown agent: each with its line and its key, and what is
    wrong with one job hides nothing of another. The file is well formed, so that the others would run.
    """
    jobs = [
        JOB.format("good", "schedule", "0 3 * * *", "UTC", "echo"),
        JOB.format("unreadable", "schedule", "0 25 * * *", "UTC", "echo"),
        JOB.format("never", "at", "2026-03-08T02:30", "America/New_York", "echo"),
        JOB.format("often", "every", "0.2s", "UTC", "echo"),
        JOB.format("nowhere", "schedule", "* * * * 9", "Mars/Phobos", "ecko"),
    ]
    config.write_text("".join(jobs))

    ran = pawl("config", "check", "--json")
    faults = {(fault["path"], fault["line"]): fault for fault in ran.json}

    assert (ran.status, ran.err) == (2, "")
    assert list(faults) == [
        ("cron[1].schedule", 9), ("cron[2].at", 15), ("cron[3].every", 21), ("cron[4].timezone", 28),
        ("cron[4].schedule", 27), ("cron[4].agent", 29),
    ]  # fmt: skip
    assert "hour" in faults["cron[1].schedule", 9]["message"]
    assert "unreadable" in faults["cron[1].schedule", 9]["message"]
    assert "weekday" in faults["cron[4].schedule", 27]["message"]
    assert faults["cron[4].agent", 29]["nearest"] == "echo"
    assert pawl("config", "show").status == 0


def test_the_doctor_finds_a_job_that_cannot_run(config: Path, pawl: Pawl) -> None:
    """As a warning: the daemon starts all the same."""
    config.write_text(JOB.format("nowhere", "schedule", "* * * * *", "Mars/Phobos", "echo"))

    found = {each["code"]: each for each in pawl("doctor", "--json").json["findings"]}

    assert found["cron_job_disabled"]["severity"] == "warning"
    assert "timezone" in found["cron_job_disabled"]["message"]
    assert "config" not in found
