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
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from pawl import failpoints
from pawl.config.cron import CronConfig
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import NewTask, Task
from pawl.control_plane.statements import Q as TASKS
from pawl.control_plane.store import Submitted
from pawl.control_plane.work import ONLY_ZERO, Plan
from pawl.engines.cron import store
from pawl.engines.cron.due import Due, look
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

log = logger("cron")
LOOK_MS = 10_000  # how long a wall clock that was set may go unnoticed
_JUMP_MS = 1_500  # a clock that drifts, or is led back slowly, is no clock that was set
_RETRY_MS = (1_000, 60_000)
_LONG_MS = 3_600_000  # a gap of which the fires are counted on a thread
NOT_NOW = 10  # the exit code of a precondition that says so
PRECONDITION = "precondition"  # the part of a fire that such a task is
_WAITING_MAX = 100  # fires of one job that wait for one another


class Agents(Protocol):
    """What the scheduler needs of whoever knows agents and their policies."""

    def unattended(
        self, agent: str, prompt: bytes, *, kind: str, timeout_ms: int | None, retries: int, principal: str,
        source: dict[str, Any], labels: dict[str, str],
    ) -> NewTask:  # fmt: skip
        """A task for an agent that nobody sits in front of, under its own policy.

        Raises ``agent_not_found`` and ``agent_disabled``.
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
        self.settled: asyncio.Future[None] = loop.create_future()  # it has its task, or has ended without one
        self.over: asyncio.Future[None] = loop.create_future()  # it has ended, and no process of it is left


class Scheduler:
    """The scheduler of one daemon. ``config`` answers with the configuration in force."""

    def __init__(self, plane: ControlPlane, agents: Agents, jobs: Jobs) -> None:
        self._plane = plane
        self._agents = agents
        self.jobs = jobs
        self._under: dict[str, list[Under]] = {}  # fires of each job that are not over, in the order of their claims
        self._looking: set[str] = set()
        self._heap: list[tuple[int, str]] = []
        self._timer: Timer | None = None
        self._apart_ms = 0  # wall clock minus monotonic clock, at the last look
        self._since_ms = 0
        self._started = False
        self._first: set[str] = set()  # jobs that were not looked at since the start
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.troubles: dict[str, str] = {}  # jobs that cannot be recorded at the moment, and why
        jobs.moved = self._moved

    # --- start and stop ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what a dead daemon left, then watch the clock. After the control plane's own recovery."""
        clock = self._plane.timers.clock
        self._since_ms = clock.wall_ms()
        self._apart_ms = clock.wall_ms() - clock.monotonic_ms()
        for row in await self._plane.reader.all(Q.unclean_fires):  # first: what is open waits for what still lives
            self._begin(Fire._make(row), waits=False)
        for fire in [Fire._make(row) for row in await self._plane.reader.all(Q.open_fires)]:
            await self._take_over(fire)
        self._first = {job.name for job in self.jobs.all()}
        self._started = True
        for name in sorted(self._first):  # beside one another: a full disk, or one job's trouble, holds up no other
            self._spawn(self._look_at(name))

    async def stop(self) -> None:
        """Look no more. What runs is the control plane's; what waits is taken over by the next daemon."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take_over(self, fire: Fire) -> None:
        """A fire that was open when its daemon died: its task is the control plane's; without one it is judged anew."""
        owner = fire.owner
        if owner is not None and owner != self._plane.owner and probe(owner) is not Liveness.GONE:
            log.warning("a fire belongs to a daemon that is not proven gone", job=fire.job, fire=fire.seq)
            return
        adopted = await self._plane.writer.submit(store.adopt, fire, self._plane.owner)
        if adopted is None:
            return
        why = self._not_any_more(adopted) if adopted.task_id is None else None
        if why is not None:
            await self._plane.writer.submit(store.close, adopted, "missed", why)
        else:
            self._begin(adopted, waits=True)

    def _not_any_more(self, fire: Fire) -> str | None:
        """Why a fire that a dead daemon had claimed and not started is not started now."""
        job = self.jobs.get(fire.job)
        if job is None:
            return "the daemon ended before it was started, and the job is gone"
        age_ms = self._plane.timers.clock.wall_ms() - fire.nominal_at_ms
        if job.config.catch_up == "skip":
            return "the daemon ended before it was started, and catch_up is skip"
        if age_ms > job.config.catch_up_window_ms:
            return "the daemon ended before it was started, and it is longer ago than catch_up_window"
        return None

    # --- the clock --------------------------------------------------------------------------------------------------

    def _moved(self, job: Job) -> None:
        """A job has another next fire than before."""
        if job.next_at_ms is not None and not self._closing:
            heapq.heappush(self._heap, (job.next_at_ms + jitter_ms(job.config), job.name))
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
        if set_back:
            self._spawn(self._set_back())
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if not self._stale(*entry):
                due.append(entry[1])
        for name in dict.fromkeys(due):
            self._spawn(self._look_at(name))
        self._arm()

    async def _set_back(self) -> None:
        """The clock was set back: fires that are now to come, and are not on record, come all the same."""
        for job in self.jobs.all():
            if job.next_at_ms is not None:
                try:
                    await self.jobs.reschedule(job)
                except PawlError as error:
                    log.error("cannot move a job after the clock was set back", job=job.name, error=error.message)

    async def _look_at(self, name: str) -> None:
        """See what is due of a job. One job's trouble is no other's."""
        if name in self._looking:
            return
        self._looking.add(name)
        pause_ms = _RETRY_MS[0]
        try:
            while not self._closing:
                try:
                    await self._take_due(name)
                    self._first.discard(name)
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
                if name in self._first:
                    await self.jobs.reschedule(job)  # the clock may have been set back while no daemon was there
                return
            due = await self._due(job, now_ms)
            fires, waits = self._overlap(job, due)
            failpoints.hit("cron.before_claim")
            taken = await self._plane.writer.submit(store.take, job, fires, due.next_at_ms, self._plane.owner)
            if taken is None:
                await self.jobs.refresh(name)
                continue
            failpoints.hit("cron.after_claim")
            stored, recorded = taken
            await self._after(stored, due, recorded)
            for fire in recorded:
                if fire.status in OPEN:
                    self._begin(fire, waits=fire.nominal_at_ms in waits)

    async def _due(self, job: Job, now_ms: int) -> Due:
        assert job.next_at_ms is not None
        plan = plan_of(job.config, job.first_seen_ms)
        on_record = await self.jobs.on_record(job, job.next_at_ms)
        since_ms = self._since_ms if job.name in self._first else None

        def judge() -> Due:
            assert job.next_at_ms is not None
            return look(job.config, plan, job.next_at_ms, now_ms, since_ms=since_ms, on_record=on_record)

        return await asyncio.to_thread(judge) if now_ms - job.next_at_ms > _LONG_MS else judge()

    async def _after(self, job: Job, due: Due, recorded: list[Fire]) -> None:
        """What the recording means for the job: nothing left to fire, or a fire that never was."""
        if job.next_at_ms is not None:
            self.jobs.put(job)
            return
        said = [fire for fire in recorded if fire.status in ("missed", "skipped")]
        reason = "it has fired" if due.runs or not said else f"its instant passed: {said[-1].reason}"
        finished = await self._plane.writer.submit(store.finish_job, job, reason)
        self.jobs.put(finished or job)

    # --- overlap ----------------------------------------------------------------------------------------------------

    def _overlap(self, job: Job, due: Due) -> tuple[list[NewFire], set[int]]:
        """What of a job's due fires is recorded as what, and which of them wait for those before them."""
        fires = [fire._replace(status="skipped") if job.one_shot and job.config.catch_up == "skip" else fire
                 for fire in due.records]  # fmt: skip
        waits: set[int] = set()
        under = len(self._under.get(job.name, ()))
        sequence = any(fire.trigger == "catch_up" for fire in due.runs)
        for fire in due.runs:
            verdict = "queue" if sequence else job.config.overlap
            if not under or verdict == "allow":
                fires.append(fire)
            elif verdict == "skip" or (verdict == "queue" and not sequence and under >= _WAITING_MAX):
                fires.append(fire._replace(status="skipped", reason=self._busy(job)))
                continue
            else:
                fires.append(fire)
                waits.add(fire.nominal_at_ms)
                if verdict == "replace":
                    self._replace(job, fire)
            under += 1
        return fires, waits

    def _busy(self, job: Job) -> str:
        """Which fire is in the way."""
        under = self._under.get(job.name)
        if not under:
            return "a fire before it goes on"
        first = under[0].fire
        what = f"task {first.task_id}" if first.task_id else "not started yet"
        more = f", and {len(under) - 1} more wait" if len(under) > 1 else ""
        return f"the fire of {rfc3339(first.nominal_at_ms)} goes on ({what}){more}"

    def _replace(self, job: Job, by: NewFire) -> None:
        """End all that is under way of a job: a newer fire takes its place."""
        reason = f"replaced by the fire of {rfc3339(by.nominal_at_ms)}"
        for each in self._under.get(job.name, ()):
            each.replaced = reason
            for task_id in (each.fire.task_id, each.fire.check_id):
                if task_id is not None:
                    self._spawn(self._cancel(task_id, reason))

    async def _cancel(self, task_id: str, reason: str) -> None:
        task = await self._last_attempt(task_id)
        if not task.ended:
            await self._plane.cancel(task, reason, "daemon")

    # --- the life of a fire -----------------------------------------------------------------------------------------

    def _begin(self, fire: Fire, *, waits: bool) -> Under:
        fires = self._under.setdefault(fire.job, [])
        under = Under(fire, [each.over for each in fires] if waits else [])
        fires.append(under)
        self._spawn(self._drive(under))
        return under

    async def _drive(self, under: Under) -> None:
        """From claim to end."""
        try:
            if under.fire.task_id is not None or await self._start(under):
                _resolve(under.settled)
                await self._see_end(under)
        finally:
            fires = self._under[under.fire.job]
            fires.remove(under)
            if not fires:
                del self._under[under.fire.job]
            _resolve(under.settled)
            _resolve(under.over)

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
        ended = await self._ended(under.fire.check_id)
        if under.replaced is not None or (ended.exit_code == 0 and ended.status == "completed"):
            return True
        if ended.exit_code == NOT_NOW:
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
        if command:
            source["command"] = list(command)

        def give(tx: Transaction, stored: list[Submitted]) -> None:
            store.link(tx, stored, fire, self._plane.owner, check=check)

        async def store_it() -> Fire:
            new = self._agents.unattended(
                config.agent, prompt, kind="cron", timeout_ms=config.timeout_ms,
                retries=0 if check else config.retries, principal=f"cron:{fire.job}", source=source,
                labels={"cron": fire.job},
            )  # fmt: skip
            await self._plane.submit_all([new], give)
            failpoints.hit("cron.after_task")
            return Fire._make(await self._plane.reader.one(Q.fire, (fire.seq,)))

        try:
            under.fire = await self._insist(store_it)
        except PawlError as error:
            await self._close(under, "failed", error.message)
            return False
        return True

    async def _close(self, under: Under, status: str, reason: str, exit_code: int | None = None) -> None:
        fire = under.fire
        under.fire = await self._insist(lambda: self._plane.writer.submit(store.close, fire, status, reason, exit_code))

    async def _see_end(self, under: Under) -> None:
        """Wait until the last attempt of a fire's task is over, and no process of it is left."""
        assert under.fire.task_id is not None
        await self._ended(under.fire.task_id)
        fire = under.fire
        ended = under.fire = await self._insist(lambda: self._plane.writer.submit(store.settle_from_task, fire))
        job = self.jobs.get(ended.job)
        if job is not None and ended.status == "completed" and job.config.delete_after_run and not ended.manual:
            await self.jobs.has_run(job)

    async def _ended(self, task_id: str) -> Task:
        """The last attempt of a task, once it is over."""
        while True:
            task = await self._plane.wait(await self._last_attempt(task_id))
            if await self._plane.reader.one(TASKS.retry_of, (task.id,)) is None:
                return task

    async def _last_attempt(self, task_id: str) -> Task:
        while (row := await self._plane.reader.one(TASKS.retry_of, (task_id,))) is not None:
            task_id = row[0]
        return await self._plane.find(task_id)

    async def _insist(self, write: Callable[[], Awaitable[Fire]]) -> Fire:
        """Write until it is written: on a full disk later."""
        pause_ms = _RETRY_MS[0]
        while True:
            try:
                return await write()
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
                log.error("a fire's driver died; the next start takes it over", exc_info=done.exception())

        task.add_done_callback(ended)

    # --- by hand ----------------------------------------------------------------------------------------------------

    async def run(self, name: str) -> Fire:
        """Fire a job now, by its overlap policy. Raises ``cron_job_not_found``, ``cron_job_disabled`` (it cannot run at
        all) and ``fire_refused`` (another one goes on, and overlap is skip: the refusal is on record)."""
        job = self.jobs.need(name)
        self.jobs.runnable(job)
        new = NewFire(self._plane.timers.clock.wall_ms(), "manual", "claimed")
        under = self._under.get(name)
        waits = bool(under) and job.config.overlap in ("queue", "replace")
        if under and job.config.overlap == "skip":
            new = new._replace(status="skipped", reason=self._busy(job))
        elif under and job.config.overlap == "replace":
            self._replace(job, new)
        fire = await self._plane.writer.submit(store.take_by_hand, job, new, self._plane.owner)
        if fire.status == "skipped":
            raise FireRefused(f"cannot run {name} now: {fire.reason}, and its overlap is skip", job=name)
        started = self._begin(fire, waits=waits)
        if not waits and not job.config.precondition:
            await started.settled
        return started.fire

    # --- how its tasks are done ---------------------------------------------------------------------------------------

    async def plan(self, task: Task, spool: Spool) -> Plan:
        """How the task of a fire is done: by the job's agent, or by a program under that agent's policy."""
        return await self._agents.plan(task, spool, tuple(json.loads(task.source).get("command", ())))

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
