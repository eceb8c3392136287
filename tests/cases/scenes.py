"""What the scenes of the handed cases share: gates that programs wait at, markers they are found by, the command."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from harness.daemon import Daemon, until
from pawl.home import Home

HELLO_SHA256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
TERMINAL = {"completed", "failed", "cancelled", "lost", "timed_out"}

AGENTS = """
[agents.sh]
command = ["sh", "-c"]
prompt = "argument"

[agents.one]
command = ["sh", "-c"]
prompt = "argument"
max_concurrent = 1
"""


def config(
    *, max_concurrent: int = 32, kill_grace: str = "2s", shutdown_grace: str = "1s", heartbeat: str = "30s",
    more: str = "",
) -> str:  # fmt: skip
    """A configuration with two shells, one of them with a single slot."""
    return f"""
[daemon]
max_concurrent = {max_concurrent}
kill_grace = "{kill_grace}"
shutdown_grace = "{shutdown_grace}"
heartbeat_interval = "{heartbeat}"
{AGENTS}
{more}
"""


class Gate:
    """A file that programs wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def wait(self) -> str:
        """The shell command that waits here."""
        return f"until [ -e {self.path} ]; do sleep 0.02; done"

    def open(self) -> None:
        self.path.touch()


class Marker:
    """A number of seconds that, as an argument of ``sleep``, is this test's alone."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.text = f"777{next(self._numbers):02}.{os.getpid()}1"

    def __str__(self) -> str:
        return self.text

    def alive(self) -> list[int]:
        """The living processes that have it among their arguments; a zombie has none."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(self.text in word for word in process.cmdline()):
                    found.append(process.pid)
        return found

    def sleepers(self) -> list[int]:
        """Those of them that are ``sleep`` itself."""
        found = []
        for pid in self.alive():
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).cmdline()[:1] == ["sleep"]:
                    found.append(pid)
        return found

    def appears(self) -> int:
        """Wait until ``sleep`` runs with it, and return its PID."""
        found: list[int] = until(self.sleepers, f"nothing sleeps {self.text}")
        return found[0]


def kill_marked(marker: Marker) -> None:
    """Whatever went wrong: nothing that a test marked outlives it."""
    for pid in marker.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Said(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        assert self.out.count(b"\n") == 1, (self.out, self.err)
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object on stderr."""
        return dict(json.loads(self.err)["error"])


def command(home: Home, *words: str, **popen: Any) -> subprocess.Popen[bytes]:
    """Start the real command line in a process of its own."""
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "pawl", "--home", home.path, *words], **(options | popen))


def said(process: subprocess.Popen[bytes], timeout_s: float = 60) -> Said:
    """Wait for its end."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Said(process.returncode, out, err.decode())


def pawl(home: Home, *words: str) -> Said:
    """Run the real command line to its end."""
    return said(command(home, *words))


def wrote(daemon: Daemon, task_id: str, text: bytes) -> None:
    """Wait until a running task has written something."""
    until(lambda: text in daemon.logs(task_id), f"{task_id} has not written {text!r}")


def stripped(task: dict[str, Any]) -> dict[str, Any]:
    """A task without what a cancel adds to its answer."""
    below = {f"{which}_below{more}" for which in ("ended", "living") for more in ("", "_more")}
    return {key: value for key, value in task.items() if key not in {"outcome", *below}}
