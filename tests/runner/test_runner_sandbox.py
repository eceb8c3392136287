"""The sandbox: what is mounted how, and what a program in it can and cannot do."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from keeping import Keeping, lines_of, run

from pawl.errors import SandboxUnavailable
from pawl.runner import sandbox
from pawl.runner.launcher import LaunchOrder, LaunchRefused, Limits
from pawl.runner.sandbox import Sandbox, available
from pawl.runner.spool import MarkState, Spool
from pawl.runner.tree import end_tree, members

Make = Callable[[], Keeping]
_offer = available()
works = pytest.mark.skipif(not _offer.works, reason=_offer.reason)


def box(work: Path | str = "/", *, home: Path | None = None, network: bool = False, **more: tuple[str, ...]) -> Sandbox:
    """A sandbox whose workspace is ``work`` (none for the root), with a home that is protected."""
    writable = () if str(work) == "/" else (str(work),)
    fields = {"writable": writable, "readable": (), "protected": (str(home),) if home else ()} | more
    return Sandbox(**fields, network=network, cwd=str(work))


def mounts(words: tuple[str, ...]) -> dict[str, str]:
    """How each path is mounted, from the words for bwrap."""
    found, at = {}, 0
    while at < len(words):
        if words[at] in ("--bind", "--ro-bind", "--symlink"):
            found[words[at + 2]] = words[at]
            at += 2
        elif words[at] in ("--tmpfs", "--dev", "--proc"):
            found[words[at + 1]] = words[at]
            at += 1
        at += 1
    return found


# --- what is mounted --------------------------------------------------------------------------------------------


def test_everything_is_read_only_but_the_workspace(tmp_path: Path) -> None:
    found = mounts(sandbox.wrapper("bwrap", box(tmp_path)))

    assert (found["/"], found[str(tmp_path)]) == ("--ro-bind", "--bind")
    assert (found["/tmp"], found["/run"], found["/proc"], found["/dev"]) == ("--tmpfs", "--tmpfs", "--proc", "--dev")


def test_the_home_is_read_only_wherever_it_lies(tmp_path: Path) -> None:
    """Inside the workspace, and around it: then the workspace in it is writable all the same."""
    home, inner = tmp_path / "home", tmp_path / "home" / "work"
    inner.mkdir(parents=True)

    outer = mounts(sandbox.wrapper("bwrap", box(tmp_path, home=home)))
    within = mounts(sandbox.wrapper("bwrap", box(inner, home=home)))

    assert (outer[str(tmp_path)], outer[str(home)]) == ("--bind", "--ro-bind")
    assert (within[str(home)], within[str(inner)]) == ("--ro-bind", "--bind")


def test_a_home_that_would_be_writable_is_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="name another workspace"):
        sandbox.wrapper("bwrap", box(tmp_path, home=tmp_path))


def test_a_way_through_a_link_that_could_be_replaced_is_refused(tmp_path: Path) -> None:
    """The home is reached through a link in the workspace: the task could point it elsewhere."""
    home = tmp_path / "real"
    home.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "home").symlink_to(home)

    with pytest.raises(SandboxUnavailable, match="link"):
        sandbox.wrapper("bwrap", box(work, home=work / "home"))


def test_directories_on_the_way_to_what_is_protected_cannot_be_moved(tmp_path: Path) -> None:
    """Each is a mount of its own, so that nobody renames it and puts another in its place."""
    home = tmp_path / "a" / "b" / "home"
    home.mkdir(parents=True)

    found = mounts(sandbox.wrapper("bwrap", box(tmp_path, home=home)))

    assert found[str(tmp_path / "a")] == found[str(tmp_path / "a" / "b")] == "--bind"


def test_the_network_is_a_word(tmp_path: Path) -> None:
    assert "--unshare-net" in sandbox.wrapper("bwrap", box(tmp_path))
    assert "--unshare-net" not in sandbox.wrapper("bwrap", box(tmp_path, network=True))


def test_a_machine_without_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not there, not running, or not able to: never a sandbox that is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available() == (False, None, None, "bubblewrap is not installed (no bwrap on PATH)")
    fake = tmp_path / "bwrap"
    for script, said in (
        ("echo broken >&2; exit 3", "does not run: broken"),
        ("[ $1 = --version ] && echo bwrap 9", "9"),
    ):
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        offer = available()
        assert not offer.works
        assert said in f"{offer.reason} {offer.version}"


# --- what a program in it can do --------------------------------------------------------------------------------


def boxed(k: Keeping, script: str, made: Sandbox, **more: Any) -> LaunchOrder:
    """An order for a shell in a sandbox."""
    order = k.order(["sh", "-c", script], cwd=made.cwd, **more)
    return order._replace(wrapper=sandbox.wrapper(_offer.program or "", made))


async def said(k: Keeping, script: str, made: Sandbox, **more: Any) -> tuple[str, int | None]:
    order = boxed(k, script, made, **more)
    await k.launch(order)
    record, _ = await k.end_of(order)
    return Path(Spool(order.spool).stdout).read_text(), record.code


@works
def test_it_writes_where_it_may(keeping: Make, tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "work" / "home"
    home.mkdir(parents=True)
    tries = [work / "in", home / "in", "/etc/in", "/tmp/in"]
    script = "; ".join(f"(: > {each}) 2>/dev/null && echo yes || echo no" for each in tries)

    async def test() -> None:
        async with keeping() as k:
            out, code = await said(k, script, box(work, home=home))
            assert (out.split(), code) == (["yes", "no", "no", "yes"], 0)

    run(test)
    assert (work / "in").exists()
    assert not Path("/tmp/in").exists()


@works
def test_what_goes_in_and_comes_out_is_as_without(keeping: Make, tmp_path: Path) -> None:
    """Standard input, exit code, variables and limits; a signal is told as 128 and its number."""

    async def test() -> None:
        async with keeping() as k:
            made = box(tmp_path)
            out, code = await said(k, 'cat; echo "$OWN"; ulimit -n; exit 7', made, prompt=b"in ",
                                   env={"OWN": "a=b c"}, limits=Limits(open_files=333))  # fmt: skip
            assert (out, code) == ("in a=b c\n333\n", 7)
            assert (await said(k, "kill -9 $$", made))[1] == 137

    run(test)


@works
def test_variables_reach_the_program_and_not_the_maker(keeping: Make, tmp_path: Path) -> None:
    """What the loader reads would run outside of the sandbox otherwise; nor does it stand on a command line."""

    async def test() -> None:
        async with keeping() as k:
            order = boxed(
                k, "echo up; exec sleep 600", box(tmp_path), env={"LD_PRELOAD": "/nothing.so", "SECRET": "s3cret"}
            )
            worker = await k.launch(order)
            await lines_of(Spool(order.spool).stdout, 1)
            outside = Path(f"/proc/{worker.pid}/environ").read_bytes()
            words = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
            assert b"LD_PRELOAD" not in outside
            assert b"s3cret" not in outside + words
            assert order.task_id.encode() in outside

    run(test)


@works
@pytest.mark.parametrize("network", [True, False])
def test_the_network_is_there_or_not(keeping: Make, tmp_path: Path, network: bool) -> None:
    """A unix socket in a protected directory can be reached either way."""
    listener = socket.create_server(("127.0.0.1", 0))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(tmp_path / "s"))
    local.listen()
    threading.Thread(target=listener.accept, daemon=True).start()
    threading.Thread(target=local.accept, daemon=True).start()
    work = tmp_path / "work"
    work.mkdir()
    code = """
import socket, sys
for family, address in (socket.AF_UNIX, sys.argv[1]), (socket.AF_INET, ("127.0.0.1", int(sys.argv[2]))):
    try:
        socket.socket(family).connect(address)
        print("yes")
    except OSError:
        print("no")
"""
    (work / "try.py").write_text(code)

    async def test() -> None:
        async with keeping() as k:
            made = box(work, home=tmp_path, network=network)
            out, _ = await said(k, f"/usr/bin/env python3 try.py {tmp_path}/s {listener.getsockname()[1]}", made)
            assert out.split() == ["yes", "yes" if network else "no"]

    run(test)
    listener.close()
    local.close()


@works
def test_it_sees_and_ends_nobody_else(keeping: Make, tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:

        async def test() -> None:
            async with keeping() as k:
                out, _ = await said(
                    k, f"kill -9 {other.pid} 2>/dev/null || echo no; ls /proc | grep -c '^[0-9]'", box(tmp_path)
                )
                no, count = out.split()
                assert no == "no"
                assert int(count) < 10

        run(test)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@works
def test_all_of_it_is_ended(keeping: Make, tmp_path: Path) -> None:
    """Whatever changed its session, lost its parent or emptied its environment in there."""

    async def test() -> None:
        async with keeping() as k:
            script = (
                "setsid sleep 600 & env -i setsid sh -c 'sleep 600 & exit' & (sleep 600 &) ; echo up; exec sleep 600"
            )
            order = boxed(k, script, box(tmp_path))
            worker = await k.launch(order)
            await lines_of(Spool(order.spool).stdout, 1)
            assert len(members(worker, order.task_id)) >= 5

            ended = await end_tree(worker, order.task_id, 0.2)

            assert ended.left == []
            assert members(worker, order.task_id) == []

    run(test)


@works
def test_a_sandbox_that_cannot_be_made_refuses_the_launch(keeping: Make, tmp_path: Path) -> None:
    """Nothing ran, and the order may be given again: a workspace that is missing, a maker that is gone."""

    async def test() -> None:
        async with keeping() as k:
            gone = box(tmp_path / "gone")._replace(cwd="/")
            no_maker = ("/nothing/bwrap", *sandbox.wrapper("bwrap", box(tmp_path))[1:])
            for order in (
                boxed(k, "echo ran", gone),
                k.order(["sh", "-c", "echo ran"], cwd="/")._replace(wrapper=no_maker),
            ):
                with pytest.raises(LaunchRefused) as refused:
                    await k.launch(order)
                assert refused.value.code == "sandbox_failed"
                assert "cannot make the sandbox" in refused.value.message
                spool = Spool(order.spool)
                assert spool.worker().state is MarkState.ABSENT
                assert not os.path.exists(spool.stdout)

    run(test)
