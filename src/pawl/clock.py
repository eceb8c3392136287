"""The two clocks, and which decision uses which.

- **wall**: milliseconds UTC since the epoch. For what a person or a calendar means: created, finished, schedules.
- **monotonic**: milliseconds of the kernel's monotonic clock, the same for every process of one boot. For
  durations: timeouts, heartbeats, grace. It never jumps, and it means nothing in another boot.

A home made with ``pawl init --test-clock`` adds offsets that are read from two files (``OffsetClock``), so that
whole seasons pass in seconds. Any other home refuses to start beside such a file.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from pawl.errors import HomeRefused
from pawl.home import Home

_OFFSET_MS_MAX = 1000 * 365 * 86_400_000  # a thousand years: more does not fit a timestamp


class Clock(Protocol):
    """What tells the time."""

    def wall_ms(self) -> int:
        """Milliseconds UTC since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock of this boot."""
        ...

    def refresh_s(self) -> float | None:
        """How often a sleeper must look again because this clock may jump; None where it cannot."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def refresh_s(self) -> float | None:
        return None


class OffsetClock:
    """The machine's clocks plus the offsets of a test-clock home, in seconds, looked up twice a second.

    ``clock-offset`` moves both clocks and only ever rises (a lower value is ignored: time does not run backwards);
    ``wall-offset`` moves the wall clock either way.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._both_ms = 0
        self._wall_ms = 0
        self._read_at_ns = 0

    def wall_ms(self) -> int:
        self._refresh()
        return time.time_ns() // 1_000_000 + self._both_ms + self._wall_ms

    def monotonic_ms(self) -> int:
        self._refresh()
        return time.monotonic_ns() // 1_000_000 + self._both_ms

    def refresh_s(self) -> float | None:
        return 0.5

    def _refresh(self) -> None:
        now_ns = time.monotonic_ns()
        if self._read_at_ns and now_ns - self._read_at_ns < 500_000_000:
            return
        self._read_at_ns = now_ns
        self._both_ms = max(self._both_ms, _offset_ms(self._home.clock_offset, self._both_ms))
        self._wall_ms = _offset_ms(self._home.wall_offset, self._wall_ms)


def clock_of(home: Home) -> Clock:
    """The clock of this home. Raises ``home_refused`` where offset files lie beside a home that has no test clock."""
    if os.path.exists(home.test_clock):
        return OffsetClock(home)
    for path in (home.clock_offset, home.wall_offset):
        if os.path.exists(path):
            raise HomeRefused(
                f"cannot start beside {path}: only a home made with `pawl init --test-clock` has a clock that moves",
                path=path,
            )
    return SystemClock()


def _offset_ms(path: str, otherwise: int) -> int:
    """The offset in a file; while it is missing or half written, the one before."""
    try:
        with open(path) as file:
            offset_ms = round(float(file.read()) * 1000)
        return offset_ms if abs(offset_ms) < _OFFSET_MS_MAX else otherwise
    except (OSError, ValueError, OverflowError):
        return otherwise
