"""A daemon of straw: a thread on a unix socket that speaks the protocol and answers what a test tells it to."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from pawl.home import Home

TASK_ID = "0193f2a1-7c3b-7abc-8def-0123456789ab"
OTHER_ID = "0193f2a1-7c3b-7abd-8def-0123456789ac"


class Refusal(Exception):
    """An error answer."""

    def __init__(self, code: str, message: str, exit_code: int, **details: object) -> None:
        self.error = {
            "code": -32000,
            "message": message,
            "data": {"code": code, "exit": exit_code, "retryable": False, "details": details},
        }


class Hangup(Exception):
    """Close the connection in the middle of a call."""


class Asked:
    """One request, and a way to send pieces before its answer."""

    def __init__(self, connection: socket.socket, number: int, params: dict[str, Any]) -> None:
        self.params = params
        self._connection = connection
        self._number = number

    def data(self, data: bytes) -> None:
        self._piece({"data": base64.b64encode(data).decode()})

    def item(self, item: dict[str, Any]) -> None:
        self._piece({"item": item})

    def _piece(self, piece: dict[str, Any]) -> None:
        send(self._connection, {"method": "stream", "params": {"id": self._number, **piece}})


Answer = Callable[[Asked], Any]


class FakeDaemon:
    """``answers`` maps a method to what answers it; ``asked`` keeps every request but the greetings."""

    def __init__(self, home: Home, answers: dict[str, Answer]) -> None:
        self.home = home
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.greetings: list[dict[str, Any]] = []
        self.first_bytes: list[bytes] = []
        self.connections: list[socket.socket] = []
        self.listener: socket.socket | None = None

    def start(self) -> FakeDaemon:
        self.home.prepare()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.home.socket)
        self.listener.listen(16)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()
        return self

    def stop(self) -> None:
        """As if it were killed: everything is closed, the socket's file stays unless there is none."""
        if self.listener is not None:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.listener = None
            os.unlink(self.home.socket)
        for connection in self.connections:
            hang_up(connection)
        self.connections.clear()

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]

    def params(self, method: str) -> dict[str, Any]:
        """The parameters of the last request of that method."""
        return [params for name, params in self.asked if name == method][-1]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = b""
        try:
            while data := connection.recv(65536):
                if not buffer:
                    self.first_bytes.append(data)
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    self._answer(connection, json.loads(line))
        except (OSError, Hangup):
            hang_up(connection)

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        method, number, params = request["method"], request["id"], request["params"]
        if method == "hello":
            self.greetings.append(params)
        else:
            self.asked.append((method, params))
        try:
            result = self.answers[method](Asked(connection, number, params))
        except Refusal as refusal:
            send(connection, {"id": number, "error": refusal.error})
        else:
            send(connection, {"id": number, "result": result})


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall((json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode())


def hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def hello(asked: Asked) -> dict[str, Any]:
    return {"protocol": 1, "daemon": "0.1.0", "pid": os.getpid(), "home": "/somewhere"}


def always(value: Any) -> Answer:
    """The same answer whatever is asked."""
    return lambda asked: value


def refuse(code: str, message: str, exit_code: int, **details: object) -> Answer:
    def answer(asked: Asked) -> Any:
        raise Refusal(code, message, exit_code, **details)

    return answer


def task(**changes: Any) -> dict[str, Any]:
    """A completed task as the daemon shows it."""
    return {
        "id": TASK_ID, "kind": "delegate", "agent": "coder", "status": "completed", "priority": 0,
        "created_at": "2026-01-31T09:30:00.000Z", "started_at": "2026-01-31T09:30:01.000Z",
        "finished_at": "2026-01-31T09:33:06.000Z", "heartbeat_at": None, "deadline_at": None,
        "owner": {"pid": 4711, "started": "1", "boot_id": "b"}, "worker": {"pid": 4720, "started": "2"},
        "parent_id": None, "goal_id": None, "depth": 0, "creator": "operator", "chain": [], "principal": "uid:1000",
        "attempt": 1, "retry_of": None, "retries_left": 0, "idempotency_key": None, "labels": {}, "cwd": "/tmp",
        "exit_code": 0, "error": None, "output": {"sha256": "0" * 64, "size_bytes": 12, "path": "/x"}, "stderr": None,
        "truncated": False, "leftovers": None, "usage": None, "delivered": False, "source": {"type": "cli"},
        **changes,
    }  # fmt: skip


def event(seq: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "seq": seq, "at": "2026-01-31T09:30:00.000Z", "actor": "uid:1000", "subject_kind": "task",
        "subject_id": TASK_ID, "event": "submitted", "from": None, "to": "running", "reason": None, "details": None,
        "hash": "0" * 64, **changes,
    }  # fmt: skip


def overview(**changes: Any) -> dict[str, Any]:
    daemon = {
        "pid": 4711, "started_at": "2026-01-31T09:30:00.000Z", "version": "0.1.0", "home": "/somewhere",
        "socket": "/somewhere/run/daemon.sock", "recovery": {"adopted": 2, "lost": 1, "kept": 0},
    }  # fmt: skip
    answer = {"daemon": daemon, "tasks": {"running": 1, "completed": 3}, "cron": {}, "sop": {}, "work": {}}
    return {**answer, "findings": [], **changes}


def waited(*completed: dict[str, Any], pending: tuple[str, ...] = (), missing: tuple[str, ...] = ()) -> dict[str, Any]:
    """The answer of ``task.wait``."""
    return {
        "status": "timeout" if pending else "complete",
        "completed": list(completed),
        "pending": list(pending),
        "missing": list(missing),
    }


def streamed(end: dict[str, Any], *pieces: bytes) -> Answer:
    """Pieces, then the end."""

    def answer(asked: Asked) -> dict[str, Any]:
        for piece in pieces:
            asked.data(piece)
        return end

    return answer
