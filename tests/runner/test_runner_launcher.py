"""Launching workers through a keeper: identity, record, report; many of them; and the keeper's own end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from keeping import DEADLINE_S, Keeping, children_in_state, lives, run, until

from pawl.runner import launcher
from pawl.runner.identity import Liveness, identity_of, probe
from pawl.runner.launcher import Keeper, KeeperLost
from pawl.runner.spool import MarkState, Spool

Make = Callable[[], Keeping]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_a_worker_runs_and_its_record_says_how_it_ended(keeping: Make) -> None:
    """Launch, exit record on disk and in the report, identity in the mark; the PID is free afterwards."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sh", "-c", "echo out; echo err >&2; exit 3"])

            worker = await k.launch(order)
            record, leftovers = await k.end_of(order)

            spool = Spool(order.spool)
            assert (record.code, record.signal, leftovers) == (3, None, False)
            assert (record.task, record.pid, record.start) == (order.task_id, worker.pid, worker.start)
            assert (record.stdout_bytes, record.stderr_bytes) == (4, 4)
            assert abs(record.ended_at_ms - time.time() * 1000) < 60_000
            assert spool.exit_record(worker).record == record
            assert spool.worker()[:2] == (MarkState.LAUNCHED, worker)
            assert spool.worker().keeper == k.keeper.identity
            assert not os.path.exists(f"/proc/{worker.pid}")
            assert not k.keeper.living

    run(test)


def test_a_worker_killed_by_a_signal(keeping: Make) -> None:
    """The signal is recorded, and no code."""

    async def test() -> None:
        async with keeping() as k:
            _, record = await k.shell("kill -KILL $$")

            assert (record.code, record.signal) == (None, 9)

    run(test)


def test_resources_are_counted(keeping: Make) -> None:
    """Processor time and memory of the worker and of the children it waited for."""

    async def test() -> None:
        async with keeping() as k:
            burn = "import time\nx = bytearray(50_000_000)\nwhile time.process_time() < 0.2: pass"
            _, record = await k.run(["sh", "-c", f"{sys.executable} -c '{burn}'; :"])

            assert record.cpu_s is not None
            assert record.cpu_s >= 0.2
            assert record.max_rss_bytes is not None
            assert 50_000_000 < record.max_rss_bytes < 500_000_000

    run(test)


# --- many --------------------------------------------------------------------------------------------------------


def test_b074_many_launches_leave_no_zombie_and_no_descriptor(keeping: Make) -> None:
    """B-074: two hundred ends, fifty killed, twenty with a child left: the keeper is as it was."""

    async def test() -> None:
        async with keeping() as k:
            assert k.keeper.identity is not None
            keeper = k.keeper.identity.pid
            await k.run(["true"])
            before = len(os.listdir(f"/proc/{keeper}/fd"))
            own = len(os.listdir("/proc/self/fd"))

            await asyncio.gather(*(k.run(["true"]) for _ in range(200)))
            sleepers = [k.order(["sleep", "100"]) for _ in range(50)]
            for order in sleepers:
                os.kill((await k.launch(order)).pid, 15)
            ends = [(await k.end_of(order))[0] for order in sleepers]
            await asyncio.gather(*(k.shell("sleep 0.1 & exit 0") for _ in range(20)))

            assert {end.signal for end in ends} == {15}
            await until(lambda: not _children(keeper), "the keeper's orphans to end and be reaped")
            assert children_in_state(os.getpid(), "Z") == []
            assert len(os.listdir(f"/proc/{keeper}/fd")) == before
            assert len(os.listdir("/proc/self/fd")) == own

    run(test)


def _children(pid: int) -> list[int]:
    return [child for state in "RSDZTI" for child in children_in_state(pid, state)]


def test_more_orders_than_the_link_takes(keeping: Make) -> None:
    """Environments of many kilobytes, hundreds in flight, and nobody loses an answer."""

    async def test() -> None:
        async with keeping() as k:
            env = {f"V{i}": "x" * 1000 for i in range(60)}

            ends = await asyncio.gather(*(k.run(["sh", "-c", f"exit {i % 200}"], env=env) for i in range(300)))

            assert [record.code for _, record in ends] == [i % 200 for i in range(300)]

    run(test)


def test_an_answer_comes_before_the_exit_it_belongs_to(root: str, tmp_path: Path) -> None:
    """Whoever awaits ``launch`` directly knows the worker before ``on_exit`` is called."""

    async def test() -> None:
        known: set[str] = set()
        early: list[str] = []
        done = asyncio.Event()

        class Watching(Keeping):
            def _on_exit(self, task_id: str, *_: object) -> None:
                if task_id not in known:
                    early.append(task_id)
                if len(known) == 100:
                    done.set()

        async with Watching(root, str(tmp_path)) as k:

            async def one() -> None:
                order = k.order(["true"])
                await k.launch(order)
                known.add(order.task_id)

            await asyncio.gather(*(one() for _ in range(100)))
            await asyncio.wait_for(done.wait(), DEADLINE_S)

        assert early == []

    run(test)


# --- the keeper's own end ----------------------------------------------------------------------------------------


def test_closing_ends_an_idle_keeper(keeping: Make) -> None:
    """No worker, no reason to stay; twice is harmless; no launch after it."""

    async def test() -> None:
        k = keeping()
        async with k:
            keeper = k.keeper.identity
            assert keeper is not None
            await k.run(["true"])

        await k.keeper.close()

        assert probe(keeper) is Liveness.GONE
        assert not os.path.exists(f"/proc/{keeper.pid}")
        assert not k.lost.is_set()
        with pytest.raises(KeeperLost):
            await k.keeper.launch(k.order(["true"]))

    run(test)


def test_a_keeper_that_cannot_start_is_said(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails, and does not hang."""
    monkeypatch.setattr(sys, "executable", "/bin/true")

    async def test() -> None:
        keeper = Keeper(on_exit=lambda *_: None, on_lost=lambda: None)
        with pytest.raises(KeeperLost):
            await keeper.start()
        await keeper.close()

    run(test)


def test_the_keeper_is_deaf_to_signals_meant_for_others(keeping: Make) -> None:
    """TERM, INT and HUP to the whole process group of a terminal or a service end no keeper."""

    async def test() -> None:
        async with keeping() as k:
            assert k.keeper.identity is not None
            for number in (15, 2, 1):
                os.kill(k.keeper.identity.pid, number)

            _, record = await k.run(["true"])

            assert record.code == 0
            assert lives(k.keeper.identity.pid)

    run(test)


def test_the_keeper_holds_nothing_of_the_daemons(keeping: Make) -> None:
    """No descriptor but its own, no directory, no terminal, and little memory."""

    async def test() -> None:
        with open("/etc/hostname") as held:
            os.set_inheritable(held.fileno(), True)
            async with keeping() as k:
                assert k.keeper.identity is not None
                own = f"/proc/{k.keeper.identity.pid}"
                links = [os.readlink(f"{own}/fd/{fd}") for fd in os.listdir(f"{own}/fd")]

                assert "/etc/hostname" not in links
                assert len(links) == 6  # 0, 1, 2, the link, and both ends of the wake-up pipe
                assert os.readlink(f"{own}/cwd") == "/"
                assert os.getsid(k.keeper.identity.pid) == k.keeper.identity.pid
                assert identity_of(k.keeper.identity.pid) == k.keeper.identity
                assert int(Path(f"{own}/statm").read_text().split()[1]) * 4096 < 30_000_000

    run(test)


def test_the_keeper_loads_little() -> None:
    """It starts in a bare interpreter, within milliseconds, and nothing heavy comes in by the back door."""
    source = os.path.join(os.path.dirname(launcher.__file__), "../..")
    code = f"import sys; sys.path.append({source!r}); import pawl.runner.keeper; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True)

    heavy = {"asyncio", "dataclasses", "psutil", "pydantic", "socket", "subprocess", "tempfile", "threading", "typing"}
    assert heavy & set(loaded.stdout.split()) == set()


@pytest.mark.skipif(not os.path.exists("/usr/bin/strace"), reason="looks at the system calls")
def test_a_launch_is_one_vfork(keeping: Make, process: Start, tmp_path: Path) -> None:
    """No fork of the keeper, and no other process in between."""
    trace = tmp_path / "trace"

    async def test() -> None:
        async with keeping() as k:
            assert k.keeper.identity is not None
            calls = "trace=process"
            tracer = process("strace", "-f", "-p", str(k.keeper.identity.pid), "-o", str(trace), "-e", calls)
            await until(trace.exists, "strace")
            status = Path(f"/proc/{k.keeper.identity.pid}/status")
            await until(lambda: f"TracerPid:\t{tracer.pid}\n" in status.read_text(), "strace to hold the keeper")
            await k.run(["true"])
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
        text = trace.read_text()
        assert text.count("execve(") == 1
        assert text.count("CLONE_VM|CLONE_VFORK") + text.count("vfork(") == 1
        assert " fork(" not in text

    run(test)
