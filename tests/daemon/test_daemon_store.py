"""The database in operation: load, versions, damage (K11)."""

from __future__ import annotations

from harness.daemon import Daemon, NotStarted


def _refusal(daemon: Daemon) -> str | None:
    try:
        daemon.start()
    except NotStarted as refused:
        return refused.code
    return None
