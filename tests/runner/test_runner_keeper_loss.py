"""The keeper dies while its daemon lives: what it leaves is named, watched and reaped."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeping import (
    DEADLINE_S,
    Keeping,
    await_zombie,
    children_in_state,
    lives,
    run,
    until,
    waiting_for,
)

from pawl.runner import exits, launcher
from pawl.runner.exits import Exits
from pawl.runner.identity import Liveness, probe
from pawl.runner.launcher import KeeperLost
from pawl.runner.spool import MarkState, Spool

Make = Callable[[], Keeping]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process takes the orphans of a keeper, for the length of a test."""
    assert launcher.become_subreaper()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


async def lose(k: Keeping) -> None:
    assert k.keeper.identity is not None
    os.kill(k.keeper.identity.pid, signal.SIGKILL)
    await asyncio.wait_for(k.lost.wait(), DEADLINE_S)


def test_the_loss_of_the_keeper_is_told_and_its_workers_are_still_watched(keeping: Make) -> None:
    """``on_lost``, the names of the living, and their end; without the parent there is no status."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sleep", "77810"])
            worker = await k.launch(order)

            await lose(k)

            assert k.keeper.living == {order.task_id: worker}
            assert probe(worker) is Liveness.ALIVE
            with pytest.raises(KeeperLost):
                await k.launch(k.order(["true"]))
            watch = Exits()
            waiting = asyncio.ensure_future(watch.wait(worker))
            await asyncio.sleep(0)
            os.kill(worker.pid, signal.SIGKILL)
            await asyncio.wait_for(waiting, DEADLINE_S)
            assert await watch.settled_record(Spool(order.spool), worker) == (None, "missing")
            assert k.keeper.identity is not None
            await until(lambda: not os.path.exists(f"/proc/{k.keeper.identity.pid}"), "the keeper to be reaped")  # type: ignore[union-attr]

    run(test)


def test_a_launch_under_way_at_the_loss_is_neither_done_nor_undone(keeping: Make) -> None:
    """``KeeperLost``; what became of the task is read off its spool."""

    async def test() -> None:
        async with keeping() as k:
            assert k.keeper.identity is not None
            os.kill(k.keeper.identity.pid, signal.SIGSTOP)
            order = k.order(["true"])
            launch = asyncio.ensure_future(k.launch(order))
            await asyncio.sleep(0)

            await lose(k)

            with pytest.raises(KeeperLost):
                await launch
            assert Spool(order.spool).bar().state is MarkState.BARRED

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_the_subreaper_learns_the_status_of_a_lost_keepers_workers(keeping: Make, tmp_path: Path) -> None:
    """Reparented to the daemon: status, record on disk, no zombie."""
    go = tmp_path / "go"

    async def test() -> None:
        async with keeping() as k:
            order = k.order(waiting_for(go, "echo late; exit 5"))
            worker = await k.launch(order)
            await lose(k)
            spool = Spool(order.spool)
            watch = Exits()
            go.touch()

            await asyncio.wait_for(watch.wait(worker), DEADLINE_S)
            read = await watch.settled_record(spool, worker)

            assert read.record is not None
            assert (read.record.code, read.record.stdout_bytes) == (5, 5)
            assert spool.exit_record(worker) == read
            assert not os.path.exists(f"/proc/{worker.pid}")

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_a_worker_that_ended_unseen_by_its_keeper(keeping: Make) -> None:
    """Stopped before it could look and killed: the zombie comes to us with its status."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sleep", "77811"])
            worker = await k.launch(order)
            assert k.keeper.identity is not None
            os.kill(k.keeper.identity.pid, signal.SIGSTOP)
            os.kill(worker.pid, signal.SIGTERM)
            await until(lambda: not lives(worker.pid), "the worker to end")
            watch = Exits()
            spool = Spool(order.spool)
            assert await watch.settled_record(spool, worker, timeout_s=0.1) == (None, "pending")

            await lose(k)

            record, _ = await watch.settled_record(spool, worker)
            assert record is not None
            assert (record.code, record.signal) == (None, signal.SIGTERM)

    run(test)


@pytest.mark.usefixtures("subreaper")
def test_strays_of_a_lost_keeper_are_reaped_and_workers_are_kept(keeping: Make, process: Start) -> None:
    """Zombies that nobody asked for go; those of running tasks, and our own children, stay."""

    async def test() -> None:
        async with keeping() as k:
            first = k.order(["sh", "-c", "sleep 77812 & echo $!; wait"])
            worker = await k.launch(first)
            await until(lambda: os.path.getsize(f"{first.spool}/stdout"), "the child's PID")
            stray = int(Path(first.spool, "stdout").read_text())
            own = process("true")
            await_zombie(own.pid)
            await lose(k)
            os.kill(worker.pid, signal.SIGKILL)
            os.kill(stray, signal.SIGKILL)
            zombies = {worker.pid, stray}  # not before the keeper is quite gone: its link ends earlier
            await until(lambda: zombies <= set(children_in_state(os.getpid(), "Z")), "both to be ours")

            assert k.keeper.identity is not None
            keep = {worker.pid, k.keeper.identity.pid}
            assert exits.reap_strays(keep) == 1

            assert not os.path.exists(f"/proc/{stray}")
            assert os.path.exists(f"/proc/{worker.pid}")
            assert own.wait() == 0
            assert exits.reap_strays({k.keeper.identity.pid}) == 1

    run(test)
