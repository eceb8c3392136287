"""Recovery: what a dead daemon left, made true again, row by row.

Runs at start before the socket opens, and periodically. In this order: settlement intents of owners proven gone;
exit records of workers that ended meanwhile; living workers adopted; the rest lost. Then the processes of rows that
have ended are ended too, where a dead daemon could not.

Each row by itself: what cannot be read or judged is logged and left, and the pass goes on. Every step is a
compare-and-set that repeats the whole condition, so that a pass may be repeated, cut short, or run twice at once.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from pawl import failpoints
from pawl.control_plane import store
from pawl.control_plane.model import Intent, Outcome, Task
from pawl.control_plane.settlement import Settlement
from pawl.control_plane.statements import Q
from pawl.control_plane.supervisor import Supervisor
from pawl.home import Home
from pawl.log import logger
from pawl.runner.exits import Exits
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.lineage import session_leader
from pawl.runner.spool import ExitRecord, MarkState, Spool, WorkerMark
from pawl.storage import Reader, Writer
from pawl.timers import Timers

log = logger("recovery")
_AT_ONCE = 32
_ID = re.compile(r"[0-9A-Za-z-]+")


class Verdict(NamedTuple):
    """What the evidence about one running row says must be done with it.

    ``keep`` (somebody may own it), ``settle`` (its promise holds), ``fail`` (its evidence is bad), ``finish`` (its
    worker ended and says how), ``adopt`` (its worker lives), ``lose`` (nothing proves an outcome).
    """

    what: str
    because: str
    worker: ProcessIdentity | None = None
    record: ExitRecord | None = None


class Recovery:
    """One daemon's recovery. ``report`` counts what the passes since the start have done."""

    def __init__(
        self,
        *,
        home: Home,
        writer: Writer,
        reader: Reader,
        timers: Timers,
        owner: ProcessIdentity,
        settlement: Settlement,
        supervisor: Supervisor,
        over: Callable[[Task, Task | None], None],
    ) -> None:
        self._home = home
        self._writer = writer
        self._reader = reader
        self._timers = timers
        self._owner = owner
        self._settlement = settlement
        self._supervisor = supervisor
        self._tell_over = over
        self._suspects: set[str] = set()
        self.left = 0  # rows that the last pass could not judge
        self._kept = 0  # by the pass under way; the report tells of the last whole one
        self._exits = Exits()
        self.report = dict.fromkeys(
            ("kept", "settled", "failed", "finished", "adopted", "lost", "cleaned", "unreadable"), 0
        )

    async def run(self) -> None:
        """One pass over every row that is not ours to drive already."""
        self._kept = 0
        unreadable = self.report["unreadable"]
        await self._writer.submit(store.forget_stale_intents)
        running = [Task._make(row) for row in await self._reader.all(Q.running)]
        await self._each(self._without_newborn(running), self._recover)
        self.report["kept"] = self._kept
        to_clean = [Task._make(row) for row in await self._reader.all(Q.to_clean)]
        await self._each(to_clean, self._clean)
        self.left = self.report["unreadable"] - unreadable

    async def sweep_spools(self) -> None:
        """Remove the spools of tasks that are over: their daemon died between the last commit and this."""
        for name in await asyncio.to_thread(os.listdir, self._home.spool):
            row = await self._reader.one(Q.by_id, (name,))
            task = None if row is None else Task._make(row)
            if task is not None and task.ended and task.cleanup != "pending":
                await self._remove(self._spool(task))

    async def _remove(self, spool: Spool) -> None:
        """Remove a spool. What cannot be removed keeps nobody from starting."""
        try:
            await asyncio.to_thread(spool.remove)
        except (OSError, RecursionError) as error:
            log.warning("cannot remove a spool", path=spool.path, error=str(error))

    def _without_newborn(self, running: list[Task]) -> list[Task]:
        """A row of ours that nobody drives may be one whose commit was read before its submitter heard of it: it is
        judged when it is still so at the next pass."""
        before, self._suspects = self._suspects, set()
        for task in running:
            if task.owner == self._owner and task.id not in self._supervisor.live:
                self._suspects.add(task.id)
        return [task for task in running if task.id not in self._suspects or task.id in before]

    async def _each(self, tasks: list[Task], work) -> None:  # type: ignore[no-untyped-def]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(task: Task) -> None:
            if task.id in self._supervisor.live:
                return
            async with gate:
                try:
                    if not _ID.fullmatch(task.id):  # it names a directory, which is removed in the end
                        raise ValueError(f"{task.id!r} is no id")
                    await work(task)
                except Exception as error:  # whatever is wrong with this one, the others are recovered
                    self.report["unreadable"] += 1
                    log.error("cannot recover a row; it is left as it is", task=task.id, exc_info=error)
                failpoints.hit("recovery.after_row")

        await asyncio.gather(*(one(task) for task in tasks))

    async def _recover(self, task: Task) -> None:
        failpoints.hit("recovery.before_row")
        owner = task.owner
        assert owner is not None, "the schema gives every running row an owner"
        verdict = await self._judge(task, owner)
        if verdict.what != "keep":
            log.info("recovered", task=task.id, verdict=verdict.what, because=verdict.because)
        if verdict.what == "settle":
            await self._settle(task, owner)
        elif verdict.what in ("fail", "lose"):
            status, code = ("failed", "settlement_failed") if verdict.what == "fail" else ("lost", "lost")
            await self._end(task, owner, Outcome(status, error_code=code, error_message=verdict.because))
        elif verdict.what in ("adopt", "finish"):
            await self._take(task, owner, verdict)
        else:
            self._kept += 1

    # --- the evidence ---------------------------------------------------------------------------------------------

    async def _judge(self, task: Task, owner: ProcessIdentity) -> Verdict:
        """Gather the evidence about one row, outside of any transaction."""
        liveness = Liveness.GONE if owner == self._owner else await asyncio.to_thread(probe, owner)
        if liveness is not Liveness.GONE:
            because = "its owner lives" if liveness is Liveness.ALIVE else "whether its owner lives is unclear"
            if liveness is Liveness.UNCLEAR:
                log.warning("kept a row of an unclear owner", task=task.id, pid=owner.pid)
            return Verdict("keep", because)
        row = await self._reader.one(Q.intent, (task.id,))
        if row is not None:
            return await self._judge_promise(task, owner, Intent._make(row))
        return await self._judge_worker(task, owner)

    async def _judge_promise(self, task: Task, owner: ProcessIdentity, intent: Intent) -> Verdict:
        spool = self._spool(task)
        fault = intent.fault()
        if fault is None and (intent.owner_pid, intent.owner_start, intent.owner_boot) != tuple(owner):
            fault = "it was made by another owner than the row's"
        if fault is not None:
            return Verdict("fail", f"its settlement intent cannot be believed: {fault}")
        if not await self._settlement.restore(intent, spool.stdout, spool.stderr):
            return Verdict("fail", "its output was promised by a daemon that died, and is missing or does not match")
        return Verdict("settle", "its promise holds")

    async def _judge_worker(self, task: Task, owner: ProcessIdentity) -> Verdict:
        gone = f"the daemon that ran it (pid {owner.pid}) died"
        if owner == self._owner:
            gone = "the daemon lost hold of it"
        spool = self._spool(task)
        try:
            mark = await asyncio.to_thread(spool.bar)
        except NotADirectoryError:  # its worker put a file in its place: no keeper can launch anything there
            mark = WorkerMark(MarkState.BARRED)
        worker = task.worker or mark.worker
        if worker is None and mark.state is MarkState.BARRED:
            return Verdict("lose", f"{gone} before it had started the work; found at the restart")
        if worker is None:
            worker = await asyncio.to_thread(session_leader, task.id)
        if worker is None:
            return Verdict("lose", f"{gone} while it was starting the work, and no process of it is left")
        liveness = await asyncio.to_thread(probe, worker)
        if liveness is Liveness.ALIVE:
            return Verdict("adopt", "its worker lives", worker)
        if liveness is Liveness.UNCLEAR:
            return Verdict("keep", "whether its worker lives is unclear", worker)
        read = await self._exits.settled_record(spool, worker)
        if read.reason == "pending":
            return Verdict("keep", "its exit record is about to be written", worker)
        if read.record is None:
            return Verdict(
                "lose", f"{gone} and its worker (pid {worker.pid}) is gone too ({read.reason} exit record), so how it "
                "ended is not known; found at the restart", worker,
            )  # fmt: skip
        return Verdict("finish", "its worker ended and left an exit record", worker, read.record)

    # --- what follows ---------------------------------------------------------------------------------------------

    async def _settle(self, task: Task, owner: ProcessIdentity) -> None:
        intent = await self._settlement.intent(task.id)
        if intent is None:
            return  # somebody was quicker
        ended = await self._settlement.apply(task.id, owner, intent.status, intent.artifacts[0])
        self.report["settled"] += ended.won
        if ended.won and ended.task.cleanup is None:
            self._tell_over(ended.task, ended.retry)
            await self._remove(self._spool(task))

    async def _end(self, task: Task, owner: ProcessIdentity, outcome: Outcome) -> None:
        ended = await self._writer.submit(store.end_running, task.id, owner, outcome, True, store.DAEMON)
        self.report[outcome.status] += ended.won

    async def _take(self, task: Task, owner: ProcessIdentity, verdict: Verdict) -> None:
        mono_ms = self._timers.clock.monotonic_ms()
        taken = await self._writer.submit(store.take_over, task.id, owner, self._owner, verdict.worker, mono_ms)
        if taken is None:
            return
        if taken.ended:  # with its parent, since it was looked at
            self._supervisor.clean_up(taken)
        elif verdict.record is not None:
            self.report["finished"] += 1
            self._supervisor.finish(taken, verdict.record)
        else:
            self.report["adopted"] += 1
            self._supervisor.adopt(taken)

    async def _clean(self, task: Task) -> None:
        """End what is left of an ended task whose owner is gone, or could not be asked."""
        owner = task.owner
        if owner is not None and owner != self._owner:
            if await asyncio.to_thread(probe, owner) is not Liveness.GONE:
                return
            mono_ms = self._timers.clock.monotonic_ms()
            taken = await self._writer.submit(store.take_over, task.id, owner, self._owner, None, mono_ms)
            if taken is None:
                return
            task = taken
        elif (await self._settlement.row(task.id)).cleanup != "pending":
            return  # its driver was about to be done with it
        if task.id in self._supervisor.live:
            return  # whoever stored or claimed it has it by now
        self.report["cleaned"] += 1
        self._supervisor.clean_up(task)

    def _spool(self, task: Task) -> Spool:
        return Spool(os.path.join(self._home.spool, task.id))
