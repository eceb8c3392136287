"""Fixtures: a home of its own for each test, a daemon of straw in it, and a way to run the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_runs import SOURCE, Ran
from fake_daemon import Answer, FakeDaemon, hello

from pawl.cli import main
from pawl.home import Home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home that does not exist yet; commands use it without being told."""
    for name in list(os.environ):
        if name.startswith("PAWL_") or name in {"NO_COLOR", "COLUMNS", "_PAWL_COMPLETE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PAWL_HOME", str(tmp_path / "home"))
    return Home(str(tmp_path / "home"))


@pytest.fixture
def daemon(home: Home) -> Iterator[Callable[..., FakeDaemon]]:
    """Start a daemon of straw: ``daemon({"task.get": always(task())})``."""
    started: list[FakeDaemon] = []

    def start(answers: dict[str, Answer], *, at: Home = home) -> FakeDaemon:
        fake = FakeDaemon(at, {"hello": hello, **answers}).start()
        started.append(fake)
        return fake

    yield start
    for fake in started:
        fake.stop()


@pytest.fixture
def pawl(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process: ``pawl("list", "--json")``."""

    def run(*words: str) -> Ran:
        capfd.readouterr()
        status = main.run(list(words))
        out, err = capfd.readouterr()
        return Ran(status, out, err)

    return run


@pytest.fixture
def process() -> Callable[..., subprocess.Popen[bytes]]:
    """Start a command in a process of its own, with pipes."""

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": SOURCE, **options.pop("env", {})}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([sys.executable, "-m", "pawl", *words], env=environment, **pipes)

    return start
