"""The home: where things lie, and the socket where the path is too long."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pawl.errors import HomeRefused
from pawl.home import SOCKET_PATH_BYTES_MAX, Home


@pytest.fixture
def long() -> Iterator[Home]:
    """A home under a path that no socket address holds."""
    base = Path(tempfile.mkdtemp(prefix="pw", dir="/tmp"))
    yield Home(str(base / ("x" * 120)))
    shutil.rmtree(base)


def test_a_short_path_has_the_socket_in_the_home(home: Home) -> None:
    """The usual case: run/daemon.sock, and no note of it."""
    assert home.socket == os.path.join(home.run, "daemon.sock")
    assert not os.path.exists(home.socket_pointer)


def test_a_long_path_moves_the_socket(long: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It lies in a private directory under a name of its home's own, short enough; two homes never share one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")

    long.prepare()

    folder = os.path.dirname(long.socket)
    assert len(os.fsencode(long.socket)) <= SOCKET_PATH_BYTES_MAX
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert Home(long.path + "y").socket != long.socket
    os.rmdir(folder)


def test_a_moved_socket_is_found_from_another_environment(long: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with another TMPDIR and no XDG_RUNTIME_DIR, as tasks have it, finds the daemon's socket."""
    runtime = tempfile.mkdtemp(prefix="pw", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    long.prepare()
    path = long.socket
    assert path.startswith(runtime)

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    found = Home(long.path).socket
    shutil.rmtree(runtime)

    assert found == path
    assert Home(long.path).socket != path  # what it noted is gone: it looks anew


def test_a_long_temporary_directory_is_passed_over(long: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where neither the runtime nor the temporary directory is short enough, /tmp is."""
    deep = tmp_path / ("y" * 100)
    deep.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr(tempfile, "tempdir", None)

    assert long.socket.startswith("/tmp/pawl-")


def test_a_home_is_private(home: Home) -> None:
    """Every directory is made 0700, and one that was open to others is closed."""
    os.chmod(home.path, 0o755)

    home.prepare()

    for path in (home.path, home.data, home.artifacts, home.spool, home.run, home.logs):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """It says so, and touches nothing."""
    (tmp_path / "home").write_text("mine")

    with pytest.raises(HomeRefused, match="not a directory"):
        Home(str(tmp_path / "home")).prepare()

    assert (tmp_path / "home").read_text() == "mine"
