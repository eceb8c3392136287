"""The token in a task's environment: proof that a process was started as part of it.

A task's id is no secret, so an id alone would let a program that left its session and its parents name another task
as its own. The token is made from the id with a key that lies in the home's ``run``: proof against programs that do
not go and look for it, for whoever runs as the same user without a sandbox may read the key. It holds across restarts
of the daemon, not of the machine where ``run`` is emptied then: no process of ours lives on there.
"""

from __future__ import annotations

import hmac
import os
import secrets

from pawl.errors import StorageError

VARIABLE = "PAWL_TASK_TOKEN"
_KEY_BYTES = 32


class Tokens:
    """Makes and checks the tokens of one home."""

    def __init__(self, run: str) -> None:
        self._path = os.path.join(run, "token.key")
        self._key = b""

    def open(self) -> None:
        """Read the key, or make it. Raises ``storage_error``. Once, before the others."""
        try:
            self._key = _read(self._path) or _make(self._path)
        except OSError as error:
            raise StorageError(f"cannot read or make {self._path}: {error.strerror}") from error

    def of(self, task_id: str) -> str:
        """The token of a task."""
        return hmac.digest(self._key, task_id.encode(), "sha256").hex()[:32]

    def proves(self, token: str, task_id: str) -> bool:
        """Whether this is the task's token."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.of(task_id).encode())


def _read(path: str) -> bytes:
    """The key; empty where there is none, or one that was cut short when a disk was full."""
    try:
        with open(path, "rb") as file:
            key = file.read()
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_BYTES else b""


def _make(path: str) -> bytes:
    key = secrets.token_bytes(_KEY_BYTES)
    fresh = path + ".new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, key)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)
    return key
