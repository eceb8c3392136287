"""What a worker is given, and where its output goes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from keeping import Keeping, living_with, run, until

from pawl.runner.launcher import Limits

Make = Callable[[], Keeping]
SHOW = "import json,os,sys;print(json.dumps({%s}))"


# --- what a worker is given --------------------------------------------------------------------------------------


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


# --- output ------------------------------------------------------------------------------------------------------


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
