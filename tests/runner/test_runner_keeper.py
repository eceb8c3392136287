"""The keeper as a process of its own: it outlives its daemon, and its loss is survived."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeping import DEADLINE_S, Keeping, await_zombie, children_in_state, end_by_identity, lives, run, until

from pawl.ids import new_id
from pawl.runner import exits, launcher, tree
from pawl.runner.exits import Exits
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.launcher import KeeperLost, LaunchRefused
from pawl.runner.spool import MarkState, Spool

Make = Callable[[], Keeping]
Start = Callable[..., "subprocess.Popen[bytes]"]
DAEMON = [sys.executable, str(Path(__file__).with_name("short_daemon.py"))]


class Dying:
    """A daemon to be killed, its keeper, and its workers."""

    def __init__(self, process: subprocess.Popen[bytes], spools: list[Spool]) -> None:
        self.process = process
        self.spools = spools
        assert process.stdout is not None
        keeper, workers = json.loads(process.stdout.readline())
        self.keeper = ProcessIdentity(*keeper)
        self.workers = [ProcessIdentity(*worker) for worker in workers]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def dying(root: str, process: Start) -> Iterator[Callable[..., Dying]]:
    """Starts a daemon with these workers."""
    made: list[Dying] = []

    def start(*commands: list[str], wait: bool = True) -> Dying:
        spools = [Spool(f"{root}/{new_id()}") for _ in commands]
        for spool in spools:
            spool.create()
        source = os.path.join(os.path.dirname(launcher.__file__), "../..")
        child = process(
            *DAEMON, *([] if wait else ["--do-not-wait"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
        )  # fmt: skip
        assert child.stdin is not None
        orders = [[spool.path, argv] for spool, argv in zip(spools, commands, strict=True)]
        child.stdin.write(json.dumps(orders).encode() + b"\n")
        child.stdin.flush()
        made.append(Dying(child, spools))
        return made[-1]

    yield start
    for daemon in made:
        for spool in daemon.spools:
            end_by_identity(tree.members(spool.worker().worker, spool.task_id))
        daemon.kill()


def waiting_for(path: Path, then: str) -> list[str]:
    return ["sh", "-c", f"while [ ! -e {path} ]; do sleep 0.02; done; {then}"]


# --- the daemon dies ------------------------------------------------------------------------------------------


def test_a_worker_and_its_keeper_outlive_the_daemon(dying: Callable[..., Dying], tmp_path: Path) -> None:
    """SIGKILL to the daemon: the work goes on, its end is recorded, and then the keeper ends."""
    go = tmp_path / "go"

    async def test() -> None:
        daemon = dying(waiting_for(go, "echo done; exit 7"), ["true"])
        worker, spool = daemon.workers[0], daemon.spools[0]

        daemon.kill()
        assert probe(worker) is Liveness.ALIVE
        assert probe(daemon.keeper) is Liveness.ALIVE
        assert spool.worker() == (MarkState.LAUNCHED, worker, daemon.keeper)
        watch = Exits()
        waiting = asyncio.ensure_future(watch.wait(worker))
        await asyncio.sleep(0)
        assert not waiting.done()
        go.touch()

        await asyncio.wait_for(waiting, DEADLINE_S)
        record, reason = await watch.settled_record(spool, worker)
        assert reason == ""
        assert record is not None
        assert (record.code, record.stdout_bytes) == (7, 5)
        assert Path(spool.stdout).read_bytes() == b"done\n"
        await asyncio.wait_for(watch.wait(daemon.keeper), DEADLINE_S)

    run(test)


def test_an_idle_keeper_ends_with_its_daemon(dying: Callable[..., Dying]) -> None:
    """Nothing to wait for: gone at once."""

    async def test() -> None:
        daemon = dying(["true"])
        await until(lambda: daemon.spools[0].exit_record().record, "the record")

        daemon.kill()

        await asyncio.wait_for(Exits().wait(daemon.keeper), DEADLINE_S)

    run(test)


def test_every_order_of_a_killed_daemon_is_launched_or_can_be_barred(dying: Callable[..., Dying]) -> None:
    """Killed with fifty orders on their way: each task ran and has a record, or never will run."""

    async def test() -> None:
        states = set()
        for _ in range(4):
            daemon = dying(*[["sh", "-c", "echo ran"] for _ in range(50)], wait=False)
            daemon.kill()

            marks = [(spool, spool.bar()) for spool in daemon.spools]
            await asyncio.wait_for(Exits().wait(daemon.keeper), DEADLINE_S)
            for spool, mark in marks:
                states.add(mark.state)
                if mark.state is MarkState.BARRED:
                    assert spool.worker().state is MarkState.BARRED
                    assert not os.path.exists(spool.stdout)
                else:
                    assert spool.worker().state is MarkState.LAUNCHED
                    assert spool.exit_record().record is not None
                    assert Path(spool.stdout).read_bytes() == b"ran\n"
        assert MarkState.BARRED in states

    run(test)


def test_a_bar_and_a_launch_at_once_never_both_win(keeping: Make) -> None:
    """Three hundred races: launched means not barred, barred means refused and never ran."""

    async def test() -> None:
        outcomes = set()
        async with keeping() as k:
            for _ in range(300):
                order = k.order(["true"])
                spool = Spool(order.spool)
                launch = asyncio.ensure_future(k.launch(order))
                delay_s = random.random() * 0.002
                await asyncio.sleep(delay_s)
                mark = await asyncio.to_thread(spool.bar)

                if mark.state is MarkState.BARRED:
                    with pytest.raises(LaunchRefused) as caught:
                        await launch
                    assert caught.value.code == "spool_barred"
                    assert not os.path.exists(spool.stdout)
                else:
                    worker = await launch
                    assert mark.worker in (None, worker)
                    assert spool.worker().worker == worker
                    assert (await k.end_of(order))[0].code == 0
                outcomes.add(mark.state)
        assert {MarkState.BARRED, MarkState.LAUNCHED} <= outcomes

    run(test)


# --- the keeper dies ------------------------------------------------------------------------------------------


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


# --- trouble --------------------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_written_is_tried_again(keeping: Make, tmp_path: Path) -> None:
    """The worker stays a zombie meanwhile, others end as usual, and the report waits for the record."""
    go = tmp_path / "go"

    async def test() -> None:
        async with keeping() as k:
            order = k.order(waiting_for(go, "exit 4"))
            spool = Spool(order.spool)
            worker = await k.launch(order)
            obstacle = Path(spool.path, "exit.new")
            obstacle.mkdir()  # opening it for writing fails as on a full disk
            go.touch()
            await until(lambda: not lives(worker.pid), "the worker to end")

            for code in (1, 2, 3):
                _, record = await k.shell(f"exit {code}")
                assert record.code == code
            assert not k.exits[order.task_id].done()
            assert os.path.exists(f"/proc/{worker.pid}")
            assert await Exits().settled_record(spool, worker, timeout_s=0.1) == (None, "pending")
            obstacle.rmdir()

            record, _ = await k.end_of(order)
            assert record.code == 4
            assert spool.exit_record(worker).record == record
            assert not os.path.exists(f"/proc/{worker.pid}")
            assert order.task_id in Path(f"{k.root}/keeper.log").read_text()

    run(test)


def test_a_spool_that_was_removed_stops_nobody(keeping: Make) -> None:
    """The record has nowhere to go: the end is reported all the same."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sleep", "77813"])
            worker = await k.launch(order)
            Spool(order.spool).remove()
            os.kill(worker.pid, signal.SIGTERM)

            record, _ = await k.end_of(order)

            assert (record.signal, record.stdout_bytes) == (signal.SIGTERM, None)
            assert not os.path.exists(order.spool)

    run(test)


def test_orders_that_make_no_sense_are_refused_one_by_one(root: str) -> None:
    """A line that is no order gets an answer, and the next is carried out."""
    ours, process = raw_keeper()
    spool = Spool(f"{root}/task-1")
    spool.create()
    good = {"task": "task-1", "argv": ["true"], "env": {}, "cwd": "/", "spool": spool.path}
    good |= {"stdin": None, "limits": None}
    bad: list[object] = [None, [], {}, {**good, "argv": []}, {**good, "argv": 3}, {**good, "env": {"A=B": "c"}}]

    with ours, process:
        for order in [*bad, good]:
            ours.sendall(json.dumps(order).encode() + b"\n")
        ours.sendall(b"not json\n")
        stream = ours.makefile()
        answers = [json.loads(stream.readline()) for _ in range(len(bad) + 2)]

        assert [answer["op"] for answer in answers] == ["ready"] + ["refused"] * len(bad) + ["launched"]
        assert {json.loads(stream.readline())["op"] for _ in range(2)} == {"refused", "exited"}
        ours.shutdown(socket.SHUT_WR)
    assert process.returncode == 0


def test_a_daemon_that_does_not_read_blocks_nobody(root: str) -> None:
    """Answers pile up in the keeper, the work goes on, and no answer is lost."""
    ours, process = raw_keeper()
    spool = Spool(f"{root}/task-1")
    spool.create()
    order = {"task": "task-1", "argv": ["true"], "env": {}, "cwd": "/", "spool": spool.path}
    order |= {"stdin": None, "limits": None}
    missing = {**order, "task": "missing", "argv": ["x" * 200], "env": {"PATH": "/" + "p" * 4000}}

    with ours, process:
        for _ in range(500):
            ours.sendall(json.dumps(missing).encode() + b"\n")
        ours.sendall(json.dumps(order).encode() + b"\n")
        asyncio.run(until(lambda: spool.exit_record().record, "the record of the last order"))
        stream = ours.makefile()
        answers = [json.loads(stream.readline())["op"] for _ in range(503)]

        assert answers == ["ready"] + ["refused"] * 500 + ["launched", "exited"]
        ours.shutdown(socket.SHUT_WR)


def raw_keeper() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(DEADLINE_S)
    with theirs:
        return ours, launcher._start_process(theirs, None)


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
