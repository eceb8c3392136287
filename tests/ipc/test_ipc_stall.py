"""Clients that ask and do not read: they cost a bounded amount of memory, and nobody else's time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from harness.daemon import Daemon
from ipc.serving import Serving
from ipc.wire import HELLO, Wire, request
from pawl.ipc import server

MIB = 1024**2
Run = Callable[..., Any]


def test_stalled_readers_of_much_output_disturb_nobody(daemon: Daemon) -> None:
    """Of a result of 32 MiB only a few pieces wait in the daemon for a client that does not take them."""
    daemon.start()
    ended = daemon.delegate("sh", f"head -c {32 * MIB} /dev/zero", wait=True)
    running = daemon.delegate("sh", f"head -c {32 * MIB} /dev/zero; exec sleep 600")
    daemon.logs(ended["id"])
    process = psutil.Process(daemon.pid)
    before = process.memory_info().rss

    stalled = []
    for line in (
        request("task.result", 1, id=ended["id"]),
        request("task.logs", 1, id=ended["id"]),
        request("task.logs", 1, id=running["id"], follow=True),
    ):
        for _ in range(3):
            client = Wire(daemon.home.socket)
            client.send(line)
            first = client.read()
            assert first is not None
            assert first["method"] == "stream"
            stalled.append(client)
    most = 0
    with daemon.connect(timeout_s=10) as other:
        for _ in range(200):
            other.call("daemon.status")
            most = max(most, process.memory_info().rss)
    assert daemon.delegate("sh", "echo beside", wait=True)["status"] == "completed"
    daemon.cancel(running["id"])

    assert most - before < 40 * MIB
    for client in stalled:
        client.close()


@pytest.mark.parametrize(
    "line", [b"x\n", request("daemon.status", 1), request("hello", 1, protocol=1), request("task.list", 1, limit=1000)]
)
def test_a_flood_without_reading_is_not_taken_in(line: bytes, harmless: Daemon) -> None:
    """Where answers are not read no further requests are: the flood stops in the kernel, and memory does not grow."""
    process = psutil.Process(harmless.pid)
    harmless.call("daemon.status")
    before = process.memory_info().rss
    flood = line * 20_000
    sent = 0

    with Wire(harmless.home.socket) as client, harmless.connect(timeout_s=10) as other:
        client.socket.setblocking(False)
        quiet = 0
        while quiet < 50:  # so many answers to another client and not one byte taken in between
            try:
                sent += client.socket.send(flood)
                quiet = 0
            except BlockingIOError:
                quiet += 1
            other.call("daemon.status")
            assert sent < 32 * MIB
        grown = process.memory_info().rss - before

    assert grown < 40 * MIB


@pytest.mark.parametrize("method", ["pour", "big"])
def test_many_answers_wait_for_their_reader(method: str, serving: Serving, run: Run) -> None:
    """Of many calls on one connection one answer or piece at a time is ahead of the client, not all."""

    async def scene() -> None:
        client = await serving.connect()
        client.stop_reading()
        client.send(b"".join(request(method, number) for number in range(40)))
        await serving.until(lambda: serving.begun == 40, "they do not begin")
        (connection,) = serving.server.connections
        await serving.until(lambda: not connection._writable.is_set(), "nothing is written")
        for _ in range(1000):
            await asyncio.sleep(0)

        assert connection._transport.get_write_buffer_size() < 5 * MIB
        assert serving.poured < 4 * MIB

        client.start_reading()
        if method == "big":
            answers = [await client.read() for _ in range(40)]
            assert {each["id"] for each in answers if each} == set(range(40))
        await client.close()

    run(scene())


def test_a_client_that_reads_nothing_is_dropped(serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the stall time its connection is cut and its stream ends; another one beside it is served on."""
    monkeypatch.setattr(server, "STALL_S", 0.1)

    async def scene() -> None:
        other = await serving.connect()
        client = await serving.connect()
        client.stop_reading()
        client.ask("pour", 1)

        await serving.until(lambda: serving.ended == ["pour"], "it is not dropped")
        await serving.until(lambda: len(serving.server.connections) == 1, "the connection stays")
        other.ask("echo", 1)
        answer = await other.read()

        assert answer is not None
        assert answer["result"] == 1
        assert serving.poured < 4 * MIB
        await client.close()

    run(scene())


def test_a_client_that_reads_slowly_is_not_dropped(serving: Serving, run: Run) -> None:
    """Only who reads nothing from one look to the next is cut off, however long the whole takes."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        await loop.sock_connect(raw, serving.server.path)
        await loop.sock_sendall(raw, HELLO + request("big", 1))
        await serving.until(lambda: serving.begun, "it does not begin")
        (connection,) = serving.server.connections
        await serving.until(lambda: not connection._writable.is_set(), "nothing is written")

        before = connection._read_by_client()
        while connection._read_by_client() == before:
            await loop.sock_recv(raw, 65536)
            await asyncio.sleep(0)
        connection._drop_unless_read(before)
        slow_is_there = not connection._transport.is_closing()
        connection._drop_unless_read(connection._read_by_client())

        assert slow_is_there
        assert connection._transport.is_closing()
        raw.close()

    run(scene())
