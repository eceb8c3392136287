"""A keeper, a spool root and a list of what was started, for the tests of the runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from pawl.ids import new_id
from pawl.runner.identity import ProcessIdentity, identity_of
from pawl.runner.launcher import Keeper, LaunchOrder, Limits
from pawl.runner.spool import ExitRecord, Spool
from pawl.runner.tree import members

DEADLINE_S = 20.0


class Keeping:
    """One keeper and the tasks that a test runs on it. Ends all of them by identity when the test is over."""

    def __init__(self, root: str, cwd: str, *, kill_grace_ms: int = 10_000) -> None:
        self.root = root
        self.cwd = cwd
        self.keeper = Keeper(
            on_exit=self._on_exit, on_lost=self._on_lost, kill_grace_ms=kill_grace_ms, log=f"{root}/keeper.log"
        )
        self.lost = asyncio.Event()
        self.exits: dict[str, asyncio.Future[tuple[ExitRecord, bool]]] = {}
        self.started: list[tuple[str, ProcessIdentity]] = []

    async def __aenter__(self) -> Keeping:
        await self.keeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task, worker in self.started:
            end_by_identity(members(worker, task))
        await self.keeper.close()

    def _on_exit(self, task_id: str, record: ExitRecord, leftovers: bool) -> None:
        self.exits[task_id].set_result((record, leftovers))

    def _on_lost(self) -> None:
        self.lost.set()

    def order(
        self,
        argv: list[str],
        *,
        env: dict[str, str] | None = None,
        prompt: bytes | None = None,
        limits: Limits | None = None,
        cwd: str | None = None,
    ) -> LaunchOrder:
        """An order for a fresh task whose spool is there."""
        spool = Spool(f"{self.root}/{new_id()}")
        spool.create(prompt)
        self.exits[spool.task_id] = asyncio.get_running_loop().create_future()
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PAWL_TASK_ID": spool.task_id, **(env or {})}
        stdin = spool.prompt if prompt is not None else None
        return LaunchOrder(spool.task_id, argv, environment, cwd or self.cwd, spool.path, stdin, limits)

    async def launch(self, order: LaunchOrder) -> ProcessIdentity:
        worker = await self.keeper.launch(order)
        self.started.append((order.task_id, worker))
        return worker

    async def end_of(self, order: LaunchOrder) -> tuple[ExitRecord, bool]:
        """The record of a launched task and whether something was left over."""
        return await asyncio.wait_for(asyncio.shield(self.exits[order.task_id]), DEADLINE_S)

    async def run(self, argv: list[str], **more: Any) -> tuple[Spool, ExitRecord]:
        """Launch and wait for the end."""
        order = self.order(argv, **more)
        await self.launch(order)
        record, _ = await self.end_of(order)
        return Spool(order.spool), record

    async def shell(self, script: str, **more: Any) -> tuple[Spool, ExitRecord]:
        return await self.run(["sh", "-c", script], **more)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test under a deadline."""

    async def bounded() -> None:
        await asyncio.wait_for(test(), 100)

    asyncio.run(bounded())


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that no descriptor tells, under a deadline that fails the test."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline, f"gave up waiting: {what}"
        await asyncio.sleep(0.005)


async def lines_of(path: str, count: int) -> list[str]:
    """The first lines of a file that a worker writes, once they are there."""
    found: list[str] = []

    def there() -> bool:
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            found[:] = [line for line in file.read().splitlines(keepends=True) if line.endswith("\n")]
        return len(found) >= count

    await until(there, f"{count} lines in {path}")
    return [line.rstrip("\n") for line in found[:count]]


def end_by_identity(processes: list[ProcessIdentity]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def below(pid: int) -> list[ProcessIdentity]:
    """The living descendants of a process."""
    found: list[ProcessIdentity] = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat", "rb") as file:
            parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            child = identity_of(int(name)) if parent == pid else None
            if child is not None:
                found += [child, *below(child.pid)]
    return found


def lives(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def living_with(marker: str) -> list[int]:
    """PIDs of living processes with this argument."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/cmdline", "rb") as file:
            if marker.encode() in file.read().split(b"\0") and lives(int(name)):
                found.append(int(name))
    return found


def children_in_state(pid: int, state: str) -> list[int]:
    """Children of a process that are in this state."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
            if int(fields[1]) == pid and fields[0] == state:
                found.append(int(name))
    return found


def await_zombie(pid: int) -> None:
    """Wait until a child of ours has ended, and leave it unreaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def waiting_for(path: object, then: str) -> list[str]:
    """A worker that goes on when this file is there."""
    return ["sh", "-c", f"while [ ! -e {path} ]; do sleep 0.02; done; {then}"]
