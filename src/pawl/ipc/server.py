"""The socket server: frames in, answers out, one ``Connection`` for each client.

A connection holds at most one unfinished frame, a bounded number of requests under way, and an output that is
bounded too: answers and streams wait until their client reads on, a client that does not read is asked nothing more
and is dropped in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pawl.errors import (
    FrameTooLarge,
    InternalError,
    InvalidParams,
    PawlError,
    PeerRefused,
    ProtocolError,
    ProtocolMismatch,
    TooManyConnections,
    UnknownMethod,
)
from pawl.ipc import messages
from pawl.ipc.peer import Peer, peer_of
from pawl.log import logger

PROTOCOL = 1
FRAME_BYTES_MAX = 8 * 1024 * 1024
PIECE_BYTES = 256 * 1024
IN_FLIGHT_MAX = 128
CONNECTIONS_MAX = 900
CONNECTIONS_OF_ONE_MAX = 64  # of one task; the operator alone may have more
CONNECTIONS_RESERVED = 100  # which all tasks together leave to the operator
STALL_S = 30.0  # without a frame's end, or without reading any of an answer
HANGUP_LOOK_S = 1.0  # how often to look whether a client is gone that is not being read from
_ID_CHARACTERS_MAX = 200  # every piece of a stream repeats it
_LINES_A_TURN = 128  # then the other connections have theirs
_SHOWN_MAX = 100  # characters of what a client sent that a message repeats
_PARTIAL_BYTES_MAX = 64 * 1024 * 1024  # unfinished frames of all connections together

log = logger("ipc")
_RPC_CODES = {
    ProtocolError: -32600, ProtocolMismatch: -32600, FrameTooLarge: -32600,
    UnknownMethod: -32601, InvalidParams: -32602, InternalError: -32603,
}  # fmt: skip


class Route(NamedTuple):
    """One call: the shape of its parameters and what it does.

    ``waits``: it may take for ever and changes nothing, so it ends when its client goes away.
    """

    params: type[messages.Params]
    handler: Callable[..., Awaitable[Any]]
    waits: bool = False


class Call(NamedTuple):
    """One request under way: who asks, and a way to send pieces before the answer."""

    caller: Any
    id: Any
    connection: Connection

    async def send(self, data: bytes) -> None:
        """Send bytes as stream pieces; waits while the client does not read."""
        for start in range(0, len(data), PIECE_BYTES):
            piece = b64encode(data[start : start + PIECE_BYTES]).decode()
            await self._stream({"id": self.id, "data": piece})

    async def send_item(self, item: dict[str, Any]) -> None:
        """Send one object as a stream piece."""
        await self._stream({"id": self.id, "item": item})

    async def _stream(self, params: dict[str, Any]) -> None:
        # waited for before and not behind: all streams of a connection together are then one piece ahead, not one each
        await self.connection.drain()
        self.connection.write({"jsonrpc": "2.0", "method": "stream", "params": params})

    def changes_nothing_more(self) -> None:
        """From here on the call only waits: it ends when its client goes away."""
        self.connection.changes_nothing_more()


class Server:
    """Listens on one path.

    ``hello`` is what the handshake answers beside the protocol version. ``identify`` says who a peer is; it is asked
    once, when the peer connects, for then its PID is surely its own. ``task_of`` says which task a caller is, or None
    for the operator: no task takes what the others need.
    """

    def __init__(
        self, path: str, routes: dict[str, Route], hello: dict[str, Any], identify: Callable[[Peer], Any],
        task_of: Callable[[Any], str | None],
    ) -> None:  # fmt: skip
        self.path = path
        self.identify = identify
        self._task_of = task_of
        self.routes = routes
        self.hello = {"protocol": PROTOCOL, **hello}
        self.connections: set[Connection] = set()
        self.partial_bytes = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Open the socket, private to the owner. A socket that a dead daemon left is replaced."""
        if os.path.lexists(self.path):
            os.unlink(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is never there with other rights, not even for a moment
        try:
            listener.bind(self.path)
        finally:
            os.umask(before)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self), sock=listener, backlog=512
        )

    def admit(self, connection: Connection, peer: Peer) -> Any:
        """Take a connection among those that are served. Returns who is calling, and sets ``connection.task``.

        Raises ``peer_refused`` and ``too_many_connections``. What is refused counts for nothing: it is about to close.
        """
        if peer.uid not in (0, os.geteuid()):
            raise PeerRefused(f"uid {peer.uid} may not talk to the daemon of uid {os.geteuid()}")
        caller = self.identify(peer)
        connection.task = self._task_of(caller)
        if connection.task is not None:
            self._refuse_crowd_of(connection.task)
        elif len(self.connections) >= CONNECTIONS_MAX:
            raise TooManyConnections(
                f"cannot take another connection: {CONNECTIONS_MAX} are open, and that is as many as the daemon "
                "serves; try again in a moment, or end some of the programs that are connected",
                limit=CONNECTIONS_MAX,
            )
        self.connections.add(connection)
        return caller

    def _refuse_crowd_of(self, task: str) -> None:
        tasks = Counter(each.task for each in self.connections if each.task is not None)
        if tasks[task] >= CONNECTIONS_OF_ONE_MAX:
            raise TooManyConnections(
                f"cannot take another connection of task {task}: it has {CONNECTIONS_OF_ONE_MAX} open, and one task "
                "may have no more; try again when a `pawl` that it started has ended",
                limit=CONNECTIONS_OF_ONE_MAX, task=task,
            )  # fmt: skip
        most = CONNECTIONS_MAX - CONNECTIONS_RESERVED
        if tasks.total() >= most or len(self.connections) >= CONNECTIONS_MAX:
            raise TooManyConnections(
                f"cannot take another connection of task {task}: all tasks together have {tasks.total()} open, and "
                f"{CONNECTIONS_RESERVED} are kept for the operator; try again in a moment",
                limit=most, task=task,
            )  # fmt: skip

    def relieve(self) -> None:
        """Where unfinished requests take too much memory together, those who hold the most of it go: first the task
        (or the operator) that does, and of its connections the one."""
        while self.partial_bytes > _PARTIAL_BYTES_MAX:
            held: Counter[str | None] = Counter()
            for each in self.connections:
                held[each.task] += each.partial_bytes
            most = max(held, key=lambda task: held[task])
            max((each for each in self.connections if each.task == most), key=lambda each: each.partial_bytes).refuse(
                FrameTooLarge(f"the unfinished requests of all clients have over {_PARTIAL_BYTES_MAX} bytes together")
            )

    async def stop(self) -> None:
        """Take no new requests, give those under way a moment, close. Twice is harmless."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        pending = [task for each in self.connections for task, waits in each.under_way.items() if not waits]
        if pending:
            await asyncio.wait(pending, timeout=2)
        for each in tuple(self.connections):
            for task in tuple(each.under_way):
                task.cancel()  # what it had stored is stored; its client asks the next daemon
            each.close()
        if os.path.lexists(self.path):
            os.unlink(self.path)


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._searched = 0
        self._greeted = False
        self._closing = False  # nothing more is read; what is under way is answered still
        self._gone = False  # nobody is there to answer
        self._eof = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._written = 0
        self._stall: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._hangup: asyncio.TimerHandle | None = None
        self._next_turn: asyncio.Handle | None = None
        self.under_way: dict[asyncio.Task[None], bool] = {}
        self._only_waiting: set[asyncio.Task[Any]] = set()
        self._transport: asyncio.Transport
        self._caller: Any = None
        self.task: str | None = None  # whose it is, if not the operator's

    @property
    def partial_bytes(self) -> int:
        """What it holds of requests that are not taken yet."""
        return len(self._buffer)

    # --- the transport's calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        try:
            peer = peer_of(transport.get_extra_info("socket"))
        except Exception as error:
            self.refuse(PeerRefused(f"cannot tell who is calling: {error}"))
            return
        try:
            self._caller = self._server.admit(self, peer)
        except PawlError as error:
            self.refuse(error)
        except Exception as error:  # a bug; a connection whose caller is not known may do nothing
            log.error("cannot tell who is calling", exc_info=error)
            self.refuse(InternalError(f"a bug in the daemon: {error!r}; see its log"))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._server.partial_bytes += len(data)
        self._buffer += data
        self._take_requests()
        self._server.relieve()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._transport.pause_reading()
        self._look_for_hangup_later()
        self._unread = asyncio.get_running_loop().call_later(STALL_S, self._drop_unless_read, self._read_by_client())

    def resume_writing(self) -> None:
        self._writable.set()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        self._take_requests()

    def eof_received(self) -> bool:
        """A client that only shut its writing side still gets its answers; one that is gone leaves nothing behind."""
        self._eof = True
        if not self.under_way or self._hung_up():
            return False
        self._look_for_hangup_later()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = self._gone = True
        self._server.connections.discard(self)
        self._forget_unfinished()
        self._writable.set()
        for timer in (self._stall, self._unread, self._hangup, self._next_turn):
            if timer is not None:
                timer.cancel()
        self._cancel_waits()
        for task in self._only_waiting:
            task.cancel()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take_requests(self) -> None:
        """Take what has arrived whole, as far as the client reads its answers and not too many are under way."""
        self._next_turn = None
        for _ in range(_LINES_A_TURN):
            if not self._ready():
                break
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._buffer)
                self._await_more()
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._server.partial_bytes -= end + 1
            self._searched = 0
            if len(line) > FRAME_BYTES_MAX:
                self.refuse(_too_large())
            elif line:
                self._frame(line)
        self._wait_with_reading()

    def _ready(self) -> bool:
        return not self._closing and self._writable.is_set() and len(self.under_way) < IN_FLIGHT_MAX

    def _await_more(self) -> None:
        """All that arrived whole is taken: read on, and bound what is there of the next."""
        if not self._eof:
            self._transport.resume_reading()
        if len(self._buffer) > FRAME_BYTES_MAX:
            self.refuse(_too_large())
        self._watch_unfinished(self._ready())

    def _wait_with_reading(self) -> None:
        """More may be there than is taken now: at the next turn, answer or read of the client it goes on."""
        self._watch_unfinished(False)
        if self._closing:
            return
        self._transport.pause_reading()
        self._look_for_hangup_later()
        if self._ready():
            self._next_turn = asyncio.get_running_loop().call_soon(self._take_requests)

    def _frame(self, line: bytes) -> None:
        """One line: a request, or the end of the connection."""
        request_id = None
        try:
            request = _read_frame(line)
            request_id = request.get("id")
            route = self._route(request, request_id)
            if route is None:
                return
            params = messages.read(route.params, request.get("params"))
        except PawlError as error:
            self._answer_error(request_id, error)
            if isinstance(error, ProtocolMismatch):
                self._close_after_answers()
            return
        task = asyncio.get_running_loop().create_task(self._run(route, request_id, params))
        self.under_way[task] = route.waits
        task.add_done_callback(self._done)

    def _route(self, request: dict[str, Any], request_id: Any) -> Route | None:
        method = request["method"]
        if method == "hello":
            asked = messages.read(messages.Hello, request.get("params"))
            if asked.protocol != PROTOCOL:
                raise ProtocolMismatch(
                    f"this daemon speaks protocol {PROTOCOL}, the client asked for {asked.protocol}: "
                    "restart the daemon with the Pawl that you call",
                    daemon=PROTOCOL, client=asked.protocol,
                )  # fmt: skip
            self._greeted = True
            self.write({"jsonrpc": "2.0", "id": request_id, "result": self._server.hello})
            return None
        if not self._greeted:
            raise ProtocolError("the first request must be hello")
        route = self._server.routes.get(method)
        if route is None:
            raise UnknownMethod(f"this daemon has no method {method[:_SHOWN_MAX]!r}", method=method[:_SHOWN_MAX])
        return route

    async def _run(self, route: Route, request_id: Any, params: messages.Params) -> None:
        try:
            result = await route.handler(Call(self._caller, request_id, self), params)
            await self.drain()
            if request_id is not None:
                self.write({"jsonrpc": "2.0", "id": request_id, "result": result})
        except PawlError as error:
            await self.drain()
            self._answer_error(request_id, error)
        except Exception as error:
            log.error("a request failed", exc_info=error)
            await self.drain()
            self._answer_error(request_id, InternalError(f"a bug in the daemon: {error!r}; see its log"))

    def changes_nothing_more(self) -> None:
        """The request of this very asyncio task only waits from here on."""
        task = asyncio.current_task()
        assert task is not None
        self._only_waiting.add(task)
        if self._gone:
            raise asyncio.CancelledError

    def _done(self, task: asyncio.Task[None]) -> None:
        self.under_way.pop(task, None)
        self._only_waiting.discard(task)
        if not self.under_way and (self._closing or self._eof):
            self._transport.close()
        elif len(self.under_way) == IN_FLIGHT_MAX - 1 and self._next_turn is None:
            self._take_requests()

    # --- answers ----------------------------------------------------------------------------------------------------

    def write(self, message: dict[str, Any]) -> None:
        """Send one document. An answer over the frame limit becomes an error."""
        if self._transport.is_closing():
            return
        line = json.dumps(message, separators=(",", ":")).encode()
        if len(line) > FRAME_BYTES_MAX:
            error = FrameTooLarge(
                f"the answer has {len(line)} bytes, over the limit of {FRAME_BYTES_MAX}: ask for less, or page by page"
            )
            line = json.dumps(_error(message.get("id"), error)).encode()
        self._written += len(line) + 1
        self._transport.write(line + b"\n")

    async def drain(self) -> None:
        """Wait until the client has read enough. Raises CancelledError when it went away."""
        while not self._writable.is_set():  # again, for whoever was woken before may have filled it up
            await self._writable.wait()
        if self._gone:
            raise asyncio.CancelledError

    def close(self) -> None:
        """Close once what was written is sent."""
        self._closing = self._gone = True
        self._cancel_waits()
        self._transport.close()

    def refuse(self, error: PawlError) -> None:
        """Say why, read no more, close when the other requests are answered."""
        self._forget_unfinished()
        self._answer_error(None, error)
        self._close_after_answers()

    def _answer_error(self, request_id: Any, error: PawlError) -> None:
        self.write(_error(request_id, error))

    def _close_after_answers(self) -> None:
        self._closing = True
        self._cancel_waits()  # they may take for ever
        if not self.under_way:
            self._transport.close()

    def _cancel_waits(self) -> None:
        for task, waits in self.under_way.items():
            if waits:
                task.cancel()

    def _forget_unfinished(self) -> None:
        self._server.partial_bytes -= len(self._buffer)
        self._buffer.clear()
        self._searched = 0

    # --- clients that stop reading, stop writing, or leave ------------------------------------------------------------

    def _watch_unfinished(self, watch: bool) -> None:
        """A frame that never ends does not stay for ever."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if watch and self._buffer:
            error = ProtocolError(f"a request did not go on for {STALL_S:g} s")
            self._stall = asyncio.get_running_loop().call_later(STALL_S, self.refuse, error)

    def _read_by_client(self) -> int:
        return self._written - self._transport.get_write_buffer_size()

    def _drop_unless_read(self, before: int) -> None:
        """Drop a client that read nothing since the last look."""
        read = self._read_by_client()
        if read == before:
            self._transport.abort()
        else:
            self._unread = asyncio.get_running_loop().call_later(STALL_S, self._drop_unless_read, read)

    def _look_for_hangup_later(self) -> None:
        """The loop sees a client leave by reading from it. While it does not read, somebody has to look."""
        if self._hangup is None and not self._gone:
            self._hangup = asyncio.get_running_loop().call_later(HANGUP_LOOK_S, self._look_for_hangup)

    def _look_for_hangup(self) -> None:
        self._hangup = None
        if self._hung_up():
            self._transport.abort()
        elif self._eof or not self._transport.is_reading():
            self._look_for_hangup_later()

    def _hung_up(self) -> bool:
        """Whether the client closed its end, and not only its writing side."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def _read_frame(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a line is not JSON: {error}") from None
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        raise ProtocolError('a line is not a request: it needs "jsonrpc": "2.0" and a "method"')
    match request.get("id"):
        case None:
            pass
        case str() as text if len(text) <= _ID_CHARACTERS_MAX:
            pass
        case int() as number if not isinstance(number, bool) and number.bit_length() < 64:
            pass
        case _:
            raise ProtocolError(
                f"the id of a request is text of up to {_ID_CHARACTERS_MAX} characters or a whole number of 64 bits"
            )
    return request


def _error(request_id: Any, error: PawlError) -> dict[str, Any]:
    details: Any = json.loads(json.dumps(error.details, default=str))
    data = {"code": error.code, "exit": error.exit_code, "retryable": error.retryable, "details": details}
    code = next((number for kind, number in _RPC_CODES.items() if type(error) is kind), -32000)
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "error": {"code": code, "message": error.message, "data": data},
    }


def _too_large() -> FrameTooLarge:
    return FrameTooLarge(f"a request may have {FRAME_BYTES_MAX} bytes; hand large prompts over as files (--input)")
