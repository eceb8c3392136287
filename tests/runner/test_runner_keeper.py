"""The keeper as a process of its own: it outlives its daemon, and no single task disturbs it."""

from __future__ import annotations

import asyncio
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
from keeping import (
    DEADLINE_S,
    Keeping,
    end_by_identity,
    lives,
    run,
    until,
    waiting_for,
)

from pawl.ids import new_id
from pawl.runner import kernel, launcher, tree
from pawl.runner.exits import Exits
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.launcher import LaunchRefused
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
            for number in range(300):
                order = k.order(["true"])
                spool = Spool(order.spool)
                launch = asyncio.ensure_future(k.launch(order))
                if number % 4:  # else at once, before the order is on its way
                    await asyncio.sleep(random.random() * 0.002)
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


# --- trouble -------------------------------------------------------------------------------------------------


FULL_DISK = """
import os, sys
sys.path += sys.argv[1].split(sys.argv[2])
from pawl.runner import keeper, reap
write = reap.write_record
def write_unless_full(spool, record):
    if os.path.exists(spool + "/files/full"):
        raise OSError(28, "No space left on device")
    write(spool, record)
reap.write_record = write_unless_full
keeper.main()
"""


def test_a_record_that_cannot_be_written_is_tried_again(
    keeping: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stays a zombie meanwhile, others end as usual, and the report waits for the record."""
    monkeypatch.setattr(launcher, "_BOOT", FULL_DISK)
    go = tmp_path / "go"

    async def test() -> None:
        async with keeping() as k:
            order = k.order(waiting_for(go, "exit 4"))
            spool = Spool(order.spool)
            worker = await k.launch(order)
            full = Path(spool.files, "full")
            full.touch()
            go.touch()
            await until(lambda: not lives(worker.pid), "the worker to end")

            for code in (1, 2, 3):
                _, record = await k.shell(f"exit {code}")
                assert record.code == code
            assert not k.exits[order.task_id].done()
            assert os.path.exists(f"/proc/{worker.pid}")
            assert await Exits().settled_record(spool, worker, timeout_s=0.1) == (None, "pending")
            full.unlink()

            record, _ = await k.end_of(order)
            assert record.code == 4
            assert spool.exit_record(worker).record == record
            assert not os.path.exists(f"/proc/{worker.pid}")
            assert order.task_id in Path(f"{k.root}/keeper.log").read_text()

    run(test)


@pytest.mark.parametrize(
    ("obstacle", "recorded"),
    [
        ("mkfifo exit.new", True),
        ("ln -s /etc/hostname exit.new", True),
        ("mkfifo exit", True),
        ("mkdir exit.new", False),
        ("mkdir exit", False),
        ("rm -rf worker; mkfifo worker", True),
        ("rm -rf ../$PAWL_TASK_ID", False),
    ],
)
def test_a_worker_that_tampers_with_its_spool_holds_up_nobody(keeping: Make, obstacle: str, recorded: bool) -> None:
    """A pipe, a link or a directory in the place of a record: its end is reported, and the keeper goes on."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sh", "-c", f"cd {k.root}/$PAWL_TASK_ID; {obstacle}; exit 4"])
            worker = await k.launch(order)

            record, _ = await k.end_of(order)

            assert record.code == 4
            assert (Spool(order.spool).exit_record(worker).record == record) is recorded
            assert Spool(order.spool).worker().state in (MarkState.LAUNCHED, MarkState.UNREADABLE, MarkState.ABSENT)
            assert (await k.run(["true"]))[1].code == 0

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
        return ours, launcher._start_process(theirs, None, ["10000", ""])


@pytest.mark.skipif(not kernel.HAS_PROC, reason="orphans come to a keeper on Linux only")
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_keeper_ends_its_strays_before_itself(root: str, stubborn: bool) -> None:
    """Daemon and worker are gone; what neither session nor parent nor environment assigns to a task is ended."""

    async def test() -> None:
        async with Keeping(root, root, kill_grace_ms=50) as k:
            deaf = "trap '' TERM; " if stubborn else ""
            script = f"env -i setsid -f sh -c '{deaf}echo $$ > {root}/stray; while :; do /bin/sleep 0.1; done'"
            order = k.order(
                ["sh", "-c", f"{script}; while [ ! -s {root}/stray ]; do sleep 0.02; done; read x < {root}/go"]
            )
            os.mkfifo(f"{root}/go")
            await k.launch(order)
            await until(lambda: os.path.exists(f"{root}/stray") and os.path.getsize(f"{root}/stray"), "no stray")
            stray = int(Path(f"{root}/stray").read_text())
            keeper = k.keeper.identity
            assert keeper is not None
            await k.keeper.close()
            assert lives(stray)

            Path(f"{root}/go").write_text("x")

            await until(lambda: not lives(stray), "the stray lives on")
            await until(lambda: probe(keeper) is Liveness.GONE, "the keeper stays")

    run(test)
