"""Frames: how requests arrive, and how much of them the daemon holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ipc.serving import Serving
from ipc.wire import HELLO, Wire, code, request
from pawl.ipc import server

Run = Callable[..., Any]


def _holds(serving: Serving, size: int) -> bool:
    return serving.server.partial_bytes == size


def padded(size: int, number: int) -> bytes:
    """A request for ``echo`` of exactly so many bytes before its line end."""
    short = request("echo", number).rstrip(b"\n")
    return short + b" " * (size - len(short)) + b"\n"


def test_a_frame_of_exactly_the_limit_is_taken(serving: Serving, run: Run) -> None:
    """The limit is a size that may be used."""

    async def scene() -> None:
        client = await serving.connect()
        client.send(padded(server.FRAME_BYTES_MAX, 1) + request("echo", 2))

        answers = [await client.read(), await client.read()]

        assert [answer and answer["result"] for answer in answers] == [1, 2]
        assert serving.server.partial_bytes == 0

    run(scene())


def test_one_byte_over_the_limit_is_refused(serving: Serving, run: Run) -> None:
    """The error comes first, then the end of the connection; what follows the frame is not done."""

    def over() -> list[str]:
        with Wire(serving.server.path) as client:
            client.send(padded(server.FRAME_BYTES_MAX + 1, 1) + request("work", 2))
            return [code(each) for each in client.rest()]

    async def scene() -> None:
        assert await asyncio.to_thread(over) == ["frame_too_large"]
        assert serving.begun == 0
        await serving.until(lambda: not serving.server.connections, "the connection stays")
        assert serving.server.partial_bytes == 0

    run(scene())


def test_a_frame_that_never_ends_is_cut_off_at_the_limit(serving: Serving, run: Run) -> None:
    """It is refused as soon as it is over the limit, and held no longer."""

    def endless() -> list[str]:
        with Wire(serving.server.path) as client:
            for _ in range(4 * server.FRAME_BYTES_MAX // 65536):
                held.append(serving.server.partial_bytes)
                if not client.send(b"a" * 65536):
                    return [code(each) for each in client.rest()]
        return ["it takes everything"]

    held: list[int] = []

    async def scene() -> None:
        assert await asyncio.to_thread(endless) == ["frame_too_large"]
        assert server.FRAME_BYTES_MAX / 2 < max(held) <= server.FRAME_BYTES_MAX + 256 * 1024
        await serving.until(lambda: not serving.server.connections, "the connection stays")
        assert serving.server.partial_bytes == 0

    run(scene())


def test_unfinished_frames_are_bounded_together(serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who hold the most go first; a client with a request of ordinary size is served beside them."""
    monkeypatch.setattr(server, "_PARTIAL_BYTES_MAX", 1024 * 1024)

    async def scene() -> None:
        small = await serving.connect()
        small.send(request("echo", 1)[:-1])
        await serving.until(lambda: serving.server.partial_bytes > 0, "nothing arrives")
        hoarders = [await serving.connect() for _ in range(40)]

        for hoarder in hoarders:
            hoarder.send(b"a" * 100_000)
        await serving.until(lambda: len(serving.server.connections) <= 11, "nobody has to go")
        small.send(b"\n")
        answer = await small.read()

        assert answer is not None
        assert answer["result"] == 1
        assert 0 < serving.server.partial_bytes <= 1024 * 1024
        gone = 0
        for hoarder in hoarders:
            hoarder.stop_writing()
            answers = await hoarder.rest()
            assert [code(each) for each in answers] in ([], ["frame_too_large"])
            gone += len(answers)
            await hoarder.close()
        assert gone >= 30
        await serving.until(lambda: len(serving.server.connections) == 1, "connections stay")
        assert serving.server.partial_bytes == 0

    run(scene())


def test_a_frame_that_does_not_go_on_is_told_so(serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished request is not kept for ever; the silence between requests may last."""
    monkeypatch.setattr(server, "STALL_S", 0.05)

    async def scene() -> None:
        idle = await serving.connect()
        stalled = await serving.connect()
        stalled.send(request("echo", 1)[:-1])

        answers = await stalled.rest()
        idle.ask("echo", 2)
        answer = await idle.read()

        assert [code(each) for each in answers] == ["protocol_error"]
        assert answer is not None
        assert answer["result"] == 2

    run(scene())


def test_several_requests_in_one_write_are_all_answered(serving: Serving, run: Run) -> None:
    """Greeting, blank lines and requests in one piece, as they come."""

    async def scene() -> None:
        client = await serving.connect(greet=False)
        client.send(HELLO + b"\n\n" + b"".join(request("echo", number) for number in range(50)) + b"\n")

        answers = [await client.read() for _ in range(51)]

        assert [each and each["id"] for each in answers] == ["hello", *range(50)]

    run(scene())


def test_a_request_may_be_split_at_any_byte(serving: Serving, run: Run) -> None:
    """Two pieces are one request, wherever the cut is; the server has the first before the second is sent."""

    async def scene() -> None:
        client = await serving.connect()
        line = request("echo", "né")
        for cut in range(1, len(line)):
            client.send(line[:cut])
            await serving.until(partial(_holds, serving, cut), "the first piece does not arrive")
            client.send(line[cut:])

            answer = await client.read()

            assert answer is not None
            assert answer["result"] == "né"

    run(scene())


@pytest.mark.parametrize("number", [True, False, 1.5, [], [1], {}, {"a": 1}, 2**63, 10**400, "x" * 201])
def test_an_id_of_another_kind_is_refused(number: Any, serving: Serving, run: Run) -> None:
    """Text of moderate length and whole numbers only: every piece of a stream repeats it."""

    async def scene() -> None:
        client = await serving.connect()
        client.ask("echo", number)

        answer = await client.read()

        assert code(answer) == "protocol_error"
        assert answer is not None
        assert answer["id"] is None

    run(scene())


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, "", "x" * 200, "\ud800", "\0"])
def test_an_id_comes_back_as_it_was(number: Any, serving: Serving, run: Run) -> None:
    """Also where it is no text that can be encoded."""

    async def scene() -> None:
        client = await serving.connect()
        client.ask("echo", number)

        answer = await client.read()

        assert answer is not None
        assert answer["id"] == answer["result"] == number

    run(scene())


def test_a_notification_is_done_and_not_answered(serving: Serving, run: Run) -> None:
    """A request without an id has no answer that anybody could match."""

    async def scene() -> None:
        client = await serving.connect()
        client.send(request("work") + request("echo", 1))

        answer = await client.read()

        assert answer is not None
        assert answer["id"] == 1
        assert serving.begun == 1

    run(scene())


def test_an_answer_over_the_limit_is_an_error(serving: Serving, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line of the daemon's is longer than it promises."""
    monkeypatch.setattr(server, "FRAME_BYTES_MAX", 1024 * 1024)

    async def scene() -> None:
        client = await serving.connect()
        client.ask("big", 1)
        client.send(b'{"jsonrpc":"2.0","id":2,"method":"' + b"m" * 900_000 + b'"}\n')

        answers = {answer["id"]: code(answer) for answer in [await client.read(), await client.read()] if answer}

        assert answers == {1: "frame_too_large", 2: "unknown_method"}

    run(scene())
