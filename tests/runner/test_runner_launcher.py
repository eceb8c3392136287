"""Launching workers through a keeper: what they are given, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from keeping import DEADLINE_S, Keeping, children_in_state, lives, living_with, run, until

from pawl.runner import launcher
from pawl.runner.identity import Liveness, identity_of, probe
from pawl.runner.launcher import Keeper, KeeperLost, LaunchRefused, Limits
from pawl.runner.spool import MarkState, Spool

Make = Callable[[], Keeping]
SHOW = "import json,os,sys;print(json.dumps({%s}))"


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


# --- what a worker is given -----------------------------------------------------------------------------------


def test_b137_the_environment_is_the_given_one(keeping: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-137: nothing of the daemon's environment reaches the worker, nor the keeper's own memory of it."""
    monkeypatch.setenv("SECRET_TOKEN", "abc")

    async def test() -> None:
        async with keeping() as k:
            given = {"HOME": "/h", "LANG": "C.UTF-8", "WEIRD": "a=b\nc \udce9"}
            order = k.order(["env", "-0"], env=given)
            await k.launch(order)
            await k.end_of(order)

            text = Path(order.spool, "stdout").read_bytes()
            lines = sorted(filter(None, text.split(b"\0")))
            assert lines == sorted(os.fsencode(f"{name}={value}") for name, value in order.env.items())
            assert k.keeper.identity is not None
            keeper = Path(f"/proc/{k.keeper.identity.pid}/environ").read_bytes()
            assert b"SECRET_TOKEN" not in keeper
            assert b"PAWL" not in keeper

    run(test)


def test_a_worker_has_a_session_of_its_own_and_three_descriptors(keeping: Make) -> None:
    """Own session and group, descriptors 0, 1 and 2 and no other, the given directory, the user's umask."""

    async def test() -> None:
        async with keeping() as k:
            fields = "'fds':sorted(map(int,os.listdir('/proc/self/fd'))),'sid':os.getsid(0),'pgid':os.getpgid(0),"
            fields += "'pid':os.getpid(),'cwd':os.getcwd(),'umask':os.umask(0),'in':os.readlink('/proc/self/fd/0')"
            spool, record = await k.run([sys.executable, "-c", SHOW % fields], cwd="/usr")

            assert record.code == 0, Path(spool.stderr).read_text()
            shown = json.loads(Path(spool.stdout).read_text())
            own_umask = os.umask(0)
            os.umask(own_umask)
            assert shown["fds"][:3] == [0, 1, 2]
            assert len(shown["fds"]) == 4  # the fourth is the listing of the directory itself
            assert shown["pid"] == shown["sid"] == shown["pgid"] == record.pid
            assert shown["cwd"] == "/usr"
            assert shown["umask"] == own_umask
            assert shown["in"] == "/dev/null"

    run(test)


def test_a_worker_has_every_signal_at_its_default(keeping: Make) -> None:
    """Nothing blocked, nothing ignored: not what Python ignores, and not what the keeper does."""

    async def test() -> None:
        async with keeping() as k:
            spool, _ = await k.shell("grep -E '^Sig(Blk|Ign)' /proc/self/status")

            blocked, ignored = (int(line.split()[1], 16) for line in Path(spool.stdout).read_text().splitlines())
            assert blocked == 0
            assert ignored & ~(0b11 << 31) == 0  # glibc ignores its own 32 and 33 in what it spawns

    run(test)


def test_the_program_is_looked_up_in_the_given_path(keeping: Make, tmp_path: Path) -> None:
    """PATH of the worker, not of the daemon; relative parts from the worker's directory; ``argv[0]`` as given."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/pawl-test-program"
    program.write_text('#!/bin/sh\necho "$0 $1"\n')
    program.chmod(0o755)

    async def test() -> None:
        async with keeping() as k:
            for path in (f"/nowhere:{tmp_path}/bin", "bin"):
                spool, record = await k.run(["pawl-test-program", "x"], env={"PATH": path})
                assert record.code == 0
                assert Path(spool.stdout).read_text().endswith("pawl-test-program x\n")
            spool, _ = await k.run(["bin/pawl-test-program", "y"])
            assert Path(spool.stdout).read_text() == "bin/pawl-test-program y\n"

    run(test)


def test_b140_standard_input_ends_at_once_and_no_profile_runs(keeping: Make, tmp_path: Path) -> None:
    """B-140: no login shell, and ``cat`` sees the end of the file at once."""
    for name in (".profile", ".bash_profile", ".bashrc"):
        (tmp_path / name).write_text("sleep 5; echo profile\n")

    async def test() -> None:
        async with keeping() as k:
            began = time.monotonic()
            env = {"HOME": str(tmp_path), "ENV": str(tmp_path / ".profile")}
            for limits in (None, Limits(open_files=100)):
                spool, record = await k.shell("cat; echo after", env=env, limits=limits)

                assert record.code == 0
                assert Path(spool.stdout).read_bytes() == b"after\n"
            assert time.monotonic() - began < 4

    run(test)


def test_the_prompt_is_standard_input(keeping: Make) -> None:
    """All of it, byte for byte, and then the end of the file."""
    prompt = bytes(range(256)) * 1000

    async def test() -> None:
        async with keeping() as k:
            spool, _ = await k.run(["cat"], prompt=prompt)

            assert Path(spool.stdout).read_bytes() == prompt

    run(test)


# --- output ---------------------------------------------------------------------------------------------------


def test_b098_output_of_any_bytes(keeping: Make) -> None:
    """B-098: bytes that are no text stop nothing."""

    async def test() -> None:
        async with keeping() as k:
            text = r'printf "caf\351 \377\376 ok\n"'
            spool, _ = await k.shell(text)
            written = Path(spool.stdout).read_bytes()
            assert hashlib.sha256(written).hexdigest().startswith("cbe5b4bc0d5fb19b2ebd397eef91220455c91025")
            assert len(written) == 11

            spool, record = await k.shell(text + r'; head -c 300000 /dev/zero | tr "\0" x; echo end')
            assert record.code == 0
            assert record.stdout_bytes == 11 + 300_000 + 4
            assert Path(spool.stdout).read_bytes().endswith(b"xend\n")

    run(test)


def test_b103_output_larger_than_a_pipe(keeping: Make) -> None:
    """B-103: a million bytes on both streams before anybody reads."""

    async def test() -> None:
        async with keeping() as k:
            _, record = await k.shell("head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; exit 3")

            assert (record.code, record.stdout_bytes, record.stderr_bytes) == (3, 1_000_000, 1_000_000)

    run(test)


def test_b096_a_background_child_does_not_hold_the_end_back(keeping: Make) -> None:
    """B-096: the worker's end is reported at once, and that something is left over."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sh", "-c", "sleep 77704 & echo started"])
            began = time.monotonic()

            await k.launch(order)
            record, leftovers = await k.end_of(order)

            assert time.monotonic() - began < 5
            assert (record.code, record.stdout_bytes, leftovers) == (0, 8, True)
            await until(lambda: living_with("77704"), "the background child")

    run(test)


@pytest.mark.parametrize("escape", ["setsid sleep 77706 &", "(setsid sleep 77706 &) &"])
def test_leftovers_in_another_session_are_noticed(keeping: Make, escape: str) -> None:
    """What left the session, and lost its parents, still carries the task's id."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["sh", "-c", f"{escape} while ! pgrep -xf 'sleep 77706' >/dev/null; do :; done"])
            await k.launch(order)

            record, leftovers = await k.end_of(order)

            assert (record.code, leftovers) == (0, True)

    run(test)


def test_strangers_are_no_leftovers(keeping: Make) -> None:
    """What another task left behind is not charged to this one."""

    async def test() -> None:
        async with keeping() as k:
            first = k.order(["sh", "-c", "setsid sleep 77707 & exit 0"])
            await k.launch(first)
            await k.end_of(first)

            order = k.order(["true"])
            await k.launch(order)

            assert (await k.end_of(order))[1] is False

    run(test)


# --- many -----------------------------------------------------------------------------------------------------


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


# --- refusals -------------------------------------------------------------------------------------------------


def refused(k: Keeping, expected: str, *argv: str, **more: object) -> Callable[[], object]:
    """A launch that must be refused with this code and leave the spool as it was."""

    async def attempt() -> LaunchRefused:
        order = k.order(list(argv), **more)  # type: ignore[arg-type]
        before = sorted(os.listdir(order.spool))
        with pytest.raises(LaunchRefused) as caught:
            await k.launch(order)
        assert caught.value.code == expected, caught.value
        assert sorted(os.listdir(order.spool)) == before
        assert Spool(order.spool).worker().state is MarkState.ABSENT
        return caught.value

    return attempt


def test_what_is_wrong_with_the_program_is_said(keeping: Make, tmp_path: Path) -> None:
    """Each with its own code and the system's reason."""
    plain, no_interpreter, garbage = (tmp_path / name for name in ("plain", "no-interpreter", "garbage"))
    plain.write_text("#!/bin/sh\n")
    no_interpreter.write_text("#!/no/such/interpreter\n")
    no_interpreter.chmod(0o755)
    garbage.write_text("\x7fELF and no more")
    garbage.chmod(0o755)

    async def test() -> None:
        async with keeping() as k:
            for code, number, program in (
                ("program_not_found", errno.ENOENT, "no-such-program-77"),
                ("program_not_found", errno.ENOENT, str(tmp_path / "missing")),
                ("program_not_found", errno.ENOENT, ""),
                ("program_not_executable", errno.EACCES, str(plain)),
                ("program_not_executable", errno.EISDIR, str(tmp_path)),
                ("program_not_executable", errno.ENOENT, str(no_interpreter)),
                ("program_not_executable", errno.ENOEXEC, str(garbage)),
            ):
                error = await refused(k, code, program)()  # type: ignore[misc]
                assert error.details["errno"] == number
                assert os.strerror(number) in error.message
                assert program in error.message

    run(test)


def test_what_is_wrong_with_the_directory_is_said(keeping: Make, tmp_path: Path) -> None:
    """Missing and not a directory, each with its own code and the system's reason."""
    (tmp_path / "file").touch()

    async def test() -> None:
        async with keeping() as k:
            for code, number, cwd in (
                ("cwd_missing", errno.ENOENT, str(tmp_path / "missing")),
                ("cwd_not_directory", errno.ENOTDIR, str(tmp_path / "file")),
            ):
                error = await refused(k, code, "true", cwd=cwd)()  # type: ignore[misc]
                assert error.details["errno"] == number
                assert os.strerror(number) in error.message
                assert cwd in error.message

    run(test)


def test_what_the_system_refuses_is_said(keeping: Make) -> None:
    """An argument list that is too long, a zero byte, and a prompt that is not there."""

    async def test() -> None:
        async with keeping() as k:
            error = await refused(k, "launch_failed", "true", "x" * 3_000_000)()  # type: ignore[misc]
            assert os.strerror(errno.E2BIG) in error.message
            await refused(k, "launch_failed", "true", "a\0b")()  # type: ignore[misc]
            order = k.order(["true"])._replace(stdin="/no/such/prompt")
            with pytest.raises(LaunchRefused, match=r"cannot open /no/such/prompt: No such file"):
                await k.launch(order)
            assert Spool(order.spool).worker().state is MarkState.ABSENT

    run(test)


def test_a_refused_order_may_be_given_again(keeping: Make, tmp_path: Path) -> None:
    """The spool was left as it was."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["late"], env={"PATH": str(tmp_path)})
            with pytest.raises(LaunchRefused):
                await k.launch(order)

            os.symlink("/bin/true", tmp_path / "late")
            await k.launch(order)

            assert (await k.end_of(order))[0].code == 0

    run(test)


def test_a_task_is_launched_once(keeping: Make) -> None:
    """A second order for the same spool is refused, running or ended."""

    async def test() -> None:
        async with keeping() as k:
            order = k.order(["true"])
            await k.launch(order)
            with pytest.raises(LaunchRefused) as caught:
                await k.launch(order)
            assert caught.value.code == "spool_barred"
            await k.end_of(order)
            with pytest.raises(LaunchRefused):
                await k.launch(order)

    run(test)


# --- limits ---------------------------------------------------------------------------------------------------


def test_limits_hold_in_the_worker(keeping: Make) -> None:
    """All four, seen from inside, and no descriptor of the shell that set them."""

    async def test() -> None:
        async with keeping() as k:
            names = ("CPU", "AS", "NPROC", "NOFILE")
            fields = ",".join(f"'{name}':resource.getrlimit(resource.RLIMIT_{name})" for name in names)
            fields += ",'fds':len(os.listdir('/proc/self/fd')),'argv':sys.argv[1:],'sid':os.getsid(0)"
            argv = [sys.executable, "-c", "import resource;" + SHOW % fields, "a b", "$HOME"]
            limits = Limits(cpu_s=100, memory_bytes=2**31, processes=500, open_files=200)

            spool, record = await k.run(argv, limits=limits)

            assert record.code == 0, Path(spool.stderr).read_text()
            assert json.loads(Path(spool.stdout).read_text()) == {
                "CPU": [100, 105],
                "AS": [2**31, 2**31],
                "NPROC": [500, 500],
                "NOFILE": [200, 200],
                "fds": 4,
                "argv": ["a b", "$HOME"],
                "sid": record.pid,
            }

    run(test)


def test_the_processor_limit_ends_a_worker(keeping: Make) -> None:
    """SIGXCPU, which says why, at the limit."""

    async def test() -> None:
        async with keeping() as k:
            _, record = await k.shell("while :; do :; done", limits=Limits(cpu_s=1))

            assert record.signal == 24

    run(test)


@pytest.mark.parametrize(
    "limits",
    [Limits(open_files=2**40), Limits(open_files=0), Limits(cpu_s=-1), Limits(memory_bytes=1.5)],  # type: ignore[arg-type]
)
def test_limits_that_cannot_be_set_refuse_the_launch(keeping: Make, limits: Limits) -> None:
    """Fails closed: the program does not run without its limits, and the spool is as it was."""

    async def test() -> None:
        async with keeping() as k:
            await refused(k, "limits_refused", "sh", "-c", "echo ran", limits=limits)()  # type: ignore[misc]

    run(test)


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="root may raise limits")
def test_a_limit_above_the_hard_one_is_refused(keeping: Make) -> None:
    """Without privilege no limit is raised: the system's reason is passed on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    async def test() -> None:
        async with keeping() as k:
            limits = Limits(open_files=max(hard, 2**31) + 1)
            error = await refused(k, "limits_refused", "true", limits=limits)()  # type: ignore[misc]
            assert "ulimit" in error.message

    run(test)


# --- the keeper's own end -------------------------------------------------------------------------------------


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
