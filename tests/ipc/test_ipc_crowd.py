"""Many connections at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from harness.daemon import Daemon, until
from ipc.serving import Serving
from ipc.wire import Wire, code
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

        assert [[code(each) for each in found] for found in surplus] == [["protocol_error"]] * 3
        assert all(each and each["result"] == 1 for each in answers)
        assert answer is not None
        assert answer["result"] == 2

    run(scene())
