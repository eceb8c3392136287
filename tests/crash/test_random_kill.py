"""Kill -9 at random moments under load, again and again, and then look for lies.

``PAWL_KILL_ROUNDS`` says how often (12), ``PAWL_KILL_SEED`` with which seed; the seed is printed, and with it the
moments and the load are the same again, as far as a kernel's scheduler lets them be.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
import time
from typing import NamedTuple

from harness import rows
from harness.client import Connection, Refused
from harness.daemon import Daemon
from harness.invariants import processes_of
from pawl.control_plane.model import Task

_ROUNDS = int(os.environ.get("PAWL_KILL_ROUNDS", "12"))
_SEED = int(os.environ.get("PAWL_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
_CLIENTS = 4
_CONFIG = """
[daemon]
max_concurrent = 12
kill_grace = "500ms"
shutdown_grace = "0s"
heartbeat_interval = "300ms"

[agents.sh]
command = ["sh", "-c"]
prompt = "argument"
max_concurrent = 8
"""


class Asked(NamedTuple):
    """One request of a client: what was asked, and the id that was answered, if any was."""

    kind: str
    agent: str
    prompt: str
    key: str | None
    task_id: str | None


class Client(threading.Thread):
    """Asks for this and that until it is told to stop; a dead daemon is waited for."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        super().__init__(name=name)
        self.asked: list[Asked] = []
        self.cancelled: dict[str, str] = {}
        self.done = threading.Event()
        self.faults: list[str] = []
        self._home = daemon.home
        self._random = random.Random(f"{_SEED} {name}")
        self._number = 0

    def run(self) -> None:
        try:
            while not self.done.is_set():
                with contextlib.suppress(OSError, ConnectionError), Connection(self._home.socket, 20) as connection:
                    while not self.done.is_set():
                        self._step(connection)
                time.sleep(0.01)
        except BaseException as error:
            self.faults.append(repr(error))

    def _step(self, connection: Connection) -> None:
        what = self._random.random()
        known = [each.task_id for each in self.asked if each.task_id]
        if what < 0.15 and known:
            self._cancel(connection, self._random.choice(known[-20:]))
        elif what < 0.25 and known:
            connection.call("task.get", id=self._random.choice(known))
        elif what < 0.35 and self._last_key() is not None:
            self._ask_again(connection)
        else:
            self._ask(connection)
        time.sleep(self._random.random() * 0.02)

    def _ask(self, connection: Connection) -> None:
        self._number += 1
        mark = f"{self.name}-{self._number}"
        kind = self._random.choices(("echo", "short", "sleep", "fail", "big"), (8, 6, 2, 2, 1))[0]
        prompt = {
            "echo": f"text of {mark}\n",
            "short": f"echo {mark}; echo error {mark} >&2",
            "sleep": f"echo {mark}; exec sleep {self._random.choice((1, 2, 600))}",
            "fail": f"echo {mark}; exit 3",
            "big": f"yes {mark} | head -n 20000",
        }[kind]
        key = mark if self._random.random() < 0.5 else None
        self._delegate(connection, Asked(kind, "echo" if kind == "echo" else "sh", prompt, key, None))

    def _ask_again(self, connection: Connection) -> None:
        """The same request with the same key: the same id, whatever happened in between."""
        asked = self._last_key()
        assert asked is not None
        self._delegate(connection, asked._replace(task_id=None))

    def _last_key(self) -> Asked | None:
        return next((each for each in reversed(self.asked) if each.key), None)

    def _delegate(self, connection: Connection, asked: Asked) -> None:
        at = len(self.asked)
        self.asked.append(asked)
        retries = 1 if asked.kind == "fail" else 0
        task = connection.call(
            "task.delegate", agent=asked.agent, prompt=asked.prompt, retries=retries,
            **({"idempotency_key": asked.key} if asked.key else {}),
        )  # fmt: skip
        self.asked[at] = asked._replace(task_id=task["id"])

    def _cancel(self, connection: Connection, task_id: str) -> None:
        try:
            (answer,) = connection.call("task.cancel", ids=[task_id])
        except Refused as refused:
            if refused.code != "storage_error":
                raise
        else:
            self.cancelled[task_id] = answer["outcome"]


def test_random_kill(daemon: Daemon) -> None:
    """Whatever was acknowledged is there, ended once or runs; no output is missing or altered; nothing runs that should
    not; no key ever gave two ids; and every invariant holds."""
    print(f"PAWL_KILL_SEED={_SEED} PAWL_KILL_ROUNDS={_ROUNDS}")
    moments = random.Random(_SEED)
    daemon.configure(_CONFIG)
    clients = [Client(daemon, f"c{number}") for number in range(_CLIENTS)]
    daemon.start()
    for client in clients:
        client.start()
    try:
        for _ in range(_ROUNDS):
            time.sleep(moments.random() * 0.8)
            daemon.kill()
            for _ in range(moments.choice((0, 0, 0, 1, 2))):  # now and then in the middle of starting
                daemon.begin()
                time.sleep(moments.random() * 0.12)
                daemon.kill()
            daemon.start()
    finally:
        for client in clients:
            client.done.set()
        for client in clients:
            client.join(60)

    assert [fault for client in clients for fault in client.faults] == []
    _end_all(daemon)
    tasks = {task.id: task for task in rows.tasks(daemon.home)}
    for client in clients:
        _check_client(daemon, client, tasks)
    assert {task.id: rows.ends_of(daemon.home, task.id) for task in tasks.values()} == {
        task.id: [task.status] for task in tasks.values()
    }
    assert processes_of(daemon.home) == {}
    assert daemon.call("event.verify")["intact"]
    assert {"completed", "failed", "cancelled"} <= {task.status for task in tasks.values()}


def _end_all(daemon: Daemon) -> None:
    """Let what ends by itself end, and cancel the long sleeps."""
    while running := daemon.call("task.list", statuses=["queued", "running"], all=True):
        for task in running:
            if rows.task(daemon.home, task["id"]).prompt.endswith(b"600"):
                daemon.cancel(task["id"])
        daemon.call("task.wait", ids=[task["id"] for task in running][:1000], timeout_s=1)


def _check_client(daemon: Daemon, client: Client, tasks: dict[str, Task]) -> None:
    ids: dict[str, set[str]] = {}
    for asked in client.asked:
        if asked.task_id is None:
            continue
        task = tasks[asked.task_id]  # KeyError: an acknowledged task is gone
        assert task.prompt.decode() == asked.prompt
        ids.setdefault(asked.key or asked.task_id, set()).add(task.id)
        _check_task(daemon, task, asked)
    assert all(len(found) == 1 for found in ids.values()), ids
    for task_id, outcome in client.cancelled.items():
        status = tasks[task_id].status
        assert outcome in (f"already_{status}", "cancelled" if status == "cancelled" else "")


def _check_task(daemon: Daemon, task: Task, asked: Asked) -> None:
    mark = asked.prompt.split()[1].rstrip(";")
    whole = {
        "echo": asked.prompt,
        "short": f"{mark}\n",
        "sleep": f"{mark}\n",
        "fail": f"{mark}\n",
        "big": f"{mark}\n" * 20000,
    }[asked.kind].encode()
    allowed = {
        "echo": {"completed", "lost", "failed", "cancelled"},  # it dies with its daemon: lost, or its bytes are
        "short": {"completed", "lost", "cancelled"},  # lost: never begun
        "sleep": {"completed", "lost", "cancelled"},
        "fail": {"failed", "lost", "cancelled"},
        "big": {"completed", "lost", "cancelled"},
    }[asked.kind]
    assert task.status in allowed, (task, asked)
    if task.status == "failed":
        assert task.error_code == ("exit_code" if asked.kind == "fail" else "settlement_failed")
    output = daemon.result(task.id)
    if task.status == "completed" or task.error_code == "exit_code":
        assert hashlib.sha256(output).digest() == hashlib.sha256(whole).digest(), (task, len(output), len(whole))
    else:
        assert whole.startswith(output), (task, output[:100])
