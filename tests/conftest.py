"""Fixtures that every suite may use: a home, a clock that stands still, an event loop and the writer on it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from pawl.home import SOCKET_PATH_BYTES_MAX, Home
from pawl.storage import Database, Writer

# A shell ignores SIGINT in what it starts in the background, and what we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class FakeClock:
    """A clock (``pawl.clock.Clock``) that moves only when it is told to."""

    def __init__(self, wall_ms: int = 1_750_000_000_000, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def refresh_s(self) -> float | None:
        return None

    def advance(self, ms: int) -> None:
        """Let time pass, on both clocks."""
        self._wall_ms += ms
        self._monotonic_ms += ms

    def set_wall(self, ms: int) -> None:
        """Set the wall clock, either way; the monotonic clock does not notice."""
        self._wall_ms = ms


@pytest.fixture
def home() -> Iterator[Home]:
    """A prepared home whose path is short enough for a socket in it."""
    base = tempfile.gettempdir()
    path = tempfile.mkdtemp(prefix="p", dir=base if len(os.fsencode(base)) < SOCKET_PATH_BYTES_MAX // 2 else "/tmp")
    made = Home(path)
    made.prepare()
    yield made
    shutil.rmtree(path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run a coroutine to its end; every coroutine of a test runs on the same loop."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def writer(home: Home, clock: FakeClock, run: Callable[..., Any]) -> Iterator[Writer]:
    """The started writer of the home's database, on the loop of ``run``."""

    async def start() -> Writer:
        database = Database(home.database)
        started = Writer(database.open_writer(), database.path, clock)
        started.start()
        return started

    started = run(start())
    yield started
    run(started.close())
