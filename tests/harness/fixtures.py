"""Fixtures of the suites that drive real daemons: ``from harness.fixtures import ...`` in their ``conftest``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.daemon import Daemon
from harness.hands import Hands
from pawl.home import Home
from pawl.runner.identity import ProcessIdentity, identity_of


@pytest.fixture
def home() -> Iterator[Home]:
    """A home of its own, under a path short enough for a socket."""
    path = tempfile.mkdtemp(prefix="pw", dir="/tmp")
    yield Home(path)
    shutil.rmtree(path)


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    """The daemon of that home, not started. At the end it is stopped, and the home must hold every invariant."""
    made = Daemon(home)
    yield made
    made.close()


@pytest.fixture
def hands(daemon: Daemon) -> Hands:
    """That home has a test clock, and these move it."""
    return Hands(daemon)


@pytest.fixture
def another(home: Home) -> Iterator[Daemon]:
    """A second daemon of the same home, not started. It is gone at the end, whatever became of it."""
    made = Daemon(home, None)
    yield made
    made.abandon()


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[Ran]:
    """Counts how often a program was started: it appends a line to the file that ``$OUT`` names."""
    made = Ran(tmp_path / "out")
    yield made
    made.close()


def gate(name: str = "go") -> str:
    """Shell words that wait until the test says ``ran.go(name)``, so that nothing depends on how quick a machine is."""
    return f'read _ < "$OUT.{name}"'


class Ran:
    """The file that programs under test write a line to when they start, and the gates that they wait at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[int] = []
        for name in ("go", "now", "later"):
            os.mkfifo(f"{path}.{name}")

    @property
    def env(self) -> dict[str, str]:
        return {"OUT": str(self.path)}

    def go(self, name: str = "go") -> None:
        """Open a gate, for those who wait and those who come: each takes one line."""
        descriptor = os.open(f"{self.path}.{name}", os.O_RDWR | os.O_NONBLOCK)
        self._open.append(descriptor)
        os.write(descriptor, b"\n" * 1000)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


@pytest.fixture
def stranger() -> Iterator[Callable[[], Stranger]]:
    """Start living processes that have nothing to do with any daemon."""
    started: list[Stranger] = []

    def start() -> Stranger:
        started.append(Stranger())
        return started[-1]

    yield start
    for each in started:
        each.end()


class Stranger:
    """A living process with an identity that a row may lie about."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        found = identity_of(self.process.pid)
        assert found is not None
        self.identity: ProcessIdentity = found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def small_disk() -> Iterator[Callable[[str], Path]]:
    """Mount a file system of a given size. Skips where that takes rights that we do not have."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("a file system that fills up is mounted by root only")
        path = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True)
        if done.returncode != 0:
            path.rmdir()
            pytest.skip(f"this machine mounts no tmpfs: {done.stderr.decode().strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)
        path.rmdir()
