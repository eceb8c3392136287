"""Every test of this directory kills real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.daemon import Daemon
from harness.fixtures import another, daemon, home, ran, small_disk, stranger

__all__ = ["another", "daemon", "home", "ran", "small_disk", "stranger"]

_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "dies_at(name): a daemon of this test dies at that failpoint")


@pytest.fixture(autouse=True)
def _dies_where_it_says(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that says at which failpoint its daemon dies fails where that does not happen."""
    said = {mark.args[0] for mark in request.node.iter_markers("dies_at")}
    daemon: Daemon | None = request.getfixturevalue("daemon") if said else None
    yield
    if daemon is not None:
        died = {death.partition("=")[0] for death in daemon.deaths}
        assert said <= died, f"it says {said} and died at {died or 'none'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.crash)
