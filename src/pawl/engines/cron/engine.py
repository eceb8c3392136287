"""The scheduler: it watches the clock, records each fire once, and sees it to its end.

A fire is claimed in the transaction that stores its job's next one. Its work is a task of kind ``cron``, stored in the
transaction that gives it to the fire; from there on the row of the fire follows the task. What a dead daemon had
claimed is taken over at the start.

Owns: the jobs in memory (the rows are the authority), the fires under way. Clock: wall, looked at anew by a timer of
the monotonic clock, so that a wall clock that is set is noticed.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from pawl import failpoints
from pawl.config.cron import CronConfig
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import NewTask, Task
from pawl.control_plane.statements import Q as TASKS
from pawl.control_plane.store import Submitted
from pawl.control_plane.work import ONLY_ZERO, Plan
from pawl.engines.cron import store
from pawl.engines.cron.due import LATE_MS, Due, look
from pawl.engines.cron.jobs import Jobs
from pawl.engines.cron.model import OPEN, Fire, Job, NewFire, jitter_ms, plan_of
from pawl.engines.cron.store import Q
from pawl.errors import FireRefused, PawlError, StorageError
from pawl.log import logger
from pawl.runner.identity import Liveness, probe
from pawl.runner.spool import Spool
from pawl.storage import Transaction
from pawl.timers import Timer
from pawl.values import rfc3339

Answer = TypeVar("Answer")

log = logger("cron")
LOOK_MS = 10_000  # how long a wall clock that was set may go unnoticed
_JUMP_MS = 1_500  # a clock that drifts, or is led back slowly, is no clock that was set
_RETRY_MS = (1_000, 60_000)
_DAY_MS = 86_400_000
_LONG_MS = 3_600_000  # a gap of which the fires are counted on a thread
NOT_NOW = 10  # the exit code of a precondition that says so
PROGRAM = "program"  # what such a task runs: its prompt is the argv
PRECONDITION = "precondition"  # the part of a fire that such a task is
_CHECK_MS = 60_000  # how long a precondition may take
_WAITING_MAX = 100  # fires of one job that wait for one another
_AT_ONCE = 16  # claims, and starts, that are on their way to the disk: a thousand would keep the daemon from answering


class Agents(Protocol):
    """What the scheduler needs of whoever knows agents and their policies."""

    def unattended(
        self, agent: str, prompt: bytes, *, kind: str, timeout_ms: int | None, retries: int, principal: str,
        source: dict[str, Any], labels: dict[str, str],
    ) -> NewTask:  # fmt: skip
        """A task for an agent that nobody sits in front of, under its own policy.

        Raises ``agent_not_found``, ``agent_disabled`` and ``sandbox_unavailable``.
        """
        ...

    async def plan(self, task: Task, spool: Spool, command: tuple[str, ...] = ()) -> Plan:
        """How to do a task; with ``command`` that program in place of the agent's, under the agent's policy."""
        ...


class Under:
    """A fire under way."""

    def __init__(self, fire: Fire, behind: list[asyncio.Future[None]]) -> None:
        self.fire = fire  # its row, as it was last read
        self.behind = behind  # the ends of those it waits for
        self.replaced: str | None = None  # why it is not wanted any more
        loop = asyncio.get_running_loop()
        self.given: asyncio.Future[None] = loop.create_future()  # it has its task, or has ended without one
        self.over: asyncio.Future[None] = loop.create_future()  # it has ended, and no process of it is left


class Scheduler:
    """The scheduler of one daemon."""

    def __init__(self, plane: ControlPlane, agents: Agents, jobs: Jobs) -> None:
        self._plane = plane
        self._agents = agents
        self.jobs = jobs
        self._under: dict[str, list[Under]] = {}  # fires of each job that are not over, in the order of their claims
        self._looking: set[str] = set()
        self._deciding: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # what overlaps with what, one at a time
        self._claims = asyncio.Semaphore(_AT_ONCE)
        self._starts = asyncio.Semaphore(_AT_ONCE)
        self._heap: list[tuple[int, str]] = []
        self._timer: Timer | None = None
        self._apart_ms = 0  # wall clock minus monotonic clock, at the last look
        self._since_ms = 0
        self._ticked_ms = 0  # monotonic
        self._counting = ThreadPoolExecutor(1, "cron")  # of its own: a long gap must not hold up whoever needs a thread
        self._unseen: set[str] = set()  # jobs that were not looked at since the start
        self._started = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.troubles: dict[str, str] = {}  # jobs that cannot be recorded at the moment, and why
        jobs.moved = self._moved

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take over the fires that a dead daemon left open. Before the socket opens, so that whoever asks for one more
        meets them."""
        for fire in await self._open(Q.unclean_fires):
            self._begin(fire)  # first: what replaces them waits for them
        if not await self._take_over():
            self._spawn(self._take_over_later())

    async def start(self) -> None:
        """Watch the clock."""
        clock = self._plane.timers.clock
        self._since_ms = clock.wall_ms()
        self._apart_ms = clock.wall_ms() - clock.monotonic_ms()
        self._ticked_ms = clock.monotonic_ms()
        self._started = True
        self._unseen = {job.name for job in self.jobs.all()}
        for name in self._unseen:
            self._spawn(self._look_at(name))  # on a full disk they wait, and the daemon answers all the same
        self._spawn(self._forget_old())

    async def stop(self) -> None:
        """Look no more. What runs is the control plane's; what waits is taken over by the next daemon."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._counting.shutdown(wait=False, cancel_futures=True)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take_over(self) -> bool:
        """Fires that dead daemons left open: what has a task is the control plane's; the rest is judged.

        False: some are left, since their daemon is not proven gone or the store does not do it.
        """
        us = self._plane.owner
        left = [fire for fire in await self._open(Q.open_fires) if fire.owner != us]
        gone = {owner: owner is None or probe(owner) is Liveness.GONE for owner in {fire.owner for fire in left}}
        for fire in left:
            if not gone[fire.owner]:
                log.warning("a fire belongs to a daemon that is not proven gone", job=fire.job, fire=fire.seq)
        taken = await asyncio.gather(*(self._adopt(fire) for fire in left if gone[fire.owner]))
        return all(taken) and all(gone.values())

    async def _adopt(self, fire: Fire) -> bool:
        late = self._plane.timers.clock.wall_ms() - fire.nominal_at_ms > LATE_MS
        try:
            adopted = await self._plane.writer.submit(store.adopt, fire, self._plane.owner, late)
            why = self._not_any_more(adopted) if adopted is not None and adopted.task_id is None else None
            if adopted is not None and why is not None:
                await self._plane.writer.submit(store.close, adopted, "missed", why)
            elif adopted is not None:
                self._begin(adopted)
        except StorageError as error:
            log.error("cannot take over a fire yet", job=fire.job, code=error.code, error=error.message)
            return False
        return True

    async def _take_over_later(self) -> None:
        """Try again until every open fire is driven here."""
        whole = False
        while not whole:
            await self._plane.timers.sleep(LOOK_MS)
            try:
                whole = await self._take_over()
                for name in {fire.job for fire in await self._open(Q.open_fires)}:
                    async with self._deciding[name]:
                        await self._pick_up(name)
            except StorageError as error:
                whole = False
                log.error("cannot read the open fires", code=error.code, error=error.message)

    async def _pick_up(self, name: str) -> None:
        """Go on with what is claimed of a job, where the store did not tell whether it is. The caller decides."""
        for fire in await self._open(Q.open_fires_of, name):
            if fire.owner == self._plane.owner:
                self._begin(fire)

    async def _open(self, statement: str, *values: str) -> list[Fire]:
        return [Fire._make(row) for row in await self._plane.reader.all(statement, values)]

    def _not_any_more(self, fire: Fire) -> str | None:
        """Why a fire that a dead daemon had claimed and not started is not started now."""
        job = self.jobs.get(fire.job)
        if job is None:
            return "the daemon ended before it was started, and the job is gone"
        age_ms = self._plane.timers.clock.wall_ms() - fire.nominal_at_ms
        if job.config.catch_up == "skip" and not fire.manual:
            return "the daemon ended before it was started, and catch_up is skip"
        if age_ms > job.config.catch_up_window_ms:
            return "the daemon ended before it was started, and it is longer ago than catch_up_window"
        return None

    # --- the clock --------------------------------------------------------------------------------------------------

    def _moved(self, job: Job) -> None:
        """A job has another next fire than before."""
        if job.next_at_ms is not None and not self._closing:
            due_ms = job.next_at_ms + jitter_ms(job.config)
            heapq.heappush(self._heap, (due_ms, job.name))
            if self._timer is None or self._heap[0][0] == due_ms:
                self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closing or not self._started:
            return
        while self._heap and self._stale(*self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap:
            return
        clock = self._plane.timers.clock
        refresh_s = clock.refresh_s()
        longest_ms = LOOK_MS if refresh_s is None else round(refresh_s * 1000)
        delay_ms = min(max(0, self._heap[0][0] - clock.wall_ms()), longest_ms)
        self._timer = self._plane.timers.after(delay_ms, self._tick)

    def _stale(self, due_ms: int, name: str) -> bool:
        job = self.jobs.get(name)
        return job is None or job.next_at_ms is None or due_ms != job.next_at_ms + jitter_ms(job.config)

    def _tick(self) -> None:
        self._timer = None
        clock = self._plane.timers.clock
        now_ms = clock.wall_ms()
        apart_ms = now_ms - clock.monotonic_ms()
        set_back = apart_ms < self._apart_ms - _JUMP_MS
        if abs(apart_ms - self._apart_ms) > _JUMP_MS:
            log.warning("the wall clock was set, or the machine slept", by_s=(apart_ms - self._apart_ms) / 1000)
        self._apart_ms = apart_ms
        if set_back:  # since when at most: what was due between then and now is due
            self._spawn(self._set_back(now_ms - (clock.monotonic_ms() - self._ticked_ms)))
        self._ticked_ms = clock.monotonic_ms()
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if not self._stale(*entry):
                due.append(entry[1])
        for name in dict.fromkeys(due):
            self._spawn(self._look_at(name))
        self._arm()

    async def _set_back(self, since_ms: int) -> None:
        """The clock was set back: fires that are now to come, and are not on record, come all the same."""
        for job in self.jobs.all():
            try:
                await self.jobs.reschedule(job, since_ms)
            except Exception as error:  # the others all the same
                log.error("cannot move a job after the clock was set back", job=job.name, exc_info=error)

    async def _look_at(self, name: str) -> None:
        """See what is due of a job. One job's trouble is no other's."""
        if name in self._looking:
            return
        self._looking.add(name)
        pause_ms = _RETRY_MS[0]
        again = False
        try:
            while not self._closing:
                try:
                    if again:
                        await self.jobs.refresh(name)
                        async with self._deciding[name]:
                            await self._pick_up(name)
                    again = True
                    async with self._claims:
                        await self._take_due(name)
                    self._unseen.discard(name)
                    self.troubles.pop(name, None)
                    return
                except StorageError as error:
                    self.troubles[name] = error.message
                    log.error("cannot record a fire; trying again", job=name, code=error.code, error=error.message)
                except Exception as error:
                    self.troubles[name] = repr(error)
                    log.error("a job cannot be looked at; trying again", job=name, exc_info=error)
                await self._plane.timers.sleep(pause_ms)
                pause_ms = min(pause_ms * 2, _RETRY_MS[1])
        finally:
            self._looking.discard(name)
            job = self.jobs.get(name)
            if job is not None:
                self._moved(job)

    async def _take_due(self, name: str) -> None:
        """Record what is due of a job and start what is to run, until nothing is due."""
        while (job := self.jobs.get(name)) is not None and job.next_at_ms is not None:
            now_ms = self._plane.timers.clock.wall_ms()
            if job.next_at_ms + jitter_ms(job.config) > now_ms:
                if name in self._unseen:
                    await self.jobs.reschedule(job)  # the clock may have been set back while no daemon was there
                return
            due = await self._due(job, now_ms)
            async with self._deciding[name]:
                await self._record(job, due)

    async def _record(self, job: Job, due: Due) -> None:
        """Store what is due of a job, with its next fire, and begin what is to run."""
        fires = self._overlap(job, due)
        failpoints.hit("cron.before_claim")
        said = "it has fired" if due.runs or not fires else f"its instant passed: {fires[-1].reason}"
        owner = self._plane.owner
        taken = await self._plane.writer.submit(store.take, job, fires, due.next_at_ms, said, owner)
        if taken is None:  # somebody moved the job; or an earlier try was stored, and its answer was lost
            await self.jobs.refresh(job.name)
            await self._pick_up(job.name)
            return
        failpoints.hit("cron.after_claim")
        stored, recorded = taken
        self.jobs.put(stored)
        for fire in recorded:
            if fire.status in OPEN:
                self._begin(fire)

    async def _due(self, job: Job, now_ms: int) -> Due:
        assert job.next_at_ms is not None
        plan = plan_of(job.config, job.first_seen_ms)
        on_record = await self.jobs.on_record(job, job.next_at_ms)
        since_ms = self._since_ms if job.name in self._unseen else None

        def judge() -> Due:
            assert job.next_at_ms is not None
            return look(job.config, plan, job.next_at_ms, now_ms, since_ms=since_ms, on_record=on_record)

        if now_ms - job.next_at_ms <= _LONG_MS:
            return judge()
        return await asyncio.get_running_loop().run_in_executor(self._counting, judge)

    async def _forget_old(self) -> None:
        """Once a day: fires of jobs that are gone."""
        while True:
            try:
                await self._plane.writer.submit(store.forget_old)
            except StorageError as error:
                log.warning("cannot forget old fires", code=error.code, error=error.message)
            await self._plane.timers.sleep(_DAY_MS)

    # --- overlap ----------------------------------------------------------------------------------------------------

    def _overlap(self, job: Job, due: Due) -> list[NewFire]:
        """What of a job's due fires is recorded as what, and how each treats those before it."""
        fires = due.records
        if job.one_shot and job.config.catch_up == "skip":
            fires = [fire._replace(status="skipped") for fire in fires]
        fires = list(fires)
        under = len(self._under.get(job.name, ()))
        sequence = any(fire.trigger == "catch_up" for fire in due.runs)
        for fire in due.runs:
            verdict = job.config.overlap
            if fire.trigger == "catch_up" or (sequence and verdict == "allow"):
                verdict = "queue"
            most = max(_WAITING_MAX, job.config.catch_up_max) if fire.trigger == "catch_up" else _WAITING_MAX
            if under and (verdict == "skip" or (verdict == "queue" and under >= most)):
                fires.append(fire._replace(status="skipped", reason=self._busy(job)))
                continue
            waits = verdict if under and verdict != "allow" else None
            fires.append(fire._replace(waits=waits))
            under += 1
        return fires

    def _busy(self, job: Job) -> str:
        """Which fire is in the way."""
        under = self._under.get(job.name)
        if not under:
            return "a fire before it goes on"
        first = under[0].fire
        what = f"task {first.task_id}" if first.task_id else "not started yet"
        more = f", and {len(under) - 1} more wait" if len(under) > 1 else ""
        return f"the fire of {rfc3339(first.nominal_at_ms)} goes on ({what}){more}"

    def _replace(self, by: Fire) -> None:
        """End all that is under way of a job: a newer fire takes its place."""
        reason = store.replaced_by(by.nominal_at_ms)
        for each in self._under.get(by.job, ()):
            each.replaced = reason
            for task_id in (each.fire.task_id, each.fire.check_id):
                if task_id is not None:
                    self._spawn(self._cancel(task_id, reason))

    async def _cancel(self, task_id: str, reason: str) -> None:
        async def cancel() -> None:
            task = await self._last_attempt(task_id)
            if not task.ended:
                await self._plane.cancel(task, reason, "daemon")

        await self._insist(cancel)

    # --- the life of a fire -----------------------------------------------------------------------------------------

    def _begin(self, fire: Fire) -> Under:
        driven = self._under_of(fire)
        if driven is not None:
            return driven
        fires = self._under.setdefault(fire.job, [])
        if fire.waits == "replace" and fire.task_id is None:
            self._replace(fire)
        under = Under(fire, [each.over for each in fires] if fire.waits else [])
        fires.append(under)
        self._spawn(self._drive(under))
        return under

    def _under_of(self, fire: Fire) -> Under | None:
        return next((each for each in self._under.get(fire.job, ()) if each.fire.seq == fire.seq), None)

    async def _drive(self, under: Under) -> None:
        """From claim to end. A bug on the way is no reason to leave a fire open, or to start it twice."""
        pause_ms = _RETRY_MS[0]
        try:
            while True:
                try:
                    return await self._live(under)
                except Exception as error:
                    log.error("the driver of a fire died", job=under.fire.job, fire=under.fire.seq, exc_info=error)
                    under.fire = await self._insist(lambda: self._row(under.fire))
                    if under.fire.task_id is None:
                        return await self._close(under, "failed", f"a bug in the daemon: {error!r}")
                await self._plane.timers.sleep(pause_ms)  # it has a task: whoever comes next must know of it
                pause_ms = min(pause_ms * 2, _RETRY_MS[1])
        finally:
            fires = self._under[under.fire.job]
            fires.remove(under)
            if not fires:
                del self._under[under.fire.job]
            _resolve(under.given)
            _resolve(under.over)

    async def _live(self, under: Under) -> None:
        if under.fire.status not in OPEN and under.fire.task_id is None:
            return
        if under.fire.task_id is not None or await self._start(under):
            _resolve(under.given)
            await self._see_end(under)

    async def _row(self, fire: Fire) -> Fire:
        return Fire._make(await self._plane.reader.one(Q.fire, (fire.seq,)))

    async def _start(self, under: Under) -> bool:
        """Wait for those before it, ask the precondition, store the task. False: it has ended without one."""
        if under.behind:
            await asyncio.wait(under.behind)
        job = self.jobs.get(under.fire.job)
        if job is None:
            await self._close(under, "skipped", "the job was removed before it started")
            return False
        if job.config.precondition and under.replaced is None and not await self._may_run(job.config, under):
            return False
        if under.replaced is not None:
            await self._close(under, "skipped", under.replaced)
            return False
        prompt = (job.config.prompt or "").encode()
        if not await self._submit(job.config, under, prompt, check=False):
            return False
        if under.replaced is not None:  # while it was stored
            assert under.fire.task_id is not None
            await self._cancel(under.fire.task_id, under.replaced)
        return True

    async def _may_run(self, config: CronConfig, under: Under) -> bool:
        """Ask the precondition: 0 is yes, 10 is no, everything else is a failure."""
        if under.fire.check_id is None and not await self._submit(config, under, b"", check=True):
            return False
        assert under.fire.check_id is not None
        if under.replaced is not None:  # while it was stored
            await self._cancel(under.fire.check_id, under.replaced)
        ended = await self._ended(under.fire.check_id, under)
        if under.replaced is not None or (ended.exit_code == 0 and ended.status == "completed"):
            return True
        if ended.exit_code == NOT_NOW and ended.status == "completed":
            await self._close(under, "skipped", f"its precondition said so (exit {NOT_NOW})", NOT_NOW)
        else:
            said = f"exit {ended.exit_code}" if ended.exit_code is not None else ended.status
            why = f": {ended.error_message}" if ended.exit_code is None and ended.error_message else ""
            await self._close(under, "failed", f"its precondition failed ({said}){why}", ended.exit_code)
        return False

    async def _submit(self, config: CronConfig, under: Under, prompt: bytes, *, check: bool) -> bool:
        """Store the task of a fire, or of its precondition. False: it cannot be, and the fire has ended."""
        fire = under.fire
        command = config.precondition if check else config.command
        source: dict[str, Any] = {
            "type": "cron", "job": fire.job, "nominal_at": rfc3339(fire.nominal_at_ms), "trigger": fire.trigger,
        }  # fmt: skip
        if check:
            source["part"] = PRECONDITION
        if command:  # it stands where the prompt does, which it has none of: a source is shown with each task
            source["runs"] = PROGRAM
            prompt = json.dumps(command).encode()

        def give(tx: Transaction, stored: list[Submitted]) -> None:
            store.link(tx, stored, fire, self._plane.owner, check=check)

        async def store_it() -> None:
            new = self._agents.unattended(
                config.agent, prompt, kind="cron",
                timeout_ms=min(config.timeout_ms or _CHECK_MS, _CHECK_MS) if check else config.timeout_ms,
                retries=0 if check else config.retries, principal=f"cron:{fire.job}", source=source,
                labels={"cron": fire.job},
            )  # fmt: skip
            async with self._starts:
                await self._plane.submit_all([new], give)
            failpoints.hit("cron.after_task")

        try:
            await self._insist(store_it)
        except PawlError as error:
            under.fire = await self._insist(lambda: self._row(fire))
            if (under.fire.check_id if check else under.fire.task_id) is None:
                await self._close(under, "failed", error.message)
                return False
        under.fire = await self._insist(lambda: self._row(fire))
        return True

    async def _close(self, under: Under, status: str, reason: str, exit_code: int | None = None) -> None:
        fire = under.fire
        under.fire = await self._insist(lambda: self._plane.writer.submit(store.close, fire, status, reason, exit_code))

    async def _see_end(self, under: Under) -> None:
        """Wait until the last attempt of a fire's task is over, and no process of it is left."""
        assert under.fire.task_id is not None
        await self._ended(under.fire.task_id, under)
        fire = under.fire
        under.fire = await self._insist(lambda: self._plane.writer.submit(store.settle_from_task, fire))
        job = self.jobs.get(fire.job)
        if job is not None and job.config.delete_after_run:
            await self._insist(lambda: self.jobs.has_run(fire.job))

    async def _ended(self, task_id: str, under: Under) -> Task:
        """The last attempt of a task, once it is over. One that follows a replaced attempt is cancelled too."""

        async def over() -> Task | None:
            task = await self._last_attempt(task_id)
            if under.replaced is not None and not task.ended:
                await self._plane.cancel(task, under.replaced, "daemon")
            task = await self._plane.wait(task)
            if task.cleanup == "pending":  # by a daemon that is not proven gone, or the storage refused
                await self._plane.timers.sleep(_RETRY_MS[0])
                return None
            return None if await self._plane.reader.one(TASKS.retry_of, (task.id,)) else task

        while (task := await self._insist(over)) is None:
            pass
        return task

    async def _last_attempt(self, task_id: str) -> Task:
        while (row := await self._plane.reader.one(TASKS.retry_of, (task_id,))) is not None:
            task_id = row[0]
        return await self._plane.find(task_id)

    async def _insist(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Read or write until that is done: on a full disk later."""
        pause_ms = _RETRY_MS[0]
        while True:
            try:
                return await work()
            except StorageError as error:
                log.error("cannot write to a fire; trying again", code=error.code, error=error.message)
                await self._plane.timers.sleep(pause_ms)
                pause_ms = min(pause_ms * 2, _RETRY_MS[1])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and done.exception() is not None:
                log.error("a part of the scheduler died", exc_info=done.exception())

        task.add_done_callback(ended)

    # --- by hand ----------------------------------------------------------------------------------------------------

    async def run(self, name: str) -> Fire:
        """Fire a job now, by its overlap policy. Raises ``cron_job_not_found``, ``cron_job_disabled`` (it cannot run at
        all) and ``fire_refused`` (another one goes on, and overlap is skip: the refusal is on record)."""
        job = self.jobs.need(name)
        self.jobs.runnable(job)
        async with self._deciding[name]:
            new = NewFire(self._plane.timers.clock.wall_ms(), "manual", "claimed")
            under = self._under.get(name)
            if under and job.config.overlap == "skip":
                new = new._replace(status="skipped", reason=self._busy(job))
            elif under and job.config.overlap != "allow":
                new = new._replace(waits=job.config.overlap)
            failpoints.hit("cron.before_claim")
            fire = await self._claim_by_hand(job, new)
            failpoints.hit("cron.after_claim")
            if fire.status == "skipped":
                raise FireRefused(f"cannot run {name} now: {fire.reason}, and its overlap is skip", job=name)
            started = self._begin(fire)
        if not fire.waits and not job.config.precondition:
            await started.given
        return started.fire

    async def _claim_by_hand(self, job: Job, new: NewFire) -> Fire:
        """Claim. What reads as an error may have been claimed all the same, and runs then."""
        try:
            return await self._plane.writer.submit(store.take_by_hand, job, new, self._plane.owner)
        except StorageError:
            for fire in await self._open(Q.open_fires_of, job.name):
                if fire.manual and fire.owner == self._plane.owner and self._under_of(fire) is None:
                    return fire
            raise

    # --- how its tasks are done ---------------------------------------------------------------------------------------

    async def plan(self, task: Task, spool: Spool) -> Plan:
        """How the task of a fire is done: by the job's agent, or by a program under that agent's policy."""
        program = json.loads(task.prompt) if json.loads(task.source).get("runs") == PROGRAM else ()
        return await self._agents.plan(task, spool, tuple(program))

    @staticmethod
    def good_codes(task: Task) -> frozenset[int]:
        """A precondition that says "not now" has done its work well."""
        if task.kind == "cron" and json.loads(task.source).get("part") == PRECONDITION:
            return frozenset({0, NOT_NOW})
        return ONLY_ZERO

    def under_way(self) -> list[Fire]:
        """The fires that are not over."""
        return [each.fire for fires in self._under.values() for each in fires]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
