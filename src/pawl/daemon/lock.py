"""One daemon for each home, by a lock of the kernel's that ends with the process that holds it.

What is written into the file is for people and for error messages; it decides nothing. So a number that another
program has by now, or a file left by a dead daemon, keeps nobody out.
"""

from __future__ import annotations

import fcntl
import json
import os

from pawl.errors import AlreadyRunning, StorageError
from pawl.home import Home
from pawl.runner.identity import ProcessIdentity


class Lock:
    """The lock of one home. ``take`` or fail; it holds until ``release`` or the end of the process."""

    def __init__(self, home: Home) -> None:
        self._path = home.lock
        self._descriptor: int | None = None
        self.stale: str | None = None

    def take(self, owner: ProcessIdentity) -> None:
        """Take the lock. Raises ``daemon_already_running``, naming the holder's PID."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"cannot open {self._path}: {error.strerror}", path=self._path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(descriptor)
            os.close(descriptor)
            pid = holder.get("pid") if isinstance(holder, dict) else None
            raise AlreadyRunning(
                f"cannot start: a daemon runs at this home already (pid {pid or 'unknown'})",
                pid=pid,
                lock=self._path,
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise StorageError(
                f"cannot lock {self._path}: {error.strerror}; the home must be on a file system with working locks",
                path=self._path,
            ) from error
        before = _read(descriptor)
        self.stale = str(before) if before else None
        self._descriptor = descriptor
        self._write({"pid": owner.pid, "start": owner.start, "boot_id": owner.boot_id})

    def release(self) -> None:
        """Give the lock back, and say nothing about a holder any more. Twice is harmless."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, holder: dict[str, object]) -> None:
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, (json.dumps(holder) + "\n").encode(), 0)
        except OSError:
            pass  # a full disk: the lock holds all the same, only its holder's name is missing


def _read(descriptor: int) -> object:
    """What a holder wrote; text that is not JSON as it stands."""
    text = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found
