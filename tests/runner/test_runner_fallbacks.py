"""The slower ways, for systems without ``/proc``, ``waitid``, pidfds or a spawn into a new session: just as right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from keeping import await_zombie, lives, until

from pawl.runner import kernel, reap, spawn
from pawl.runner.identity import identity_of, own_identity
from pawl.runner.spool import MarkState, Spool
from pawl.runner.tree import Ended, end_tree, members

Start = Callable[..., "subprocess.Popen[bytes]"]
WAYS = ["raw", "waitid", "wait4"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the three ways to learn how a child ended."""
    if request.param != "raw":
        monkeypatch.setattr(reap, "_waitid_number", 0)
    if request.param == "wait4":
        monkeypatch.setattr(reap, "_os_waitid", None)
    elif not hasattr(os, "waitid") or (request.param == "raw" and not reap._waitid_number):
        pytest.skip("this system has no such call")
    return str(request.param)


@pytest.mark.parametrize(
    ("script", "code", "number"), [("exit 0", 0, None), ("exit 255", 255, None), ("kill -KILL $$", None, 9)]
)
def test_every_way_tells_the_same_end(way: str, script: str, code: int | None, number: int | None) -> None:
    """Code or signal, before the child is reaped where the system can; and then it is gone."""
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
    if way != "wait4":
        await_zombie(pid)

    end = None
    while end is None:
        end = reap.next_end(pid)

    assert (end.pid, end.code, end.signal) == (pid, code, number)
    assert end.cpu_s is not None
    assert lives(pid) is False
    assert os.path.exists(f"/proc/{pid}") is (way != "wait4")
    end.reap()
    end.reap()
    with pytest.raises(ChildProcessError):
        reap.next_end(pid)


def test_every_way_knows_that_nothing_has_ended(way: str, process: Start) -> None:
    """A living child is no end."""
    child = process("sleep", "77840")

    assert reap.next_end(child.pid) is None


def test_a_spawn_by_popen_gives_the_worker_the_same(tmp_path: Path) -> None:
    """Session, descriptors, signals and environment as by ``posix_spawn``."""
    shown = []
    for way in (spawn.posix_spawn, spawn._popen):
        out = os.open(tmp_path / way.__name__, os.O_RDWR | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        code = "import json,os,signal;print(json.dumps([os.getsid(0)==os.getpid(),len(os.listdir('/proc/self/fd')),"
        code += "dict(os.environ),signal.getsignal(signal.SIGTERM)==signal.SIG_DFL]))"
        pid = way(sys.executable, ["py", "-c", code], {"LC_ALL": "C.UTF-8", "A": "b"}, [null, out, out])
        assert os.waitpid(pid, 0)[1] == 0
        os.close(out)
        os.close(null)
        shown.append(json.loads((tmp_path / way.__name__).read_text()))

    assert shown[1] == [True, 4, {"LC_ALL": "C.UTF-8", "A": "b"}, True]
    del shown[0][1]  # the test runner, unlike a keeper, has descriptors that are inherited
    assert shown[0] == [True, {"LC_ALL": "C.UTF-8", "A": "b"}, True]


def test_a_worker_whose_start_cannot_be_read_is_not_called_refused(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs: the launch is reported, with an identity that proves nothing."""

    def fails(pid: int) -> str:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(kernel, "start_of", fails)
    spool = Spool(f"{root}/task-1")
    spool.create()
    order = {"task": "task-1", "argv": ["true"], "env": {}, "cwd": "/", "spool": spool.path}
    keeper = own_identity()
    cwd = os.getcwd()

    try:
        pid, start, _ = spawn.spawn(spawn.Order({**order, "stdin": None, "limits": None}), keeper)
    finally:
        os.chdir(cwd)

    assert os.waitpid(pid, 0)[1] == 0
    assert start == ""
    assert spool.worker() == (MarkState.CLAIMED, None, keeper)


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "HAS_PROC", False)
    monkeypatch.delattr(os, "pidfd_open", raising=False)


@pytest.mark.usefixtures("no_proc")
def test_a_tree_is_found_and_ended_without_proc(process: Start) -> None:
    """Session, group, descent and environment by psutil, signals by PID after a look at the identity."""
    env = {"PATH": os.environ["PATH"], "PAWL_TASK_ID": "task-77841"}
    child = process(
        "sh", "-c", "trap '' TERM; setsid sleep 77841 & echo $!; sleep 77842 & echo $!; wait; wait",
        env=env, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    escaped, near = int(child.stdout.readline()), int(child.stdout.readline())
    asyncio.run(until(lambda: os.getsid(escaped) == escaped, "the escape"))
    worker = identity_of(child.pid)
    assert worker is not None

    assert {found.pid for found in members(worker, "task-77841")} == {child.pid, escaped, near}
    ended = asyncio.run(end_tree(worker, "task-77841", 0.2))

    assert ended.left == []
    assert ended.kill_sent == 3
    assert not any(lives(pid) for pid in (child.pid, escaped, near))


@pytest.mark.usefixtures("no_proc")
def test_a_reused_pid_is_not_signalled_without_proc(process: Start) -> None:
    """Another start: nobody is found, nobody is hurt."""
    child = process("sleep", "77843", start_new_session=True)
    found = identity_of(child.pid)
    assert found is not None

    assert asyncio.run(end_tree(found._replace(start="1.5"), "task-1", 0)) == Ended(0, 0, [])
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
