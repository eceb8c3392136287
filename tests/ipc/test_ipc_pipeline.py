"""Many requests on one connection: all are answered, and no more are under way than may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness.daemon import Daemon
from ipc.serving import Serving
from ipc.wire import Wire, request
from pawl.ipc import server

Run = Callable[..., Any]


def test_more_than_may_be_under_way_are_all_answered(serving: Serving, run: Run) -> None:
    """The surplus waits until others are answered; not one is lost, and not one is begun too early."""
    count = 3 * server.IN_FLIGHT_MAX

    async def scene() -> None:
        client = await serving.connect()
        client.send(b"".join(request("work", number) for number in range(count)))
        await serving.until(lambda: serving.begun >= server.IN_FLIGHT_MAX, "nothing begins")
        other = await serving.connect()
        other.ask("echo", "other")
        answer = await other.read()

        assert answer is not None
        assert answer["result"] == "other"
        assert serving.begun == server.IN_FLIGHT_MAX

        serving.opened.set()
        answers = [await client.read() for _ in range(count)]

        assert sorted(each["id"] for each in answers if each) == list(range(count))

    run(scene())


def test_answers_come_as_they_are_ready(serving: Serving, run: Run) -> None:
    """A request that takes long holds up none that came after it; the id tells which answer is whose."""

    async def scene() -> None:
        client = await serving.connect()
        client.send(request("wait", "slow") + request("echo", "quick"))

        first = await client.read()
        serving.opened.set()
        second = await client.read()

        assert [each and each["id"] for each in (first, second)] == ["quick", "slow"]

    run(scene())


def test_the_same_id_twice_is_answered_twice(serving: Serving, run: Run) -> None:
    """Ids are the client's; the daemon only gives them back."""

    async def scene() -> None:
        client = await serving.connect()
        client.send(request("echo", 1) * 2)

        answers = [await client.read(), await client.read()]

        assert [each and each["result"] for each in answers] == [1, 1]

    run(scene())


def test_others_have_their_turn_beside_a_flood_of_lines(serving: Serving, run: Run) -> None:
    """Ten thousand lines that arrive at once are worked off in turns and not in one go."""
    turns = 0

    async def scene() -> None:
        nonlocal turns
        client = await serving.connect()
        client.send(b"x\n" * 10_000 + request("echo", "end"))

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count_turns())
        answers = [await client.read() for _ in range(10_001)]
        counting.cancel()

        assert answers[-1] is not None
        assert answers[-1]["result"] == "end"
        assert turns > 10_000 / server._LINES_A_TURN

    run(scene())


@pytest.mark.parametrize("last", [b"", b"x\n"])
def test_a_client_that_only_stops_writing_gets_its_answers(last: bytes, serving: Serving, run: Run) -> None:
    """As a pipe into a socket tool does it: the writing side ends, the answers are read, then the connection ends."""

    async def scene() -> None:
        client = await serving.connect()
        client.send(b"".join(request("work", number) for number in range(200)) + last)
        client.stop_writing()
        await serving.until(lambda: serving.begun >= server.IN_FLIGHT_MAX, "nothing begins")
        serving.opened.set()

        answers = await client.rest()

        assert {each["id"] for each in answers} >= set(range(200))
        assert len(answers) == 200 + bool(last)

    run(scene())


def test_a_daemon_answers_a_thousand_calls_of_one_connection(harmless: Daemon) -> None:
    """The real one, with calls that read and calls that fail."""
    with Wire(harmless.home.socket) as client:
        lines = [request("task.list", number, limit=1 + number % 2) for number in range(500)]
        lines += [request("task.get", number, id="0" * 36) for number in range(500, 1000)]
        client.send(b"".join(lines))

        answers = client.answers(*range(1000))

        assert all("result" in answers[number] for number in range(500))
        assert all(answers[number]["error"]["data"]["code"] == "task_not_found" for number in range(500, 1000))


def test_a_status_named_twice_lists_a_task_once(harmless: Daemon) -> None:
    """A filter is a set: naming a state a thousand times is no way to a thousandfold answer."""
    task = harmless.delegate("cat", "x", queue_timeout_s=60, wait=True)

    found = harmless.call("task.list", statuses=["completed"] * 50)
    live = harmless.call("task.list", statuses=["queued", "running"] * 25)

    assert [each["id"] for each in found].count(task["id"]) == 1
    assert live == []
