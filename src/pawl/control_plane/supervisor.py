"""Supervision: one driver for each running task of ours, and somebody who notices when a driver dies.

A driver launches the work (or takes over work that lives), waits for its end or for a decision to end it, settles,
ends what processes are left, and frees the slot. When a driver dies of a bug the daemon lives on: the task is
settled from its promise with recovery's own checks, or as failed, and its processes are ended.

Owns: the live tasks of this daemon (memory only; the rows are the authority). Clock: monotonic.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

from pawl import failpoints
from pawl.control_plane import ending, store
from pawl.control_plane.model import TERMINAL, CleanUp, Outcome, Task
from pawl.control_plane.settlement import Output, Settlement
from pawl.control_plane.statements import Q
from pawl.control_plane.store import Ended
from pawl.control_plane.work import Inline, Plan, Program, Refusal, Roster, Settings
from pawl.errors import PawlError, StorageError
from pawl.home import Home
from pawl.log import logger
from pawl.runner import tokens
from pawl.runner.exits import Exits
from pawl.runner.identity import ProcessIdentity
from pawl.runner.launcher import KeeperLost, LaunchOrder, LaunchRefused
from pawl.runner.lineage import session_leader
from pawl.runner.spool import ExitRecord, MarkState, Spool
from pawl.storage import Artifact, ArtifactStore, Reader, Writer
from pawl.timers import Timer, Timers

log = logger("supervisor")
_RESCUE_FIRST_MS = 200
_RESCUE_MAX_MS = 60_000
_LAUNCH_LOOK_S = 0.02
_LAUNCH_S = 60.0  # real time: a keeper answers in a millisecond, or on a machine in trouble in a second


class Live:
    """A running task of this daemon: what only memory knows of it."""

    def __init__(self, task: Task, spool: Spool) -> None:
        self.task = task
        self.spool = spool
        self.worker: ProcessIdentity | None = task.worker
        self.inline = False
        self.starting = False  # whether its launch is under way
        self.spooled = True  # whether it has a spool, as far as anybody knows
        self.max_output_bytes = 0
        self.record: ExitRecord | None = None
        self.leftovers = False
        self.early: Outcome | None = None
        self.watched = False  # whether somebody waits for the exit of its worker
        self.over_cap = False  # whether its end was decided since it wrote too much
        self.rescues = 0
        self.deadline: Timer | None = None
        loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[None] = loop.create_future()  # the worker ended, or a decision to end it was made
        self.over: asyncio.Future[Task] = loop.create_future()  # settled, and no process is left

    def wake(self) -> None:
        """Something happened that the driver waits for."""
        if not self.turn.done():
            self.turn.set_result(None)


class Supervisor:
    """Drives the running tasks of one daemon."""

    def __init__(
        self,
        *,
        home: Home,
        writer: Writer,
        reader: Reader,
        artifacts: ArtifactStore,
        timers: Timers,
        owner: ProcessIdentity,
        settlement: Settlement,
        launch: Callable[[LaunchOrder], Coroutine[Any, Any, ProcessIdentity]],
        over: Callable[[Task, Task | None], None],
        take: Callable[[str], None],
        release: Callable[[Task], None],
        tokens: tokens.Tokens,
    ) -> None:
        self._home = home
        self._writer = writer
        self._reader = reader
        self._artifacts = artifacts
        self._timers = timers
        self._owner = owner
        self._settlement = settlement
        self._launch = launch
        self._tell_over = over
        self._take = take
        self._release = release
        self._tokens = tokens
        self._exits = Exits()
        self._drivers: set[asyncio.Task[None]] = set()
        self._removals: set[asyncio.Future[None]] = set()
        self._ended_early: dict[str, Task] = {}
        self.live: dict[str, Live] = {}
        self.settings = Settings()
        self.roster = Roster({}, lambda agent: None, _default_cap)

    # --- taking tasks on ----------------------------------------------------------------------------------------

    def begin(self, task: Task) -> Live:
        """Drive a task that was just claimed. Its slot is taken already."""
        live = self._enlist(task, slot_taken=True)
        self._spawn(self._do(live), live)
        return live

    def adopt(self, task: Task) -> Live:
        """Drive a task whose worker outlived its daemon."""
        live = self._enlist(task)
        self._watch_deadline(live)
        self._spawn(self._see_through(live, adopted=True), live)
        return live

    def finish(self, task: Task, record: ExitRecord) -> Live:
        """Settle a task whose worker ended while no daemon was there."""
        live = self._enlist(task)
        live.record = record
        live.leftovers = True  # nobody has looked
        live.wake()
        self._spawn(self._see_through(live, unwatched=True), live)
        return live

    def clean_up(self, task: Task) -> Live:
        """End the processes of a task that has ended, where a dead daemon could not."""
        live = self._enlist(task)
        self._spawn(self._clean(live, keep_output=task.output is None), live)
        return live

    # --- decisions from outside ---------------------------------------------------------------------------------

    async def end(self, live: Live, outcome: Outcome, actor: str) -> Ended:
        """End a running task by decision. When this returns the row says so; ``live.over`` tells when it is done."""
        ended = await self._decide(live, outcome, actor)
        # the second case: an earlier try had committed, and its answer was lost
        if ended.won or (ended.task.cleanup == "pending" and not live.turn.done()):
            failpoints.hit("cancel.after_commit")
            live.early = outcome
            live.starting = False
            live.wake()
        return ended

    def ended_below(self, task: Task) -> None:
        """A row was ended in the transaction of another: since its parent ended, or its tree was cancelled.

        Whoever drives it is told, or whoever will: its submission, its claim or its adoption may be on their way here.
        """
        live = self.live.get(task.id)
        if live is None:
            self._ended_early[task.id] = task
        else:
            self._end_early(live, task)

    def _end_early(self, live: Live, task: Task) -> None:
        live.early = live.early or Outcome(task.status, error_message=task.error_message)
        live.starting = False
        live.wake()

    async def _decide(self, live: Live, outcome: Outcome, actor: str) -> Ended:
        try:
            return await self._writer.submit(
                store.end_running, live.task.id, self._owner, outcome, not live.inline, actor
            )
        except StorageError:
            task = await self._settlement.row(live.task.id)
            if task.status != outcome.status or live.turn.done():
                raise
            return Ended(True, task)  # it was committed all the same

    def worker_ended(self, task_id: str, record: ExitRecord, leftovers: bool) -> None:
        """The keeper reports an exit."""
        live = self.live.get(task_id)
        if live is None or live.record is not None:
            return
        live.record = record
        live.leftovers = leftovers
        live.wake()

    def keeper_lost(self) -> None:
        """The keeper died: watch its living workers ourselves."""
        for live in self.live.values():
            if live.worker is not None and live.record is None and not live.watched:
                self._spawn_side(self._watch_exit(live))

    async def stop(self) -> None:
        """Let go of everything; workers live on. Twice is harmless."""
        for driver in tuple(self._drivers):
            driver.cancel()
        await asyncio.gather(*self._drivers, *self._removals, return_exceptions=True)
        self._exits.close()

    # --- the life of a task -------------------------------------------------------------------------------------

    async def _do(self, live: Live) -> None:
        """From claim to end."""
        failpoints.hit("supervisor.driver")
        live.starting = True
        plan = await self._plan(live)
        if isinstance(plan, Inline):
            live.inline = True
            live.spooled = False
            await self._conclude(live, Outcome("completed"), Output(data=plan.output))
            return
        if isinstance(plan, Program):
            self._watch_deadline(live)
            plan = await self._start(live, plan) or plan
            live.starting = False
        if isinstance(plan, Refusal):
            live.inline = not live.leftovers  # nothing ran, unless nobody knows
            await self._conclude(live, _failed(plan.code, plan.message), Output(data=b""))
            return
        await self._see_through(live)

    async def _plan(self, live: Live) -> Plan:
        planner = self.roster.planners.get(live.task.kind)
        if planner is None:
            return Refusal("kind_unknown", f"this daemon cannot do tasks of kind {live.task.kind}")
        try:
            return await self._settlement.insist(
                live.task.id, lambda: planner(live.task, live.spool), lambda: live.early is not None
            )
        except PawlError as error:
            return Refusal(error.code, error.message)

    async def _start(self, live: Live, plan: Program) -> Refusal | None:
        """Launch the program. Returns why not; None where it runs, or where its end was decided meanwhile."""
        task = live.task
        live.max_output_bytes = plan.max_output_bytes
        try:
            await self._settlement.insist(task.id, lambda: self._lay_out(live, plan), lambda: live.early is not None)
            if plan.policy is not None:
                narrowed = plan.policy
                recorded = await self._settlement.insist(
                    task.id,
                    lambda: self._writer.submit(store.record_policy, task.id, self._owner, narrowed),
                    lambda: live.early is not None,
                )
                live.task = recorded or live.task
        except StorageError as error:
            return None if live.early is not None else Refusal(error.code, error.message)
        failpoints.hit("dispatch.after_claim")
        if live.early is not None:
            return None
        stdin = live.spool.prompt if plan.reads_prompt else None
        env = {**plan.env, tokens.VARIABLE: self._tokens.of(task.id)}
        order = LaunchOrder(task.id, plan.argv, env, plan.cwd, live.spool.path, stdin, plan.limits, plan.wrapper)
        try:
            async with asyncio.timeout(_LAUNCH_S):
                live.worker = await self._launched(live, order)
        except LaunchRefused as refused:
            if refused.code == "sandbox_failed" and await self._may_be_bare(live, plan):
                return await self._start(live, plan._replace(wrapper=(), policy=None, bare=None))
            return Refusal(refused.code, refused.message)
        except (KeeperLost, TimeoutError):
            return await self._after_loss(live)
        if live.worker is None:
            return None
        failpoints.hit("launch.after_spawn")
        # not awaited: the spool names the worker too, and the next commit carries this one along
        noted = self._writer.submit(store.record_worker, task.id, self._owner, live.worker)
        noted.add_done_callback(_recorded)
        return None

    async def _may_be_bare(self, live: Live, plan: Program) -> bool:
        """Whether a program whose sandbox could not be made, so that nothing ran, may run without."""
        if plan.bare is None:
            return False
        try:
            return await self._settlement.insist(live.task.id, plan.bare, lambda: live.early is not None)
        except PawlError:
            return False

    async def _launched(self, live: Live, order: LaunchOrder) -> ProcessIdentity | None:
        """The worker, once it is launched; None where its end was decided first and it never will be."""
        launch = asyncio.ensure_future(self._launch(order))
        try:
            either: set[asyncio.Future[Any]] = {launch, live.turn}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not launch.done() and (await asyncio.to_thread(live.spool.bar)).state is MarkState.BARRED:
                return None
            return await launch
        finally:
            launch.cancel()

    async def launches_done(self, timeout_s: float) -> None:
        """Wait until no launch is under way: a row that says running must not lose its program to an orderly stop."""
        until = time.monotonic() + timeout_s
        while any(live.starting for live in self.live.values()) and time.monotonic() < until:  # noqa: ASYNC110 (once)
            await asyncio.sleep(_LAUNCH_LOOK_S)

    async def _lay_out(self, live: Live, plan: Program) -> None:
        """Make the spool: prompt, own directory, input files."""
        try:
            live.spool.create(plan.prompt)
            if live.task.inputs:
                for name, *artifact in await self._reader.all(Q.inputs, (live.task.seq,)):
                    path = os.path.join(live.spool.files, name)
                    await asyncio.to_thread(self._copy_input, path, Artifact(*artifact))
        except OSError as error:
            raise StorageError(f"cannot write {live.spool.path}: {error.strerror}") from error

    def _copy_input(self, path: str, artifact: Artifact) -> None:
        with self._artifacts.open_verified(artifact) as source, open(path, "wb") as target:
            while chunk := source.read(1024 * 1024):
                target.write(chunk)

    async def _after_loss(self, live: Live) -> Refusal | None:
        """The keeper died or hangs under a launch: find out whether it happened, and see to it that it will not."""
        mark = await asyncio.to_thread(live.spool.bar)
        if mark.worker is None and mark.state is MarkState.BARRED:
            return Refusal("keeper_lost", "the process that starts programs died or hung before this one was started")
        live.worker = mark.worker or await asyncio.to_thread(session_leader, live.task.id)
        if live.worker is None:
            live.leftovers = True  # nobody knows: look for processes of it all the same
            return Refusal("keeper_lost", "the process that starts programs died while it was starting this one")
        self._spawn_side(self._watch_exit(live))
        return None

    async def _see_through(self, live: Live, *, adopted: bool = False, unwatched: bool = False) -> None:
        """From a living (or just ended) worker to the end."""
        live.max_output_bytes = live.max_output_bytes or await self.roster.max_output_of(live.task)
        if adopted:
            await self._watch_exit(live)
        await live.turn
        if live.early is None:
            outcome, output = ending.judge(
                live.record, live.spool, live.max_output_bytes, unwatched=unwatched,
                good=self.roster.good_codes(live.task),
            )  # fmt: skip
            if outcome.status in ("completed", "failed"):
                if unwatched and live.record is not None:
                    age_ms = time.time_ns() // 1_000_000 - live.record.ended_at_ms  # the record has the machine's clock
                    outcome = outcome._replace(ended_at_ms=self._timers.clock.wall_ms() - max(0, age_ms))
                await self._conclude(live, outcome, output)
                return
            await self._settlement.insist(live.task.id, lambda: self.end(live, outcome, store.DAEMON))
        await self._clean(live, keep_output=True)

    async def _watch_exit(self, live: Live) -> None:
        """Wait for a worker that no keeper of ours reports."""
        assert live.worker is not None
        live.watched = True
        gone = asyncio.ensure_future(self._exits.wait(live.worker))
        await asyncio.wait({gone, live.turn}, return_when=asyncio.FIRST_COMPLETED)
        if live.turn.done():
            gone.cancel()
            return
        read = await self._exits.settled_record(live.spool, live.worker)
        while read.reason == "pending" and not live.turn.done():
            await self._timers.sleep(1_000)
            read = await self._exits.settled_record(live.spool, live.worker)
        live.record = live.record or read.record
        live.leftovers = True  # nobody has looked
        live.wake()

    async def _conclude(self, live: Live, outcome: Outcome, output: Output) -> None:
        """Settle, then end what is left. Where somebody else ended the task first, that stands."""
        ended = await self._settlement.settle(live.task, outcome, output, leftovers=live.leftovers)
        if ended.task.cleanup == "pending":
            await self._clean(live, keep_output=ended.task.output is None)
        else:
            await self._finish(live, ended)

    async def _clean(self, live: Live, *, keep_output: bool) -> None:
        """Prove that no process of an ended task is left, and keep what it wrote where that is not settled yet."""
        live.max_output_bytes = live.max_output_bytes or await self.roster.max_output_of(live.task)
        flood = live.early is not None and live.early.error_code == "output_limit"
        grace_s = 0 if flood else self.settings.kill_grace_ms / 1000  # what floods the disk is not asked twice
        done = await ending.end_processes(live.task.id, live.worker, live.spool, grace_s, self._timers)
        if keep_output:
            done = await self._settlement.insist(live.task.id, lambda: self._keep_output(live, done))
        failpoints.hit("cleanup.before_commit")
        ended = await self._settlement.insist(
            live.task.id, lambda: self._writer.submit(store.clean, live.task.id, done)
        )
        await self._finish(live, ended)

    async def _keep_output(self, live: Live, done: CleanUp) -> CleanUp:
        record = live.record
        if record is None and live.worker is not None:  # its keeper may be about to write it
            record = (await self._exits.settled_record(live.spool, live.worker)).record
        output = ending.so_far(record, live.spool, live.max_output_bytes)
        stdout, stderr = await self._settlement.stage(output)
        try:
            await self._settlement.publish(stdout, stderr)
        except BaseException:
            self._artifacts.discard(stdout, stderr)
            raise
        if output.truncated:
            done = done._replace(report=done.report | {"written_bytes": ending.written(record, live.spool)})
        return done._replace(
            output=stdout.artifact,
            stderr=stderr and stderr.artifact,
            truncated=output.truncated,
            exit_code=record and record.code,
            signal=record and record.signal,
        )

    async def _finish(self, live: Live, ended: Ended) -> None:
        """Nothing of the task is left to do."""
        retry = ended.retry
        if retry is None and ended.task.retries_left and ended.task.status in store.RETRIED:
            # it was made by somebody else's transaction, or by one whose answer was lost
            retry = await self._settlement.insist(live.task.id, lambda: self._settlement.retry_of(live.task.id))
        if live.over.done():
            return
        live.task = ended.task
        if live.deadline is not None:
            live.deadline.cancel()
        if live.spooled and ended.task.ended:  # else it changed hands, and the spool with it
            self._discard(live.spool)
        del self.live[live.task.id]
        live.starting = False
        live.over.set_result(ended.task)
        self._release(ended.task)
        self._tell_over(ended.task, retry)

    def _discard(self, spool: Spool) -> None:
        """Remove a spool on a thread: nobody waits for it, and a dead daemon's are swept at the next start."""
        removal = asyncio.ensure_future(asyncio.to_thread(spool.remove))
        self._removals.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and removal.exception() is not None:
            log.warning("cannot remove a spool; the next start will", error=str(removal.exception()))

    # --- when a driver dies -------------------------------------------------------------------------------------

    def _enlist(self, task: Task, *, slot_taken: bool = False) -> Live:
        if not slot_taken:  # it was found, not claimed; it gives one back when it is over
            self._take(task.agent)
        live = Live(task, Spool(os.path.join(self._home.spool, task.id)))
        self.live[task.id] = live
        ended = self._ended_early.pop(task.id, None)
        if ended is not None:
            self._end_early(live, ended)
        return live

    def _spawn(self, life: Coroutine[Any, Any, None], live: Live) -> None:
        driver = asyncio.get_running_loop().create_task(life)
        self._drivers.add(driver)
        driver.add_done_callback(lambda done: self._driver_ended(done, live))

    def _driver_ended(self, driver: asyncio.Task[None], live: Live) -> None:
        self._drivers.discard(driver)
        if driver.cancelled():
            return
        fault = driver.exception()
        if fault is not None:
            log.error("a driver died", task=live.task.id, exc_info=fault)
            self._spawn(self._rescue(live, fault), live)

    async def _rescue(self, live: Live, fault: BaseException) -> None:
        """Settle the task of a dead driver: from its promise where the evidence holds, else as failed."""
        live.rescues += 1  # a rescue that dies too is tried again, and must not spin
        await self._timers.sleep(min(_RESCUE_FIRST_MS * 2 ** min(live.rescues - 1, 16), _RESCUE_MAX_MS))
        row = await self._reader.one(Q.by_id, (live.task.id,))
        task = Task._make(row)
        if task.status not in TERMINAL:
            intent = await self._settlement.intent(task.id)
            if intent is not None and await self._settlement.restore(intent, live.spool.stdout, live.spool.stderr):
                await self._settlement.apply(task.id, self._owner, intent.status, intent.artifacts[0])
            else:
                await self.end(
                    live,
                    _failed("driver_died", f"Pawl's own driver of this task died: {fault!r}"),
                    store.DAEMON,
                )
            task = await self._settlement.row(task.id)
        if task.cleanup == "pending":
            await self._clean(live, keep_output=task.output is None)
        else:
            await self._finish(live, Ended(True, task))

    def _spawn_side(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the drivers whose failure is logged."""
        side = asyncio.get_running_loop().create_task(work)
        self._drivers.add(side)

        def ended(done: asyncio.Task[None]) -> None:
            self._drivers.discard(done)
            if not done.cancelled() and done.exception() is not None:
                log.error("a watcher died", exc_info=done.exception())

        side.add_done_callback(ended)

    def _watch_deadline(self, live: Live) -> None:
        due = live.task.deadline_mono_ms
        if due is not None:
            live.deadline = self._timers.at(due, lambda: self._spawn_side(self._time_out(live)))

    async def _time_out(self, live: Live) -> None:
        if live.turn.done():
            return
        task = live.task
        allowed_ms = (task.deadline_at_ms or 0) - (task.started_at_ms or 0)
        limit = f"its timeout of {task.timeout_ms / 1000:g}s"
        if task.kind == "subagent" and allowed_ms < task.timeout_ms:
            limit = "its parent may"
        message = f"it ran longer than {limit} and was ended; what it had done by then is not known"
        await self._settlement.insist(
            live.task.id,
            lambda: self.end(live, Outcome("timed_out", error_code="timeout", error_message=message), store.DAEMON),
        )

    # --- the output cap -----------------------------------------------------------------------------------------

    def check_outputs(self) -> bool:
        """End the tasks whose output is over the cap. Returns whether any output grew much since the last look."""
        busy = False
        for live in tuple(self.live.values()):
            if live.worker is None or live.turn.done() or live.over_cap or not live.max_output_bytes:
                continue
            size = max(_size(live.spool.stdout), _size(live.spool.stderr))
            busy = busy or size > live.max_output_bytes // 4
            if size > live.max_output_bytes:
                live.over_cap = True
                self._spawn_side(self._over_cap(live))
        return busy

    async def _over_cap(self, live: Live) -> None:
        wrote = f"{ending.written(None, live.spool)} bytes by the time it was ended"  # the clean-up tells the whole
        outcome = ending.output_limit(live.max_output_bytes, wrote)
        await self._settlement.insist(live.task.id, lambda: self.end(live, outcome, store.DAEMON))


async def _default_cap(task: Task) -> int:
    return 64 * 1024**2


def _failed(code: str, message: str) -> Outcome:
    return Outcome("failed", error_code=code, error_message=message)


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size
    return 0


def _recorded(future: asyncio.Future[bool]) -> None:
    if not future.cancelled() and future.exception() is not None:
        log.warning("cannot record a worker; its spool names it", error=str(future.exception()))
    else:
        failpoints.hit("launch.after_record")
