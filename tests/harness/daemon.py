"""A real daemon process at a home of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from harness import nursery
from harness.client import Connection
from harness.invariants import broken, processes_of
from pawl.home import Home
from pawl.runner.identity import Liveness, ProcessIdentity, identity_of, probe

CONFIG = """
[daemon]
max_concurrent = 32
kill_grace = "2s"
shutdown_grace = "1s"

[agents.sh]
command = ["sh", "-c"]
prompt = "argument"
accepts_env = ["OUT"]

[agents.cat]
command = ["cat"]

[agents.one]
command = ["sh", "-c"]
prompt = "argument"
max_concurrent = 1
"""


class NotStarted(Exception):
    """The daemon refused to start."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error
        self.code: str = error["code"]


class Daemon:
    """Starts, kills, stops and calls the daemon of one home. Ends what it started in ``close``."""

    def __init__(self, home: Home, config: str | None = CONFIG) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | nursery.Child | None = None
        self.checked = True  # whether the fixture asks for the invariants at the end
        self.deaths: list[str] = []  # the failpoints that were armed when it died of SIGKILL by itself
        self._armed = ""
        self._keepers: list[ProcessIdentity] = []
        self._arguments: dict[str, Any] = {}
        home.prepare()
        if config is not None and not Path(home.config).exists():
            self.configure(config)

    def configure(self, text: str) -> None:
        """Write the configuration file; nobody reads it before the next start or reload."""
        Path(self.home.config).write_text(text)

    def start(
        self, failpoints: str = "", env: dict[str, str] | None = None, *, exec: bool = False, bent: str | None = None,
        **popen: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Start it and wait until it is ready. Raises NotStarted with its own error.

        It is forked (``nursery``); with ``exec`` or any argument of Popen's it is a new interpreter. ``bent``: with
        the hooks of ``bends``, the names in it installed at once.
        """
        self.begin(failpoints, env, exec=exec, bent=bent, **popen)
        return self.ready()

    def begin(
        self, failpoints: str = "", env: dict[str, str] | None = None, *, exec: bool = False, bent: str | None = None,
        **popen: Any,
    ) -> None:  # fmt: skip
        """Start it and wait for nothing; ``ready`` waits."""
        self._armed = failpoints
        read, write = os.pipe()
        environment = os.environ | {"PAWL_FAILPOINTS": failpoints} | (env or {})
        if bent is not None:
            environment["PAWL_TEST_BENDS"] = bent
        with open(self.home.log, "ab") as log:
            if exec or popen:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "pawl.daemon", "--home", self.home.path, "--report-fd", str(write)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=[write], **popen,
                )  # fmt: skip
            else:
                argv = ["--home", self.home.path, "--report-fd", "{report}"]
                self.process = nursery.fork(argv, dict(environment), write, log.fileno())
        os.close(write)
        self._report = os.fdopen(read)

    def ready(self) -> dict[str, Any]:
        """Wait until it is ready. Raises NotStarted with its own error."""
        assert self.process is not None
        with self._report as report:
            line = report.readline()
        if not line:
            self.process.wait(30)
            raise NotStarted({"code": "died", "message": f"it died while starting: {self.log()[-2000:]}"})
        message = json.loads(line)
        if "error" in message:
            self.process.wait(30)
            raise NotStarted(message["error"])
        self._note_keeper()
        ready: dict[str, Any] = message["ready"]
        return ready

    def bend(self, **bends: Any) -> None:
        """Bend a daemon that was started with ``bent`` (see ``bends``), and wait until it is."""
        assert self.process is not None
        path = Path(self.home.run, "bends")
        self._armed = bends.get("failpoints", self._armed)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(bends))
        fresh.rename(path)
        self.process.send_signal(signal.SIGUSR1)
        until(lambda: not path.exists(), "the daemon has not read its bends")

    def held(self) -> None:
        """Wait until a bent daemon waits where it was told to hold."""
        until(Path(self.home.run, "held").exists, "the daemon does not hold")

    def beats(self, count: int) -> None:
        """Wait until a bent daemon has minded its rows so many times more: heartbeats and a recovery pass each."""
        path = Path(self.home.run, "beats")
        wanted = (path.stat().st_size if path.exists() else 0) + count + 1  # one may be under way
        until(lambda: path.exists() and path.stat().st_size >= wanted, "the daemon minds nothing")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def keeper(self) -> int:
        """The PID of the keeper of this very daemon."""
        self._note_keeper()
        return self._keepers[-1].pid

    def connect(self, timeout_s: float = 60.0) -> Connection:
        return Connection(self.home.socket, timeout_s)

    def call(self, method: str, **params: Any) -> Any:
        """One call on a connection of its own."""
        with self.connect() as connection:
            return connection.call(method, **params)

    def delegate(self, agent: str, prompt: str, **params: Any) -> dict[str, Any]:
        task: dict[str, Any] = self.call("task.delegate", agent=agent, prompt=prompt, **params)
        return task

    def get(self, task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = self.call("task.get", id=task_id)
        return task

    def wait(self, *ids: str, timeout_s: float = 30) -> list[dict[str, Any]]:
        """Wait until all have ended; they come in the order asked for."""
        answer = self.call("task.wait", ids=list(ids), timeout_s=timeout_s)
        assert answer["status"] == "complete", answer
        by_id = {task["id"]: task for task in answer["completed"]}
        return [by_id[each] for each in ids]

    def wait_one(self, task_id: str, timeout_s: float = 30) -> dict[str, Any]:
        """Wait until one has ended, by itself."""
        return self.wait(task_id, timeout_s=timeout_s)[0]

    def cancel(self, task_id: str, reason: str | None = None) -> dict[str, Any]:
        """Cancel one task; when this returns its processes have ended."""
        task: dict[str, Any] = self.call("task.cancel", ids=[task_id], reason=reason)[0]
        return task

    def result(self, task_id: str) -> bytes:
        with self.connect() as connection:
            return b"".join(connection.stream("task.result", id=task_id)[0])

    def logs(self, task_id: str, stream: str = "stdout", follow: bool = False) -> bytes:
        with self.connect() as connection:
            return b"".join(connection.stream("task.logs", id=task_id, stream=stream, follow=follow)[0])

    def spool(self, task_id: str) -> Path:
        return Path(self.home.spool, task_id)

    def artifact(self, sha256: str) -> Path:
        return Path(self.home.artifacts, sha256)

    def pawl(self, *words: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one command of the command line at this home."""
        return subprocess.run(self.pawl_words(*words), input=input, capture_output=True, timeout=60)

    def pawl_words(self, *words: str) -> list[str]:
        """How that is spelled."""
        return [sys.executable, "-m", "pawl", "--home", self.home.path, *words]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def died(self, timeout_s: float = 30) -> int:
        """Wait until it ends by itself (a failpoint killed it). Returns its exit status."""
        assert self.process is not None
        status = self.process.wait(timeout_s)
        if status == -signal.SIGKILL:
            self.deaths.append(self._armed)
        return status

    def stop(self, *, cancel: bool = False) -> None:
        """Stop it as `pawl daemon stop` does, and wait for its end."""
        self.call("daemon.stop", cancel=cancel)
        assert self.process is not None
        assert self.process.wait(60) == 0

    def log(self) -> str:
        return Path(self.home.log).read_text(errors="replace")

    def broken(self, *, running_allowed: bool = False) -> list[str]:
        """Every broken invariant of the home; an empty list is what a test wants to see."""
        pid = self.process.pid if self.process is not None else None
        return broken(self.home, running_allowed=running_allowed, pid=pid)

    def close(self) -> None:
        """End the daemon and every process it started, by themselves where they can, and check the home."""
        if self.process is None:
            return
        try:
            if self.checked:
                self._stop_everything()
                found = self.broken()
                assert found == [], "\n".join([*found, self.log()[-3000:]])
        finally:
            self.abandon()

    def _stop_everything(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            self._forget_failpoints()
            self.start()
        self.call("daemon.stop", cancel=True)
        assert self.process.wait(25) == 0

    def _forget_failpoints(self) -> None:
        """The last start is an ordinary one."""
        with contextlib.suppress(FileNotFoundError):
            Path(self.home.run, "bends").unlink()

    def abandon(self) -> None:
        """Whatever went wrong: nothing that was started here outlives the test. Nothing is checked."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in processes_of(self.home):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for keeper in self._keepers:
            if not _gone_within(keeper, 5):
                os.kill(keeper.pid, signal.SIGKILL)

    def _note_keeper(self) -> None:
        """Remember the keepers of this daemon, to see that they end."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                identity = identity_of(child.pid) if child.name() == "pawl-keeper" else None
                if identity is not None and identity not in self._keepers:
                    self._keepers.append(identity)


def until(true: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    """Wait until something is true, and return it. For what no call can be waited on."""
    deadline = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def _gone_within(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while probe(process) is not Liveness.GONE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
