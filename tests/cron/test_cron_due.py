"""What is due of a job: each instant has one record, late ones run as ``catch_up`` says, and a next one follows."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pawl.config.cron import CronConfig
from pawl.engines.cron import schedule, zones
from pawl.engines.cron.due import LATE_MS, NOTHING, SINGLE_MAX, Due, OnRecord, look, next_free
from pawl.engines.cron.model import NewFire, definition_of, jitter_ms, plan_of, read, timing
from pawl.engines.cron.schedule import At, Cron, Every, Schedule

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
START = round(datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1000)
UTC_ZONE = ZoneInfo("UTC")
MINUTELY = Every(MINUTE, START)

CatchUp = Literal["skip", "once", "all"]


def job(catch_up: CatchUp = "once", **keys: Any) -> CronConfig:
    said = {"name": "backup", "schedule": "* * * * *", "agent": "a", "prompt": "p", "catch_up": catch_up}
    return CronConfig.model_validate(said | keys)


def minutes(fires: list[NewFire]) -> list[int]:
    """The minutes after ``START`` for which these fires stand."""
    return [(fire.nominal_at_ms - START) // MINUTE for fire in fires]


def judged(config: CronConfig, first: int, now_ms: int, **known: Any) -> Due:
    """A look at a job of each minute, in minutes after ``START``."""
    return look(config, MINUTELY, START + first * MINUTE, START + now_ms, **known)


# --- one look ---------------------------------------------------------------------------------------------------------


def test_a_fire_that_is_on_time_runs() -> None:
    due = judged(job(), 5, 5 * MINUTE + 30)

    assert due == ([], [NewFire(START + 5 * MINUTE, "schedule", "claimed")], START + 6 * MINUTE)


def test_a_look_before_the_time_finds_nothing() -> None:
    assert judged(job(), 5, 5 * MINUTE - 1) == ([], [], START + 5 * MINUTE)


@pytest.mark.parametrize("late_ms", [LATE_MS, LATE_MS + 1])
@pytest.mark.parametrize("catch_up", get_args(CatchUp))
def test_late_is_what_starts_more_than_a_minute_after_its_instant(catch_up: CatchUp, late_ms: int) -> None:
    hourly = Every(HOUR, START)

    due = look(job(catch_up), hourly, START, START + late_ms)

    late = late_ms > LATE_MS
    assert [fire.trigger for fire in due.runs] == (["catch_up"] * (catch_up != "skip") if late else ["schedule"])
    assert len(due.records) == (late and catch_up == "skip")


def test_skip_records_each_that_was_missed_and_why() -> None:
    due = judged(job("skip"), 1, 10 * MINUTE + 30)

    assert minutes(due.records) == [*range(1, 10)]
    assert minutes(due.runs) == [10]
    assert {fire.status for fire in due.records} == {"missed"}
    assert all("catch_up is skip" in (fire.reason or "") for fire in due.records)


def test_skip_at_the_start_runs_nothing_from_before_the_start() -> None:
    """However shortly before: the daemon was not there."""
    now_ms = 10 * MINUTE + 30

    due = judged(job("skip"), 1, now_ms, since_ms=START + 10 * MINUTE + 1)

    assert minutes(due.records) == [*range(1, 11)]
    assert due.runs == []


@pytest.mark.parametrize("catch_up", ["once", "all"])
def test_who_catches_up_runs_what_came_shortly_before_the_start(catch_up: CatchUp) -> None:
    due = judged(job(catch_up), 10, 10 * MINUTE + 30, since_ms=START + 10 * MINUTE + 1)

    assert [(fire.trigger, fire.status) for fire in due.runs] == [("schedule", "claimed")]


def test_once_runs_the_newest_in_place_of_all() -> None:
    hourly = Every(HOUR, START)

    due = look(job("once", catch_up_window="1d"), hourly, START, START + 5 * HOUR + 30 * MINUTE)

    assert [fire.nominal_at_ms for fire in due.runs] == [START + 5 * HOUR]
    assert [fire.nominal_at_ms for fire in due.records] == [START + hour * HOUR for hour in range(5)]
    assert all("ran in its place" in (fire.reason or "") for fire in due.records)


def test_once_runs_none_of_the_late_where_one_is_on_time() -> None:
    due = judged(job("once"), 1, 10 * MINUTE + 30)

    assert minutes(due.runs) == [10]
    assert due.runs[0].trigger == "schedule"
    assert minutes(due.records) == [*range(1, 10)]


def test_the_window_leaves_out_what_is_too_old() -> None:
    due = judged(job("all", catch_up_window="5m"), 1, 20 * MINUTE + 30)

    assert minutes(due.runs) == [16, 17, 18, 19, 20]
    assert minutes(due.records) == [*range(1, 16)]


@pytest.mark.parametrize("beyond_ms", [0, 1])
def test_the_window_has_its_end_within(beyond_ms: int) -> None:
    due = look(job("all", catch_up_window="2h"), Every(DAY, START), START, START + 2 * HOUR + beyond_ms)

    assert len(due.runs) == 1 - beyond_ms


def test_no_window_is_no_catching_up() -> None:
    due = judged(job("all", catch_up_window="0s"), 1, 20 * MINUTE + 30)

    assert minutes(due.runs) == [20]
    assert "catch_up_window" in (due.records[0].reason or "")


def test_all_runs_the_newest_up_to_its_cap_oldest_first() -> None:
    due = judged(job("all", catch_up_max=3), 1, 20 * MINUTE + 30)

    assert minutes(due.runs) == [17, 18, 19, 20]
    assert [fire.trigger for fire in due.runs] == ["catch_up"] * 3 + ["schedule"]
    assert "catch_up_max" in (due.records[0].reason or "")


@pytest.mark.parametrize(("count", "records"), [(SINGLE_MAX, SINGLE_MAX), (SINGLE_MAX + 1, 1), (500_000, 1)])
def test_of_a_long_gap_one_record_tells(count: int, records: int) -> None:
    """More than a thousand: one record with how many, the first and the last."""
    due = judged(job("skip"), 1, (count + 1) * MINUTE + 1)

    assert minutes(due.runs) == [count + 1]
    assert len(due.records) == records
    assert sum(fire.fires for fire in due.records) == count
    assert due.records[0].nominal_at_ms == START + MINUTE
    assert due.records[-1].until_at_ms == (START + count * MINUTE if records == 1 else None)


def test_a_long_gap_ends_before_what_is_caught_up() -> None:
    due = judged(job("all", catch_up_window="30d", catch_up_max=2_000), 1, 5_000 * MINUTE)

    assert len(due.runs) == 2_001 + 1  # two thousand late ones, and those of the last minute
    assert [(fire.fires, fire.until_at_ms) for fire in due.records] == [(2_998, START + 2_998 * MINUTE)]


def test_a_long_gap_leaves_out_what_is_on_record() -> None:
    """A record for many covers no instant that has its own."""
    known = OnRecord(frozenset(START + minute * MINUTE for minute in (1_500, 1_501, 1_503)))

    due = judged(job("skip"), 1, 3_000 * MINUTE + 1, on_record=known)

    spans = [(minutes([fire])[0], ((fire.until_at_ms or fire.nominal_at_ms) - START) // MINUTE) for fire in due.records]
    assert spans == [(1, 1_499), (1_502, 1_502), (1_504, 2_999)]
    assert [fire.fires for fire in due.records] == [1_499, 1, 1_496]


def test_jitter_moves_the_start_and_not_the_instant() -> None:
    config = job(jitter="10m")
    late_ms = jitter_ms(config)
    assert 0 < late_ms <= 10 * MINUTE

    assert judged(config, 5, 5 * MINUTE + late_ms - 1).runs == []
    due = judged(config, 5, 5 * MINUTE + late_ms)

    assert due.runs == [NewFire(START + 5 * MINUTE, "schedule", "claimed")]
    assert due.next_at_ms == START + 6 * MINUTE


def test_an_instant_on_record_does_not_fire_again() -> None:
    known = OnRecord(frozenset({START + 5 * MINUTE, START + 8 * MINUTE}), ((START + 9 * MINUTE, START + 20 * MINUTE),))

    due = judged(job("all"), 4, 7 * MINUTE + 1, on_record=known)

    assert minutes(due.runs) == [4, 6, 7]
    assert due.next_at_ms == START + 21 * MINUTE


def test_one_shots_have_one_look() -> None:
    once = At(START)

    assert look(job(), once, START, START + 5) == ([], [NewFire(START, "schedule", "claimed")], None)
    assert look(job(), once, START, START + 5, on_record=OnRecord(frozenset({START}))) == ([], [], None)
    assert look(job("skip"), once, START, START + HOUR).next_at_ms is None


# --- all looks --------------------------------------------------------------------------------------------------------

_PLANS: list[Schedule] = [
    *(Every(period, START) for period in (SECOND, 7 * SECOND, 17 * MINUTE, DAY)),
    Cron("* * * * *", ZoneInfo("Europe/Berlin")), Cron("*/7 1-3 * * *", ZoneInfo("Australia/Lord_Howe")),
    Cron("30 2 * * *", ZoneInfo("Europe/Berlin")), At(START + DAY),
]  # fmt: skip


@lru_cache
def some_of(plan: Schedule) -> list[int]:
    """Some instants of a schedule."""
    return list(islice(plan.between(START, START + 400 * DAY), 2_500))


@st.composite
def situations(draw: st.DrawFn) -> tuple[CronConfig, Schedule, int, int, int | None, OnRecord]:
    """A job, its schedule, its next fire, the time, when the daemon began, and what is on record."""
    config = job(
        draw(st.sampled_from(get_args(CatchUp))),
        catch_up_window=draw(st.sampled_from(["0s", "90s", "1h", "30d"])),
        catch_up_max=draw(st.sampled_from([1, 3, 100])),
        jitter=draw(st.sampled_from(["0s", "0s", "45s", "3h"])),
    )
    plan = draw(st.sampled_from(_PLANS))
    some = some_of(plan)
    place = draw(st.integers(0, len(some) - 1))
    ahead = draw(st.sampled_from([0, 1, 5, 150, 1_300]))
    now_ms = some[min(place + ahead, len(some) - 1)] + draw(st.integers(-1, 3 * MINUTE))
    since_ms = draw(st.none() | st.integers(now_ms - 2 * MINUTE, now_ms))
    single = frozenset(draw(st.lists(st.sampled_from(some), max_size=8)))
    spans = []
    for _ in range(draw(st.integers(0, 2))):
        first = draw(st.integers(0, len(some) - 1))
        spans.append((some[first], some[min(first + draw(st.integers(1, 1_200)), len(some) - 1)]))
    return config, plan, some[place], now_ms, since_ms, OnRecord(single, tuple(spans))


def told(plan: Schedule, due: Due) -> Counter[int]:
    """How many records each instant got."""
    found: Counter[int] = Counter()
    for fire in [*due.records, *due.runs]:
        of_this = [*plan.between(fire.nominal_at_ms, fire.until_at_ms or fire.nominal_at_ms)]
        assert len(of_this) == fire.fires
        assert of_this[-1] == (fire.until_at_ms or fire.nominal_at_ms)
        found.update(of_this)
    return found


@given(situations())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_instant_has_exactly_one_record(
    situation: tuple[CronConfig, Schedule, int, int, int | None, OnRecord],
) -> None:
    """Whatever runs and is missed: all that was due, each once, nothing that is on record, and the next lies ahead."""
    config, plan, next_at_ms, now_ms, since_ms, known = situation
    by_ms = now_ms - jitter_ms(config)

    due = look(config, plan, next_at_ms, now_ms, since_ms=since_ms, on_record=known)

    expected = [at_ms for at_ms in plan.between(next_at_ms, by_ms) if not known.has(at_ms)]
    assert told(plan, due) == dict.fromkeys(expected, 1)
    assert [fire.nominal_at_ms for fire in due.runs] == sorted(fire.nominal_at_ms for fire in due.runs)
    assert due.next_at_ms is None or (due.next_at_ms > by_ms and not known.has(due.next_at_ms))
    coming = plan.after(by_ms)
    while coming is not None and known.has(coming.at_ms):
        coming = plan.after(coming.at_ms)
    assert due.next_at_ms == (coming and coming.at_ms)


@given(situations())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_late_ones_run_as_catch_up_says(
    situation: tuple[CronConfig, Schedule, int, int, int | None, OnRecord],
) -> None:
    """Only the newest within the window and the cap; with ``once`` at most one; with ``skip`` none."""
    config, plan, next_at_ms, now_ms, since_ms, known = situation
    by_ms = now_ms - jitter_ms(config)

    due = look(config, plan, next_at_ms, now_ms, since_ms=since_ms, on_record=known)

    caught = [fire.nominal_at_ms for fire in due.runs if fire.trigger == "catch_up"]
    prompt = [fire.nominal_at_ms for fire in due.runs if fire.trigger == "schedule"]
    late = [
        at_ms for at_ms in plan.between(next_at_ms, by_ms) if not known.has(at_ms) and at_ms < by_ms - LATE_MS
    ]  # fmt: skip
    assert all(at_ms >= by_ms - LATE_MS for at_ms in prompt)
    assert all(by_ms - at_ms <= config.catch_up_window_ms for at_ms in caught)
    if config.catch_up == "skip":
        assert caught == []
        assert since_ms is None or all(at_ms >= since_ms for at_ms in prompt)
    elif config.catch_up == "once":
        assert caught == ([] if prompt else [at for at in late[-1:] if by_ms - at <= config.catch_up_window_ms])
    else:
        window = [at_ms for at_ms in late if by_ms - at_ms <= config.catch_up_window_ms]
        assert caught == window[-config.catch_up_max :]
    assert all(fire.status == "missed" and fire.reason for fire in due.records)
    assert len([fire for fire in due.records if fire.fires == 1]) <= SINGLE_MAX


# --- the next one -----------------------------------------------------------------------------------------------------


def test_the_next_one_is_the_first_that_is_not_on_record() -> None:
    spans = ((START + 3 * MINUTE, START + 10 * MINUTE), (START + 11 * MINUTE, START + 500 * DAY))

    assert next_free(MINUTELY, START) == START + MINUTE
    assert next_free(MINUTELY, START, OnRecord(frozenset({START + MINUTE}))) == START + 2 * MINUTE
    assert next_free(MINUTELY, START, OnRecord(frozenset(), spans)) == START + MINUTE
    assert next_free(MINUTELY, START + 2 * MINUTE, OnRecord(frozenset(), spans)) == START + 500 * DAY + MINUTE
    assert next_free(At(START), START) is None
    assert next_free(At(START), START - 1, OnRecord(frozenset({START}))) is None


def test_nothing_on_record_contains_nothing() -> None:
    assert not NOTHING.has(START)


# --- between is after, again and again --------------------------------------------------------------------------------

_ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Europe/Dublin", "Antarctica/Troll", "America/Havana",
    "Asia/Beirut", "America/Sao_Paulo", "Africa/Cairo", "America/Santiago", "Pacific/Apia", "Asia/Kathmandu", "UTC",
]  # fmt: skip
_TEXTS = [
    "* * * * *", "*/20 * * * *", "*/45 */2 * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "0,30 1-3 * * *",
    "15 3 1 * *", "0 3 * * 0", "59 23 * * *", "*/30 0 * * *", "1 0-3/1 * * 1-5", "0 12 29 2 *", "10 0 2 * * *",
    "*/30 59 1 * * *", "0 0 */2 * 1", "@daily", "@hourly",
]  # fmt: skip


def one_by_one(plan: Schedule, first_ms: int, last_ms: int) -> list[int]:
    """What ``between`` should give, asked of ``after`` each time anew."""
    found = []
    fire = plan.after(first_ms - 1)
    while fire is not None and fire.at_ms <= last_ms:
        found.append(fire.at_ms)
        fire = plan.after(fire.at_ms)
    return found


@st.composite
def stretches(draw: st.DrawFn) -> tuple[str, int, int]:
    """A zone, and a stretch of time around a change of its clocks, or anywhere."""
    zone = draw(st.sampled_from(_ZONES))
    start_s = draw(st.integers(0, 2_300_000_000))
    near_s = zones.next_change(start_s, ZoneInfo(zone)) or start_s
    first_ms = near_s * 1000 - draw(st.integers(-HOUR, 12 * HOUR))
    return zone, first_ms, first_ms + draw(st.integers(0, 24 * HOUR))


@given(st.sampled_from(_TEXTS), stretches())
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_between_is_after_again_and_again_around_a_change(text: str, stretch: tuple[str, int, int]) -> None:
    """For jobs by real time and by the wall clock, whatever the change: both ways, half an hour, two, at midnight."""
    zone, first_ms, last_ms = stretch
    plan = Cron(text, ZoneInfo(zone))

    assert [*plan.between(first_ms, last_ms)] == one_by_one(plan, first_ms, last_ms)


@pytest.mark.parametrize("zone", _ZONES)
@pytest.mark.parametrize("text", ["30 2 * * *", "0 0 * * 0", "0 */12 * * *", "*/30 1-3 1,15 * *", "15 0 * 3,10 *"])
def test_between_is_after_again_and_again_over_years(text: str, zone: str) -> None:
    """Across every change of some years, to the last instant."""
    plan = Cron(text, ZoneInfo(zone))
    first_ms, last_ms = START - 400 * DAY, START + 100 * DAY

    found = [*plan.between(first_ms, last_ms)]

    assert found == one_by_one(plan, first_ms, last_ms)
    assert [*plan.between(found[0], found[-1])] == found
    assert [*plan.between(found[0] + 1, found[-1] - 1)] == found[1:-1]


@given(
    st.integers(1_000, 10 * DAY), st.integers(-DAY, DAY), st.integers(-20 * DAY, 20 * DAY), st.integers(0, 200 * SECOND)
)
def test_between_of_a_period_is_after_again_and_again(period: int, anchor: int, first: int, span: int) -> None:
    plan = Every(period, anchor)

    assert [*plan.between(first, first + span)] == one_by_one(plan, first, first + span)


@given(st.integers(-5, 5), st.integers(-5, 5), st.integers(0, 5))
def test_between_of_one_instant(at: int, first: int, span: int) -> None:
    assert [*At(at).between(first, first + span)] == one_by_one(At(at), first, first + span)


def test_between_of_nothing_is_nothing() -> None:
    for plan in (Cron("* * * * *", UTC_ZONE), Cron("0 2 * * *", UTC_ZONE), MINUTELY, At(START)):
        assert [*plan.between(START, START - 1)] == []


# --- jobs as they are stored ------------------------------------------------------------------------------------------


def test_jitter_is_the_same_for_a_name_for_ever_and_spread_over_names() -> None:
    names = [f"job-{number}" for number in range(300)]

    spread = [jitter_ms(job(name=name, jitter="10m")) for name in names]

    assert spread == [jitter_ms(job(name=name, jitter="10m")) for name in names]
    assert jitter_ms(job(name="backup", jitter="10m")) == 329_551  # in every process, on every machine
    assert all(0 <= each <= 10 * MINUTE for each in spread)
    assert all(sum(low <= each < low + MINUTE for each in spread) > 5 for low in range(0, 10 * MINUTE, MINUTE))
    assert {jitter_ms(job(name=name)) for name in names} == {0}


_durations = st.sampled_from(["1s", "90s", "15m", "1h", "36h", "1500ms"])


@st.composite
def configs(draw: st.DrawFn) -> CronConfig:
    """A job as somebody may write it: any of its keys, or none."""
    said: dict[str, Any] = {"name": draw(st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)), "agent": "a"}
    said |= draw(st.sampled_from([{"schedule": "0 9 * * mon"}, {"every": "90m"}, {"at": "2026-12-24T18:00:00+01:00"}]))
    said |= draw(st.sampled_from([{"prompt": "Größe?\n"}, {"prompt": "x"}, {"command": ["sh", "-c", "true # ü"]}]))
    return CronConfig.model_validate(
        said
        | draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "timezone": st.sampled_from(["Europe/Paris", "UTC"]), "enabled": st.booleans(),
                    "timeout": _durations, "retries": st.integers(0, 5), "catch_up": st.sampled_from(["skip", "all"]),
                    "catch_up_window": st.just("0s") | _durations, "catch_up_max": st.integers(1, 9),
                    "overlap": st.sampled_from(["queue", "skip"]), "jitter": st.just("0s") | _durations,
                    "precondition": st.sampled_from([["true"], ["test", "-e", "/"]]), "delete_after_run": st.booleans(),
                    "expected_duration": _durations,
                },
            )
        )
    )  # fmt: skip


@given(configs())
@settings(max_examples=100, deadline=None)
def test_a_stored_job_is_read_as_it_was(config: CronConfig) -> None:
    """And is stored the same again, so that an unchanged file changes no job."""
    text = definition_of(config)

    assert read(text) == config
    assert definition_of(read(text)) == text
    assert timing(read(text)) == timing(config)


def test_the_first_fire_of_a_period_is_one_period_after_the_job_was_first_seen() -> None:
    config = CronConfig.model_validate({"name": "j", "every": "90m", "agent": "a", "prompt": "p"})

    plan = plan_of(config, START + 17)

    assert isinstance(plan, Every)
    assert next_free(plan, START + 17) == START + 17 + 90 * MINUTE
    assert next_free(plan, START + 17 + 90 * MINUTE) == START + 17 + 180 * MINUTE


def test_a_period_goes_on_before_it_began() -> None:
    """A clock that is set back to before a job was first seen does not stop it: the same grid, the other way."""
    plan = schedule.every("1h", START)

    assert plan.after(START - 100 * HOUR) == (START - 99 * HOUR, None)
    assert [*plan.between(START - 2 * HOUR, START)] == [START - 2 * HOUR, START - HOUR, START]
