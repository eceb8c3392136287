"""Long gaps are counted without looking at each instant, and what cannot be read says so."""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pawl.cli.commands.cron_jobs import _job
from pawl.config.cron import CronConfig
from pawl.engines.cron import schedule, zones
from pawl.engines.cron.due import last_before, look
from pawl.engines.cron.model import plan_of
from pawl.errors import InvalidValue

DAY_S = 86_400
ZONES = (
    "UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia",
    "America/Havana", "Antarctica/Troll",
)  # fmt: skip


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    middle = (low + high) // 2
    return st.sampled_from(["*", "*/7", f"{low}-{middle}/3", str(middle), f"{low},{high}"])


TEXTS = st.tuples(
    st.one_of(st.just(""), _field(0, 59)), _field(0, 59), _field(0, 23),
    st.sampled_from(["*", "*/2", "1-15", "13"]), st.sampled_from(["*", "3", "10-11"]),
    st.sampled_from(["*", "*/2", "1-5", "0"]),
).map(lambda fields: " ".join(fields).strip())  # fmt: skip


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=TEXTS,
    zone=st.sampled_from(ZONES),
    start=st.integers(1_300_000_000, 1_900_000_000),
    span=st.sampled_from([0, 10, 5_000, DAY_S, 3 * DAY_S, 20 * DAY_S]),
    odd_ms=st.sampled_from([0, 500]),
)
def test_the_count_is_the_number_of_instants(text: str, zone: str, start: int, span: int, odd_ms: int) -> None:
    """Whatever the fields, the zone and its changes of the clocks; and the last is found from the end."""
    plan = schedule.Cron(text, ZoneInfo(zone))
    span = min(span, DAY_S) if len(text.split()) == 6 else span
    first_ms, last_ms = start * 1000 + odd_ms, (start + span) * 1000

    instants = list(plan.between(first_ms, last_ms))

    assert plan.count(first_ms, last_ms) == len(instants)
    assert last_before(plan, first_ms, last_ms) == (instants[-1] if instants else None)


def test_a_gap_of_years_of_seconds_is_one_record_and_what_runs() -> None:
    """Ninety million of them: all are told of, each once."""
    job = CronConfig.model_validate(
        {"name": "x", "agent": "a", "prompt": "p", "schedule": "* * * * * *", "timezone": "Europe/Paris"}
    )
    years_ms = 3 * 365 * DAY_S * 1000

    due = look(job, plan_of(job, 0), 1000, years_ms)

    (record,) = due.records
    assert (record.nominal_at_ms, record.status) == (1000, "missed")
    assert record.fires + len(due.runs) == years_ms // 1000
    assert record.until_at_ms == due.runs[0].nominal_at_ms - 1000
    assert (due.runs[-1].nominal_at_ms, due.next_at_ms) == (years_ms, years_ms + 1000)


def test_an_instant_may_have_a_fraction() -> None:
    """It is no time that the clocks skip."""
    paris = ZoneInfo("Europe/Paris")
    assert schedule.at("2030-12-24T18:00:00.700", paris).at_ms == schedule.at("2030-12-24T18:00:00", paris).at_ms + 700


@pytest.mark.parametrize("fault", [ZoneInfoNotFoundError("no such zone"), ValueError("odd TZ")])
def test_a_machine_whose_zone_cannot_be_told_is_a_fault_of_the_job(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """It keeps one job from firing, not the daemon from starting."""

    def unknown() -> ZoneInfo:
        raise fault

    monkeypatch.setattr(zones, "get_localzone", unknown)

    with pytest.raises(InvalidValue) as refused:
        zones.zone(None)
    assert refused.value.details["field"] == "timezone"


def test_a_zero_is_given() -> None:
    """``cron update --retries 0`` takes the retries away."""
    assert _job([], {"retries": 0, "timeout": None, "delete_after_run": False}) == {"retries": 0}
    assert _job(["true"], {}) == {"command": ["true"]}
