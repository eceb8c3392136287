"""``cron next``: pure, for a schedule or a declared job, with or without a daemon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Ran

from pawl.home import Home

Pawl = Callable[..., Ran]


@pytest.fixture
def declared(home: Home) -> Home:
    Path(home.path).mkdir(exist_ok=True)
    Path(home.config).write_text(
        """
[[cron]]
name = "nightly"
schedule = "30 2 * * *"
timezone = "Europe/Paris"
agent = "echo"
prompt = "x"
[[cron]]
name = "often"
every = "15m"
agent = "echo"
prompt = "x"
[[cron]]
name = "once"
at = "2020-01-01T00:00:00Z"
agent = "echo"
prompt = "x"
"""
    )
    return home


def test_the_shape_of_a_fire(pawl: Pawl) -> None:
    """In UTC, in the zone, and with what a change of the clocks did."""
    ran = pawl(
        "cron",
        "next",
        "30 2 * * *",
        "--timezone",
        "Europe/Paris",
        "--after",
        "2026-03-28T12:00:00Z",
        "--count",
        "2",
        "--json",
    )

    assert ran.status == 0
    first, second = ran.json
    assert first["note"].startswith("shifted: ")
    assert first | {"note": None} == {
        "at": "2026-03-29T01:00:00.000Z", "local": "2026-03-29T03:00:00+02:00", "note": None,
    }  # fmt: skip
    assert second == {"at": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00+02:00", "note": None}


def test_a_job_of_the_configuration(pawl: Pawl, declared: Home) -> None:
    """By its name, in its own zone unless another is given; none of them needs a daemon."""
    after = ["--after", "2026-06-01T00:00:00Z", "--count", "1", "--json"]

    own, other = pawl("cron", "next", "nightly", *after), pawl("cron", "next", "nightly", "--timezone", "UTC", *after)
    often, once = pawl("cron", "next", "often", "--json"), pawl("cron", "next", "once")

    assert own.json[0]["local"] == "2026-06-01T02:30:00+02:00"
    assert other.json[0]["local"] == "2026-06-01T02:30:00+00:00"
    assert len(often.json) == 5
    assert (once.status, once.out) == (0, "")
    assert "does not fire any more" in once.err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nope"], 4, "nightly, often, once"),
        (["30 2 * *"], 2, "it has 4 fields"),
        (["61 2 * * *"], 2, "minute"),
        (["@often"], 2, "@daily"),
        (["0 2 * * *", "--timezone", "Mars/Phobos"], 2, "Mars/Phobos"),
        (["0 2 * * *", "--after", "tomorrow"], 2, "2026-03-29T00:00:00Z"),
        (["0 2 * * *", "--after", "2026-03-29T00:00:00"], 2, "2026-03-29T00:00:00Z"),
        (["30", "2", "*", "*", "*"], 2, "in quotes"),
        (["0 2 * * *", "--count", "0"], 2, "range"),
    ],
)
def test_what_cannot_be_read_is_refused(pawl: Pawl, declared: Home, words: list[str], status: int, said: str) -> None:
    ran = pawl("cron", "next", *words)

    assert ran.status == status
    assert said in ran.err


def test_either_day_is_hinted_at(pawl: Pawl) -> None:
    """B-026: who restricts both is told that one of them is enough."""
    assert "either of them is enough" in pawl("cron", "next", "0 4 1-7 * 1", "--timezone", "UTC").err
    assert pawl("cron", "next", "0 4 * * 1", "--timezone", "UTC").err == ""
