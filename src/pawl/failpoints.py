"""Named places where a test may kill, fail or hold the process.

A failpoint is a no-op unless ``$PAWL_FAILPOINTS`` armed it before the process started:
``name=kill`` ends the process with SIGKILL, ``name=error`` raises a storage error there, ``name=crash`` raises a
plain exception (a bug). ``name=error*3`` does so three times, ``name=kill@5`` at the fifth pass. Several are
separated by commas. Every name that the code passes is in ``NAMES``: the crash suite walks that list, and a
name that is not in it is refused.
"""

from __future__ import annotations

import os
import signal

from pawl.errors import StorageError, UsageError

NAMES = frozenset(
    {
        "delegate.before_commit",  # the request is checked, nothing is stored
        "delegate.after_commit",  # the row is durable, the caller has not heard of it
        "dispatch.after_claim",  # the row says running, no process exists
        "launch.after_spawn",  # the process exists, the row does not know it
        "launch.after_record",  # the row knows the process
        "settle.before_intent",  # the output is known, no promise is stored
        "settle.after_intent",  # the promise is durable, no bytes are published
        "settle.after_publish",  # the bytes are published, the row still says running
        "settle.in_transaction",  # inside the final transaction
        "settle.after_commit",  # the row is terminal, nobody has been told
        "artifact.before_sync",  # the temporary file is written, not synced
        "artifact.before_rename",  # the temporary file is complete and synced
        "artifact.after_rename",  # renamed, the directory is not synced
        "cancel.after_commit",  # the row says cancelled, no signal was sent
        "cleanup.before_commit",  # the processes are gone, the row does not say so
        "recovery.before_row",  # a recovery pass is about to judge a row
        "recovery.after_row",  # a recovery pass has judged one row of several
        "writer.before_commit",  # a batch is executed, not committed
        "writer.after_commit",  # a batch is committed, its callers have not heard
        "supervisor.driver",  # the driver of a running task dies of a bug
        "cron.before_claim",  # a fire is due, nothing of it is stored
        "cron.after_claim",  # the fire and its job's next one are stored, no task is
        "cron.after_task",  # the fire has its task
        "heartbeat.flush",  # the flusher is about to write
    }
)


class _Armed:
    def __init__(self, action: str, first: int, times: int) -> None:
        self.action = action
        self.first = first
        self.times = times
        self.passes = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        action, _, first = action.partition("@")
        action, _, times = action.partition("*")
        if name not in NAMES or action not in {"kill", "error", "crash"}:
            raise UsageError(f"cannot arm the failpoint {item!r}: no such name or action")
        armed[name] = _Armed(action, int(first or 1), int(times or (1 if action != "error" else 1_000_000)))
    return armed


_armed = _parse(os.environ.get("PAWL_FAILPOINTS", ""))


def arm(text: str) -> None:
    """Arm failpoints of this process, for tests; an empty text disarms all."""
    global _armed
    _armed = _parse(text)


def hit(name: str) -> None:
    """Pass the failpoint ``name``. Does nothing unless it is armed."""
    if not _armed:
        return
    point = _armed.get(name)
    if point is None:
        return
    point.passes += 1
    if not point.first <= point.passes < point.first + point.times:
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "error":
        raise StorageError(f"failpoint {name}")
    raise RuntimeError(f"failpoint {name}")
