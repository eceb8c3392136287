"""Tasks in a sandbox, as a whole: what the policy says holds for the program, and for what it asks the daemon for."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until
from pawl.runner.sandbox import available

_works = pytest.mark.skipif(not available().works, reason=available().reason)


def box(daemon: Daemon, workspace: Path, **policy: str) -> None:
    """Configure an agent ``boxed`` in a sandbox with this workspace, and ``free``, whom it may delegate to."""
    keys = {"sandbox": '"required"', "delegation": '"allow"', "workspace": f'"{workspace}"'} | policy
    table = "\n".join(f"{key} = {value}" for key, value in keys.items())
    agent = 'command = ["sh", "-c"]\nprompt = "argument"\n'
    boxed = f'[policies.box]\n{table}\n[agents.boxed]\n{agent}policy = "box"\ndelegates = ["free"]\n'
    daemon.configure(f"{CONFIG}{boxed}[agents.free]\n{agent}")


def out(daemon: Daemon, prompt: str, **params: Any) -> list[str]:
    task = daemon.delegate("boxed", prompt, wait=True, **params)
    assert task["status"] == "completed", daemon.logs(task["id"], "stderr").decode()
    return daemon.result(task["id"]).decode().splitlines()


@_works
def test_it_writes_to_its_workspace_and_its_own_directory_only(daemon: Daemon, tmp_path: Path) -> None:
    box(daemon, tmp_path)
    daemon.start()
    tries = [
        f"{tmp_path}/in",
        "$PAWL_TASK_DIR/own",
        daemon.home.config,
        f"{daemon.home.data}/new",
        "/etc/new",
        "/tmp/own",
    ]

    lines = out(daemon, "; ".join(f"(echo x > {each}) 2>/dev/null && echo yes || echo no" for each in tries))

    assert lines == ["yes", "yes", "no", "no", "no", "yes"]
    assert (tmp_path / "in").exists()
    assert not Path("/tmp/own").exists()


@_works
def test_a_child_is_in_a_sandbox_too(daemon: Daemon, tmp_path: Path) -> None:
    """Though its own policy asks for none: it is at most as free as its caller, wherever it says it would work."""
    box(daemon, tmp_path, network='"off"')
    daemon.start()
    pawl = " ".join(daemon.pawl_words())
    inner = "(echo x > /etc/new) 2>/dev/null || echo held; wc -l < /proc/net/dev; pwd"

    lines = out(
        daemon, f"cd /; {pawl} delegate free --wait '{inner}'; {pawl} delegate free --cwd /etc x || echo refused"
    )

    assert lines == ["held", "3", str(tmp_path), "refused"]  # two lines of headings, and the loopback


@_works
def test_the_daemon_reads_nothing_for_it_that_it_cannot_see(daemon: Daemon, tmp_path: Path) -> None:
    """An input that is handed over comes from the workspace or its own directory."""
    secret = Path("/tmp", f"secret-{os.getpid()}")
    secret.write_text("secret")
    box(daemon, tmp_path / "work")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fine").write_text("fine")
    daemon.start()
    pawl = " ".join(daemon.pawl_words())
    show = "cat $PAWL_TASK_DIR/*"
    try:
        lines = out(
            daemon,
            f"{pawl} delegate free --input {secret} --wait '{show}' || echo refused;"
            f"{pawl} delegate free --input fine --wait '{show}'; echo; echo mine > $PAWL_TASK_DIR/mine;"
            f"{pawl} delegate free --input $PAWL_TASK_DIR/mine --wait '{show}'",
        )
    finally:
        secret.unlink()

    assert lines == ["refused", "fine", "mine"]


@_works
def test_no_child_sees_what_its_caller_does_not(daemon: Daemon, tmp_path: Path) -> None:
    """Without a workspace a directory is put back where it would be hidden: the caller's own and no other."""
    work, secret = tmp_path / "work", Path("/tmp", f"secret-{os.getpid()}")
    for each in (work, secret):
        each.mkdir()
    (secret / "secret").write_text("secret")
    box(daemon, tmp_path)
    daemon.configure("\n".join(x for x in Path(daemon.home.config).read_text().split("\n") if "workspace" not in x))
    daemon.start()
    pawl = " ".join(daemon.pawl_words())
    script = work / "lie.py"
    script.write_text(_LIE)
    places = (
        str(secret),
        "/tmp/..//tmp/" + secret.name,
        "/var/tmp/x",
        "/run/lock",
        "/dev/shm/x",
        "/tmp",
        "/proc/1/root/x",
    )
    asked = [f"{pawl} delegate free --wait --cwd {each} 'cat secret' || echo refused" for each in places]
    seen = [f"{pawl} delegate free --wait --cwd {each} pwd" for each in ("/etc", ".", "$PAWL_TASK_DIR")]
    lie = [f"{sys.executable} {script} {daemon.home.socket} {secret}"]
    try:
        lines = out(daemon, "; ".join([*asked, *seen, *lie, "mkdir /tmp/own; cd /tmp/own; " + asked[0]]), cwd=str(work))
    finally:
        (secret / "secret").unlink()
        secret.rmdir()

    (boxed,) = [task for task in rows.tasks(daemon.home) if task.agent == "boxed"]
    own = str(Path(daemon.home.spool, boxed.id, "files").resolve())
    assert lines == [*["refused"] * 7, "/etc", str(work), own, "policy_widens", "refused"]


_LIE = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
lines = s.makefile("rb")
request = {"agent": "free", "prompt": "cat secret", "caller_cwd": sys.argv[2]}
for id, (method, params) in enumerate((("hello", {"protocol": 1}), ("task.delegate", request))):
    s.sendall(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\\n")
    answer = json.loads(lines.readline())
print(answer["error"]["data"]["code"] if "error" in answer else "taken")
"""


@_works
def test_it_is_known_from_inside(daemon: Daemon, tmp_path: Path) -> None:
    """Whatever it does to its session and its environment, behind its own PID namespace and without a network."""
    box(daemon, tmp_path, network='"off"')
    daemon.start()
    words = " ".join(daemon.pawl_words("delegate", "free", "true", "--json"))

    lines = out(daemon, f"{words}; env -i setsid -w {words}; PAWL_TASK_ID=x {words}")

    (boxed,) = [task for task in rows.tasks(daemon.home) if task.agent == "boxed"]
    assert {json.loads(line)["parent_id"] for line in lines} == {boxed.id}


@_works
def test_cancelling_it_leaves_nothing(daemon: Daemon, tmp_path: Path) -> None:
    box(daemon, tmp_path)
    daemon.start()
    task = daemon.delegate(
        "boxed", "setsid sleep 600 & env -i setsid sh -c 'sleep 600 & wait' & touch up; exec sleep 600"
    )
    until((tmp_path / "up").exists, "it never ran")

    assert daemon.cancel(task["id"])["leftovers"]["left"] == []

    below = f"/data/spool/{task['id']}"
    assert not [pid for pid in os.listdir("/proc") if pid.isdecimal() and below in _cwd_or_words(pid)]


def _cwd_or_words(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def without(daemon: Daemon, tmp_path: Path) -> Daemon:
    """A daemon on whose PATH is no bwrap."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "true"):
        (tools / name).symlink_to(f"/bin/{name}")
    box(daemon, tmp_path)
    daemon.start(env={"PATH": str(tools)})
    return daemon


def test_required_fails_closed(without: Daemon, tmp_path: Path) -> None:
    """Before anything is stored, also for the operator; and `status` says so."""
    with pytest.raises(Refused) as no:
        without.delegate("boxed", "true")

    assert (no.value.code, no.value.exit) == ("sandbox_unavailable", 6)
    assert rows.tasks(without.home) == []
    findings = without.call("daemon.status")["findings"]
    assert [(each["code"], each["subject"]) for each in findings] == [("sandbox_missing", "[policies.box]")]
    assert sys.platform != "linux" or "not installed" in findings[0]["message"]


def test_preferred_runs_without_and_says_so(without: Daemon, tmp_path: Path) -> None:
    box(without, tmp_path, sandbox='"preferred"')
    without.call("config.reload")

    task = without.delegate("boxed", "true", wait=True)

    assert task["status"] == "completed"
    assert "unsandboxed" in rows.events_of(without.home, task["id"])
    steps = without.call("task.why", id=task["id"])["steps"]
    assert [step["outcome"] for step in steps if step["gate"] == "sandbox"] == ["skipped"]


@pytest.fixture
def vanishing(without: Daemon, tmp_path: Path) -> Path:
    """The bwrap of a daemon that has found it, to be taken away, and an agent ``liked`` that prefers a sandbox."""
    if not available().works:
        pytest.skip(available().reason)
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.symlink_to(available().program or "")
    text = Path(without.home.config).read_text()
    liked = text[text.index("[policies.box]") : text.index("[agents.free]")]
    without.configure(
        text
        + liked.replace("box]", "like]")
        .replace('"box"', '"like"')
        .replace("boxed", "liked")
        .replace('"required"', '"preferred"')
    )
    without.call("config.reload")
    for agent in ("boxed", "liked"):
        task = without.delegate(agent, "true", wait=True)
        assert task["status"] == "completed", task["error"]
    return bwrap


def test_preferred_does_without_a_bwrap_that_vanished(without: Daemon, vanishing: Path) -> None:
    """It was found once, and is gone by the next start: what prefers one runs, and says so; what requires one not."""
    vanishing.unlink()

    task = without.delegate("liked", "true", wait=True)
    with pytest.raises(Refused) as no:
        without.delegate("boxed", "true")

    assert task["status"] == "completed"
    assert "unsandboxed" in rows.events_of(without.home, task["id"])
    assert no.value.code == "sandbox_unavailable"


def test_preferred_does_without_a_bwrap_that_works_no_more(without: Daemon, vanishing: Path) -> None:
    """It is there and fails, as where user namespaces were switched off meanwhile."""
    vanishing.unlink()
    vanishing.write_text("#!/bin/sh\necho bwrap: not permitted >&2; exit 1\n")
    vanishing.chmod(0o755)

    task = without.delegate("liked", "echo out; echo $PAWL_TASK_ID", wait=True)
    steps = without.call("task.why", id=task["id"])["steps"]
    with pytest.raises(Refused) as no:
        without.delegate("boxed", "true")

    assert (task["status"], without.result(task["id"]).decode()) == ("completed", f"out\n{task['id']}\n")
    assert [step["message"].rpartition(": ")[2] for step in steps if step["gate"] == "sandbox"] == ["not permitted"]
    assert without.logs(task["id"], "stderr") == b""
    assert no.value.code == "sandbox_unavailable"


def test_required_does_not_start_with_a_bwrap_that_works_no_more(without: Daemon, vanishing: Path) -> None:
    """Nobody has found out before it starts."""
    vanishing.unlink()
    vanishing.write_text("#!/bin/sh\nexit 1\n")
    vanishing.chmod(0o755)

    task = without.delegate("boxed", "true", wait=True)

    assert (task["status"], task["error"]["code"]) == ("failed", "sandbox_failed")


@pytest.mark.parametrize("sandbox", ["preferred", "required"])
def test_one_sandbox_that_cannot_be_made_is_no_reason_to_do_without(
    without: Daemon, vanishing: Path, tmp_path: Path, sandbox: str
) -> None:
    """Where this machine makes them, and this one fails: its directory is hidden in it."""
    box(without, tmp_path, sandbox=f'"{sandbox}"')
    without.call("config.reload")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as hidden:
        task = without.delegate("boxed", "true", cwd=hidden, wait=True)

    assert (task["status"], task["error"]["code"]) == ("failed", "sandbox_failed")
    assert "unsandboxed" not in rows.events_of(without.home, task["id"])


def test_required_that_vanished_meanwhile_does_not_start(without: Daemon, tmp_path: Path) -> None:
    """What was admitted under a policy without a sandbox waits; by its start the policy requires one."""
    box(without, tmp_path, sandbox='"off"')
    without.configure(Path(without.home.config).read_text().replace("max_concurrent = 32", "max_concurrent = 1"))
    without.call("config.reload")
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    first = without.delegate("boxed", f"read _ < {fifo}")
    second = without.delegate("boxed", "true")
    assert second["status"] == "queued"
    box(without, tmp_path)
    without.call("config.reload")
    fifo.write_text("go\n")

    assert without.wait(first["id"])[0]["status"] == "completed"
    ended = without.wait_one(second["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "sandbox_unavailable")
