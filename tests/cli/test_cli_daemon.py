"""``daemon``: started in the background, stopped for certain, described to systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_runs import SOURCE, Ran
from fake_daemon import TASK_ID, FakeDaemon, always, overview
from hypothesis import given
from hypothesis import strategies as st

from pawl.cli import daemon_process, systemd_unit
from pawl.cli.commands import daemon as command
from pawl.home import Home

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
STAND_IN = str(Path(__file__).with_name("stand_in.py"))


@pytest.fixture
def stand_in(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Let ``daemon start`` start a program that behaves as told."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(STAND_IN), SOURCE]))
    pids: list[int] = []
    ready = daemon_process._ready

    def remember(home: Home, process: subprocess.Popen[bytes], report: bytes, log_start: int) -> dict[str, object]:
        pids.append(process.pid)
        return ready(home, process, report, log_start)

    def behave(behaviour: str) -> None:
        monkeypatch.setattr(
            daemon_process,
            "command",
            lambda home, *more: [sys.executable, STAND_IN, behaviour, "--home", home.path, *more],
        )

    monkeypatch.setattr(daemon_process, "_ready", remember)
    yield behave
    for pid in pids:
        if daemon_process.alive(pid):
            os.kill(pid, signal.SIGKILL)


Behave = Callable[[str], None]


def test_start_answers_when_the_daemon_is_ready(home: Home, pawl: Pawl, stand_in: Behave) -> None:
    """In a session of its own, its output in the log; a second start is refused with exit 5, naming the pid."""
    stand_in("good")

    ran = pawl("daemon", "start", "--json")

    pid = ran.json["pid"]
    assert ran.status == 0
    assert os.getsid(pid) == pid
    assert "a line in the log" in Path(home.log).read_text()
    assert os.stat(home.log).st_mode & 0o777 == 0o600
    again = pawl("daemon", "start", "--json")
    assert (again.status, again.out, again.error["code"]) == (5, "", "daemon_already_running")
    assert again.error["details"]["pid"] == pid
    assert pawl("daemon", "stop").status == 0


def test_what_the_daemon_refuses_is_the_answer_of_start(pawl: Pawl, stand_in: Behave) -> None:
    """Its code and its exit status, not ours."""
    stand_in("refuses")

    assert pawl("daemon", "start") == (2, "", "pawl: config.toml:1: bad\n")


def test_a_daemon_that_cannot_start_and_hangs_is_ended(
    pawl: Pawl, stand_in: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its refusal is the answer all the same, and nothing is left that keeps the home locked."""
    monkeypatch.setattr(daemon_process, "_END_PATIENCE_S", 0.2)
    stand_in("refuses_and_hangs")

    assert pawl("daemon", "start") == (1, "", "pawl: no space\n")


def test_a_daemon_that_dies_at_once_is_told_with_its_last_words(home: Home, pawl: Pawl, stand_in: Behave) -> None:
    """Exit 1, the status and what it wrote; nothing of an older log."""
    home.prepare()
    Path(home.log).write_text("yesterday's news\n")
    stand_in("dies")

    ran = pawl("daemon", "start", "--json")

    assert (ran.status, ran.out, ran.error["code"]) == (1, "", "internal")
    assert "exit status 1" in ran.error["message"]
    assert "something terrible happened" in ran.error["message"]
    assert "yesterday" not in ran.error["message"]


def test_stop_answers_when_the_process_is_gone_and_says_what_runs_on(pawl: Pawl, stand_in: Behave) -> None:
    """The task whose process is still there is left to the next daemon, and named."""
    stand_in("good")
    pid = pawl("daemon", "start", "--json").json["pid"]

    ran = pawl("daemon", "stop", "--json")

    assert ran.json == {"pid": pid, "cancelled": False, "running": [TASK_ID], "left": [TASK_ID], "queued": 2}
    assert not daemon_process.alive(pid)
    assert pawl("daemon", "stop").status == 3


def test_stop_does_not_claim_what_it_has_not_seen(
    pawl: Pawl, stand_in: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stays is an error, not a success."""
    monkeypatch.setattr(daemon_process, "STOP_MARGIN_S", 0.5)
    stand_in("lingers")
    pawl("daemon", "start")

    ran = pawl("daemon", "stop")

    assert ran.status == 1
    assert "still there" in ran.err


def test_restart_stops_and_starts_and_starts_where_none_runs(pawl: Pawl, stand_in: Behave) -> None:
    """Both in one word."""
    stand_in("good")

    first = pawl("daemon", "restart", "--json").json
    second = pawl("daemon", "restart", "--json").json

    assert first["stopped_pid"] is None
    assert second["stopped_pid"] == first["pid"]
    assert second["pid"] != first["pid"]
    pawl("daemon", "stop")


def test_stop_says_how_many_stay_queued(pawl: Pawl, stand_in: Behave) -> None:
    """And that it waits for what runs."""
    stand_in("good")
    pawl("daemon", "start")

    ran = pawl("daemon", "stop")

    assert "waiting up to 0.5 s for what runs to end by itself (1 task)" in ran.err
    assert "2 tasks stay queued and start with the next daemon\n" in ran.out


def test_an_end_that_takes_long_is_told_of(pawl: Pawl, stand_in: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--cancel`` does not wait in silence."""
    monkeypatch.setattr(daemon_process, "STOP_MARGIN_S", 1.0)
    monkeypatch.setattr(daemon_process, "TELL_AFTER_S", 0.2)
    stand_in("lingers")
    pawl("daemon", "start")

    assert "waiting up to 1.3 s for 1 task to end\n" in pawl("daemon", "stop", "--cancel").err


def test_restart_waits_for_no_work(pawl: Pawl, stand_in: Behave) -> None:
    """The grace is for those who stop: the work outlives the daemon."""
    stand_in("good")
    pawl("daemon", "start")

    ran = pawl("daemon", "restart")

    assert (ran.status, ran.err) == (0, "")
    pawl("daemon", "stop")


def test_restart_refuses_a_faulty_configuration_first(home: Home, pawl: Pawl, stand_in: Behave) -> None:
    """Exit 2, every fault, and the daemon runs on; without a daemon none is started."""
    stand_in("good")
    home.prepare()
    Path(home.config).write_text("nonsense = 1\nrubbish = 2\n")

    alone = pawl("daemon", "restart")
    pid = pawl("daemon", "start", "--json").json["pid"]
    text = pawl("daemon", "restart")
    json = pawl("daemon", "restart", "--json")

    assert (alone.status, alone.err.splitlines()[-1]) == (2, "no daemon was started")
    assert (text.status, text.out) == (2, "")
    assert "config.toml:1" in text.err
    assert "config.toml:2" in text.err
    assert f"the daemon with pid {pid} runs on with its old configuration" in text.err
    assert (json.status, json.error["code"], len(json.error["details"]["faults"])) == (2, "config_invalid", 2)
    assert daemon_process.alive(pid)
    pawl("daemon", "stop")


def test_stop_where_none_runs_has_nothing_to_stop(home: Home, pawl: Pawl) -> None:
    """Exit 3, without advice to start one."""
    assert pawl("daemon", "stop") == (3, "", f"pawl: no daemon runs at {home.path}: nothing to stop\n")


def test_stop_does_not_say_that_none_runs_while_one_is_silent(home: Home, pawl: Pawl) -> None:
    """Its lock is held: it is there and does not answer."""
    home.prepare()
    with open(home.lock, "w") as holder:
        import fcntl

        fcntl.flock(holder, fcntl.LOCK_EX)
        ran = pawl("daemon", "stop")

    assert ran.status == 3
    assert "no daemon answers" in ran.err


def test_a_stopping_daemon_is_shown_as_one(daemon: Start, pawl: Pawl) -> None:
    """By both commands that tell of it."""
    answer = overview()
    answer["daemon"]["stopping"] = True
    daemon({"daemon.status": always(answer)})

    assert "stopping, pid 4711" in pawl("daemon", "status").out
    assert "stopping: it takes no new work" in pawl("status").out
    assert pawl("daemon", "status", "--json").json["stopping"] is True


def test_status_says_who_and_since_when(daemon: Start, pawl: Pawl) -> None:
    """Exit 0 with a daemon, 3 without."""
    fake = daemon({"daemon.status": always(overview())})

    document = pawl("daemon", "status", "--json").json

    assert document["pid"] == 4711
    assert document["socket"] == "/somewhere/run/daemon.sock"
    assert document["uptime_s"] > 0
    assert "since 2026-01-31T09:30:00.000Z" in pawl("daemon", "status").out
    fake.stop()
    assert pawl("daemon", "status").status == 3


def test_run_becomes_the_daemon(home: Home, pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is replaced, so that a service manager sees the daemon itself."""
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: called.append([path, *words]) or 0)

    command.run(_call(home))

    assert called == [[sys.executable, sys.executable, "-P", "-m", "pawl.daemon", "--home", home.path]]


def _call(home: Home) -> object:
    from pawl.cli.call import Call

    return Call(home, json=False)


# --- waiting for the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pidfd", [True, False])
def test_a_process_that_has_ended_is_gone_even_uncollected(
    home: Home, monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    """A zombie counts as gone, with and without pidfds."""
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    home.prepare()
    with open(home.lock, "w") as holder:  # nobody's lock tells it here
        import fcntl

        fcntl.flock(holder, fcntl.LOCK_EX)
        process = subprocess.Popen(["sleep", "0.2"])

        assert not daemon_process.wait_gone(home, process.pid, 0.01)
        assert daemon_process.wait_gone(home, process.pid, 10)
        process.wait()
        assert daemon_process.wait_gone(home, process.pid, 1)


# --- systemd --------------------------------------------------------------------------------------------------------


def test_install_writes_the_unit_once(pawl: Pawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same again is no change; something else there is left alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "systemd" / "user" / "pawl.service"

    first = pawl("daemon", "install", "--json").json
    second = pawl("daemon", "install", "--json").json

    assert (first["path"], first["written"], second["written"]) == (str(path), True, False)
    assert path.read_text() == first["unit"]
    path.write_text("# mine\n")
    ran = pawl("daemon", "install", "--json")
    assert (ran.status, ran.error["code"]) == (5, "already_exists")
    assert path.read_text() == "# mine\n"


def test_install_print_only_prints(pawl: Pawl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    ran = pawl("daemon", "install", "--print")

    assert "Type=notify\n" in ran.out
    assert "KillMode=process\n" in ran.out
    assert "Restart=on-failure\n" in ran.out
    assert f"ExecStart={sys.executable} -P -m pawl.daemon --home " in ran.out
    assert not (tmp_path / "config").exists()


NASTY = [
    "/plain/home",
    "/with space/50%/it's",
    '/a"quote',
    "/back\\slash",
    "/dollar$HOME/${X}",
    "/tab\there",
    "/é/日本",
    "/a;b",
    "/%h",
]


@pytest.mark.parametrize("path", NASTY)
def test_the_unit_says_the_home_exactly(path: str) -> None:
    """Read as systemd reads it: quotes, escapes, %% and $$."""
    unit = systemd_unit.text(Home(path))

    line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert read_as_systemd(line.removeprefix("ExecStart="))[-1] == path


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_word_survives_the_quoting(word: str) -> None:
    """Whatever is in it."""
    assert read_as_systemd(f"prog {systemd_unit.quoted(word)}") == ["prog", word]


def read_as_systemd(line: str) -> list[str]:
    """The words of ``ExecStart`` after unquoting, specifiers (only ``%%``) and variables (only ``$$``)."""
    words, at = [], 0
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}
    while at < len(line):
        quoted, word = line[at] == '"', ""
        at += quoted
        while at < len(line) and line[at] != ('"' if quoted else " "):
            if line[at] == "\\":
                at += 1
                word += escapes[line[at]]
            elif line[at] in "%$":
                assert line[at + 1] == line[at], "a specifier or variable that was not meant"
                word += line[at]
                at += 1
            else:
                word += line[at]
            at += 1
        at += 1 + quoted
        words.append(word)
    return words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("path", ["/plain/home", '/with space/50%/"quoted"'])
def test_systemd_itself_finds_nothing_wrong(path: str, tmp_path: Path) -> None:
    """``systemd-analyze verify`` reads the unit without a word."""
    unit = tmp_path / "pawl.service"
    unit.write_text(systemd_unit.text(Home(path)))

    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )

    assert "pawl.service" not in ran.stderr
