"""A real ``Server`` on a real socket in this process, with calls that do what a test tells them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ipc.wire import HELLO, request, well_formed
from pawl.ipc import messages
from pawl.ipc.peer import Peer
from pawl.ipc.server import Call, Route, Server


class Serving:
    """``echo`` answers, ``wait`` waits, ``work`` works and then waits, ``pour`` streams, ``big`` answers with much."""

    def __init__(self, path: str) -> None:
        self.opened = asyncio.Event()  # lets every waiting call end
        self.begun = 0
        self.ended: list[str] = []
        self.poured = 0
        routes = {
            "echo": Route(messages.Nothing, self._echo),
            "wait": Route(messages.Nothing, self._wait, waits=True),
            "work": Route(messages.Nothing, self._work),
            "work.wait": Route(messages.Nothing, self._work_and_wait),
            "pour": Route(messages.Nothing, self._pour, waits=True),
            "follow": Route(messages.Nothing, self._follow, waits=True),
            "big": Route(messages.Nothing, self._big),
        }
        self.server = Server(path, routes, {}, self.identify, self.task_of)
        self.task: str | None = None  # as which the next ones connect

    def identify(self, peer: Peer) -> Any:
        return peer

    def task_of(self, caller: Any) -> str | None:
        return self.task

    @property
    def tasks(self) -> int:
        """How many asyncio tasks there are beside the test's own."""
        return len(asyncio.all_tasks()) - 1

    async def connect(self, *, greet: bool = True) -> Client:
        client = Client(*await asyncio.open_unix_connection(self.server.path, limit=64 * 1024**2))
        if greet:
            client.send(HELLO)
            assert (await client.read() or {})["id"] == "hello"
        return client

    async def until(self, true: Callable[[], Any], what: str, timeout_s: float = 20.0) -> None:
        """Let the loop turn until something is true."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not true():
            assert loop.time() < deadline, what
            await asyncio.sleep(0.001)

    async def _echo(self, call: Call, params: messages.Nothing) -> Any:
        return call.id

    async def _wait(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        try:
            await self.opened.wait()
        finally:
            self.ended.append("wait")
        return "waited"

    async def _work(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        await self.opened.wait()
        self.ended.append("work done")
        return "worked"

    async def _work_and_wait(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        await self.opened.wait()
        self.ended.append("work done")
        call.changes_nothing_more()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("wait")

    async def _pour(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        try:
            for _ in range(128):
                await call.send(bytes(256 * 1024))
                self.poured += 256 * 1024
        finally:
            self.ended.append("pour")
        return "poured"

    async def _follow(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        try:
            await call.send_item({"seq": 1})
            await asyncio.Event().wait()
        finally:
            self.ended.append("follow")

    async def _big(self, call: Call, params: messages.Nothing) -> Any:
        self.begun += 1
        return "x" * (4 * 1024**2)


class Client:
    """A client on the same loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def sent(self) -> None:
        """Wait until most of it is on its way, or nobody takes it any more."""
        with suppress(OSError):
            await self._writer.drain()

    def ask(self, method: str, number: Any = None) -> None:
        self.send(request(method, number))

    async def read(self) -> dict[str, Any] | None:
        """The next document, checked; None where the server closed."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), 20)
        except ConnectionResetError:
            return None
        return well_formed(json.loads(line)) if line else None

    async def rest(self) -> list[dict[str, Any]]:
        found = []
        while (message := await self.read()) is not None:
            found.append(message)
        return found

    def stop_writing(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    def stop_reading(self) -> None:
        """Read nothing any more, as a stalled client; what the kernel holds stays there."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def start_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
