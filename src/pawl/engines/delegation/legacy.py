"""Results that an older program left in a workspace: ``delegate_results/<id>.json``, with a status of their own.

They are read where no row exists, and never changed. One that says it is still running is lost: no row means that
nobody runs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from pawl.storage import open_plain

_FOLDER = "delegate_results"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_BYTES_MAX = 64 * 1024**2
_TEXT_MAX = 1000  # characters of whatever else than its output is shown
_STATUSES = {
    "completed": "completed", "success": "completed", "failed": "failed", "error": "failed",
    "cancelled": "cancelled", "canceled": "cancelled", "timed_out": "timed_out", "timeout": "timed_out",
}  # fmt: skip


class LegacyResult(NamedTuple):
    """One such file, read."""

    id: str
    agent: str
    status: str
    output: bytes
    error: str | None
    started_at: str | None
    finished_at: str | None
    path: str

    def about(self) -> dict[str, Any]:
        """What the answer of ``task.result`` says of it."""
        digest = hashlib.sha256(self.output).hexdigest()
        return {"id": self.id, "status": self.status, "sha256": digest, "size_bytes": len(self.output)}

    def public(self) -> dict[str, Any]:
        """As much of a task's shape as it has."""
        about = self.about()
        return {
            "id": self.id, "kind": "delegate", "agent": self.agent, "status": self.status,
            "created_at": self.started_at, "started_at": self.started_at, "finished_at": self.finished_at,
            "heartbeat_at": None, "deadline_at": None, "owner": None, "worker": None, "parent_id": None,
            "goal_id": None,
            "depth": 0, "creator": None, "chain": [], "principal": None, "attempt": 1, "retry_of": None,
            "idempotency_key": None, "labels": {}, "exit_code": None,
            "error": None if self.error is None else {"code": "legacy_result", "message": self.error},
            "output": {"sha256": about["sha256"], "size_bytes": about["size_bytes"], "path": self.path},
            "usage": None, "delivered": False, "source": {"type": "legacy_result", "path": self.path},
        }  # fmt: skip


def find_legacy(task_id: str, workspaces: Iterable[str]) -> LegacyResult | None:
    """The result of this id in the first workspace that has one. Only a whole id is looked for: it becomes a path."""
    if not _ID.fullmatch(task_id):
        return None
    for workspace in workspaces:
        path = os.path.join(workspace, _FOLDER, f"{task_id}.json")
        try:
            with open_plain(path) as file:
                text = file.read(_BYTES_MAX + 1)
        except OSError:
            continue
        found = _parse(task_id, text, path)
        if found is not None:
            return found
    return None


def _parse(task_id: str, text: bytes, path: str) -> LegacyResult | None:
    """None for what is none of these files: damaged, too large, of another task or without a status of its own."""
    try:
        found = json.loads(text) if len(text) <= _BYTES_MAX else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("task_id") != task_id or not isinstance(found.get("status"), str):
        return None
    word = found["status"][:_TEXT_MAX]
    status = _STATUSES.get(word.lower(), "lost")
    error = _text(found.get("error"))
    if status == "lost":
        error = error or f"its record says {word!r}, and no row of it exists: nobody runs it"
    output = found["output"] if isinstance(found.get("output"), str) else ""
    return LegacyResult(
        task_id, _text(found.get("agent")) or "unknown", status, output.encode(errors="surrogatepass"), error,
        _text(found.get("started_at")), _text(found.get("finished_at")), path,
    )  # fmt: skip


def _text(value: object) -> str | None:
    return value[:_TEXT_MAX] if isinstance(value, str) else None
