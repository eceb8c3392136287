"""The control plane of one daemon: the one authority on running work.

Puts the parts together and offers what engines and handlers need: submit, cancel, wait, and the order of starting
and stopping. Nothing here decides about a row: ``store`` does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from pawl import failpoints
from pawl.control_plane import store
from pawl.control_plane.dispatcher import Dispatcher
from pawl.control_plane.model import NewTask, Outcome, PolicyText, Task
from pawl.control_plane.recovery import Recovery
from pawl.control_plane.settlement import Settlement
from pawl.control_plane.statements import Q
from pawl.control_plane.store import Ended, Submitted
from pawl.control_plane.supervisor import Supervisor
from pawl.control_plane.work import Roster, Settings
from pawl.errors import AmbiguousId, PawlError, RefusedByState, StorageError, TaskNotFound
from pawl.home import Home
from pawl.ids import ID_CHARACTERS, PREFIX_CHARACTERS_MIN
from pawl.log import logger
from pawl.runner import exits
from pawl.runner.identity import ProcessIdentity, own_identity
from pawl.runner.keepers import Keepers
from pawl.runner.launcher import Keeper, LaunchOrder, become_subreaper
from pawl.runner.tokens import Tokens
from pawl.storage import ArtifactStore, Reader, Writer
from pawl.timers import Timers

Answer = TypeVar("Answer")

log = logger("control_plane")
_MINDER_MS = 60_000
_AGAIN_MS = 5_000  # where rows could not be judged: mostly the disk is full, and somebody makes room
_KEEPER_RETRY_MS = 1_000
_CANCEL_MARGIN_S = 10.0  # beyond the grace: for KILL, and for writing that nothing is left
_CAP_CHECK_BUSY_MS = 100
_CAP_CHECK_QUIET_MS = 500


class ControlPlane:
    """Start: ``configure``, ``recover``, ``serve``. Stop: ``stop_starting``, then ``close``."""

    def __init__(self, *, home: Home, writer: Writer, reader: Reader, artifacts: ArtifactStore, timers: Timers) -> None:
        self.home = home
        self.writer = writer
        self.reader = reader
        self.artifacts = artifacts
        self.timers = timers
        self.owner: ProcessIdentity = own_identity()
        self.settings = Settings()
        self.keepers = Keepers(home.path)
        self.tokens = Tokens(home.run)
        self.settlement = Settlement(writer, reader, artifacts, timers, self.owner)
        self.dispatcher = Dispatcher(writer, reader, timers, self.owner, self._started, self._expired)
        self.supervisor = Supervisor(
            home=home, writer=writer, reader=reader, artifacts=artifacts, timers=timers, owner=self.owner,
            settlement=self.settlement, launch=self._launch, over=self._over,
            take=self.dispatcher.take, release=self.dispatcher.over, tokens=self.tokens,
        )  # fmt: skip
        self.recovery = Recovery(
            home=home, writer=writer, reader=reader, timers=timers, owner=self.owner,
            settlement=self.settlement, supervisor=self.supervisor, over=self._over,
        )  # fmt: skip
        self._keeper: Keeper | None = None
        self._keeper_starting: asyncio.Task[None] | None = None
        self._waiters: dict[str, list[asyncio.Future[Task]]] = {}
        self._to_begin: dict[str, list[asyncio.Future[None]]] = {}
        self._side: set[asyncio.Task[Any]] = set()
        self._minding = False
        self._checking = False
        self._closing = False
        writer.listen(store.ENDED_BELOW, self._ended_below)

    # --- start and stop -------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Make every row true again. Before the socket opens."""
        become_subreaper()
        self.keepers.find()
        self.tokens.open()
        self.artifacts.sweep()
        await self.recovery.run()
        await self.recovery.sweep_spools()

    async def ended_work_settled(self) -> None:
        """Wait until what recovery found ended is settled and cleaned up, as long as that may reasonably take."""
        ending = {live.over for live in self.supervisor.live.values() if live.record is not None or live.task.ended}
        if ending:
            await asyncio.wait(ending, timeout=self.settings.kill_grace_ms / 1000 + _CANCEL_MARGIN_S)

    def configure(self, settings: Settings, roster: Roster) -> None:
        """Take what the configuration says; also while running."""
        self.settings = settings
        self.supervisor.settings = settings
        self.supervisor.roster = roster
        self.dispatcher.max_concurrent = settings.max_concurrent
        self.dispatcher.slots_of = roster.slots_of
        self.dispatcher.wake()

    async def serve(self) -> None:
        """Begin to start queued work."""
        self._keeper = await self._new_keeper()
        await self.dispatcher.start()
        self._mind()
        self._check_outputs()

    async def stop_starting(self) -> None:
        """Start nothing any more; what runs runs on."""
        await self.dispatcher.stop()

    async def close(self) -> None:
        """Let go of what still runs: its workers live on for the next daemon. Twice is harmless."""
        self._closing = True
        await self.dispatcher.stop()
        await self.supervisor.stop()
        for task in tuple(self._side):
            task.cancel()
        await asyncio.gather(*self._side, return_exceptions=True)
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None

    # --- submit, cancel, wait -------------------------------------------------------------------------------------

    async def submit(self, new: NewTask) -> Submitted:
        """Store a task and start it where a slot is free. When this returns its row is durable."""
        return (await self.submit_all([new]))[0]

    async def submit_all(self, tasks: Sequence[NewTask], also: store.Also | None = None) -> list[Submitted]:
        """The same for several, in order: all are stored, or none is. ``also`` writes in the same transaction."""
        owned = [(new, self.owner if self.dispatcher.reserve(new.agent) else None) for new in tasks]
        failpoints.hit("delegate.before_commit")
        try:
            stored = await self._store(owned, also)
        except BaseException:
            for new, owner in owned:
                if owner is not None:
                    self.dispatcher.release(new.agent)
                    self._mind()  # should its row be there all the same, recovery finds it
            raise
        failpoints.hit("delegate.after_commit")
        for (new, owner), done in zip(owned, stored, strict=True):
            if owner is not None:
                if done.new:
                    self._started(done.task)
                else:
                    self.dispatcher.release(new.agent)
            elif done.new:
                self.dispatcher.queued(done.task)
        return stored

    async def _store(
        self, owned: list[tuple[NewTask, ProcessIdentity | None]], also: store.Also | None
    ) -> list[Submitted]:
        """Store tasks. A commit that reads as an error may have been one all the same: the rows are looked for."""
        try:
            return await self.writer.submit(store.submit_all, owned, self.timers.clock.monotonic_ms(), also)
        except StorageError:
            rows = [await self.reader.one(Q.by_id, (new.id,)) for new, _ in owned]
            if None in rows:
                raise
            return [Submitted(Task._make(row), True) for row in rows]

    async def cancel(self, task: Task, reason: str | None, actor: str) -> Ended:
        """Cancel a task whatever its state, and with it all that lives below it. Returns when their processes have
        ended, with who won."""
        ended = await self._cancel_row(task, reason, actor)
        below = [self.supervisor.live[each].over for each in ended.below if each in self.supervisor.live]
        if below:
            await asyncio.wait(below, timeout=self.settings.kill_grace_ms / 1000 + _CANCEL_MARGIN_S)
        return ended

    async def _cancel_row(self, task: Task, reason: str | None, actor: str) -> Ended:
        outcome = Outcome("cancelled", error_message=reason)
        ended = await self.writer.submit(store.end_queued, task.id, outcome, actor)
        if ended.won:
            self._over(ended.task, None)
            return ended
        if ended.task.status == "running":
            live = self.supervisor.live.get(task.id)
            if live is None:
                raise RefusedByState(
                    f"cannot cancel {task.id}: it belongs to the daemon with pid {ended.task.owner_pid}, which is not "
                    "proven gone; ask that one, or look at it with `pawl status`",
                    id=task.id, pid=ended.task.owner_pid,
                )  # fmt: skip
            ended = await self.supervisor.end(live, outcome, actor)
        live = self.supervisor.live.get(task.id)
        if live is not None and ended.task.ended:
            # not for ever: on a full disk the clean-up is written later, and the row says "pending" until then
            await asyncio.wait({live.over}, timeout=self.settings.kill_grace_ms / 1000 + _CANCEL_MARGIN_S)
        return ended._replace(task=await self.settlement.row(task.id))

    async def wait(self, task: Task) -> Task:
        """Wait until a task has ended and no process of it is left."""
        live = self.supervisor.live.get(task.id)
        if live is not None:
            return await asyncio.shield(live.over)
        if task.ended:
            return task
        future: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(task.id, [])
        waiters.append(future)
        try:
            # asked after the future is in place, so that an end between the two is not missed
            now = await self.settlement.row(task.id)
            if now.ended and task.id not in self.supervisor.live:
                return now
            return await future
        finally:
            waiters.remove(future)
            if not waiters:
                self._waiters.pop(task.id, None)

    async def begun(self, task: Task) -> None:
        """Wait until a queued task has been started here, or has ended."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._to_begin.setdefault(task.id, [])
        waiters.append(future)
        try:
            if (await self.settlement.row(task.id)).status == "queued":
                await future
        finally:
            waiters.remove(future)
            if not waiters:
                self._to_begin.pop(task.id, None)

    async def living_below(self, task: Task) -> list[str]:
        """The ids of what has not ended below a task, however deep."""
        return [row[0] for row in await self.reader.all(Q.below, {"id": task.id})]

    async def policy_text(self, task: Task) -> PolicyText | None:
        """The effective policy that a task runs under; None for rows older than policies."""
        if task.policy_sha256 is None:
            return None
        row = await self.reader.one(Q.policy, (task.policy_sha256,))
        return PolicyText(task.policy_sha256, row[0])

    async def find(self, text: str, viewer: str | None = None, *, reading: bool = False) -> Task:
        """A task by its id or a unique prefix. Raises ``task_not_found`` or ``ambiguous_id``.

        ``viewer``: the agent for whom it is looked up, to whom only the tasks exist that it or an agent below it
        created; None is the operator, to whom all do. ``reading``: ended rows that are older than creators may be read
        by anybody who has their whole id.
        """
        if len(text) >= ID_CHARACTERS:
            row = await self.reader.one(Q.by_id, (text,))
            task = None if row is None else Task._make(row)
            if task is None or not await self._exists_for(viewer, task, reading):
                raise TaskNotFound(f"cannot find a task with the id {text}", id=text)
            return task
        bounds = (text, text + "\x7f")
        by_prefix = (Q.by_prefix, bounds) if viewer is None else (Q.by_prefix_of, (*bounds, viewer))
        if len(text) < PREFIX_CHARACTERS_MIN:
            matches = [row[0] for row in await self.reader.all(*by_prefix)] if text else []
            raise AmbiguousId(
                f"cannot use {text!r} as an id: give at least {PREFIX_CHARACTERS_MIN} characters",
                id=text,
                matches=matches,
            )
        found = await self.reader.all(*by_prefix)
        if not found:
            raise TaskNotFound(f"cannot find a task whose id begins with {text}", id=text)
        if len(found) > 1:
            matches = [row[0] for row in found]
            raise AmbiguousId(
                f"cannot tell which task {text!r} is: give more characters; these begin so: {', '.join(matches[:5])}"
                + (" and more" if len(matches) > 5 else ""),
                id=text, matches=matches,
            )  # fmt: skip
        return Task._make(await self.reader.one(Q.by_id, (found[0][0],)))

    async def _exists_for(self, viewer: str | None, task: Task, reading: bool) -> bool:
        if viewer is None or await self.reader.one(Q.is_viewer, (viewer, task.seq)):
            return True
        return reading and task.ended and task.creator is None and task.kind == "delegate"

    # --- the running of it ----------------------------------------------------------------------------------------

    def _started(self, task: Task) -> None:
        if task.id in self.supervisor.live:  # cancelled in the commit that stored it, and recovery was here first
            self.dispatcher.release(task.agent)
            return
        self.supervisor.begin(task)
        _resolve(self._to_begin.get(task.id, ()), None)
        self._mind()
        self._check_outputs()

    def _ended_below(self, tasks: list[Task]) -> None:
        """Rows that ended in the transaction of another: whoever drives them is told, and whoever waits."""
        for task in tasks:
            if task.cleanup is None:  # it had not started
                self._over(task, None)
            else:
                self.supervisor.ended_below(task)
                self._mind()  # a dead daemon's is cleaned up after by the next pass

    def _expired(self, task: Task) -> None:
        self._over(task, None)

    def _over(self, task: Task, retry: Task | None) -> None:
        """A task is over and done with: tell who waits, and queue the attempt that follows it."""
        if retry is not None:
            self.dispatcher.queued(retry)
        _resolve(self._to_begin.get(task.id, ()), None)
        _resolve(self._waiters.get(task.id, ()), task)

    async def _launch(self, order: LaunchOrder) -> ProcessIdentity:
        while self._keeper_starting is not None:
            await asyncio.shield(self._keeper_starting)
        assert self._keeper is not None
        return await self._keeper.launch(order)

    @property
    def keeper_missing(self) -> bool:
        """Whether there is no process that could start programs, and one is being sought."""
        return self._keeper_starting is not None

    async def _new_keeper(self) -> Keeper:
        keeper = Keeper(
            on_exit=self.supervisor.worker_ended, on_lost=self._keeper_lost, home=os.path.realpath(self.home.path),
            kill_grace_ms=self.settings.kill_grace_ms, log=self.home.keeper_log,
        )  # fmt: skip
        await keeper.start()
        self.keepers.add(keeper.identity)
        return keeper

    def _keeper_lost(self) -> None:
        """Start another one; the workers of the lost one are watched from here."""
        log.error("the keeper died; starting another")
        self.supervisor.keeper_lost()
        if not self._closing and self._keeper_starting is None:
            self._keeper_starting = self._aside(self._replace_keeper())

    async def _replace_keeper(self) -> None:
        """Try until there is one; launches wait meanwhile, each within its own bound."""
        try:
            while True:
                try:
                    self._keeper = await self._new_keeper()
                    return
                except PawlError as error:
                    log.error("cannot start a keeper; trying again", code=error.code, error=error.message)
                    await self.timers.sleep(_KEEPER_RETRY_MS)
        finally:
            self._keeper_starting = None

    # --- heartbeats and the periodic pass: timers run only while there is something to mind ----------------------

    def _mind(self) -> None:
        if not self._minding:
            self._minding = True
            soon_ms = _AGAIN_MS if self.recovery.left else _MINDER_MS
            self.timers.after(min(self.settings.heartbeat_interval_ms, soon_ms), self._mind_now)

    def _mind_now(self) -> None:
        if self._closing:  # the timers outlive us, and a pass would find the database closed
            return
        self._minding = False
        self._aside(self._beat_and_recover())

    async def _beat_and_recover(self) -> None:
        """Refresh the heartbeats of what runs here, then look for rows that somebody left behind."""
        try:
            failpoints.hit("heartbeat.flush")
            ids = list(self.supervisor.live)
            if ids:
                await self.writer.submit(store.beat, self.owner, self.timers.clock.monotonic_ms(), ids)
            await self.recovery.run()
            await self._time_out_stale()
            kept = {live.worker.pid for live in self.supervisor.live.values() if live.worker is not None}
            keeper = self._keeper.identity if self._keeper is not None else None
            exits.reap_strays(kept | ({keeper.pid} if keeper else set()))
        except PawlError as error:
            log.warning("cannot mind the running tasks", code=error.code, error=error.message)
        except Exception as error:  # a bug in one pass must not be the last pass
            log.error("minding the running tasks failed", exc_info=error)
        if self.supervisor.live or self.writer.log_is_long or await self._anything_to_mind():
            self._mind()
            self._check_outputs()

    async def _anything_to_mind(self) -> bool:
        try:
            return bool(await self.reader.all(Q.running) or await self.reader.all(Q.to_clean))
        except StorageError:
            return True  # ask again

    async def _time_out_stale(self) -> None:
        """End rows whose heartbeat stopped although their owner could not be proven gone."""
        oldest = self.timers.clock.monotonic_ms() - self.settings.heartbeat_timeout_ms
        for row in await self.reader.all(Q.running):
            task = Task._make(row)
            owner = task.owner
            if task.id in self.supervisor.live or owner is None or owner.boot_id != self.owner.boot_id:
                continue
            if task.heartbeat_mono_ms is not None and task.heartbeat_mono_ms < oldest:
                message = "its owner has not given a sign of life for longer than the heartbeat timeout"
                outcome = Outcome("timed_out", error_code="heartbeat_timeout", error_message=message)
                ended = await self.writer.submit(store.end_running, task.id, owner, outcome, True, store.DAEMON)
                if ended.won:
                    self._over(ended.task, None)

    def _check_outputs(self) -> None:
        if not self._checking:
            self._checking = True
            self.timers.after(_CAP_CHECK_BUSY_MS, self._check_outputs_now)

    def _check_outputs_now(self) -> None:
        busy = self.supervisor.check_outputs()
        self._checking = any(not live.turn.done() for live in self.supervisor.live.values())
        if self._checking:
            self.timers.after(_CAP_CHECK_BUSY_MS if busy else _CAP_CHECK_QUIET_MS, self._check_outputs_now)

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        return task


def _resolve(futures: Iterable[asyncio.Future[Answer]], answer: Answer) -> None:
    for future in futures:
        if not future.done():
            future.set_result(answer)
