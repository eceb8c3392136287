"""Faults that users of such daemons met, each as a test that names its id, and the promises of delegation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from scenes import Gate, Marker, kill_marked

from harness.fixtures import daemon, hands, home, ran, small_disk, stranger

__all__ = ["daemon", "gate", "hands", "home", "marker", "ran", "small_disk", "stranger"]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Programs wait before it until the test opens it."""
    made = Gate(tmp_path / "gate")
    yield made
    made.open()


@pytest.fixture
def marker() -> Iterator[Marker]:
    """An argument of ``sleep`` that no other process of this machine has."""
    made = Marker()
    yield made
    kill_marked(made)
