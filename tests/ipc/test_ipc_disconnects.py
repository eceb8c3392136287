"""Clients that leave in the middle: nothing waits for them any more, and the work goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.daemon import Daemon, until
from ipc.serving import Client, Serving
from ipc.wire import Wire, request
from pawl.ipc import server

Run = Callable[..., Any]


async def _close(client: Client) -> None:
    await client.close()


async def _stop_writing_and_close(client: Client) -> None:
    client.stop_writing()
    await client.close()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANGUP_LOOK_S", 0.01)


@pytest.mark.parametrize("leave", [_close, _stop_writing_and_close])
@pytest.mark.parametrize("count", [1, server.IN_FLIGHT_MAX, server.IN_FLIGHT_MAX + 50])
@pytest.mark.parametrize("method", ["wait", "follow", "pour"])
def test_what_only_waits_ends_with_its_client(
    method: str, count: int, leave: Callable[[Client], Any], serving: Serving, run: Run
) -> None:
    """No asyncio task is left, also where so much is under way that the connection is not read from."""

    async def scene() -> None:
        before = serving.tasks
        client = await serving.connect()
        client.stop_reading()
        client.send(b"".join(request(method, number) for number in range(count)))
        await serving.until(lambda: serving.begun >= min(count, server.IN_FLIGHT_MAX), "it does not begin")

        await leave(client)

        await serving.until(lambda: not serving.server.connections, "the connection stays")
        await serving.until(lambda: serving.tasks <= before, "a task is left")
        assert serving.ended.count(method) == serving.begun
        assert serving.server.partial_bytes == 0

    run(scene())


@pytest.mark.parametrize("leave", [_close, _stop_writing_and_close])
def test_what_changes_something_goes_on_without_its_client(
    leave: Callable[[Client], Any], serving: Serving, run: Run
) -> None:
    """A request that was accepted is carried out, whoever is there to hear of it."""

    async def scene() -> None:
        before = serving.tasks
        client = await serving.connect()
        client.ask("work", 1)
        await serving.until(lambda: serving.begun, "it does not begin")

        await leave(client)
        await serving.until(lambda: not serving.server.connections, "the connection stays")
        serving.opened.set()

        await serving.until(lambda: serving.tasks <= before, "a task is left")
        assert serving.ended == ["work done"]

    run(scene())


@pytest.mark.parametrize("early", [True, False])
def test_the_wait_behind_the_work_ends_with_its_client(early: bool, serving: Serving, run: Run) -> None:
    """As of ``task.delegate`` with ``wait``: the change is made, then nobody waits for nobody."""

    async def scene() -> None:
        before = serving.tasks
        client = await serving.connect()
        client.ask("work.wait", 1)
        await serving.until(lambda: serving.begun, "it does not begin")

        if early:
            await client.close()
            await serving.until(lambda: not serving.server.connections, "the connection stays")
            serving.opened.set()
        else:
            serving.opened.set()
            await serving.until(lambda: serving.ended, "it does not go on")
            await client.close()

        await serving.until(lambda: serving.tasks <= before, "a task is left")
        assert serving.ended[0] == "work done"

    run(scene())


def test_a_refused_frame_ends_what_only_waits(serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that ends on a fault of its client is not held open by a wait; work is answered first."""
    monkeypatch.setattr(server, "FRAME_BYTES_MAX", 1000)

    async def scene() -> None:
        client = await serving.connect()
        client.send(request("wait", 1) + request("work", 2))
        await serving.until(lambda: serving.begun == 2, "they do not begin")
        client.send(b"a" * 1001 + b"\n")
        await serving.until(lambda: "wait" in serving.ended, "it waits on")
        serving.opened.set()

        answers = await client.rest()

        assert [each["id"] for each in answers] == [None, 2]

    run(scene())


def test_a_stop_leaves_nothing_behind(serving: Serving, run: Run) -> None:
    """Work under way has a moment; waits and streams end; the socket is gone. Twice is harmless."""

    async def scene() -> None:
        before = serving.tasks
        client = await serving.connect()
        client.send(request("wait", 1) + request("pour", 2) + request("work", 3))
        client.stop_reading()
        await serving.until(lambda: serving.begun == 3, "it does not begin")
        serving.opened.set()

        await serving.server.stop()
        await serving.server.stop()
        await client.close()

        await serving.until(lambda: serving.tasks <= before, "a task is left")
        assert "work done" in serving.ended

    run(scene())


def test_the_daemon_keeps_nothing_of_clients_that_left(daemon: Daemon) -> None:
    """wait, logs -f, events -f, delegate --wait and result: its descriptors come back, and the tasks end as ever."""
    daemon.start()
    ended = daemon.delegate("sh", "head -c 8000000 /dev/zero", wait=True)
    release = daemon.home.path + "/release"
    loop = f"echo begun; until [ -e {release} ]; do sleep 0.02; done; echo over"
    running = daemon.delegate("sh", loop)
    before = psutil.Process(daemon.pid).num_fds()
    requests = [
        request("task.wait", 1, ids=[running["id"]]),
        request("task.logs", 1, id=running["id"], follow=True),
        request("event.list", 1, follow=True),
        request("task.delegate", 1, agent="sh", prompt=loop, wait=True),
        request("task.result", 1, id=ended["id"]),
    ]

    clients = [Wire(daemon.home.socket) for _ in requests * 4]
    for client, line in zip(clients, requests * 4, strict=True):
        client.send(line)
    until(lambda: len(daemon.call("task.list", statuses=["running"])) == 5, "what was asked for does not run")
    for client in clients:
        client.close()
    Path(release).touch()
    tasks = daemon.wait(*[task["id"] for task in daemon.call("task.list")])

    assert [task["status"] for task in tasks] == ["completed"] * 6
    assert daemon.result(running["id"]) == b"begun\nover\n"
    until(lambda: psutil.Process(daemon.pid).num_fds() <= before + 5, "descriptors stay open")
