"""Small parts that must not take others with them when they fail."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from pawl.clock import SystemClock
from pawl.log import _Careful
from pawl.runner.spool import Spool
from pawl.storage import open_plain
from pawl.timers import Timers


class Full:
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_cannot_be_written_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk loses the line, and nothing else."""
    monkeypatch.setattr(sys, "stderr", Full())

    assert _Careful().write("a line") == 0
    _Careful().flush()


def test_a_timer_that_fails_takes_no_other_with_it() -> None:
    """The next one is called all the same."""

    async def body() -> None:
        timers = Timers(SystemClock())
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        called = asyncio.Event()
        timers.after(1, lambda: 1 / 0)
        timers.after(2, called.set)
        await asyncio.wait_for(called.wait(), 10)
        timers.close()

    asyncio.run(body())


def test_a_spool_that_became_a_file_is_removed(tmp_path: Path) -> None:
    """Whatever its worker put in its place goes, so that it keeps no later start busy."""
    (tmp_path / "task").write_text("mine")

    Spool(str(tmp_path / "task")).remove()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "nothing"])
def test_only_a_plain_file_is_opened(tmp_path: Path, kind: str) -> None:
    """A pipe blocks nobody, and a link shows nobody else's file: neither is there."""
    path = tmp_path / "stdout"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "directory":
        path.mkdir()

    with pytest.raises(FileNotFoundError):
        open_plain(str(path))
