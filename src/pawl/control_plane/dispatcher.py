"""Slots: who may start now, and what starts next when one becomes free.

Owns: the count of taken slots, in all and by agent, and which agents have something queued (both in memory; the
queue itself is the index over queued rows). Invariant: no more work than the settings allow, and whoever could run
does: nothing queued waits beside a free slot that fits it.

A task that waits for other tasks lends its slot meanwhile: it is not working, and what it waits for may need that
very slot. When it goes on it takes one again, whether one is free or not; nothing new starts until there is room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from pawl.control_plane import store
from pawl.control_plane.model import Task
from pawl.control_plane.statements import Q
from pawl.log import logger
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Reader, Writer
from pawl.timers import Timer, Timers

log = logger("dispatcher")
_RETRY_MS = 1_000


class Dispatcher:
    """Hands out slots. ``started`` is called with every task that was claimed from the queue."""

    def __init__(
        self, writer: Writer, reader: Reader, timers: Timers, owner: ProcessIdentity,
        started: Callable[[Task], None], expired: Callable[[Task], None],
    ) -> None:  # fmt: skip
        self._writer = writer
        self._reader = reader
        self._timers = timers
        self._owner = owner
        self._started = started
        self._expired = expired
        self.max_concurrent = 0
        self.slots_of: Callable[[str], int | None] = lambda agent: None
        self._taken: Counter[str] = Counter()
        self._lent: Counter[str] = Counter()  # by task: how many waits it is in
        self._total = 0
        self._queued: set[str] = set()
        self._claiming = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._expiry: Timer | None = None
        self._expiring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to hand out slots, first to what was queued before."""
        self._queued |= {agent for agent, _ in await self._reader.all(Q.queued_agents)}
        self._task = asyncio.get_running_loop().create_task(self._run(), name="dispatcher")
        self._wake.set()
        await self._arm_expiry()

    async def stop(self) -> None:
        """Start nothing any more, but what is being claimed at this moment. Twice is harmless."""
        task, self._task = self._task, None
        if task is not None:
            # not cancelled: a claim that is on its way to the disk would leave running rows that nobody drives
            self._wake.set()
            await task
        if self._expiry is not None:
            self._expiry.cancel()
        if self._expiring is not None:
            await asyncio.gather(self._expiring, return_exceptions=True)

    def reserve(self, agent: str) -> bool:
        """Take a slot for a task that is not stored yet. False where it must queue behind others, or for a slot."""
        if self._task is None or self._claiming or self._free(agent) < 1:
            return False
        if any(self._free(each) > 0 for each in self._queued):
            return False
        self.take(agent)
        return True

    def take(self, agent: str) -> None:
        """Count a slot as taken: reserved, claimed or adopted."""
        self._taken[agent] += 1
        self._total += 1

    def release(self, agent: str) -> None:
        """A slot is free again."""
        self._taken[agent] -= 1
        self._total -= 1
        if self._queued:
            self._wake.set()

    def lend(self, task: Task) -> None:
        """A running task begins to wait for others; ``reclaim`` ends that. It may be in several waits at once."""
        self._lent[task.id] += 1
        if self._lent[task.id] == 1:
            self.release(task.agent)

    def reclaim(self, task: Task) -> None:
        """One of its waits is over. Harmless where ``over`` was called meanwhile."""
        if self._lent[task.id] == 1:
            self.take(task.agent)
        if self._lent[task.id] > 0:
            self._lent[task.id] -= 1
        if not self._lent[task.id]:
            del self._lent[task.id]

    def over(self, task: Task) -> None:
        """A running task is over: its slot is free, if it had not lent it."""
        if self._lent.pop(task.id, 0) == 0:
            self.release(task.agent)

    def queued(self, task: Task) -> None:
        """A task was queued."""
        self._queued.add(task.agent)
        self._wake.set()
        if task.queue_deadline_ms is not None and self._task is not None:
            self._watch(task.queue_deadline_ms)

    def wake(self) -> None:
        """Look again: settings changed."""
        self._wake.set()

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return self._total

    def waits_for(self, task: Task) -> str:
        """What a queued task waits for, in words."""
        if self._task is None:
            return "the daemon is stopping and starts nothing any more"
        if self._total >= self.max_concurrent:
            return f"all {self.max_concurrent} slots are taken (max_concurrent in [daemon])"
        limit = self.slots_of(task.agent)
        if limit is not None and self._taken[task.agent] >= limit:
            return f"all {limit} slots of {task.agent} are taken (max_concurrent in [agents.{task.agent}])"
        return "it is about to start"

    def _free(self, agent: str) -> int:
        room = self.max_concurrent - self._total
        limit = self.slots_of(agent)
        return room if limit is None else min(room, limit - self._taken[agent])

    async def _run(self) -> None:
        while self._task is not None:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._fill()
            except Exception as error:  # nobody else would start anything any more
                log.error("cannot claim", exc_info=error)
                self._timers.after(_RETRY_MS, self._wake.set)

    async def _fill(self) -> None:
        """Claim until no slot or no fitting task is left; one transaction claims many."""
        while self._task is not None:
            room = self.max_concurrent - self._total
            agents = {agent: free for agent in self._queued if (free := self._free(agent)) > 0}
            if room < 1 or not agents:
                return
            # an agent leaves the set before the claim: what is queued meanwhile puts it back
            self._queued -= set(agents)
            self._claiming = True  # until its slots are counted nobody may take one past the queue
            try:
                tasks = await self._writer.submit(
                    store.claim, self._owner, self._timers.clock.monotonic_ms(), room, agents
                )
            except BaseException:
                self._queued |= set(agents)
                raise
            finally:
                self._claiming = False
            found = Counter(task.agent for task in tasks)
            # who got all it asked for, or was cut off by the room, may have more
            self._queued |= {agent for agent, free in agents.items() if found[agent] >= free or len(tasks) >= room}
            for task in tasks:
                self.take(task.agent)
                self._started(task)

    # --- queue times ------------------------------------------------------------------------------------------

    def _watch(self, deadline_ms: int) -> None:
        delay = deadline_ms - self._timers.clock.wall_ms()
        due = self._timers.clock.monotonic_ms() + max(0, delay) + 1
        if self._expiry is None or self._expiry.cancelled or due < self._expiry.due_ms:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = self._timers.at(due, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._expiring = asyncio.get_running_loop().create_task(self._expire_now())

    async def _expire_now(self) -> None:
        try:
            for task in await self._writer.submit(store.expire):
                self._expired(task)
            await self._arm_expiry()
        except Exception as error:
            log.error("cannot end what waited too long", exc_info=error)
            self._expiry = self._timers.after(_RETRY_MS, self._expire)

    async def _arm_expiry(self) -> None:
        row = await self._reader.one(Q.next_queue_deadline)
        if row and row[0] is not None:
            self._watch(row[0])
