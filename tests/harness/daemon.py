"""A real daemon process at a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.client import Connection

from pawl.home import Home

CONFIG = """
[daemon]
max_concurrent = 32
kill_grace = "2s"
shutdown_grace = "1s"

[agents.sh]
command = ["sh", "-c"]
prompt = "argument"

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
        self.process: subprocess.Popen[bytes] | None = None
        home.prepare()
        if config is not None and not Path(home.config).exists():
            Path(home.config).write_text(config)

    def start(self, failpoints: str = "", env: dict[str, str] | None = None, **popen: Any) -> dict[str, Any]:
        """Start it and wait until it is ready. Raises NotStarted with its own error."""
        read, write = os.pipe()
        environment = os.environ | {"PAWL_FAILPOINTS": failpoints} | (env or {})
        with open(self.home.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pawl.daemon", "--home", self.home.path, "--report-fd", str(write)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=[write], **popen,
            )  # fmt: skip
        os.close(write)
        with os.fdopen(read) as report:
            line = report.readline()
        if not line:
            self.process.wait(30)
            raise NotStarted({"code": "died", "message": f"it died while starting: {self.log()[-2000:]}"})
        message = json.loads(line)
        if "error" in message:
            self.process.wait(30)
            raise NotStarted(message["error"])
        ready: dict[str, Any] = message["ready"]
        return ready

    def connect(self) -> Connection:
        return Connection(self.home.socket)

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

    def result(self, task_id: str) -> bytes:
        with self.connect() as connection:
            return b"".join(connection.stream("task.result", id=task_id)[0])

    def logs(self, task_id: str, stream: str = "stdout", follow: bool = False) -> bytes:
        with self.connect() as connection:
            return b"".join(connection.stream("task.logs", id=task_id, stream=stream, follow=follow)[0])

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def died(self, timeout_s: float = 30) -> int:
        """Wait until it ends by itself (a failpoint killed it). Returns its exit status."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def stop(self, *, cancel: bool = False) -> None:
        """Stop it as `pawl daemon stop` does, and wait for its end."""
        self.call("daemon.stop", cancel=cancel)
        assert self.process is not None
        assert self.process.wait(60) == 0

    def log(self) -> str:
        return Path(self.home.log).read_text(errors="replace")

    def close(self) -> None:
        """End the daemon and every worker it knows of."""
        if self.process is None:
            return
        if self.process.poll() is not None:
            try:
                self.start()
            except NotStarted:
                return
        self.stop(cancel=True)
