"""The socket, as a hostile, slow or careless client uses it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from harness.daemon import Daemon
from harness.fixtures import daemon, home
from ipc.serving import Serving
from pawl.home import Home

__all__ = ["daemon", "home"]

_HARMLESS = """
[daemon]
max_concurrent = 8
kill_grace = "2s"
shutdown_grace = "1s"

[agents.cat]
command = ["cat"]

[agents.off]
command = ["cat"]
enabled = false
"""


@pytest.fixture
def serving(home: Home, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Iterator[Serving]:
    """A server in this process whose calls wait, stream and answer as the test wants."""
    home.prepare()
    made = Serving(home.socket)
    run(made.server.start())
    yield made
    made.opened.set()  # a stop waits for work that is under way
    run(made.server.stop())


@pytest.fixture(scope="module")
def harmless() -> Iterator[Daemon]:
    """One running daemon for a whole module; it has no agent that runs what a prompt says."""
    path = tempfile.mkdtemp(prefix="pw", dir="/tmp")
    made = Daemon(Home(path), _HARMLESS)
    try:
        made.start()
        yield made
    finally:
        made.close()
        shutil.rmtree(path)
