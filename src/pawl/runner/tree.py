"""Every process of a task, found and ended, wherever it hid.

A process belongs to a task by its session, its group, its descent, or the task's id in its environment: so
neither ``setsid`` nor a double fork nor the death of its parents is an escape. One that changes its session, loses
its parents *and* empties its environment is found while its parents live, and not after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import NamedTuple

from pawl.runner import kernel, processes
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.processes import Process

_KILL_S = 5.0  # how long KILL is repeated
_POLL_S = (0.005, 0.1)  # shortest and longest pause between two looks at the known processes
_FREEZE_LOOKS = 20
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

    The grace counts real time and slept time, whichever is further, so that a test clock can shorten it.
    """
    hunt = _Hunt(worker, task_id, sleep)
    living = await hunt.ask_to_end(grace_s)
    if living:
        living = await hunt.force()
    return Ended(len(hunt.asked), len(hunt.forced), sorted(process.pid for process in living))


class _Search:
    """One walk through all processes. Yields each member as soon as it is recognised, parents mostly first."""

    def __init__(self, worker: ProcessIdentity | None, task_id: str) -> None:
        self.worker = worker if worker is not None and worker.boot_id == kernel.boot_id() else None
        self.task_id = task_id
        self.spared = {0, 1, os.getpid()}
        self.seen: dict[int, Process] = {}
        self.found: set[int] = set()

    def run(self) -> Iterator[ProcessIdentity]:
        self.leader = self._leader_there()
        for process in processes.look():
            self.seen[process.pid] = process
            if process.pid not in self.spared and self._recognises(process):
                self.found.add(process.pid)
                if not process.dead:
                    yield process.identity
        yield from self._later_children()

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
        if process.parent in self.found and process.parent not in self.spared:
            return True
        return not self._is_older(process) and not process.dead and processes.carries_task(process.pid, self.task_id)

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
                if process.parent in self.found and process.pid not in self.found | self.spared:
                    self.found.add(process.pid)
                    grown = True
                    if not process.dead:
                        yield process.identity


class _Hunt:
    """The ending of one tree. All that reads or signals many processes runs in a thread."""

    def __init__(self, worker: ProcessIdentity | None, task_id: str, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.worker = worker
        self.task_id = task_id
        self.sleep = sleep
        self.asked: set[ProcessIdentity] = set()
        self.forced: set[ProcessIdentity] = set()

    async def ask_to_end(self, grace_s: float) -> list[ProcessIdentity]:
        """TERM to everybody, newcomers too, until nobody is left or the grace is over: who is left."""
        timer = _Timer(grace_s, self.sleep)
        while True:
            living = await asyncio.to_thread(self._ask)
            if not living or timer.is_over:
                return living
            await self._until_gone(living, timer, _RESCAN_S)

    async def force(self) -> list[ProcessIdentity]:
        """KILL everybody until nobody is left, or for five seconds: who is left."""
        timer = _Timer(_KILL_S, self.sleep)
        rounds = 0
        while True:
            living = await asyncio.to_thread(self._kill, rounds)
            if not living:
                return []
            await self._until_gone(living, timer, 0.02 if rounds < 3 else 0.1)
            if timer.is_over:
                await asyncio.sleep(_POLL_S[1])  # for those that the last round met
                return await asyncio.to_thread(members, self.worker, self.task_id)
            rounds += 1

    def _ask(self) -> list[ProcessIdentity]:
        living = []
        for process in _Search(self.worker, self.task_id).run():
            living.append(process)
            if process not in self.asked and processes.send(process, SIGTERM):
                processes.send(process, SIGCONT)  # a stopped process sees TERM only when it goes on
                self.asked.add(process)
        return living

    def _kill(self, rounds: int) -> list[ProcessIdentity]:
        """Kill each as it is found. From the second round on there may be newcomers: stop the spawning first."""
        if rounds:
            self._freeze()
        living = []
        for process in _Search(self.worker, self.task_id).run():
            living.append(process)
            if processes.send(process, SIGKILL):
                self.forced.add(process)
        return living

    def _freeze(self) -> None:
        """Stop all, until a look finds nobody new: a stopped process spawns none.

        Whole groups first: for the kernel that is one step, which no fork slips through, while single processes
        can spawn faster than they are looked at.
        """
        stopped: set[ProcessIdentity] = set()
        for _ in range(_FREEZE_LOOKS):
            search = _Search(self.worker, self.task_id)
            new = [process for process in search.run() if process not in stopped]
            if not new:
                return
            for group in search.groups():
                with contextlib.suppress(OSError):
                    os.killpg(group, SIGSTOP)
            for process in new:
                processes.send(process, SIGSTOP)
                stopped.add(process)

    async def _until_gone(self, living: list[ProcessIdentity], timer: _Timer, most_s: float) -> None:
        """Wait until these are gone, at most ``most_s``, looking at them alone: that is much cheaper than all."""
        waited_s, pause_s = 0.0, _POLL_S[0]
        while waited_s < most_s and not timer.is_over:
            await timer.pause(pause_s)
            waited_s += pause_s
            if all(probe(process) is Liveness.GONE for process in living):
                return
            pause_s = min(pause_s * 2, _POLL_S[1])


class _Timer:
    """A span that passes by real time or by slept time, whichever is faster."""

    def __init__(self, span_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._span_s = span_s
        self._sleep = sleep
        self._slept_s = 0.0
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return max(self._slept_s, time.monotonic() - self._began_s) >= self._span_s

    async def pause(self, pause_s: float) -> None:
        rest_s = self._span_s - max(self._slept_s, time.monotonic() - self._began_s)
        pause_s = max(0.0, min(pause_s, rest_s))
        await self._sleep(pause_s)
        self._slept_s += pause_s
