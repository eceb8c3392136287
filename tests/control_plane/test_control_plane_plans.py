"""How SQLite carries out the statements that run often: by an index, and without sorting."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from ledger import Ledger, open_unsynced

from pawl.control_plane.statements import Q

HOT = (
    "beat", "by_id", "by_key", "by_prefix", "by_prefix_of", "children", "children_count", "claim", "clean",
    "end_paused", "end_queued", "end_running", "events_after", "events_of", "expired", "first_event", "forget_promise",
    "forget_spent", "inputs", "insert_event", "insert_input", "insert_label", "insert_policy", "insert_task",
    "insert_usage", "intent", "is_viewer", "last_events_of", "next_of_agent", "policy", "promise",
    "queued_agents", "record_policy", "record_progress", "record_usage", "record_worker", "refusals",
    "refused_already", "retry_of", "running", "settle", "spend", "spent", "status_of", "subagents", "take_over",
    "to_clean", "unsandboxed",
    "usage_by_model",
)  # fmt: skip
# These read one end of an index or of the table, or a table of a few rows, or are a person's question with a limit.
SHORT = {
    "last_event": ["SCAN event"],
    "last_events": ["SCAN event"],
    "next_queue_deadline": ["SEARCH task USING INDEX task_queue_deadline (queue_deadline_ms>?)"],
    "counts": ["SCAN task_count"],
}
# These go up or down a tree of tasks, from one to the next by an index; the walk itself lies in a table of its own.
TREES = ("below", "cancelled_above", "holders", "usage_of_tree")
# These walk everything: a query of a person, newest first up to a limit, and a sweep over the few promises there are.
WALKS = ("counts_of", "list", "list_live", "list_of", "stale_intents")
# A partial index over the rows in question is read through: that is the set itself, not a search for it.
SETS = {"running": "task_running", "to_clean": "task_cleanup", "queued_agents": "task_queued"}


@pytest.fixture(scope="module", params=[False, True], ids=["no statistics", "statistics"])
def planned(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """A database with a few hundred rows; SQLite plans without statistics, and must not plan worse with them."""
    ledger = Ledger(open_unsynced(str(tmp_path_factory.mktemp("planned") / "pawl.db")))
    for number in range(200):
        ledger.queued(agent=f"agent {number % 3}", queue_timeout_ms=1_000, idempotency_key=f"k{number}")
        ledger.running()
    if request.param:
        ledger.rows("ANALYZE")
    yield ledger
    ledger.connection.close()


def plan(ledger: Ledger, name: str) -> list[str]:
    sql = getattr(Q, name)
    named = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    parameters = named or [1] * sql.count("?")
    return [row[3] for row in ledger.connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_searches_an_index(planned: Ledger, name: str) -> None:
    """No step reads a whole table, none sorts: the work does not grow with the number of tasks."""
    for step in plan(planned, name):
        assert "TEMP B-TREE" not in step
        if name in SETS:
            assert f"INDEX {SETS[name]}" in step
        else:
            assert not step.startswith("SCAN"), f"{name}: {step}"


@pytest.mark.parametrize("name", SHORT)
def test_a_short_statement_stays_short(planned: Ledger, name: str) -> None:
    """The newest entry and the next deadline are the first of their order; the counters are a handful."""
    assert [step.replace(" COVERING", "") for step in plan(planned, name)] == SHORT[name]


def test_every_statement_is_in_one_of_the_lists() -> None:
    """A new statement says here what it may cost."""
    assert sorted((*HOT, *SHORT, *TREES, *WALKS)) == sorted(vars(Q))


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_walked_by_indexes(planned: Ledger, name: str) -> None:
    """From one task to those above or below it by an index; what is scanned is the walk's own table."""
    walked = {"a", "b", "h", "tree", "above", "attempt", "below", "holder", "CONSTANT ROW"}
    for step in plan(planned, name):
        if step.startswith("SCAN"):
            assert step.removeprefix("SCAN ") in walked, f"{name}: {step}"


def test_the_next_of_an_agent_are_read_without_the_rest(planned: Ledger) -> None:
    """The queue's index is read in its own order from the agent's first entry, as far as the limit."""
    (step,) = plan(planned, "next_of_agent")

    assert step.replace(" COVERING", "") == "SEARCH task USING INDEX task_queued (agent=?)"


@pytest.mark.parametrize(
    ("child", "column", "index"),
    [
        ("task", "retry_of", "task_retry"),
        ("task_label", "task_seq", "task_label_task"),
        ("task_input", "task_seq", "PRIMARY KEY"),
        ("settlement_intent", "task_id", "PRIMARY KEY"),
    ],
)
def test_a_deletion_finds_what_hangs_on_a_task(planned: Ledger, child: str, column: str, index: str) -> None:
    """Deleting a task looks for its children by an index, so that history can be pruned among a million rows."""
    keys = {(row[2], row[3]) for row in planned.rows(f"PRAGMA foreign_key_list({child})")}
    (step,) = planned.connection.execute(f"EXPLAIN QUERY PLAN SELECT 1 FROM {child} WHERE {column} = ?", (1,))

    assert ("task", column) in keys
    assert index in step[3]
    assert step[3].startswith("SEARCH")
