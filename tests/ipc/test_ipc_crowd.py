"""Many connections at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from harness.daemon import Daemon, until
from ipc.serving import Serving
from ipc.wire import HELLO, Wire, code, request
from pawl.ipc import server


def test_two_hundred_idle_connections_disturb_nobody(harmless: Daemon) -> None:
    """Calls and tasks go on beside them, and when they leave every descriptor is back."""
    process = psutil.Process(harmless.pid)
    harmless.delegate("cat", "warm", wait=True)
    before = process.num_fds()

    idle = [Wire(harmless.home.socket, greet=number % 2 == 0) for number in range(200)]
    for client in idle[::4]:
        client.send(b'{"jsonrpc":')
    until(lambda: process.num_fds() >= before + 190, "not all are connected")
    started = time.monotonic()
    task = harmless.delegate("cat", "beside", wait=True)
    output = harmless.result(task["id"])
    took_s = time.monotonic() - started
    for client in idle:
        client.close()

    assert output == b"beside"
    assert took_s < 10
    until(lambda: process.num_fds() <= before + 5, "descriptors stay open")


def test_a_connection_too_many_is_told_and_closed(
    serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are there stay; when one leaves there is room again."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 5)

    async def scene() -> None:
        there = [await serving.connect() for _ in range(5)]

        surplus = [await (await serving.connect(greet=False)).rest() for _ in range(3)]
        for client in there:
            client.ask("echo", 1)
        answers = [await client.read() for client in there]
        await there[0].close()
        await serving.until(lambda: len(serving.server.connections) == 4, "it does not leave")
        another = await serving.connect()
        another.ask("echo", 2)
        answer = await another.read()

        assert [[code(each) for each in found] for found in surplus] == [["too_many_connections"]] * 3
        assert all(each and each["result"] == 1 for each in answers)
        assert answer is not None
        assert answer["result"] == 2

    run(scene())


def test_tasks_leave_room_for_the_operator(
    serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task has its own few, all tasks together leave the reserve, and who is refused takes no place."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 6)
    monkeypatch.setattr(server, "CONNECTIONS_RESERVED", 2)
    monkeypatch.setattr(server, "CONNECTIONS_OF_ONE_MAX", 3)

    async def connected(task: str | None, count: int) -> int:
        """How many of so many are taken."""
        serving.task = task
        found = []
        for _ in range(count):
            client = await serving.connect(greet=False)
            client.send(HELLO)
            there.append(client)
            found.append(await client.read() or {})
        refused = [each for each in found if "error" in each]
        assert {code(each) for each in refused} <= {"too_many_connections"}
        assert all(each["error"]["data"]["retryable"] for each in refused)
        return count - len(refused)

    async def scene() -> None:
        assert [await connected(task, 10) for task in ("a", "b", "c")] == [3, 1, 0]
        assert await connected(None, 3) == 2
        await there[0].close()
        await serving.until(lambda: len(serving.server.connections) == 5, "it does not leave")
        assert [await connected("c", 2), await connected(None, 2)] == [1, 0]

    there: list[Any] = []
    run(scene())


def test_the_memory_of_unfinished_requests_is_taken_from_who_holds_most(
    serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task with many of medium size goes before an operator with one that is large."""
    monkeypatch.setattr(server, "_PARTIAL_BYTES_MAX", 1_000_000)

    async def scene() -> None:
        operator = await serving.connect()
        operator.send(b" " * 400_000)
        await serving.until(lambda: serving.server.partial_bytes == 400_000, "it does not arrive")
        serving.task = "greedy"
        greedy = [await serving.connect() for _ in range(3)]
        for client in greedy:
            client.send(b" " * 250_000)
        await serving.until(lambda: len(serving.server.connections) == 3, "nobody has to go")
        operator.send(b"\n" + request("echo", 7))
        while (answer := await operator.read() or {}).get("id") != 7:
            pass
        assert answer["result"] == 7

    run(scene())
