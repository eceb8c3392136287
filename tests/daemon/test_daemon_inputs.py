"""Files that are handed over with ``--input``: what is taken is what was judged."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon
from pawl.engines.delegation import inputs
from pawl.errors import InvalidParams
from pawl.runner.sandbox import available

_works = pytest.mark.skipif(not available().works, reason=available().reason)
_linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")
_RACE = """
import json, os, socket, sys, threading
socket_path, secret = sys.argv[1:]
def swap():
    while not done:
        os.symlink(secret, "link")
        os.rename("link", "in")
        with open("plain", "w") as file:
            file.write("mine")
        os.rename("plain", "in")
done = False
open("in", "w").close()
thread = threading.Thread(target=swap)
thread.start()
s = socket.socket(socket.AF_UNIX)
s.connect(socket_path)
lines = s.makefile("rb")
taken = 0
for id in range(400):
    request = {"agent": "echo", "prompt": "x", "inputs": [os.path.join(os.getcwd(), "in")]}
    method, params = ("task.delegate", request) if id else ("hello", {"protocol": 1})
    s.sendall(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\\n")
    taken += "error" not in json.loads(lines.readline())
done = True
thread.join()
print(taken)
"""


@_works
def test_no_swap_brings_in_what_a_task_cannot_reach(daemon: Daemon, tmp_path: Path) -> None:
    """A file in the workspace that is a link to another one in every other moment."""
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.write_text("secret")
    (work / "race.py").write_text(_RACE)
    daemon.configure(
        f'{CONFIG}[policies.box]\nsandbox = "required"\ndelegation = "allow"\nmax_actions_per_hour = 10000\n'
        f'workspace = "{work}"\n[agents.boxed]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "box"\n'
        'delegates = ["echo"]\n'
    )
    daemon.start()

    task = daemon.delegate(
        "boxed", f"{sys.executable} -I -S race.py {daemon.home.socket} {secret}", wait=True, timeout_s=60
    )

    assert task["status"] == "completed", daemon.logs(task["id"], "stderr").decode()
    assert int(daemon.result(task["id"])) > 1
    kept = [path.name for path in Path(daemon.home.artifacts).iterdir() if path.read_bytes() == b"secret"]
    assert kept == []


@_linux
@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/version", "/proc/self/cwd/etc/hostname", "/proc/1/root/etc/hostname",
             "/sys/kernel/uevent_seqnum", "/dev/stdin", "/dev/null", "{link}", "/tmp/../proc/version"],
)  # fmt: skip
def test_nothing_is_taken_whose_content_depends_on_who_reads(daemon: Daemon, tmp_path: Path, path: str) -> None:
    """The caller means its own process, and it would be the daemon's."""
    (tmp_path / "link").symlink_to("/proc/self/environ")
    daemon.start()

    with pytest.raises(Refused) as no:
        daemon.delegate("sh", "true", inputs=[path.replace("{link}", f"{tmp_path}/link")])

    assert (no.value.code, no.value.exit) == ("invalid_params", 2)
    assert "depends on who reads" in no.value.message
    assert rows.tasks(daemon.home) == []


def test_only_plain_files_are_taken(daemon: Daemon, tmp_path: Path) -> None:
    """A pipe does not block it; a link is fine for the operator, and so is an empty file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("empty")
    daemon.start()

    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(Refused) as no:
            daemon.delegate("sh", "true", inputs=[str(path)])
        assert no.value.code == "invalid_params"
    task = daemon.delegate("sh", "cd $PAWL_TASK_DIR; ls; cat *", inputs=[f"{tmp_path}/link"], wait=True)

    assert daemon.result(task["id"]) == b"link\n"


@_linux
def test_a_file_in_memory_is_as_good_as_any() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, inputs.opened(file.name) as found:
        assert found.real == file.name


@pytest.mark.parametrize("change", [b"longer than before", b"", b"other"])
def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, change: bytes) -> None:
    """It grew, it shrank, or it has other bytes of the same number."""
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    with inputs.opened(str(path)) as found:
        assert not found.changed(5)
        assert found.changed(4)
        path.write_bytes(change)
        os.utime(path, ns=(1, 1))
        assert found.changed(5)


def test_what_is_open_is_what_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands at the path by then: the place of what is open is told, by each way that a system has."""
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_text("mine")
    other.write_text("secret")
    for way in ("_by_proc", "_by_name"):
        with inputs.opened(str(path)) as found:
            assert getattr(inputs, way)(str(path), found.descriptor) == str(path.resolve())
        path.rename(tmp_path / "moved")
        path.symlink_to(other)
        with inputs.opened(str(path)) as found:
            assert getattr(inputs, way)(str(path), found.descriptor) == str(other.resolve())
            path.unlink()
            (tmp_path / "moved").rename(path)
            if way == "_by_name":
                with pytest.raises(InvalidParams):
                    inputs._by_name(str(path), found.descriptor)
            else:
                assert inputs._by_proc(str(path), found.descriptor) == str(other.resolve())
