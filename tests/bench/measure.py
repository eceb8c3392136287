"""Samples, medians, ratios and the table of a benchmark."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Callable
from contextlib import suppress


class Report:
    """Collects samples by name. A ratio is taken pair by pair: the n-th sample over the n-th of the other."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}
        self.units: dict[str, str] = {}
        self.ratios: list[tuple[str, str, str]] = []

    def add(self, name: str, value: float, unit: str) -> None:
        self.samples.setdefault(name, []).append(value)
        self.units[name] = unit

    def ratio(self, name: str, over: str, aim: str = "") -> None:
        """Show ``name`` over ``over`` in the table, with what is aimed at."""
        if (name, over, aim) not in self.ratios:
            self.ratios.append((name, over, aim))

    def print(self) -> None:
        width = max((len(name) for name in self.samples), default=10)
        for name, values in self.samples.items():
            print(f"{name:<{width}}  {_spread(values)} {self.units[name]}")
        print()
        for name, over, aim in self.ratios:
            if name in self.samples and over in self.samples:
                pairs = [a / b for a, b in zip(self.samples[name], self.samples[over], strict=False) if b]
                print(f"{name} / {over}: {_spread(pairs)}{f'   (aim: {aim})' if aim else ''}")

    def write(self, path: str) -> None:
        with open(path, "w") as file:
            json.dump({"machine": machine(), "samples": self.samples, "units": self.units}, file, indent=1)


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }


def per_second(count: int, work: Callable[[], object]) -> float:
    """How many of ``count`` were done a second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def median_ms(times: int, work: Callable[[], object]) -> float:
    """The median time of one call, in milliseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append((time.perf_counter() - start) * 1000)
    return statistics.median(found)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _spread(values: list[float]) -> str:
    middle = statistics.median(values)
    text = f"{_number(middle)}"
    with suppress(ValueError):
        text += f" ({_number(min(values))}–{_number(max(values))})"
    return text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
