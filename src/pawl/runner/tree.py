"""Every process of a task, found and ended, wherever it hid.

A process belongs to a task by its session, its group, its descent, or the task's id in its environment: so
neither ``setsid`` nor a double fork nor the death of its parents is an escape. One that changes its session, loses
its parents *and* empties its environment is found while its parents live, and not after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import NamedTuple

from pawl.runner import kernel, processes
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.processes import Process

_KILL_S = 5.0  # how long KILL is repeated
_POLL_S = (0.005, 0.1)  # shortest and longest pause between two looks at the known processes
_FREEZE_LOOKS = 20
_CHASES = 500  # looks at the newly born: some twenty milliseconds
_RESCAN_S = 0.5  # how long newcomers may stay unseen during the grace


class Ended(NamedTuple):
    """What it took to end a tree. Empty ``left`` means that nothing of the task lives."""

    term_sent: int  # processes that were sent TERM
    kill_sent: int  # processes that were sent KILL
    left: list[int]  # PIDs that live on all the same: another user's, or stuck in the kernel


def members(worker: ProcessIdentity | None, task_id: str) -> list[ProcessIdentity]:
    """Every living process of the task: the worker, its session, its group, all their descendants, and whoever has
    ``PAWL_TASK_ID=<task_id>`` in its environment. Never this process, never init. Blocks while it reads ``/proc``.
    """
    return list(_Search(worker, task_id).run())


async def end_tree(
    worker: ProcessIdentity | None,
    task_id: str,
    grace_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Ended:
    """TERM to all of the task, ``grace_s`` seconds to go, then KILL for at most five more.

    The grace is one ``sleep(grace_s)``, so it is over when the caller's clock says so; the five seconds are real.
    """
    hunt = _Hunt(worker, task_id)
    living = await hunt.ask_to_end(_sleeping(sleep, grace_s))
    if living:
        living = await hunt.force(_sleeping(asyncio.sleep, _KILL_S))
    return Ended(len(hunt.asked), len(hunt.forced), sorted(process.pid for process in living))


class _Search:
    """One walk through all processes. Yields each member as soon as it is recognised, parents mostly first."""

    def __init__(self, worker: ProcessIdentity | None, task_id: str, known: Iterable[ProcessIdentity] = ()) -> None:
        self.worker = worker if worker is not None and worker.boot_id == kernel.boot_id() else None
        self.task_id = task_id
        self.known = {process.pid: process.start for process in known}  # members at an earlier look
        self.spared = {0, 1, os.getpid()}
        self.leader: bool | None = False
        self.seen: dict[int, Process] = {}
        self.found: set[int] = set()

    def run(self) -> Iterator[ProcessIdentity]:
        """All members. One that forks and ends faster than a look takes would not be where the look is, so the
        look goes on with those that were born meanwhile, until nobody was.
        """
        self.leader = self._leader_there()
        newest = processes.newest_pid()
        yield from self._sift(processes.look())
        yield from self._later_children()
        for _ in range(_CHASES):
            latest = processes.newest_pid()
            if latest <= newest:  # nobody; or the numbers have wrapped around, and the next look sees them
                return
            yield from self._sift(processes.look_at(range(latest, newest, -1)))
            newest = latest

    def _sift(self, looked_at: Iterable[Process]) -> Iterator[ProcessIdentity]:
        for process in looked_at:
            self.seen[process.pid] = process
            if process.pid not in self.spared and self._recognises(process):
                self.found.add(process.pid)
                if not process.dead:
                    yield process.identity

    def groups(self) -> set[int]:
        """Process groups that are the task's as a whole, because a member leads them or made their session."""
        found = [self.seen[pid] for pid in self.found]
        return {process.group for process in found if {process.group, process.session} & self.found} - {os.getpgrp()}

    def _leader_there(self) -> bool | None:
        """Whether the worker's PID is still the worker's (a zombie counts): None where nobody has it.

        While anybody is left in a session or a group, the kernel does not give its number to a new process. So if
        another process has the PID, nothing is left of the worker's session, and whoever bears its number is a
        stranger.
        """
        if self.worker is None:
            return False
        if not kernel.HAS_PROC:
            return probe(self.worker) is not Liveness.GONE or None
        found = processes.read(self.worker.pid)
        return None if found is None else found.start == self.worker.start

    def _recognises(self, process: Process) -> bool:
        if self.worker is not None and self.leader is not False:
            worker = self.worker.pid
            if process.pid == worker:
                return process.start == self.worker.start
            if worker in (process.session, process.group) and (self.leader or self._is_below_us(process)):
                return True
        if any(self._is_member(number) for number in (process.parent, process.session, process.group)):
            return True
        return not self._is_older(process) and not process.dead and processes.carries_task(process.pid, self.task_id)

    def _is_member(self, number: int) -> bool:
        """Whether this is a member's number, or was one's at an earlier look and is nobody else's now."""
        if number in self.spared:
            return False
        seen = self.seen.get(number)
        return number in self.found or (number in self.known and (seen is None or seen.start == self.known[number]))

    def _is_below_us(self, process: Process) -> bool:
        """Whether it descends from this process, through the keeper.

        Asked where the worker is gone: its number may meanwhile have led another session, and ended too. What is
        left of such a session is not below us, and what is left of the task is, or names the task.
        """
        parent, steps = process.parent, 0
        while parent > 1 and parent != os.getpid() and steps < 1000:
            above = self.seen.get(parent) or processes.read(parent)
            parent, steps = (above.parent if above is not None else 0), steps + 1
        return parent == os.getpid()

    def _is_older(self, process: Process) -> bool:
        """Older than the worker, so nothing of its: spares reading the environment of most of the machine."""
        if self.worker is None or not kernel.HAS_PROC:
            return False
        return int(process.start) < int(self.worker.start)

    def _later_children(self) -> Iterator[ProcessIdentity]:
        """Children with a lower PID than their parent: the numbers have wrapped around."""
        grown = True
        while grown:
            grown = False
            for process in self.seen.values():
                if process.parent in self.found and process.pid not in self.found and process.pid not in self.spared:
                    self.found.add(process.pid)
                    grown = True
                    if not process.dead:
                        yield process.identity


class _Hunt:
    """The ending of one tree. All that reads or signals many processes runs in a thread."""

    def __init__(self, worker: ProcessIdentity | None, task_id: str) -> None:
        self.worker = worker
        self.task_id = task_id
        self.known: set[ProcessIdentity] = set()
        self.asked: set[ProcessIdentity] = set()
        self.forced: set[ProcessIdentity] = set()

    async def ask_to_end(self, grace: asyncio.Task[None]) -> list[ProcessIdentity]:
        """TERM to everybody, newcomers too, until nobody is left or the grace is over: who is left."""
        try:
            while True:
                living = await asyncio.to_thread(self._ask)
                if not living or grace.done():
                    return living
                await _until_gone(living, grace, _RESCAN_S)
        finally:
            grace.cancel()

    async def force(self, patience: asyncio.Task[None]) -> list[ProcessIdentity]:
        """KILL everybody until nobody is left or the patience is at an end: who is left."""
        try:
            while True:
                living = await asyncio.to_thread(self._kill)
                if not living:
                    return []
                await _until_gone(living, patience, _POLL_S[1])
                if patience.done():
                    await asyncio.sleep(_POLL_S[1])  # for those that the last round met
                    return await asyncio.to_thread(self._look)
        finally:
            patience.cancel()

    def _look(self) -> list[ProcessIdentity]:
        """All members, before any of them is signalled: the end of a parent cuts its children's descent."""
        living = list(_Search(self.worker, self.task_id, self.known).run())
        self.known.update(living)
        return living

    def _ask(self) -> list[ProcessIdentity]:
        living = self._look()
        for process in living:
            if process not in self.asked and processes.send(process, SIGTERM):
                processes.send(process, SIGCONT)  # a stopped process sees TERM only when it goes on
                self.asked.add(process)
        return living

    def _kill(self) -> list[ProcessIdentity]:
        """Stop the spawning, then kill all."""
        self._freeze()
        living = self._look()
        for process in living:
            if processes.send(process, SIGKILL):
                self.forced.add(process)
        return living

    def _freeze(self) -> None:
        """Stop all, until a look finds nobody new: a stopped process spawns none.

        Whole groups too: for the kernel that is one step, which no fork slips through, while single processes can
        spawn faster than they are looked at.
        """
        stopped: set[ProcessIdentity] = set()
        for _ in range(_FREEZE_LOOKS):
            search = _Search(self.worker, self.task_id, self.known)
            before = len(stopped)
            for process in search.run():  # each at once: one that forks and ends is elsewhere a moment later
                self.known.add(process)
                if process not in stopped and processes.send(process, SIGSTOP):
                    stopped.add(process)
            if len(stopped) == before:
                return
            for group in search.groups():
                with contextlib.suppress(OSError):
                    os.killpg(group, SIGSTOP)


async def _until_gone(living: list[ProcessIdentity], over: asyncio.Task[None], most_s: float) -> None:
    """Wait until these are gone, ``over`` is, or for ``most_s``. Looks at them alone: much cheaper than at all."""
    waited_s, pause_s = 0.0, _POLL_S[0]
    while waited_s < most_s and not over.done():
        await asyncio.wait({over}, timeout=pause_s)
        waited_s += pause_s
        if all(probe(process) is Liveness.GONE for process in living):
            return
        pause_s = min(pause_s * 2, _POLL_S[1])


def _sleeping(sleep: Callable[[float], Awaitable[None]], span_s: float) -> asyncio.Task[None]:
    async def whole() -> None:
        await sleep(span_s)

    return asyncio.ensure_future(whole())
