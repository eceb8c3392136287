"""Every process of a task is found, and ended, wherever it hid."""

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
from keeping import Keeping, end_by_identity, lines_of, lives, living_with, run, until

from pawl.runner import processes, tree
from pawl.runner.identity import ProcessIdentity, identity_of, own_identity
from pawl.runner.launcher import LaunchOrder
from pawl.runner.spool import Spool
from pawl.runner.tree import Ended, end_tree, members

Make = Callable[[], Keeping]
Start = Callable[..., "subprocess.Popen[bytes]"]


async def launch(k: Keeping, script: str, *, ready: int = 0) -> tuple[LaunchOrder, ProcessIdentity]:
    """Launch a shell and wait until it has written this many lines."""
    order = k.order(["sh", "-c", script])
    worker = await k.launch(order)
    await lines_of(f"{order.spool}/stdout", ready)
    return order, worker


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_b069_the_whole_tree_ends(keeping: Make) -> None:
    """B-069: a shell in a shell that runs a program: TERM reaches all three."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, "sh -c 'sleep 77702; :'; :")
            await until(lambda: living_with("77702"), "the program")
            assert len(members(worker, order.task_id)) == 3

            ended = await end_tree(worker, order.task_id, 10)

            assert living_with("77702") == []
            assert ended == Ended(3, 0, [])
            assert (await k.end_of(order))[0].signal == signal.SIGTERM

    run(test)


def test_b071_who_ignores_term_is_killed(keeping: Make) -> None:
    """B-071: TERM is not taken for the end; after the grace KILL is, for both."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, 'trap "" TERM; sleep 77701 & echo on; wait; wait', ready=1)
            await until(lambda: living_with("77701"), "the program")
            began = time.monotonic()

            ended = await end_tree(worker, order.task_id, 0.5)

            assert 0.5 <= time.monotonic() - began < 2.5
            assert living_with("77701") == []
            assert ended == Ended(2, 2, [])
            assert (await k.end_of(order))[0].signal == signal.SIGKILL

    run(test)


def test_b082_a_last_word_after_term(keeping: Make) -> None:
    """B-082: who reacts to TERM may finish; its exit code and output are kept."""

    async def test() -> None:
        async with keeping() as k:
            script = 'trap "echo bye; exit 0" TERM; echo on; while :; do sleep 0.2; done'
            order, worker = await launch(k, script, ready=1)

            ended = await end_tree(worker, order.task_id, 10)

            assert (ended.kill_sent, ended.left) == (0, [])
            assert (await k.end_of(order))[0].code == 0
            assert Path(order.spool, "stdout").read_bytes() == b"on\nbye\n"

    run(test)


def test_a_stopped_process_ends_by_term(keeping: Make) -> None:
    """CONT follows TERM: who is stopped would not see it before the grace is over."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, "exec sleep 77710")
            os.kill(worker.pid, signal.SIGSTOP)

            ended = await end_tree(worker, order.task_id, 10)

            assert ended == Ended(1, 0, [])

    run(test)


ESCAPES = {
    "setsid": "setsid sleep MARKER & echo $!; exec sleep MARKER",
    "double fork": "(setsid sh -c 'sleep MARKER & echo $!' &) ; exec sleep MARKER",
    "worker gone": "setsid sleep MARKER & echo $!",
    "own group": "set -m; sleep MARKER & echo $!; exec sleep MARKER",
    "group, environment emptied": "set -m; env -i /bin/sleep MARKER & echo $!; exec sleep MARKER",
    "session, environment emptied, worker gone": "env -i /bin/sleep MARKER & echo $!",
    "descent, session left, environment emptied": "setsid env -i sh -c '/bin/sleep MARKER & echo $!; wait' & wait",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_there_is_no_escape(keeping: Make, name: str, marker: str) -> None:
    """A new session, lost parents, the end of the worker, an emptied environment: found all the same."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, ESCAPES[name].replace("MARKER", marker), ready=1)
            await until(lambda: living_with(marker), "the escaped process")
            if "gone" in name:
                assert (await k.end_of(order))[1] is True

            ended = await end_tree(worker, order.task_id, 10)

            assert living_with(marker) == []
            assert (ended.kill_sent, ended.left) == (0, [])

    run(test)


def test_a_task_is_found_without_its_worker(keeping: Make) -> None:
    """By its id alone, where a crash left no identity."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, "setsid sleep 77713 & exec sleep 77713")
            await until(lambda: len(living_with("77713")) == 2, "both")

            assert worker in members(None, order.task_id)
            ended = await end_tree(None, order.task_id, 10)

            assert ended == Ended(2, 0, [])
            assert living_with("77713") == []

    run(test)


def test_other_tasks_are_left_alone(keeping: Make) -> None:
    """Two tasks of one keeper: ending one does not touch the other, nor keeper or daemon."""

    async def test() -> None:
        async with keeping() as k:
            one, first = await launch(k, "exec sleep 77714")
            _, second = await launch(k, "exec sleep 77715")

            await end_tree(first, one.task_id, 10)

            assert lives(second.pid)
            assert k.keeper.identity is not None
            assert lives(k.keeper.identity.pid)

    run(test)


def test_the_daemon_is_never_a_member(process: Start) -> None:
    """Not even a daemon that was started by the task, in its session and with its id."""
    code = (
        "import os\n"
        "from pawl.runner.identity import own_identity\n"
        "from pawl.runner.tree import members\n"
        "print(len(members(own_identity(), 'task-1')), flush=True)\n"
    )
    source = os.path.join(os.path.dirname(tree.__file__), "../..")
    env = {**os.environ, "PAWL_TASK_ID": "task-1", "PYTHONPATH": source}

    child = process(*python(code), env=env, stdout=subprocess.PIPE, start_new_session=True)

    assert child.stdout is not None
    assert child.stdout.read() == b"0\n"


def test_a_reused_pid_is_a_stranger(process: Start) -> None:
    """The number leads another session now: nothing of that is the task's."""
    stranger = process("sh", "-c", "sleep 77716 & wait", start_new_session=True)
    found = identity_of(stranger.pid)
    assert found is not None

    worker = found._replace(start=str(int(found.start) - 1))

    assert members(worker, "task-1") == []


def test_a_session_whose_leader_is_gone_may_be_a_strangers(process: Start) -> None:
    """A process in a session of the worker's number that neither names the task nor is below us is left alone."""
    daemonize = (
        "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execvp('sleep', ['sleep', '77717'])"
    )
    code = f"{daemonize}\n else: print(os.getpid(), flush=True)"
    child = process(*python(code), stdout=subprocess.PIPE)
    assert child.stdout is not None
    leader = int(child.stdout.readline())
    asyncio.run(until(lambda: living_with("77717") and not lives(leader), "the leader to go"))
    (left,) = living_with("77717")
    assert os.getsid(left) == leader

    try:
        assert members(own_identity()._replace(pid=leader, start="1"), "task-1") == []
    finally:
        end_by_identity([identity_of(left)])  # type: ignore[list-item]


def test_newcomers_during_the_grace_are_asked_too(keeping: Make) -> None:
    """A shell that starts the next program when TERM ends the first."""

    async def test() -> None:
        async with keeping() as k:
            script = "trap : TERM; echo on; sleep 77718; sleep 77719 & wait; trap - TERM; sleep 77720"
            order, worker = await launch(k, script, ready=1)
            await until(lambda: living_with("77718"), "the first program")

            ended = await end_tree(worker, order.task_id, 3)

            assert ended.left == []
            assert living_with("77718") + living_with("77719") + living_with("77720") == []

    run(test)


RABBIT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""

HYDRA = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def grow():
    while True:
        if os.fork() == 0:
            os.setsid()
            return
        os.wait()
for _ in range(8):
    if os.fork() == 0:
        grow()
        break
print("on", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("name", "code"), [("rabbit", RABBIT), ("hydra", HYDRA)])
def test_processes_that_spawn_while_they_are_killed(keeping: Make, name: str, code: str) -> None:
    """One that is never where it was, in a new session each time; and eight that are put back when killed."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(python(code))
            worker = await k.launch(order)
            await lines_of(f"{order.spool}/stdout", 1)

            ended = await end_tree(worker, order.task_id, 0.05)

            assert ended.left == []
            await asyncio.sleep(0)
            assert members(worker, order.task_id) == []

    run(test)


def test_a_fork_bomb_ends(keeping: Make, tmp_path: Path) -> None:
    """Bounded to some hundred processes, all deaf to TERM."""
    bomb = "import os,signal,time\nsignal.signal(15, signal.SIG_IGN)\nfor _ in range(7): os.fork()\n"
    bomb += "print('on', flush=True)\nwhile True:\n if os.fork() == 0: time.sleep(0.5); os._exit(0)\n time.sleep(0.2)\n"

    async def test() -> None:
        async with keeping() as k:
            order = k.order(python(bomb))
            worker = await k.launch(order)
            await lines_of(f"{order.spool}/stdout", 64)

            ended = await end_tree(worker, order.task_id, 0.1)

            assert ended.left == []
            assert ended.kill_sent >= 64
            assert members(worker, order.task_id) == []

    run(test)


def test_what_cannot_be_ended_is_named(process: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process, or one stuck in the kernel: in ``left``, and the hunt comes to an end."""
    child = process("sleep", "77730", start_new_session=True)
    worker = identity_of(child.pid)
    assert worker is not None
    monkeypatch.setattr(processes, "send", lambda process, number: False)
    monkeypatch.setattr(tree, "_KILL_S", 0.3)

    ended = asyncio.run(end_tree(worker, "task-1", 0.1))

    assert ended == Ended(0, 0, [child.pid])


def test_the_grace_is_over_when_the_callers_clock_says_so(keeping: Make) -> None:
    """A test clock that jumps ends the grace at once."""

    async def test() -> None:
        async with keeping() as k:
            order, worker = await launch(k, 'trap "" TERM; echo on; sleep 77731', ready=1)
            slept = []
            jumped = asyncio.Event()

            async def sleep(seconds: float) -> None:
                slept.append(seconds)
                await jumped.wait()

            ending = asyncio.ensure_future(end_tree(worker, order.task_id, 3600, sleep))
            await until(lambda: slept, "the grace to begin")
            jumped.set()

            assert (await ending)[1:] == (2, [])
            assert slept == [3600]

    run(test)


def test_nothing_there_is_nothing_to_do(root: str) -> None:
    """A worker that is gone, of this boot or another."""
    gone = own_identity()._replace(start="1")
    spool = Spool(f"{root}/task-1")

    assert asyncio.run(end_tree(gone, spool.task_id, 10)) == Ended(0, 0, [])
    assert asyncio.run(end_tree(gone._replace(boot_id="another"), spool.task_id, 10)) == Ended(0, 0, [])
    assert asyncio.run(end_tree(None, spool.task_id, 10)) == Ended(0, 0, [])
