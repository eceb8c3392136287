"""The socket as bytes, and what every answer on it must be."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any

from pawl import errors

HELLO = b'{"jsonrpc":"2.0","id":"hello","method":"hello","params":{"protocol":1}}\n'
EXITS = {1, 2, 3, 4, 5, 6, 124}
RPC_CODES = {-32700, -32600, -32601, -32602, -32603, -32000}


def _tree(kind: type[errors.PawlError]) -> set[type[errors.PawlError]]:
    return {kind}.union(*(_tree(each) for each in kind.__subclasses__()))


CODES = {kind.code: kind for kind in sorted(_tree(errors.PawlError), key=lambda kind: len(kind.__mro__), reverse=True)}


def request(method: str, number: Any = None, **params: Any) -> bytes:
    """One request line; without a number it is a notification."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        body["id"] = number
    return json.dumps(body).encode() + b"\n"


def well_formed(message: dict[str, Any]) -> dict[str, Any]:
    """Check one document of the daemon's, whatever it answers, and return it."""
    assert message["jsonrpc"] == "2.0"
    if "method" in message:
        assert message["method"] == "stream"
        return message
    assert "id" in message
    assert ("result" in message) != ("error" in message), message
    if "error" in message:
        error = message["error"]
        data = error["data"]
        assert error["code"] in RPC_CODES
        assert isinstance(error["message"], str)
        assert error["message"]
        assert data["code"] in CODES, message
        assert data["code"] != "internal", message
        assert data["exit"] in EXITS
        assert data["exit"] == CODES[data["code"]].exit_code
        assert data["retryable"] is CODES[data["code"]].retryable
        assert isinstance(data["details"], dict)
    return message


class Wire:
    """A client that sends any bytes and reads documents."""

    def __init__(self, path: str, *, timeout_s: float = 30.0, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout_s)
        self.socket.connect(path)
        self._file = self.socket.makefile("rb")
        if greet:
            self.send(HELLO)
            assert (self.read() or {})["id"] == "hello"

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def send(self, data: bytes) -> bool:
        """Send; False where the daemon has closed already."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self) -> dict[str, Any] | None:
        """The next document, checked; None where the daemon closed."""
        try:
            line = self._file.readline()
        except ConnectionResetError:  # it closed with bytes of ours unread
            return None
        if not line:
            return None
        assert line.endswith(b"\n"), line[-200:]
        return well_formed(json.loads(line))

    def rest(self) -> list[dict[str, Any]]:
        """Every document up to the end of the connection."""
        return list(iter(self.read, None))

    def answers(self, *numbers: Any) -> dict[Any, dict[str, Any]]:
        """Read until all these requests are answered."""
        found: dict[Any, dict[str, Any]] = {}
        while not found.keys() >= set(numbers):
            message = self.read()
            assert message is not None, "it closed"
            if "method" not in message:
                assert message["id"] not in found, "answered twice"
                found[message["id"]] = message
        return found

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def code(message: dict[str, Any] | None) -> str:
    """The stable code of an error answer."""
    assert message is not None, "it closed without an answer"
    return str(message["error"]["data"]["code"])
