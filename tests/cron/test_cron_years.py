"""Years of schedules, with clocks that change, jump and stand, and daemons that die: each instant has one record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from standin import DAY, HOUR, MINUTE, SECOND, Clock, World

from pawl.config import Config
from pawl.engines.cron.engine import LOOK_MS
from pawl.engines.cron.model import Job, jitter_ms, plan_of
from pawl.errors import StorageError
from pawl.home import Home
from pawl.values import rfc3339

START = round(datetime(2024, 2, 20, 12, 34, 56, tzinfo=UTC).timestamp() * 1000)
# The name says what the job is about.
JOBS: dict[str, dict[str, Any]] = {
    "each-two-hours": {"schedule": "0 */2 * * *", "timezone": "Asia/Beirut", "catch_up": "skip"},
    "each-90s": {"every": "90s", "overlap": "queue", "catch_up": "all", "catch_up_max": 3},
    "each-hour": {"schedule": "0 * * * *", "timezone": "America/New_York", "overlap": "replace"},
    "each-half-hour": {"schedule": "*/30 * * * *", "timezone": "Australia/Lord_Howe", "catch_up": "all",
                       "catch_up_window": "2d", "catch_up_max": 5, "overlap": "allow"},
    "each-90m": {"every": "90m", "overlap": "allow", "catch_up": "skip", "retries": 2},
    "skipped-hour": {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "retries": 1, "catch_up_window": "3d"},
    "repeated-hour": {"schedule": "30 1 * * *", "timezone": "America/New_York", "overlap": "queue"},
    "midnight": {"schedule": "0 0 * * *", "timezone": "America/Havana", "catch_up": "skip", "jitter": "40m"},
    "two-hours": {"schedule": "15 1-3 * * *", "timezone": "Antarctica/Troll", "overlap": "replace", "retries": 1},
    "weekly": {"schedule": "0 4 * * 1", "timezone": "Europe/Dublin", "catch_up_window": "30d", "jitter": "3h"},
    "leap-day": {"schedule": "0 9 29 2 *", "timezone": "Europe/Berlin", "catch_up_window": "30d"},
    "long-periods": {"every": "10d", "catch_up": "all", "catch_up_window": "90d", "overlap": "queue"},
    "asks-first": {"schedule": "20 */8 * * *", "precondition": ["true"], "overlap": "replace", "retries": 1},
    "one-shot": {"at": "2024-10-27T02:30:00", "timezone": "Europe/Berlin", "catch_up_window": "400d"},
    "one-shot-skip": {"at": "2025-03-30T12:00:00Z", "catch_up": "skip"},
}  # fmt: skip
_PASSED = (SECOND, 20 * SECOND, MINUTE + 1, 10 * MINUTE, HOUR, 5 * HOUR)
_AWAY = (20 * SECOND, 3 * MINUTE, 2 * HOUR, 7 * HOUR, DAY, 5 * DAY, 25 * DAY, 70 * DAY)
_BACK = (SECOND, 40 * SECOND, 11 * MINUTE, 2 * HOUR, 26 * HOUR, 20 * DAY, 150 * DAY)


class Book:
    """What must be true of the records of one job, whatever happened."""

    def __init__(self, job: Job, world: World) -> None:
        self.name = job.name
        self.config = job.config
        self.plan = plan_of(job.config, job.first_seen_ms)
        self.jitter_ms = jitter_ms(job.config)
        self.mark_ms = job.first_seen_ms  # up to here all is accounted for
        self.single: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.off: list[tuple[int, int]] = []  # when it was switched off: whether that counts as told is not said
        self._world = world

    def read(self, at_ms: int, fires: int, until_ms: int | None) -> None:
        """A new record: it tells of nothing that another tells of."""
        if at_ms in self.single:  # it was missed, taken back and came again since the last look
            said = self._world.rows(
                "SELECT status FROM told WHERE job = ? AND at_ms = ? ORDER BY number", (self.name, at_ms)
            )
            assert {status for (status,) in said[:-1]} <= {"missed", "claimed"}, (
                f"{self.name}: {rfc3339(at_ms)} has two records"
            )
            assert len(self._ran(at_ms)) <= 1, f"{self.name}: {rfc3339(at_ms)} has two records, and ran twice"
            self.single.remove(at_ms)
        for first, last in [(first, last) for first, last in self.spans if first <= at_ms <= last]:
            cut = self._world.rows(  # it may have been cut back since the last look, by a clock that was set back
                "SELECT until_at_ms FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms = ?",
                (self.name, first),
            )
            assert not cut or (cut[0][0] or first) < last, f"{self.name}: a record for many was not cut back"
            self.spans.remove((first, last))
            if cut and cut[0][0]:
                self.spans.append((first, cut[0][0]))
            elif cut:
                insort(self.single, first)
        assert not self.told(at_ms), f"{self.name}: {rfc3339(at_ms)} has two records"
        if until_ms is None:
            fire = self.plan.after(at_ms - 1)
            assert fire is not None
            assert fire.at_ms == at_ms
            insort(self.single, at_ms)
        else:
            inside = bisect_left(self.single, at_ms), bisect_right(self.single, until_ms)
            own = self._world.rows(
                "SELECT 1 FROM cron_fire WHERE job = ? AND manual = 0 AND fires = 1 AND nominal_at_ms BETWEEN ? AND ?",
                (self.name, at_ms, until_ms),
            )
            assert not own, f"{self.name}: a record for many covers one that has its own"
            del self.single[inside[0] : inside[1]]  # they were missed, taken back, and missed together
            self.spans = [(a, b) for a, b in self.spans if not (at_ms <= a and b <= until_ms)]
            over = self._world.rows(
                "SELECT 1 FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms <= ? "
                "AND coalesce(until_at_ms, nominal_at_ms) >= ?", (self.name, until_ms, at_ms),
            )  # fmt: skip
            assert len(over) <= 1, f"{self.name}: two records tell of the same"
            parts = [(a, min(b, at_ms - 1)) for a, b in self.spans] + [(max(a, until_ms + 1), b) for a, b in self.spans]
            self.spans = sorted({(a, b) for a, b in parts if a <= b})  # what was taken back, and came again
            assert sum(1 for _ in self.plan.between(at_ms, until_ms)) == fires
            self.spans.append((at_ms, until_ms))

    def is_taken_back(self, low_ms: int) -> None:
        """The clock was set back to ``low_ms``, or somewhat later: what was missed and is to come may have been taken
        back, and then it is told of when it has come."""
        rows = self._world.rows(
            "SELECT nominal_at_ms, until_at_ms FROM cron_fire WHERE job = ? AND manual = 0 "
            "AND coalesce(until_at_ms, nominal_at_ms) > ?", (self.name, low_ms),
        )  # fmt: skip
        now = dict(rows)
        gone = self._world.rows("SELECT from_ms, until_ms FROM cron_forgotten WHERE job = ?", (self.name,))
        forgotten = [(first, last) for first, last in self.spans if any(a <= first <= b for a, b in gone)]
        now |= {at_ms: None for at_ms in self.single if any(a <= at_ms <= b for a, b in gone)} | dict(forgotten)
        self.single = [at_ms for at_ms in self.single if at_ms <= low_ms or at_ms in now]
        spans = [(first, now.get(first, first)) if last > low_ms else (first, last) for first, last in self.spans]
        kept = [(first, last) for first, last in spans if last <= low_ms or first in now]
        for first, last in kept:
            if last is None:  # of many one is left
                insort(self.single, first)
        self.spans = [(first, last) for first, last in kept if last is not None]

    def _ran(self, at_ms: int) -> list[Any]:
        """The tasks of an instant; retries, preconditions and what was run by hand not counted."""
        return self._world.rows(
            "SELECT id FROM task WHERE json_extract(source, '$.job') = ? AND json_extract(source, '$.nominal_at') = ? "
            "AND json_extract(source, '$.trigger') <> 'manual' AND json_extract(source, '$.part') IS NULL "
            "AND retry_of IS NULL",
            (self.name, rfc3339(at_ms)),
        )

    def _on_record(self, at_ms: int) -> bool:
        """Whether an instant is on record now: one that was missed may have been taken back at an earlier look."""
        rows = self._world.rows(
            "SELECT 1 FROM cron_fire WHERE job = ? AND manual = 0 AND nominal_at_ms = ?", (self.name, at_ms)
        )
        if not rows and at_ms in self.single:
            said = self._world.rows(
                "SELECT status FROM told WHERE job = ? AND at_ms = ? ORDER BY number DESC LIMIT 1", (self.name, at_ms)
            )
            # a claimed one may have been closed as missed by the next daemon
            assert said in ([("missed",)], [("claimed",)]), f"{self.name}: the record of {rfc3339(at_ms)} is gone"
            assert not self._ran(at_ms), f"{self.name}: the record of {rfc3339(at_ms)} is gone, and it ran"
            self.single.remove(at_ms)
        return bool(rows)

    def told(self, at_ms: int) -> bool:
        """Whether an instant is on record."""
        place = bisect_left(self.single, at_ms)
        return self.single[place : place + 1] == [at_ms] or any(a <= at_ms <= b for a, b in self.spans)

    def complete(self) -> None:
        """Each instant that the clock has passed since the last time is on record."""
        by_ms = self._world.clock.wall - self.jitter_ms
        for at_ms in self._between(self.mark_ms + 1, by_ms, [*self.spans, *self.off]):
            assert self.told(at_ms), f"{self.name}: {rfc3339(at_ms)} has no record"
        self.mark_ms = max(self.mark_ms, by_ms)

    def _between(self, first_ms: int, last_ms: int, but: list[tuple[int, int]]) -> Iterator[int]:
        """The instants there, but for those within stretches, which are many."""
        at_ms = first_ms
        for first, last in sorted(but):
            if at_ms <= first <= last_ms:
                yield from self.plan.between(at_ms, first - 1)
            if first <= last_ms and at_ms <= last:
                at_ms = last + 1
        yield from self.plan.between(at_ms, last_ms)

    def is_off(self, *, begins: bool = False) -> None:
        """Nothing is asked of the time that passes while it is switched off."""
        now_ms = self._world.clock.wall
        first, last = (now_ms, now_ms) if begins else self.off.pop()
        self.off.append((min(first, now_ms - self.jitter_ms), max(last, now_ms)))

    def next_is_right(self, job: Job) -> None:
        """The next fire is to come, and it is the first that is not on record: a clock that was set back stops no job
        for longer than what it has on record."""
        now_ms = self._world.clock.wall
        if job.next_at_ms is None:
            assert not job.fires, f"{job.name} has no next fire"
            return
        assert job.next_at_ms + self.jitter_ms > now_ms, f"{job.name}: its next fire is over"
        assert not self._on_record(job.next_at_ms)
        forgotten = self._world.rows("SELECT from_ms, until_ms FROM cron_forgotten WHERE job = ?", (self.name,))
        for at_ms in self._between(now_ms + 1, job.next_at_ms - 1, [*self.spans, *self.off, *forgotten]):
            assert self.told(at_ms), f"{job.name}: it stands until {rfc3339(job.next_at_ms)}"


class Walk:
    """A walk through the years, by chance: each step is followed by a look at everything."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.books: dict[str, Book] = {}
        self.off: set[str] = set()
        self.added = 0
        self._read = 0  # up to here the records were read
        self.low_ms: int | None = None  # the clock was set back to here since the last look

    async def step(self) -> None:
        """Something happens."""
        does = self.random.choices(
            [self.passes, self.sleeps, self.is_set, self.is_set_back, self.dies, self.switches, self.adds, self.runs],
            [6, 4, 2, 3, 4, 2, 1, 1],
        )[0]  # fmt: skip
        self.said = does.__name__
        before_ms = self.world.clock.wall
        await does()
        if self.world.clock.wall < before_ms + 1 or does == self.dies:
            self.low_ms = min(before_ms, self.world.clock.wall)
        await self.world.go_on(LOOK_MS + 5 * SECOND)  # a clock that was set is noticed within this
        self.check()

    async def passes(self) -> None:
        """Time, with a daemon that works."""
        await self.world.go_on(self.random.choice(_PASSED), look_s=600)

    async def sleeps(self) -> None:
        """The machine: the monotonic clock stands."""
        self.world.clock.wall += self.random.choice(_AWAY)

    async def is_set(self) -> None:
        """The wall clock, forward, to a moment around a change of the clocks."""
        year = datetime.fromtimestamp(self.world.clock.wall / 1000, UTC).year
        moments = [(year + more, *day) for more in (0, 1) for day in ((3, 9), (3, 30), (10, 5), (10, 26), (11, 2))]
        coming = [datetime(*day, self.random.randrange(24), tzinfo=UTC).timestamp() * 1000 for day in moments]
        ahead = [round(at_ms) for at_ms in coming if at_ms > self.world.clock.wall]
        self.world.clock.wall = ahead[0]

    async def is_set_back(self) -> None:
        """The wall clock."""
        self.world.clock.wall -= self.random.choice(_BACK)

    async def dies(self) -> None:
        """The daemon, in the middle of something; time passes or is set before the next one starts."""
        clock = self.world.clock
        for _ in range(self.random.randrange(3)):
            clock.advance(self.random.choice(_PASSED[:4]))
            self.world.plane.timers.run_due()
            for _ in range(self.random.randrange(60)):
                await self.world.pause()
        await self.world.kill()
        clock.advance(self.random.choice(_AWAY[:6]))
        if self.random.random() < 0.3:
            clock.wall -= self.random.choice(_BACK)
        if self.random.random() < 0.5:
            clock.monotonic = self.random.randrange(10**9)  # another boot
        await self.world.start()

    async def switches(self) -> None:
        """A job is switched off, or on again."""
        name = self.random.choice([*JOBS][:13])
        if self.world.jobs.need(name).disabled_reason:
            return
        self.check()
        await self.world.jobs.switch(name, name in self.off, actor="test")
        if name in self.off:
            self.off.remove(name)
            self.books[name].mark_ms = max(self.books[name].mark_ms, self.world.clock.wall)
        else:
            self.off.add(name)
            self.books[name].is_off(begins=True)

    async def adds(self) -> None:
        """A one-shot, which goes once it has run."""
        self.added += 1
        at_ms = self.world.clock.wall + self.random.choice((30 * SECOND, 3 * HOUR, 9 * DAY))
        keys = {"name": f"added-{self.added}", "at": rfc3339(at_ms), "delete_after_run": self.added % 2 == 0}
        await self.world.jobs.add(keys | {"agent": "echo", "prompt": "x"}, replace=False, actor="test")

    async def runs(self) -> None:
        """Somebody runs a job that may overlap."""
        await self.world.scheduler.run("each-half-hour")

    def check(self) -> None:
        """Everything that must be true between two steps."""
        for job in self.world.jobs.all():
            if job.name not in self.books:
                self.books[job.name] = Book(job, self.world)
        if self.low_ms is not None:
            for book in self.books.values():
                book.is_taken_back(self.low_ms)
            self.low_ms = None
        for seq, name, *record in self.world.records(self._read):
            self._read = seq
            self.books[name].read(*record)
        for job in self.world.jobs.all():
            book = self.books[job.name]
            if job.name in self.off:
                book.is_off()
            else:
                book.complete()
            book.next_is_right(job)
        self.check_runs()

    def check_runs(self) -> None:
        """No two runs of one instant, no two at a time where overlap forbids it, none late where that is not wanted."""
        runs = self.world.all_runs()
        twice = {key: count for key, count in runs.items() if count > 1}
        assert not twice
        at_a_time = self.world.rows(
            "SELECT label.value, count(*) FROM task JOIN task_label label ON label.task_seq = task.seq "
            "WHERE (status = 'running' OR cleanup = 'pending') AND source NOT LIKE '%\"part\"%' GROUP BY label.value"
        )
        allow = {name for name, keys in JOBS.items() if keys.get("overlap") == "allow"}
        assert {name: count for name, count in at_a_time if count > 1 and name not in allow} == {}
        skipping = {name for name, keys in JOBS.items() if keys.get("catch_up") == "skip"}
        for name, _, trigger, _ in self.world.plane.started:
            assert trigger != "catch_up" or name not in skipping

    async def rest(self) -> None:
        """Whatever runs comes to its end, and nothing new comes: then no fire is open, and none is waited for."""
        for job in self.world.jobs.all():
            if job.fires:
                await self.world.jobs.switch(job.name, False, actor="test")
        await self.world.go_on(30 * DAY, look_s=DAY / 1000)
        assert self.world.scheduler.under_way() == []
        assert self.world.rows("SELECT * FROM cron_fire WHERE finished_at_ms IS NULL") == []
        assert self.world.rows("SELECT * FROM task WHERE finished_at_ms IS NULL OR cleanup = 'pending'") == []


def declared(names: list[str]) -> Config:
    jobs = [{"name": name, "agent": "echo", "prompt": "x"} | JOBS[name] for name in names]
    return Config.model_validate({"cron": jobs})


@pytest.mark.parametrize("seed", range(3))
def test_each_instant_has_one_record_whatever_happens(home: Home, run: Callable[..., Any], seed: int) -> None:
    """A walk of some years through jumps both ways, sleep, deaths, switches and changes of the clocks: exactly one
    record for each instant, at most one run, and no job that stands still."""
    random = Random(seed)
    world = World(home.database, Clock(START), declared([*JOBS]), random)

    async def walk() -> None:
        await world.open()
        try:
            await world.start()
            walker = Walk(world, random)
            await world.idle.wait()
            walker.check()
            for _ in range(67):
                await walker.step()
            await walker.rest()
        finally:
            await world.close()

    run(walk())


def test_years_of_quiet_have_each_fire_once(home: Home, run: Callable[..., Any]) -> None:
    """A daemon that simply runs, through each change of the clocks: no fire is missed or caught up."""
    random = Random(0)
    names = ["skipped-hour", "repeated-hour", "weekly", "leap-day", "long-periods"]
    world = World(home.database, Clock(START), declared(names), random)

    async def live() -> None:
        await world.open()
        try:
            await world.start()
            walker = Walk(world, random)
            await world.idle.wait()
            walker.check()
            await world.go_on(220 * DAY, look_s=DAY / 1000)
            walker.check()
        finally:
            await world.close()

    run(live())
    assert {*world.rows("SELECT DISTINCT trigger, status = 'missed' FROM told")} == {("schedule", 0)}
    claimed = world.rows("SELECT count(*) FROM told WHERE status = 'claimed'")[0][0]
    assert claimed == sum(world.runs.values()) > 220 * 2


def test_one_job_that_cannot_be_looked_at_stops_no_other(home: Home, run: Callable[..., Any]) -> None:
    """Not at the start either: the others have their first look, and fire on."""
    world = World(home.database, Clock(START), declared(["each-90s", "each-hour"]), Random(0))

    async def live() -> None:
        await world.open()
        try:
            await world.start()
            await world.go_on(HOUR)
            await world.kill()
            await world.start()
            known = world.jobs.on_record

            async def on_record(job: Job, from_ms: int) -> Any:
                if job.name == "each-90s":
                    raise StorageError("cannot read it")
                return await known(job, from_ms)

            world.jobs.on_record = on_record  # type: ignore[method-assign]
            world.clock.wall += 5 * MINUTE
            await world.go_on(3 * HOUR)
        finally:
            await world.close()

    run(live())
    hours = world.rows("SELECT count(*) FROM cron_fire WHERE job = 'each-hour' AND nominal_at_ms > ?", (START + HOUR,))
    assert hours[0][0] == 3
    assert set(world.scheduler.troubles) == {"each-90s"}
