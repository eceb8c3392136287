"""The client of the socket protocol (docs/reference/protocol.md): one connection, one call at a time.

``Client`` asks; ``through_restarts`` asks again on a new connection when the daemon went away in the middle
of a wait. On the command line's fast path: ``_socket``, not ``socket``.
"""

from __future__ import annotations

import os
import time
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket

from pawl import __version__
from pawl.cli.jsontext import dumps_ascii, loads
from pawl.errors import DaemonUnreachable, FrameTooLarge, PawlError, PeerRefused, RemoteError
from pawl.home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")

PROTOCOL = 1
REQUEST_BYTES_MAX = 8 * 1024 * 1024
TASKS_A_PAGE = 100
RECONNECT_S = 10.0  # how long a wait looks for the next daemon
_RECONNECT_STEP_S = 0.1
_RECV_BYTES = 256 * 1024
_TICK_S = 1.0


class ConnectionLost(DaemonUnreachable):
    """The daemon went away in the middle of a call. Whether a request was carried out is not known then."""


class Client:
    """A connection to the daemon of a home; opened by the first call.

    ``patience_s``: how long an answer may take; without it, for ever.
    """

    def __init__(self, home: Home, *, patience_s: float | None = None) -> None:
        self.home = home
        self._patience_s = patience_s
        self._socket: Socket | None = None
        self._buffer = bytearray()
        self._searched = 0  # so much of the buffer is known to hold no line end
        self._last_id = 0

    def call(self, method: str, **params: Any) -> Any:
        """The result of a call. Raises ``RemoteError`` for an error answer, ``DaemonUnreachable`` without a daemon."""
        stream = self.stream(method, **params)
        for _ in stream:
            pass
        return stream.result

    def stream(self, method: str, **params: Any) -> Stream:
        """A call whose answer comes in pieces."""
        self._last_id += 1
        request = _request(self._last_id, method, params)
        if len(request) > REQUEST_BYTES_MAX:
            raise FrameTooLarge(
                f"cannot send a request of {len(request)} bytes: the limit is {REQUEST_BYTES_MAX}; "
                "hand a large prompt over as a file (--input)",
                size_bytes=len(request), limit_bytes=REQUEST_BYTES_MAX,
            )  # fmt: skip
        self._send(request)
        return Stream(self, self._last_id)

    def open(self) -> None:
        """Connect and greet, without asking anything yet."""
        self._send(b"")
        for _ in Stream(self, 0):
            pass

    def _send(self, request: bytes) -> None:
        if self._socket is None:
            self._socket = connect(self.home, patience_s=self._patience_s)
            # The greeting and the request leave in one write: a call is one round trip.
            request = _request(0, "hello", {"protocol": PROTOCOL, "client": f"pawl/{__version__}"}) + request
        try:
            self._socket.settimeout(self._patience_s)
            self._socket.sendall(request)
        except OSError:
            pass  # closed by the daemon: an answer that says why may be there to read

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._buffer.clear()
            self._searched = 0

    def read(self) -> dict[str, Any]:
        """The next line from the daemon."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            self._buffer += self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        try:
            message = loads(line.decode())
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise self._lost("it sent something that is no answer")
        return message

    def _receive(self) -> bytes:
        if self._socket is None:
            raise self._lost("the connection is closed")
        until = None if self._patience_s is None else time.monotonic() + self._patience_s
        # Not one long wait: a Ctrl-C between Python's look for signals and the system call would be slept over.
        self._socket.settimeout(_TICK_S if self._patience_s is None else min(_TICK_S, self._patience_s))
        while True:
            try:
                data = self._socket.recv(_RECV_BYTES)
            except TimeoutError:
                if until is not None and time.monotonic() >= until:
                    raise self._lost(f"no answer within {self._patience_s:g} s") from None
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from error
            else:
                if not data:
                    raise self._lost("it closed the connection")
                return data

    def _lost(self, why: str) -> ConnectionLost:
        self.close()
        return ConnectionLost(
            f"lost the daemon of {self.home.path} in the middle of a call: {why}; "
            "see `pawl daemon status` and logs/daemon.log in the home",
            home=self.home.path, reason=why,
        )  # fmt: skip


class Stream:
    """The answer to one call: iterate over its pieces (``bytes`` or objects), then read ``result``."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._number = number
        self.result: Any = None

    def __iter__(self) -> Iterator[Any]:
        while True:
            message = self._client.read()
            number = message.get("id")
            if message.get("method") == "stream":
                params = message["params"]
                if params.get("id") == self._number:
                    yield _bytes(params["data"]) if "data" in params else params["item"]
            elif "error" in message and number in {self._number, 0, None}:
                raise _remote(message["error"])
            elif number == self._number:
                self.result = message.get("result")
                return


def connect(home: Home, *, patience_s: float | None = None) -> Socket:
    """A connected socket, after a look at whose it is."""
    path = home.socket
    check_owner(home, path)
    connection = Socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(patience_s)
    try:
        connection.connect(path)
    except PermissionError as error:
        raise _not_allowed(home, path) from error
    except OSError as error:
        connection.close()
        raise unreachable(home) from error
    return connection


def check_owner(home: Home, path: str) -> None:
    """Refuse a socket, or its directory, that another user could have put there to listen.

    Ours and root's are good; to root also those of the home's own owner, whose daemon answers root.
    """
    good = {os.geteuid(), 0}
    try:
        if os.geteuid() == 0:
            good.add(os.stat(home.path).st_uid)
        for place in (os.path.dirname(path), path):
            owner = os.lstat(place).st_uid if place == path else os.stat(place).st_uid
            if owner not in good:
                raise PeerRefused(
                    f"cannot trust {place}: it belongs to uid {owner}, and you are uid {os.geteuid()}",
                    path=place, owner=owner, uid=os.geteuid(),
                )  # fmt: skip
    except PermissionError as error:
        raise _not_allowed(home, path) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise unreachable(home) from error


def unreachable(home: Home) -> DaemonUnreachable:
    found, known = _database_versions(home)
    if found > known:
        return DaemonUnreachable(
            f"no daemon answers at {home.path}, and none can: its database has schema version {found}, this Pawl "
            f"knows {known}. Use the newer Pawl",
            home=home.path, found=found, known=known,
        )  # fmt: skip
    return DaemonUnreachable(
        f"no daemon answers at {home.path}: start one with `pawl daemon start{home_option(home)}`",
        home=home.path,
    )


def _database_versions(home: Home) -> tuple[int, int]:
    """The schema version in the file's header (SQLite's file format, 1.3.13), and the one that this program knows."""
    try:
        with open(home.database, "rb") as file:
            found = int.from_bytes(file.read(64)[60:64], "big")
    except OSError:
        return 0, 0
    if not found:
        return 0, 0
    from pawl.storage.database import newest_version

    return found, newest_version()


def home_option(home: Home) -> str:
    """What a command that is shown to the user has to say of the home: nothing where it is the usual one."""
    if home.path == Home().path:
        return ""
    plain = all(char.isalnum() or char in "/._-+@" for char in home.path)
    quoted = home.path if plain else "'" + home.path.replace("'", "'\\''") + "'"
    return f" --home {quoted}"


def listed(client: Client, most: int | None, **filters: Any) -> list[dict[str, Any]]:
    """``most`` tasks at most, newest first (None: all there are): page by page, so that no answer is too large."""
    found: list[dict[str, Any]] = []
    while most is None or len(found) < most:
        limit = TASKS_A_PAGE if most is None else min(TASKS_A_PAGE, most - len(found))
        behind = {"before": found[-1]["id"]} if found else {}
        page = client.call("task.list", **filters, limit=limit, **behind)
        found += page
        if len(page) < limit:
            break
    return found


def through_restarts(home: Home, act: Callable[[Client], T], *, patience_s: float = RECONNECT_S) -> T:
    """``act`` on a connection, and again on a new one when the daemon went away or is stopping meanwhile.

    For calls that only look: ``act`` may be run several times. Where no daemon comes back in time, the last
    error is raised with a word on the work, which goes on.
    """
    client = Client(home)
    while True:
        try:
            return act(client)
        except PawlError as error:
            if not _worth_waiting(error):
                raise
            client.close()
            client = _reconnected(home, error, patience_s)


def _worth_waiting(error: PawlError) -> bool:
    return isinstance(error, ConnectionLost) or error.code == "daemon_stopping"


def _reconnected(home: Home, error: PawlError, patience_s: float) -> Client:
    until = time.monotonic() + patience_s
    while True:
        time.sleep(_RECONNECT_STEP_S)
        client = Client(home)
        try:
            client.open()
        except PawlError as still:
            client.close()
            if not (_worth_waiting(still) or isinstance(still, DaemonUnreachable)):
                raise
            if time.monotonic() > until:
                raise DaemonUnreachable(
                    f"lost the daemon of {home.path}, and none came back within {patience_s:g} s: the work goes on "
                    f"without it; start one with `pawl daemon start{home_option(home)}`, then ask again",
                    home=home.path,
                ) from error
        else:
            return client


def _not_allowed(home: Home, path: str) -> PeerRefused:
    return PeerRefused(
        f"cannot reach the daemon of {home.path}: permission denied; only the home's owner and root may talk to it",
        home=home.path, path=path, uid=os.geteuid(),
    )  # fmt: skip


def _request(number: int, method: str, params: dict[str, Any]) -> bytes:
    return (dumps_ascii({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n").encode()


def _bytes(text: str) -> bytes:
    from binascii import a2b_base64  # a shared library of its own: half a millisecond that most calls can spare

    return a2b_base64(text)


def _remote(error: dict[str, Any]) -> RemoteError:
    data = error.get("data") or {}
    return RemoteError(
        str(data.get("code", "internal")),
        str(error.get("message", "the daemon refused")),
        int(data.get("exit", 1)),
        bool(data.get("retryable", False)),
        dict(data.get("details") or {}),
    )
