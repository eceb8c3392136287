"""How SQLite carries out the statements of the scheduler: by an index, whatever the number of jobs and fires."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from pawl.engines.cron.store import Q
from pawl.storage import Database

HOT = (
    "adopt", "advance", "close", "close_waiting", "cut_span", "delete_job", "extend_forgotten", "fire", "fires_of",
    "forget_fires", "insert_fire", "insert_forgotten", "insert_job", "job", "last_fires_of",
    "late_since", "missed_after", "link", "link_check", "newest_manual", "oldest_kept", "on_record", "open_fires_of",
    "settle_from_task", "spans", "spans_over", "take_back", "unclean_fires", "update_job",
)  # fmt: skip
# A partial index is read through: that is the set in question itself, a few rows of a million.
SETS = {"open_fires": "cron_fire_open", "unclean_fires": "task_cleanup", "forget_fires": "task_cleanup"}
# Every job is meant, or the newest of all fires up to a limit.
WALKS = {"jobs": "j", "last_fires": "j", "fires_all": "f", "definitions": "cron_job", "forget_old": "cron_job"}
# These sort what an index found: few rows, or the history of one job, which is bounded.
SORTED = ("open_fires", "open_fires_of", "late_since", "fires_of")


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def connection(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[sqlite3.Connection]:
    """A database with some hundred fires; SQLite plans without statistics, and must not plan worse with them."""
    made = Database(str(tmp_path_factory.mktemp("planned") / "pawl.db")).open_writer()
    made.execute("BEGIN")
    for number in range(20):
        made.execute(Q.insert_job, (f"job {number}", "runtime", "{}", None, 0, 1, 2))
    for number in range(1_000):
        values = {
            "job": f"job {number % 20}", "nominal": number, "manual": int(number % 7 == 0), "until": None, "fires": 1,
            "waits": None,
            "trigger": "manual" if number % 7 == 0 else "schedule", "now": number, "pid": 1, "start": "1", "boot": "1",
            "status": "skipped" if number % 50 else "claimed", "reason": "x", "finished": 1 if number % 50 else None,
        }  # fmt: skip
        made.execute(Q.insert_fire, values)
    if request.param:
        made.execute("ANALYZE")
    made.execute("COMMIT")
    yield made
    made.close()


def plan(connection: sqlite3.Connection, name: str) -> list[str]:
    sql = getattr(Q, name)
    named = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    numbered = len(set(re.findall(r"\?\d", sql)))
    parameters = named or [1] * (numbered or sql.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


def test_every_statement_is_in_one_of_the_lists() -> None:
    """A new statement says here what it may cost."""
    assert sorted({*HOT, *SETS, *WALKS}) == sorted(vars(Q))


@pytest.mark.parametrize("name", sorted({*HOT, *SETS}))
def test_a_statement_of_the_scheduler_searches_an_index(connection: sqlite3.Connection, name: str) -> None:
    """No step reads a whole table; what sorts does it with the few rows that are in question."""
    for step in plan(connection, name):
        if step.startswith("SCAN") and step != "SCAN CONSTANT ROW":
            assert f"INDEX {SETS.get(name)}" in step, f"{name}: {step}"
        if "TEMP B-TREE" in step:
            assert name in SORTED, f"{name}: {step}"


@pytest.mark.parametrize("name", WALKS)
def test_what_shows_every_job_looks_each_one_up(connection: sqlite3.Connection, name: str) -> None:
    """The jobs are walked, or the fires from the newest on; what belongs to one is found by an index."""
    for step in plan(connection, name):
        assert "TEMP B-TREE" not in step
        if step.startswith("SCAN"):
            assert step.split()[1] == WALKS[name], step


def test_the_triggers_find_a_fire_by_its_task(connection: sqlite3.Connection) -> None:
    """Each change of any task of a fire runs through them."""
    sql = "EXPLAIN QUERY PLAN UPDATE cron_fire SET exit_code = 1 WHERE task_id = ?"

    assert all("INDEX cron_fire_task" in row[3] for row in connection.execute(sql, ("x",)))
