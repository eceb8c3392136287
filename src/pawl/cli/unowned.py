"""What the database of a home says of its tasks while no daemon runs there.

Only looks, and answers nothing where it cannot.
Imported by ``daemon stop`` alone: ``sqlite3`` is not on the fast path.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pawl.cli.daemon_process import alive
from pawl.home import Home

_PATIENCE_S = 2.0
_IDS_MAX = 500  # in one statement


def running(home: Home) -> list[str]:
    """The tasks that the last daemon left running and whose worker lives."""
    rows = _rows(
        home, "SELECT id, worker_pid FROM task WHERE status = 'running' AND worker_pid IS NOT NULL ORDER BY seq"
    )
    return [str(task) for task, pid in rows if alive(int(pid))]


def ended(home: Home, tasks: Sequence[str]) -> dict[str, int]:
    """How those tasks stand now: how many have which end, the cancelled first."""
    counts: Counter[str] = Counter()
    for at in range(0, len(tasks), _IDS_MAX):
        some = tasks[at : at + _IDS_MAX]
        marks = ", ".join("?" * len(some))
        statement = f"SELECT status FROM task WHERE finished_at_ms IS NOT NULL AND id IN ({marks})"
        counts.update(str(row[0]) for row in _rows(home, statement, *some))
    return dict(sorted(counts.items(), key=lambda one: (one[0] != "cancelled", one[0])))


def _rows(home: Home, statement: str, *values: str) -> list[Any]:
    if not os.path.exists(home.database):
        return []
    try:
        connection = sqlite3.connect(f"file:{quote(home.database)}?mode=ro", uri=True, timeout=_PATIENCE_S)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return []
