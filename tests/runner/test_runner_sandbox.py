"""The sandbox: what is mounted how, and what a program in it can and cannot do."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from keeping import Keeping, lines_of, lives, living_with, run, until

from pawl.errors import SandboxUnavailable
from pawl.ipc.peer import peer_of
from pawl.runner import sandbox
from pawl.runner.launcher import LaunchOrder, LaunchRefused, Limits
from pawl.runner.lineage import environment_of, lineage
from pawl.runner.sandbox import Offer, Sandbox, available
from pawl.runner.spool import MarkState, Spool
from pawl.runner.tree import end_tree, members

Make = Callable[[], Keeping]
_offer = available()
works = pytest.mark.skipif(not _offer.works, reason=_offer.reason)


@pytest.fixture(autouse=True)
def _hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests' own directory is hidden, as it is where it lies in /tmp, wherever it lies."""
    if not tmp_path.is_relative_to("/tmp"):
        monkeypatch.setattr(sandbox, "_HIDDEN", (*sandbox._HIDDEN, str(tmp_path.parent)))


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


@pytest.fixture(autouse=True)
def _no_strays() -> Iterator[None]:
    """What a sandbox leaves to whoever adopts orphans may be this very process: later tests count its children."""
    before = _children()
    yield
    until = time.monotonic() + 10
    while (left := _children() - before) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


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


def test_the_outer_is_mounted_before_the_inner(tmp_path: Path) -> None:
    """Whatever lies in what: a workspace in a home in a hidden directory."""
    inner = tmp_path / "home" / "work"
    inner.mkdir(parents=True)

    found = list(mounts(sandbox.wrapper("bwrap", box(inner, home=tmp_path / "home"))))

    assert found[0] == "/"
    depths = [path.rstrip("/").count("/") for path in found]
    assert depths == sorted(depths)


def test_what_can_be_seen_is_not_mounted_again() -> None:
    """Readable and protected things cost a mount only where something would hide or open them."""
    words = sandbox.wrapper("bwrap", box(readable=("/usr/bin/env", "/etc"), protected=("/usr",)))

    assert not {"/usr", "/usr/bin", "/etc"} & set(mounts(words))
    assert not {"--die-with-parent", "--new-session"} & set(words)


def test_a_program_comes_with_its_prefix(tmp_path: Path) -> None:
    """An environment under a hidden directory is there as a whole, and its neighbours are not."""
    tool = tmp_path / "env" / "bin" / "tool"
    tool.parent.mkdir(parents=True)
    tool.touch()

    found = mounts(sandbox.wrapper("bwrap", box(readable=(str(tool),))))

    assert found[str(tmp_path / "env")] == "--ro-bind"
    assert str(tmp_path) not in found


def test_no_directory_of_a_callers_choice_opens_run() -> None:
    """The working directory is put back, but not beneath /run, where sockets are."""
    assert "/run/user/0" not in mounts(sandbox.wrapper("bwrap", box()._replace(cwd="/run/user/0")))


def test_the_network_is_a_word(tmp_path: Path) -> None:
    assert "--unshare-net" in sandbox.wrapper("bwrap", box(tmp_path))
    assert "--unshare-net" not in sandbox.wrapper("bwrap", box(tmp_path, network=True))


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert available() == Offer(False, None, None, "bubblewrap is for Linux only")


def test_a_machine_without_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not there, not running, or not able to: never a sandbox that is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available() == Offer(False, None, None, "bubblewrap is not installed (no bwrap on PATH)")
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
    return order._replace(wrapper=wrapped(made))


def wrapped(made: Sandbox) -> tuple[str, ...]:
    """The words for it on this machine, as the engine asks for them."""
    return sandbox.wrapper(_offer.program or "", made, by_descriptor=_offer.by_descriptor)


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


# --- launches that fail ------------------------------------------------------------------------------------------


async def refusal(k: Keeping, order: LaunchOrder) -> LaunchRefused:
    """A launch that must be refused and leave the spool as it was."""
    before = sorted(os.listdir(order.spool))
    with pytest.raises(LaunchRefused) as caught:
        await k.launch(order)
    assert sorted(os.listdir(order.spool)) == before
    return caught.value


def test_a_maker_that_fails_refuses_the_launch(keeping: Make, tmp_path: Path) -> None:
    """With a word or without, under limits or without: never an exit code of the task."""
    fake = tmp_path / "bwrap"

    async def test() -> None:
        async with keeping() as k:
            for script, why in (("echo bwrap: no >&2; exit 1", "bwrap: no"), ("exit 0", "no reason was given")):
                fake.write_text(f"#!/bin/sh\n{script}\n")
                fake.chmod(0o755)
                for limits in (None, Limits(open_files=100)):
                    error = await refusal(k, k.order(["true"], limits=limits)._replace(wrapper=(str(fake), "--")))
                    assert (error.code, error.message) == ("sandbox_failed", f"cannot make the sandbox: {why}")

    run(test)


def test_what_is_wrong_with_the_program_is_said_first(keeping: Make) -> None:
    """Its own code, whatever the sandbox would have said."""

    async def test() -> None:
        async with keeping() as k:
            error = await refusal(k, k.order(["no-such-program-77"])._replace(wrapper=("/no/bwrap", "--")))
            assert error.code == "program_not_found"

    run(test)


@works
def test_a_program_that_is_hidden_refuses_the_launch(keeping: Make, tmp_path: Path) -> None:
    """It is there outside, and not inside."""
    tool = tmp_path / "tool"
    tool.symlink_to("/bin/true")

    async def test() -> None:
        async with keeping() as k:
            error = await refusal(k, boxed(k, "", box())._replace(argv=[str(tool)]))
            assert error.message == f"cannot run {tool} in the sandbox: it cannot be seen from there"

    run(test)


@works
@pytest.mark.skipif(not _offer.by_descriptor, reason="this bwrap binds by path only")
def test_what_is_mounted_is_what_was_meant(keeping: Make, tmp_path: Path) -> None:
    """A link that took the place of a workspace, or of a directory above it, at the last moment; or that is gone."""
    work, other = tmp_path / "a" / "work", tmp_path / "other"
    (other / "work").mkdir(parents=True)

    async def test() -> None:
        async with keeping() as k:
            for place, target in ((work, other / "work"), (work.parent, other)):
                work.mkdir(parents=True)
                order = boxed(k, "echo x > new", box(work))._replace(cwd="/")
                place.rename(tmp_path / "moved")
                place.symlink_to(target)
                error = await refusal(k, order)
                assert error.code == "sandbox_failed"
                assert error.message.startswith(f"cannot make the sandbox: {work} ")
                place.unlink()
                error = await refusal(k, order)
                assert (error.code, error.message) == (
                    "sandbox_failed", f"cannot make the sandbox: cannot open {work}: No such file or directory"
                )  # fmt: skip
                shutil.rmtree(tmp_path / "moved")

    run(test)
    assert os.listdir(other / "work") == []


# --- what holds --------------------------------------------------------------------------------------------------


@works
def test_nothing_of_the_machine_can_be_written_to(keeping: Make, tmp_path: Path) -> None:
    """By no name, as root neither; the task's own directory can, and what else is in its spool cannot."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (home / "config.toml").write_text("mine")
    (work / "link").symlink_to(home / "config.toml")
    parts = "/sys /proc/sys /proc/irq /proc/fs /proc/bus"

    async def test() -> None:
        async with keeping() as k:
            made = box(work, home=home, protected=(str(home), k.root))
            order = k.order(["true"], cwd=str(work), prompt=b"do it")
            own = Spool(order.spool).files
            # -writable and test -w ask the kernel and write nothing: a hole must not be a harm
            script = f"find {parts} -type f -writable 2>/dev/null; for f in link ../home /etc ~ {order.spool}"
            script += f' {order.spool}/prompt; do [ -w "$f" ] && echo "$f"; done; echo x > {own}/x; cat {own}/../prompt'
            wrapper = wrapped(made._replace(writable=(str(work), own)))
            await k.launch(order._replace(argv=["sh", "-c", script], wrapper=wrapper))
            await k.end_of(order)
            assert Path(order.spool, "stdout").read_text() == "do it"
            assert Path(own, "x").exists()

    run(test)


@works
def test_a_home_in_the_workspace_stays_where_it_is(keeping: Make, tmp_path: Path) -> None:
    """It cannot be written to, removed or replaced, nor can a directory above it; beside it all is free."""
    home = tmp_path / "work" / "a" / "home"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("mine")
    script = "echo x > a/home/config.toml; mv a b; mv a/home a/old; rm -rf a; umount a/home; echo y > a/beside"

    async def test() -> None:
        async with keeping() as k:
            await said(k, script, box(tmp_path / "work", home=home))

    run(test)
    assert (home / "config.toml").read_text() == "mine"
    assert (home.parent / "beside").read_text() == "y\n"


@works
@pytest.mark.skipif(not shutil.which("unshare"), reason="there is no unshare here")
def test_no_new_namespace_lifts_the_protection(keeping: Make, tmp_path: Path) -> None:
    """Root of a user namespace of its own can neither remount nor unmount what is read-only."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    script = f"unshare -Urm sh -c 'mount -o remount,bind,rw {home}; umount {home}; umount -l /tmp; echo x > {home}/new'"

    async def test() -> None:
        async with keeping() as k:
            await said(k, script, box(work, home=home))

    run(test)
    assert os.listdir(home) == []


@works
def test_the_temporary_directories_are_private(keeping: Make, tmp_path: Path) -> None:
    """Nothing is in them but what was put back, and nothing written there is seen outside."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "elsewhere").mkdir()
    places, mark = ("/tmp", "/run", "/var/tmp", "/dev/shm"), f"mark-of-{os.getpid()}"
    script = f"ls {tmp_path} /run /var/tmp /dev/shm | grep -v :; for d in {' '.join(places)}; do : > $d/{mark}; done"

    async def test() -> None:
        async with keeping() as k:
            out, code = await said(k, script, box(work))
            assert (out.split(), code) == (["work"], 0)

    run(test)
    assert not [place for place in places if os.path.exists(f"{place}/{mark}")]


@works
def test_paths_through_links_are_there_as_they_are_spelled(keeping: Make, tmp_path: Path) -> None:
    """The links that were hidden are made again."""
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "file").write_text("mine ")
    (tmp_path / "by").symlink_to(tmp_path / "work")
    (tmp_path / "to").symlink_to("home")

    async def test() -> None:
        async with keeping() as k:
            out, _ = await said(
                k, f"cat {tmp_path}/to/file; echo > {tmp_path}/by/x; pwd -P", box(tmp_path / "by", home=tmp_path / "to")
            )
            assert out == f"mine {tmp_path}/work\n"

    run(test)
    assert (tmp_path / "work" / "x").exists()


@works
def test_no_descriptor_is_left_over(keeping: Make, tmp_path: Path) -> None:
    """The program has its three streams; the fourth is how the directory is read."""

    async def test() -> None:
        async with keeping() as k:
            for limits in (None, Limits(cpu_s=100, memory_bytes=2**31, open_files=200)):
                assert await said(k, "ls /proc/self/fd | wc -l", box(tmp_path), limits=limits) == ("4\n", 0)

    run(test)


# --- whose it is, and how it ends --------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(path: str) -> Iterator[list[tuple[int, list[int], dict[str, str]]]]:
    """A listener that notes who called, as the daemon finds it out."""
    found: list[tuple[int, list[int], dict[str, str]]] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            pid = peer_of(connection).pid
            found.append((*lineage(pid), environment_of(pid)))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield found
        thread.join(10)


@works
def test_the_daemon_sees_whose_call_it_is(keeping: Make, tmp_path: Path) -> None:
    """Session, ancestry and environment of a caller in there lead to the task."""
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{tmp_path}/s'); s.recv(1)"

    async def test() -> None:
        async with keeping() as k:
            with answering(f"{tmp_path}/s") as callers:
                order = boxed(k, f'/usr/bin/env python3 -c "{code}"; :', box(home=tmp_path))
                worker = await k.launch(order)
                assert (await k.end_of(order))[0].code == 0
            session, ancestors, env = callers[0]
            assert session == worker.pid
            assert worker.pid in ancestors
            assert env["PAWL_TASK_ID"] == order.task_id

    run(test)


@works
def test_what_outlives_the_program_is_left_over_and_found(keeping: Make, tmp_path: Path, marker: str) -> None:
    """Out of its session, without its parents and its environment: it is below the sandbox's first process."""

    async def test() -> None:
        async with keeping() as k:
            order = boxed(k, f"(setsid env -i sleep {marker} &); exit 3", box(tmp_path))
            worker = await k.launch(order)
            record, leftovers = await k.end_of(order)
            assert (record.code, leftovers) == (3, True)

            assert (await end_tree(worker, order.task_id, 0.2)).left == []

            await until(lambda: living_with(marker) == [], "what was left over to be gone")

    run(test)


@works
def test_its_own_end_is_nothing_left_over(keeping: Make, tmp_path: Path) -> None:
    """The sandbox's first process ends a moment after the program, and is not looked for."""

    async def test() -> None:
        async with keeping() as k:
            made = box(tmp_path)
            orders = [boxed(k, "exit 0", made) for _ in range(60)]
            found = []
            for order in orders:
                await k.launch(order)
                found.append((await k.end_of(order))[1])
            assert found.count(True) == 0

    run(test)


@works
def test_it_outlives_its_keeper(keeping: Make, tmp_path: Path, marker: str) -> None:
    """The keeper's death ends nothing in it."""

    async def test() -> None:
        async with keeping() as k:
            order = boxed(k, f"exec sleep {marker}", box(tmp_path))
            worker = await k.launch(order)
            await until(lambda: len(living_with(marker)) == 1, "the program to run")
            keeper = k.keeper.identity
            assert keeper is not None

            os.kill(keeper.pid, signal.SIGKILL)
            await k.lost.wait()
            await until(lambda: not lives(keeper.pid), "the keeper to be gone")

            assert lives(worker.pid)
            assert len(living_with(marker)) == 1
            assert (await end_tree(worker, order.task_id, 0.2)).left == []

    run(test)
