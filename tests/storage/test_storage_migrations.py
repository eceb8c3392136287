"""A home of the version before: everything in it is there afterwards, and the new rules hold."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pawl.storage import Database
from pawl.storage.database import APPLICATION_ID, migrations

OLD = """
INSERT INTO task (id, kind, agent, status, created_at_ms, timeout_ms, creator, chain, principal, prompt, retries_left)
  VALUES ('a', 'delegate', 'x', 'queued', 1, 1, 'operator', '[]', 'uid:0', x'01', 1),
         ('b', 'delegate', 'x', 'queued', 2, 1, 'boss', '["chief"]', 'task:a', x'02', 0),
         ('c', 'delegate', 'x', 'queued', 3, 1, 'boss', 'no json', 'task:a', x'03', 0);
UPDATE task SET status = 'running', owner_pid = 1, owner_start = 's', owner_boot = 'b', started_at_ms = 4,
  parent_id = 'a', idempotency_key = 'k' WHERE id = 'b';
INSERT INTO task_label VALUES ('team', 'red', 1);
INSERT INTO task_input VALUES (1, 'file', 'digest', 3);
INSERT INTO settlement_intent (task_id, owner_pid, owner_start, owner_boot, status, output_sha256, output_bytes,
  created_at_ms) VALUES ('b', 1, 's', 'b', 'completed', 'digest', 3, 5);
INSERT INTO event VALUES (1, 1, 'uid:0', 'task', 'a', 'submitted', NULL, 'queued', NULL, NULL, 'h');
"""


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A database as the first version left it."""
    path = str(tmp_path / "pawl.db")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    (version, text), *_ = migrations()
    connection.executescript(
        f"BEGIN;{text}\nPRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {version};COMMIT;"
    )
    connection.executescript(OLD)
    connection.close()
    return path


def test_nothing_is_lost(old: str) -> None:
    """Rows, what hangs on them, the counters and the log; only what is new is added."""
    before = sqlite3.connect(old)
    columns = [row[1] for row in before.execute("PRAGMA table_info(task)")]
    tables = ("task_label", "task_input", "settlement_intent", "event", "task_count")
    kept = {table: before.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in tables}
    tasks = before.execute(f"SELECT {', '.join(columns)} FROM task ORDER BY seq").fetchall()
    before.close()

    connection = Database(old).open_writer()

    for table, rows in kept.items():
        assert connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() == rows, table
    assert connection.execute(f"SELECT {', '.join(columns)} FROM task ORDER BY seq").fetchall() == tasks
    assert connection.execute("SELECT DISTINCT budget_id = id, policy_sha256, mode FROM task").fetchall() == [
        (1, None, None)
    ]
    assert connection.execute("SELECT alias, task_seq FROM task_viewer ORDER BY 1, 2").fetchall() == [
        ("boss", 2), ("boss", 3), ("chief", 2),
    ]  # fmt: skip
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    connection.close()


def test_the_old_rules_still_hold(old: str) -> None:
    """Triggers, constraints and references were made anew with the table."""
    connection = Database(old).open_writer()

    assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
    for broken in (
        "UPDATE task SET status = 'completed', finished_at_ms = 1 WHERE id = 'a'",
        "DELETE FROM task WHERE id = 'b'",
        "INSERT INTO task_label VALUES ('k', 'v', 99)",
        "UPDATE task SET kind = 'nothing'",
        "INSERT INTO task (id, kind, agent, status, created_at_ms, timeout_ms, creator, prompt, idempotency_key)"
        " VALUES ('d', 'delegate', 'x', 'queued', 1, 1, 'boss', x'', 'k')",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(broken)
    connection.execute("UPDATE task SET status = 'cancelled', finished_at_ms = 9 WHERE id = 'a'")
    assert dict(connection.execute("SELECT status, tasks FROM task_count WHERE tasks > 0")) == {
        "cancelled": 1, "queued": 1, "running": 1,
    }  # fmt: skip
    connection.close()


def test_a_step_that_leaves_dangling_rows_is_undone(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign keys are off while a step runs, so each step ends with a look at all of them."""
    steps = [
        *migrations(),
        (99, "DELETE FROM task_count; DELETE FROM policy; INSERT INTO task_label VALUES ('k', 'v', 99);"),
    ]
    monkeypatch.setattr("pawl.storage.database.migrations", lambda: steps)

    with pytest.raises(Exception, match="refer to nothing"):
        Database(old).open_writer()

    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone() == (steps[-2][0],)
    assert connection.execute("SELECT count(*) FROM task_count").fetchone() != (0,)
    connection.close()
