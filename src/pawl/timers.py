"""Calls at a moment of the monotonic clock, all over one event-loop timer.

Owns: the heap of due moments. Does not own: what is done then. Clock: monotonic.
An idle daemon sleeps until the earliest of them and not a moment less; only a clock that may jump
(``Clock.refresh_s``) makes it look again in between.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from pawl.clock import Clock


class Timer:
    """One call to come. ``cancel`` may be called at any time and more than once."""

    __slots__ = ("call", "cancelled", "due_ms")

    def __init__(self, due_ms: int, call: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """The timers of one daemon."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def after(self, delay_ms: int, call: Callable[[], None]) -> Timer:
        """Call in ``delay_ms`` milliseconds from now."""
        return self.at(self.clock.monotonic_ms() + delay_ms, call)

    def at(self, due_ms: int, call: Callable[[], None]) -> Timer:
        """Call at ``due_ms`` of the monotonic clock, or at once where that has passed."""
        timer = Timer(due_ms, call)
        heapq.heappush(self._heap, (due_ms, next(self._order), timer))
        if self._handle is None or due_ms < self._armed_for:
            self._arm()
        return timer

    async def sleep(self, delay_ms: int) -> None:
        """Wait ``delay_ms`` milliseconds of the monotonic clock."""
        done = asyncio.get_running_loop().create_future()
        timer = self.after(delay_ms, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            timer.cancel()

    def run_due(self) -> None:
        """Make every call that is due, then arm for the next. A fake clock's tests call this themselves."""
        now = self.clock.monotonic_ms()
        try:
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].cancelled):
                timer = heapq.heappop(self._heap)[2]
                if not timer.cancelled:
                    timer.call()
        finally:
            self._arm()  # a call that fails takes no other with it

    def close(self) -> None:
        """Forget every timer."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        self._armed_for = self._heap[0][0]
        delay_s = max(0.0, (self._armed_for - self.clock.monotonic_ms()) / 1000)
        refresh_s = self.clock.refresh_s()
        if refresh_s is not None:
            delay_s = min(delay_s, refresh_s)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self.run_due)
