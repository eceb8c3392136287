"""The state machine of fires, and that the database itself holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import product

import pytest

from pawl.engines.cron.model import FIRE, OPEN
from pawl.engines.cron.store import Q
from pawl.storage import Database

_HAS_TASK = ("running", "completed", "timed_out", "lost")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    made = Database(str(tmp_path_factory.mktemp("states") / "pawl.db")).open_writer()
    made.execute("PRAGMA synchronous = OFF")
    yield made
    made.close()


def put_in(connection: sqlite3.Connection, status: str) -> int:
    """A fire in that status, recorded like that."""
    values = {
        "job": "job", "manual": 0, "trigger": "schedule", "fires": 1, "until": None,
        "waits": None, "now": 1, "pid": 1, "start": "1",
        "boot": "1", "status": "claimed", "reason": "because", "finished": None,
        "nominal": connection.execute("SELECT coalesce(max(nominal_at_ms), 0) + 1 FROM cron_fire").fetchone()[0],
    }  # fmt: skip
    seq: int = connection.execute(Q.insert_fire, values).fetchone()[0]
    if status != "claimed":
        if status not in {target for source, target in FIRE.pairs if source == "claimed"}:
            change(connection, seq, "running")
        change(connection, seq, status)
    return seq


def change(connection: sqlite3.Connection, seq: int, status: str) -> None:
    """Change a status by hand, and with it whatever the CHECKs ask for, so that only the arrow is in question."""
    values = (status, "task" if status in _HAS_TASK else None, None if status in OPEN else 1, seq)
    connection.execute("UPDATE cron_fire SET status = ?, task_id = ?, finished_at_ms = ? WHERE seq = ?", values)


def test_a_fire_ends_in_one_of_seven_ways() -> None:
    """What is open is not an end, and everything else is; a skipped or missed fire may be recorded as just that."""
    assert set(FIRE.states) - set(OPEN) == set(FIRE.terminal)
    assert set(FIRE.terminal) == {"completed", "failed", "cancelled", "timed_out", "lost", "skipped", "missed"}
    assert set(FIRE.initial) == {"claimed", "skipped", "missed"}


def test_every_state_is_reached_and_every_fire_can_end() -> None:
    """From the beginnings every state can be reached, and from every state an end."""
    reached, ending = set(FIRE.initial), set(FIRE.terminal)
    for _ in FIRE.states:
        reached |= {target for source, target in FIRE.pairs if source in reached}
        ending |= {source for source, target in FIRE.pairs if target in ending}

    assert reached == ending == set(FIRE.states)


def test_no_arrow_is_drawn_twice() -> None:
    """An event leads from a state to one other state, and is told who fires it and why."""
    arrows = [(row.source, row.event) for row in FIRE.table]

    assert len(set(arrows)) == len(arrows)
    assert all(row.fired_by and row.because for row in FIRE.table)


@pytest.mark.parametrize(("source", "target"), list(product(FIRE.states, FIRE.states)))
def test_the_database_refuses_what_is_not_in_the_table(
    connection: sqlite3.Connection, source: str, target: str
) -> None:
    """Whoever writes to the row, a status moves along the arrows only."""
    seq = put_in(connection, source)

    if FIRE.allows(source, target) or source == target:
        change(connection, seq, target)
        assert connection.execute(Q.fire, (seq,)).fetchone()[5] == target
    else:
        with pytest.raises(sqlite3.IntegrityError, match="the state machine of fires has no such transition"):
            change(connection, seq, target)
        assert connection.execute(Q.fire, (seq,)).fetchone()[5] == source


@pytest.mark.parametrize("status", OPEN)
def test_a_fire_that_has_not_ended_is_not_deleted(connection: sqlite3.Connection, status: str) -> None:
    """Nothing that is claimed or running disappears."""
    seq = put_in(connection, status)

    with pytest.raises(sqlite3.IntegrityError, match="a fire that has not ended is not deleted"):
        connection.execute("DELETE FROM cron_fire WHERE seq = ?", (seq,))


BROKEN = {
    "a fire has a known trigger": ("claimed", "trigger = 'whim'"),
    "a manual fire was triggered so": ("claimed", "manual = 1"),
    "a claimed fire names its owner": ("running", "owner_boot = NULL"),
    "a fire has a finish time exactly when it has ended": ("running", "finished_at_ms = 1"),
    "what runs or ran has a task": ("completed", "task_id = NULL"),
    "what did not run says why": ("missed", "reason = NULL"),
    "only missed fires share a record": ("skipped", "fires = 2, until_at_ms = 5"),
}


@pytest.mark.parametrize(("name", "status", "assignment"), [(name, *how) for name, how in BROKEN.items()])
def test_a_row_that_cannot_be_true_is_refused_by_name(
    connection: sqlite3.Connection, name: str, status: str, assignment: str
) -> None:
    """The database says which sentence a wrong row would break."""
    seq = put_in(connection, status)

    with pytest.raises(sqlite3.IntegrityError, match=f"^CHECK constraint failed: {name}$"):
        connection.execute(f"UPDATE cron_fire SET {assignment} WHERE seq = ?", (seq,))


def test_one_instant_of_a_job_has_one_record(connection: sqlite3.Connection) -> None:
    """What is started by hand stands beside it."""
    sql = "UPDATE cron_fire SET nominal_at_ms = (SELECT nominal_at_ms FROM cron_fire WHERE seq = ?) WHERE seq = ?"
    one, two = put_in(connection, "skipped"), put_in(connection, "missed")

    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        connection.execute(sql, (one, two))
    connection.execute("UPDATE cron_fire SET manual = 1, trigger = 'manual' WHERE seq = ?", (two,))
    connection.execute(sql, (one, two))
