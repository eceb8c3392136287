"""A scheduler on a stand-in control plane: real rows, written by the real writer, and work that ends by chance.

Time is a fake clock's, and every timer is run by the test; a coroutine of the test goes on when nothing else can.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

from pawl.config import Config
from pawl.control_plane import store as tasks
from pawl.control_plane.model import CleanUp, NewTask, Outcome, Task
from pawl.control_plane.statements import Q as TASKS
from pawl.control_plane.store import Submitted
from pawl.engines.cron.engine import Scheduler
from pawl.engines.cron.jobs import Jobs
from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, Database, Reader, Writer
from pawl.timers import Timers

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
_NOTHING = Artifact("0" * 64, 0)
_LASTS = (300, 20 * SECOND, 90 * SECOND, 40 * MINUTE, 3 * HOUR)
_ENDS = ("completed", "completed", "completed", "failed", "timed_out", "lost")


class Clock:
    """Both clocks. ``look_s``: how often a sleeper looks again, where that is not its own choice."""

    def __init__(self, wall_ms: int) -> None:
        self.wall = wall_ms
        self.monotonic = 1_000_000
        self.look_s: float | None = None

    def wall_ms(self) -> int:
        return self.wall

    def monotonic_ms(self) -> int:
        return self.monotonic

    def refresh_s(self) -> float | None:
        return self.look_s

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.monotonic += ms


class Idle:
    """Knows whether anything is under way on another thread."""

    def __init__(self) -> None:
        self._busy = 0
        self._free = asyncio.Event()
        self._free.set()

    def begin(self) -> None:
        self._busy += 1
        self._free.clear()

    def end(self, _: Any = None) -> None:
        self._busy -= 1
        if not self._busy:
            self._free.set()

    async def wait(self) -> None:
        """Until nothing is under way, and no coroutine but this one can go on."""
        quiet = 0
        while quiet < 12:
            await self._free.wait()
            await asyncio.sleep(0)
            quiet = 0 if self._busy else quiet + 1


class HandTimers(Timers):
    """Timers that nobody runs but the test."""

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)

    def next_ms(self) -> int | None:
        """When the next call is due."""
        self._arm()
        return self._heap[0][0] if self._heap else None


class Here(ThreadPoolExecutor):
    """Does on this thread what is given to another."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class WatchedWriter(Writer):
    idle: Idle

    def submit(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = super().submit(function, *arguments)
        self.idle.begin()
        future.add_done_callback(self.idle.end)
        return future


class WatchedReader(Reader):
    idle: Idle

    async def all(self, sql: str, parameters: Any = ()) -> list[Any]:
        self.idle.begin()
        try:
            return await super().all(sql, parameters)
        finally:
            self.idle.end()


class Plane:
    """What the scheduler needs of a control plane, for as long as one daemon lives."""

    def __init__(self, owner: ProcessIdentity, clock: Clock, writer: Writer, reader: Reader, random: Random) -> None:
        self.owner = owner
        self.writer = writer
        self.reader = reader
        self.timers = HandTimers(clock)
        self._random = random
        self._waiters: dict[str, list[asyncio.Future[Task]]] = {}
        self._side: set[asyncio.Task[Any]] = set()
        self.began_ms = clock.wall_ms()
        self.set_back = False  # whether the wall clock was, since this daemon began
        self.started: list[tuple[str, str, str, int]] = []  # job, nominal instant, trigger and when, of each run

    async def submit_all(self, new: list[NewTask], also: tasks.Also | None = None) -> list[Submitted]:
        owned = [(each, self.owner if self._random.random() < 0.7 else None) for each in new]
        stored = await self.writer.submit(tasks.submit_all, owned, self.timers.clock.monotonic_ms(), also)
        for each in stored:
            source = json.loads(each.task.source)
            if "part" not in source:
                self.started.append((source["job"], source["nominal_at"], source["trigger"], each.task.created_at_ms))
            self.drive(each.task)
        return stored

    async def find(self, text: str) -> Task:
        return Task._make(await self.reader.one(TASKS.by_id, (text,)))

    async def wait(self, task: Task) -> Task:
        future: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(task.id, []).append(future)
        now = await self.find(task.id)
        return now if now.ended and now.cleanup != "pending" else await future

    async def cancel(self, task: Task, reason: str | None, actor: str) -> None:
        await self.end(task.id, "cancelled", reason or "")

    async def recover(self) -> None:
        """What the rows of dead daemons come to: their work goes on, or is lost; some is cleaned up later."""
        for row in await self.reader.all("SELECT * FROM task WHERE finished_at_ms IS NULL OR cleanup = 'pending'"):
            task = Task._make(row)
            if task.status == "running" and self._random.random() < 0.5:
                mono_ms = self.timers.clock.monotonic_ms()
                await self.writer.submit(tasks.take_over, task.id, task.owner, self.owner, None, mono_ms)
            elif task.status == "running":
                outcome = Outcome("lost", error_code="lost", error_message="its daemon died")
                await self.writer.submit(tasks.end_running, task.id, task.owner, outcome, True, tasks.DAEMON)
            self.drive(task)

    def drive(self, task: Task) -> None:
        """Let a task begin, where it waits, and end some time later."""
        last_ms = self._random.choice(_LASTS)
        if task.status == "queued":
            self.timers.after(self._random.choice((500, 5 * SECOND, HOUR)), lambda: self._aside(self._claim()))
        self.timers.after(last_ms, lambda: self._aside(self._after_all(task.id)))

    async def _claim(self) -> None:
        await self.writer.submit(tasks.claim, self.owner, self.timers.clock.monotonic_ms(), 1, {"echo": 1})

    async def _after_all(self, task_id: str) -> None:
        task = await self.find(task_id)
        if task.status == "queued":
            self.timers.after(MINUTE, lambda: self._aside(self._after_all(task_id)))
        else:
            await self.end(task_id, self._random.choice(_ENDS), "so it ended")

    async def end(self, task_id: str, status: str, why: str) -> None:
        """End a task, clean up after it, and tell who waits."""
        task = await self.find(task_id)
        if task.status == "queued":
            ended = await self.writer.submit(tasks.end_queued, task.id, Outcome("cancelled", error_message=why), "test")
            task = ended.task  # or it has been started this moment
        if task.status == "running":
            if status == "completed" or status == "failed":
                bad = {} if status == "completed" else {"error_code": "exit", "error_message": why, "exit_code": 3}
                outcome = Outcome(status, **bad)  # type: ignore[arg-type]
                kept = (task_id, self.owner, outcome, _NOTHING, None, False, False)
                await self.writer.submit(tasks.promise, *kept)
                settled = await self.writer.submit(tasks.settle, task_id, self.owner, status, _NOTHING)
                self._follow(settled.retry)
            else:
                code = None if status == "cancelled" else status
                outcome = Outcome(status, error_code=code, error_message=why)
                await self.writer.submit(tasks.end_running, task_id, self.owner, outcome, True, tasks.DAEMON)
        task = await self.find(task_id)
        if task.cleanup == "pending":
            cleaned = await self.writer.submit(tasks.clean, task_id, CleanUp({}))
            self._follow(cleaned.retry)
            task = await self.find(task_id)
        for future in self._waiters.pop(task_id, ()):
            if not future.done():
                future.set_result(task)

    def _follow(self, retry: Task | None) -> None:
        if retry is not None:
            self.drive(retry)

    def _aside(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)

    async def die(self) -> None:
        self.timers.close()
        for task in tuple(self._side):
            task.cancel()
        await asyncio.gather(*self._side, return_exceptions=True)


class Agents:
    def unattended(
        self, agent: str, prompt: bytes, *, kind: str, timeout_ms: int | None, retries: int, principal: str,
        source: dict[str, Any], labels: dict[str, str],
    ) -> NewTask:  # fmt: skip
        return NewTask(
            new_id(), kind, agent, prompt, timeout_ms or HOUR, None, principal, retries=retries,
            source=json.dumps(source), labels=json.dumps(labels),
        )  # fmt: skip


class World:
    """One database, one clock, and one daemon after another."""

    def __init__(self, path: str, clock: Clock, config: Config, random: Random) -> None:
        self.clock = clock
        self.config = config
        self.random = random
        self.runs: Counter[tuple[str, str]] = Counter()
        self._path = path
        self._daemons = 0
        self.idle: Idle
        self.plane: Plane
        self.jobs: Jobs
        self.scheduler: Scheduler

    async def open(self) -> None:
        """Open the database, with a table of the test's own of all that was ever recorded."""
        asyncio.get_running_loop().set_default_executor(Here())
        self.idle = Idle()
        database = Database(self._path)
        connection = database.open_writer()
        connection.execute("PRAGMA synchronous = OFF")  # nobody pulls a plug here
        connection.executescript(
            """CREATE TABLE told (
              number INTEGER PRIMARY KEY AUTOINCREMENT, job, at_ms, fires, until_ms, trigger, status
            );
            CREATE TRIGGER tell AFTER INSERT ON cron_fire WHEN NEW.manual = 0 BEGIN
              INSERT INTO told (job, at_ms, fires, until_ms, trigger, status)
              VALUES (NEW.job, NEW.nominal_at_ms, NEW.fires, NEW.until_at_ms, NEW.trigger, NEW.status);
            END"""
        )
        self.writer = WatchedWriter(connection, self._path, self.clock)
        self.reader = WatchedReader(database)
        self.writer.idle = self.reader.idle = self.idle
        self.writer.start()
        await self.reader.start()

    async def close(self) -> None:
        await self.kill()
        await self.reader.close()
        await self.writer.close()

    async def start(self) -> None:
        """A daemon starts, as ``pawl.daemon.app`` starts its parts."""
        self._daemons += 1
        owner = ProcessIdentity(self._daemons, "1", f"boot {self._daemons}")
        self.plane = Plane(owner, self.clock, self.writer, self.reader, self.random)
        self.jobs = Jobs(self.writer, self.reader, self.plane.timers, lambda: self.config)
        self.scheduler = Scheduler(self.plane, Agents(), self.jobs)  # type: ignore[arg-type]
        self.scheduler._counting = Here()
        await self.plane.recover()
        await self.jobs.load()
        await self.jobs.reconcile()
        await self.scheduler.recover()
        await self.scheduler.start()

    async def kill(self) -> None:
        """The daemon dies, wherever it is; what it had given to the writer may be written yet."""
        await self.scheduler.stop()
        await self.plane.die()
        await self.idle.wait()
        self.runs = self.all_runs()
        self.plane.started.clear()

    def all_runs(self) -> Counter[tuple[str, str]]:
        """How often each instant of each job was run, retries not counted."""
        return self.runs + Counter((job, nominal) for job, nominal, _, _ in self.plane.started)

    async def pause(self) -> None:
        """Let whoever can go on go on a little."""
        await asyncio.sleep(0)

    async def go_on(self, ms: int, look_s: float | None = None) -> None:
        """Time passes, and every timer runs at its moment. ``look_s``: how coarse, where nothing is due."""
        timers, end_ms = self.plane.timers, self.clock.monotonic + ms
        self.clock.look_s = look_s
        while True:
            await self.idle.wait()
            due_ms = timers.next_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self.clock.advance(max(0, due_ms - self.clock.monotonic))
            timers.run_due()
        self.clock.advance(end_ms - self.clock.monotonic)
        self.clock.look_s = None
        self.scheduler._arm()  # with its own choice of when to look again

    def records(self, seen: int) -> list[Any]:
        """The records after that one, not of fires by hand: number, job, instant, for how many, and the last."""
        return self.rows("SELECT number, job, at_ms, fires, until_ms FROM told WHERE number > ?", (seen,))

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """What a look at the database finds, between the steps."""
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()
