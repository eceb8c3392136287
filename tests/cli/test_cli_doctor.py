"""``doctor``: says what is wrong with a home, with the daemon running or not, and changes nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import FakeDaemon, always, overview

from pawl.home import Home
from pawl.runner import sandbox
from pawl.runner.sandbox import Offer
from pawl.storage.database import migrate

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]


@pytest.fixture
def codes(pawl: Pawl) -> Callable[[], dict[str, str]]:
    """The severity of each finding by its code."""

    def run() -> dict[str, str]:
        ran = pawl("doctor", "--json")
        assert ran.status == (0 if ran.json["ok"] else 1)
        assert ran.json["ok"] == all(one["severity"] != "error" for one in ran.json["findings"])
        assert all(one["remedy"] for one in ran.json["findings"] if one["severity"] == "error")
        return {one["code"]: one["severity"] for one in ran.json["findings"]}

    return run


Codes = Callable[[], dict[str, str]]


@pytest.fixture
def made(home: Home) -> Home:
    """A home as the daemon makes it, with a database."""
    home.prepare()
    connection = sqlite3.connect(home.database)
    connection.execute("PRAGMA journal_mode = WAL")
    migrate(connection)
    connection.execute("CREATE TABLE t (a)")
    connection.executemany("INSERT INTO t VALUES (?)", [("x" * 500,)] * 200)
    connection.commit()
    connection.close()
    os.chmod(home.database, 0o600)
    return home


def test_a_good_home_is_well(made: Home, codes: Codes, pawl: Pawl) -> None:
    """No daemon is no error; the text ends with the verdict."""
    found = codes()

    assert set(found.values()) <= {"info", "warning"}
    assert {"home", "modes", "locks", "disk", "clock", "config", "database", "socket", "daemon_down"} <= set(found)
    assert pawl("doctor").out.endswith("All is well.\n")


def test_it_works_beside_a_running_daemon(made: Home, daemon: Start, codes: Codes) -> None:
    """And passes on what that finds itself."""
    findings = [{"code": "rows_kept", "message": "some rows", "subject": "database"}]
    daemon({"daemon.status": always(overview(findings=findings))})

    found = codes()

    assert found["daemon"] == "info"
    assert found["rows_kept"] == "warning"


def test_a_home_that_is_not_there(codes: Codes, home: Home) -> None:
    """Is told, and not made."""
    assert codes() == {"home_missing": "error"}
    assert not os.path.exists(home.path)


def test_a_file_in_the_place_of_a_home(codes: Codes, home: Home) -> None:
    """Is no home."""
    Path(home.path).write_text("")

    assert codes() == {"home_not_directory": "error"}


def test_a_home_of_somebody_else(made: Home, codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not for us."""
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)

    assert codes()["home_owner"] == "error"


def test_modes_that_let_others_in(made: Home, codes: Codes, pawl: Pawl) -> None:
    """Each is named with the command that mends it; nothing is changed."""
    os.chmod(made.data, 0o755)
    os.chmod(made.database, 0o644)

    assert codes()["mode_too_wide"] == "error"
    assert f"chmod 600 {made.database}" in pawl("doctor").out
    assert os.stat(made.data).st_mode & 0o777 == 0o755


def test_a_file_system_whose_locks_lie(made: Home, codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held lock that is given again, or locks that fail, make the home unusable."""
    monkeypatch.setattr(fcntl, "flock", lambda fd, operation: None)
    assert codes()["locks_broken"] == "error"

    def fail(fd: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert codes()["locks_broken"] == "error"
    assert not [name for name in os.listdir(made.run) if name.startswith(".lock-check")]


@pytest.mark.parametrize(
    ("free", "code", "severity"),
    [(10 * 1024**2, "disk_full", "error"), (500 * 1024**2, "disk_low", "warning"), (5 * 1024**3, "disk", "info")],
)
def test_room_on_the_disk(
    made: Home, codes: Codes, monkeypatch: pytest.MonkeyPatch, free: int, code: str, severity: str
) -> None:
    """None left is an error, little a warning."""
    Disk = namedtuple("Disk", "f_bavail f_frsize f_files f_favail")
    monkeypatch.setattr(os, "statvfs", lambda path: Disk(free, 1, 10, 10))

    assert codes()[code] == severity


_NONE = Offer(False, None, None, "bubblewrap is not installed")
_BARRED = Offer(False, "/usr/bin/bwrap", "0.8.0", "bwrap cannot make a sandbox here: setting up uid map: not permitted")


@pytest.mark.parametrize(
    ("offer", "wanted", "code", "severity", "remedy"),
    [
        (Offer(True, "/usr/bin/bwrap", "0.8.0", "bubblewrap 0.8.0 works"), True, "sandbox", "info", ""),
        (_NONE, False, "sandbox_missing", "info", ""),
        (_NONE, True, "sandbox_missing", "warning", "install bubblewrap"),
        (_BARRED, True, "sandbox_missing", "warning", "let users make namespaces"),
    ],
)
def test_what_the_machine_offers_in_sandboxes(
    made: Home, pawl: Pawl, monkeypatch: pytest.MonkeyPatch, offer: Offer, wanted: bool, code: str, severity: str,
    remedy: str,
) -> None:  # fmt: skip
    """A warning, with a remedy, where a policy asks for what cannot be made; the policy is named."""
    monkeypatch.setattr(sandbox, "available", lambda: offer)
    if wanted:
        Path(made.config).write_text('[policies.boxed]\nsandbox = "required"\n')

    (found,) = [one for one in pawl("doctor", "--json").json["findings"] if one["subject"] == "sandbox"]

    assert (found["code"], found["severity"]) == (code, severity)
    assert found["message"].startswith(offer.reason)
    assert found["remedy"].startswith(remedy)
    assert ("[policies.boxed]" in found["message"]) == (severity == "warning")


def test_a_clock_that_was_never_set(made: Home, codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
    """1970 is no time for schedules; a home for tests is pointed out."""
    monkeypatch.setattr(time, "gmtime", lambda *seconds: time.struct_time((1970, 1, 1, 0, 0, 0, 3, 1, 0)))
    Path(made.test_clock).touch()

    found = codes()

    assert (found["clock_wrong"], found["clock_test"]) == ("error", "warning")


def test_faults_of_the_configuration(made: Home, pawl: Pawl) -> None:
    """Every one, with its line."""
    Path(made.config).write_text("[daemon]\nmax_concurent = 1\nkill_grace = 'soon'\n")

    ran = pawl("doctor", "--json")

    messages = [one["message"] for one in ran.json["findings"] if one["code"] == "config_invalid"]
    assert ran.status == 1
    assert [message.split(":")[1] for message in messages] == ["2", "3"]


@pytest.mark.parametrize("table", [None, "event"], ids=["header", "page"])
def test_a_damaged_database_is_found_and_left_as_it_is(made: Home, codes: Codes, table: str | None) -> None:
    """A torn header as well as a torn page."""
    where = 0
    if table is not None:
        with contextlib.closing(sqlite3.connect(made.database)) as connection:
            root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]
        where = (root - 1) * 4096
    with open(made.database, "r+b") as file:
        file.seek(where)
        file.write(b"\xff" * 2000)
    before = Path(made.database).read_bytes()

    assert codes()["database_damaged"] == "error"
    assert Path(made.database).read_bytes() == before


def test_a_silent_holder_of_the_lock_is_an_error(made: Home, pawl: Pawl) -> None:
    """Somebody holds the home and does not answer: named by pid."""
    with open(made.lock, "w") as holder:
        holder.write(json.dumps({"pid": 4711, "start": "99", "boot_id": "b"}) + "\n")
        holder.flush()
        fcntl.flock(holder, fcntl.LOCK_EX)

        ran = pawl("doctor", "--json")

    silent = [one for one in ran.json["findings"] if one["code"] == "daemon_silent"]
    assert ran.status == 1
    assert "pid 4711" in silent[0]["message"]


def test_a_check_that_fails_itself_hides_no_other(made: Home, codes: Codes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a finding, and the rest is checked."""

    def explode(path: str) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(os, "statvfs", explode)

    found = codes()

    assert found["check_failed"] == "warning"
    assert "database" in found


def test_rows_that_are_not_true_are_found(made: Home, codes: Codes) -> None:
    """A promise beside an ended task, processes not proven ended and an output that is gone are each reported."""
    connection = sqlite3.connect(made.database)
    columns = "id, kind, agent, status, created_at_ms, finished_at_ms, timeout_ms, creator, prompt, cleanup"
    outputs = "output_sha256, output_bytes"
    values = "'t', 'delegate', 'echo', 'completed', 1, 1, 1, 'operator', x'00', 'pending', printf('%064d', 0), 5"
    connection.execute(f"INSERT INTO task ({columns}, {outputs}) VALUES ({values})")
    promised = "task_id, owner_pid, owner_start, owner_boot, status, output_sha256, output_bytes, created_at_ms"
    connection.execute(
        f"INSERT INTO settlement_intent ({promised}) VALUES ('t', 1, 's', 'b', 'completed', printf('%064d', 0), 5, 1)"
    )
    connection.commit()
    connection.close()

    found = codes()

    wanted = {"intents_stale": "warning", "cleanup_pending": "warning", "output_altered": "error"}
    assert {code: found[code] for code in wanted} == wanted


def test_a_complaint_of_the_quick_check_alone_is_no_damage(made: Home, codes: Codes) -> None:
    """SQLite 3.40 sees NULLs in such a table that are not there; the thorough check decides."""
    connection = sqlite3.connect(made.database)
    connection.execute("CREATE TABLE w (s INTEGER NOT NULL, k TEXT NOT NULL, PRIMARY KEY (k, s)) STRICT, WITHOUT ROWID")
    connection.execute("INSERT INTO w VALUES (1, 'k')")
    connection.commit()
    connection.close()

    assert codes()["database"] == "info"
