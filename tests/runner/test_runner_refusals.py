"""What keeps a program from being started, and the limits it is started under."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from keeping import Keeping, run

from pawl.runner.launcher import LaunchRefused, Limits
from pawl.runner.spool import MarkState, Spool

Make = Callable[[], Keeping]
SHOW = "import json,os,sys;print(json.dumps({%s}))"


# --- refusals ----------------------------------------------------------------------------------------------------


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


# --- limits ------------------------------------------------------------------------------------------------------


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


def test_a_limit_above_the_hard_one_is_refused(keeping: Make) -> None:
    """Above the hard limit, or for root above the kernel's own: the system's reason is passed on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    async def test() -> None:
        async with keeping() as k:
            limits = Limits(open_files=max(hard, 2**31) + 1)
            error = await refused(k, "limits_refused", "true", limits=limits)()  # type: ignore[misc]
            assert "ulimit" in error.message

    run(test)
