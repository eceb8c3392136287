"""A plain client of the socket protocol, written from its page and not from our own client's code."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any


class Refused(Exception):
    """The daemon answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['data']['code']}: {error['message']}")
        self.code: str = error["data"]["code"]
        self.exit: int = error["data"]["exit"]
        self.details: dict[str, Any] = error["data"]["details"]
        self.message: str = error["message"]


class Connection:
    """One connection, one call at a time."""

    def __init__(self, path: str, timeout_s: float = 60.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        self._socket.connect(path)
        self._file = self._socket.makefile("rb")
        self._id = 0
        self.hello = self.call("hello", protocol=1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, method: str, **params: Any) -> int:
        """Send a request without waiting for its answer."""
        self._id += 1
        body = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._socket.sendall(json.dumps(body).encode() + b"\n")
        return self._id

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def read(self) -> dict[str, Any]:
        """The next line. Raises ConnectionError when the daemon closed."""
        line = self._file.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the daemon closed the connection")
        found: dict[str, Any] = json.loads(line)
        return found

    def call(self, method: str, **params: Any) -> Any:
        """The result of one call; stream pieces are dropped."""
        return self.stream(method, **params)[1]

    def stream(self, method: str, **params: Any) -> tuple[list[Any], Any]:
        """The pieces of a call (bytes or objects) and its result."""
        number = self.send(method, **params)
        pieces: list[Any] = []
        while True:
            message = self.read()
            if message.get("method") == "stream":
                piece = message["params"]
                pieces.append(base64.b64decode(piece["data"]) if "data" in piece else piece["item"])
            elif message.get("id") in (number, None) and "error" in message:
                raise Refused(message["error"])
            elif message.get("id") == number:
                return pieces, message["result"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()
