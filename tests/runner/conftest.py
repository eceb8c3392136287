"""Fixtures of the runner's tests: a place to spool, and processes that are ended whatever the test does."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keeping import Keeping, below, end_by_identity


@pytest.fixture
def root(tmp_path: Path) -> str:
    spool = tmp_path / "spool"
    spool.mkdir()
    return str(spool)


@pytest.fixture
def marker() -> str:
    """An argument by which the processes of one test are told from all others; ``sleep`` takes it."""
    return str(random.randrange(10**9, 10**10))


@pytest.fixture
def keeping(root: str, tmp_path: Path) -> Callable[[], Keeping]:
    """Makes a keeper; to be entered in the test's own event loop."""
    return lambda: Keeping(root, str(tmp_path))


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process of the test's own."""
    started = []

    def start(*argv: str, **more: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, **more))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for child in started:
        end_by_identity(below(child.pid))
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
