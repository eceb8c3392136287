"""The end of processes that are no children of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

import pytest
from keeping import DEADLINE_S, await_zombie, run

from pawl.runner import reap
from pawl.runner.exits import Exits
from pawl.runner.identity import ProcessIdentity, identity_of, own_identity
from pawl.runner.spool import Spool

Start = Callable[..., "subprocess.Popen[bytes]"]


def grandchild(process: Start, number: str) -> ProcessIdentity:
    """A process that is not ours: its parent, a shell that waits for it, is."""
    shell = process("sh", "-c", f"sleep {number} & echo $!; wait", stdout=subprocess.PIPE)
    assert shell.stdout is not None
    found = identity_of(int(shell.stdout.readline()))
    assert found is not None
    return found


@pytest.mark.parametrize("way", ["pidfd", "poll"])
def test_the_end_of_a_stranger_is_noticed(process: Start, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """By a descriptor, or by looking again where the system has none. No descriptor stays open."""
    if way == "poll":
        monkeypatch.delattr(os, "pidfd_open")

    async def test() -> None:
        stranger = grandchild(process, "77820")
        before = len(os.listdir("/proc/self/fd"))
        watch = Exits(probe_every_s=0.02)
        waits = [asyncio.ensure_future(watch.wait(stranger)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)

        os.kill(stranger.pid, signal.SIGKILL)

        await asyncio.wait_for(asyncio.gather(*waits), DEADLINE_S)
        assert len(os.listdir("/proc/self/fd")) == before

    run(test)


def test_who_is_gone_is_not_waited_for(process: Start) -> None:
    """A reused PID, a zombie, an earlier boot: at once."""

    async def test() -> None:
        watch = Exits()
        living = process("sleep", "77821")
        found = identity_of(living.pid)
        assert found is not None
        zombie = process("true")
        await_zombie(zombie.pid)

        for gone in (
            found._replace(start="1"),
            found._replace(boot_id="another"),
            ProcessIdentity(zombie.pid, "1", own_identity().boot_id),
        ):
            await asyncio.wait_for(watch.wait(gone), 1)
        assert living.poll() is None

    run(test)


@pytest.mark.parametrize("way", ["pidfd", "poll"])
def test_closing_ends_the_waits(process: Start, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """CancelledError for each, no descriptor left, twice is harmless."""
    if way == "poll":
        monkeypatch.delattr(os, "pidfd_open")

    async def test() -> None:
        stranger = grandchild(process, "77822")
        before = len(os.listdir("/proc/self/fd"))
        watch = Exits(probe_every_s=0.02)
        wait = asyncio.ensure_future(watch.wait(stranger))
        await asyncio.sleep(0)

        watch.close()
        watch.close()

        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(wait), DEADLINE_S)
        assert len(os.listdir("/proc/self/fd")) == before
        os.kill(stranger.pid, signal.SIGKILL)

    run(test)


def test_a_cancelled_wait_leaves_no_descriptor(process: Start) -> None:
    async def test() -> None:
        stranger = grandchild(process, "77823")
        before = len(os.listdir("/proc/self/fd"))
        wait = asyncio.ensure_future(Exits().wait(stranger))
        await asyncio.sleep(0)

        wait.cancel()

        with pytest.raises(asyncio.CancelledError):
            await wait
        assert len(os.listdir("/proc/self/fd")) == before
        os.kill(stranger.pid, signal.SIGKILL)

    run(test)


def test_a_record_that_comes_a_moment_later_is_waited_for(root: str, process: Start) -> None:
    """The zombie shows that its parent has not looked yet."""

    async def test() -> None:
        spool = Spool(f"{root}/task-1")
        spool.create()
        worker = grandchild(process, "77824")
        os.kill(worker.pid, signal.SIGSTOP)  # alive: whoever asks too early waits as well
        fields = {"task": "task-1", "pid": worker.pid, "start": worker.start, "code": 0, "signal": None}
        fields |= {"stdout_bytes": 0, "stderr_bytes": 0, "ended_at_ms": 1, "cpu_s": None, "max_rss_bytes": None}
        settling = asyncio.ensure_future(Exits().settled_record(spool, worker, timeout_s=DEADLINE_S))
        await asyncio.sleep(0.01)
        assert not settling.done()

        reap.write_record(spool.path, fields)

        record, reason = await asyncio.wait_for(settling, DEADLINE_S)
        assert reason == ""
        assert record is not None
        assert record.code == 0
        os.kill(worker.pid, signal.SIGKILL)

    run(test)


def test_a_torn_record_is_not_waited_for(root: str, process: Start) -> None:
    """Records are renamed into place: what is torn stays torn."""

    async def test() -> None:
        spool = Spool(f"{root}/task-1")
        spool.create()
        with open(f"{spool.path}/exit", "w") as file:
            file.write('{"task": "task-1", "pid"')

        read = await Exits().settled_record(spool, grandchild(process, "77825"), timeout_s=DEADLINE_S)

        assert read == (None, "torn")

    run(test)
