"""The client: one round trip a call, errors as errors, and no trust in a stranger's socket."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

import pytest
from fake_daemon import Asked, FakeDaemon, Hangup, always, refuse

from pawl.cli import client as client_module
from pawl.cli.client import REQUEST_BYTES_MAX, Client, ConnectionLost, home_option, through_restarts
from pawl.errors import DaemonUnreachable, FrameTooLarge, PeerRefused, RemoteError
from pawl.home import Home

Start = Callable[..., FakeDaemon]


def test_greeting_and_request_leave_in_one_write(home: Home, daemon: Start) -> None:
    """A call is one round trip."""
    fake = daemon({"x": always(7)})

    assert Client(home).call("x", a=1) == 7

    lines = [json.loads(line) for line in fake.first_bytes[0].splitlines()]
    assert [line["method"] for line in lines] == ["hello", "x"]
    assert lines[0]["params"]["protocol"] == 1
    assert lines[1]["params"] == {"a": 1}


def test_a_second_call_uses_the_same_connection(home: Home, daemon: Start) -> None:
    """It is greeted once."""
    fake = daemon({"x": lambda asked: asked.params["n"]})
    client = Client(home)

    assert [client.call("x", n=n) for n in range(3)] == [0, 1, 2]

    assert len(fake.greetings) == 1


def test_an_error_answer_is_raised_with_everything_it_says(home: Home, daemon: Start) -> None:
    """Code, exit status, message and details come through."""
    daemon({"x": refuse("task_not_found", "no task y", 4, id="y")})

    with pytest.raises(RemoteError) as caught:
        Client(home).call("x")

    assert (caught.value.code, caught.value.exit_code, caught.value.message) == ("task_not_found", 4, "no task y")
    assert caught.value.details == {"id": "y"}


def test_a_greeting_that_is_refused_is_the_answer(home: Home, daemon: Start) -> None:
    """A daemon of another protocol says so; nobody waits for more."""
    daemon({"hello": refuse("protocol_mismatch", "speak 2", 2), "x": always(1)})

    with pytest.raises(RemoteError) as caught:
        Client(home).call("x")

    assert caught.value.code == "protocol_mismatch"


def test_pieces_come_in_order_before_the_result(home: Home, daemon: Start) -> None:
    """Bytes as bytes, objects as objects, whatever their size."""
    large = os.urandom(256 * 1024)

    def answer(asked: Asked) -> str:
        asked.data(b"a\x00")
        asked.item({"seq": 1})
        asked.data(large)
        return "end"

    daemon({"x": answer})
    stream = Client(home).stream("x")

    assert list(stream) == [b"a\x00", {"seq": 1}, large]
    assert stream.result == "end"


def test_without_a_daemon_the_message_says_what_to_do(home: Home) -> None:
    """It names the home and the command that helps."""
    with pytest.raises(DaemonUnreachable) as caught:
        Client(home).call("x")

    assert home.path in caught.value.message
    assert "`pawl daemon start`" in caught.value.message


def test_a_dead_daemons_socket_is_no_daemon(home: Home, daemon: Start) -> None:
    """The file is there, nobody listens."""
    import socket

    home.prepare()
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(home.socket)

    with pytest.raises(DaemonUnreachable):
        Client(home).call("x")


def test_a_command_that_is_shown_names_the_home_where_it_must(home: Home, tmp_path: object) -> None:
    """Not for the usual home; quoted for the shell where that is needed."""
    assert home_option(home) == ""
    assert home_option(Home("/other")) == " --home /other"
    assert home_option(Home("/it's here")) == " --home '/it'\\''s here'"


def test_a_daemon_that_hangs_up_in_the_middle_is_lost(home: Home, daemon: Start) -> None:
    """Not taken for an answer."""

    def answer(asked: Asked) -> None:
        raise Hangup

    daemon({"x": answer})

    with pytest.raises(ConnectionLost):
        Client(home).call("x")


def test_what_is_no_answer_is_not_taken_for_one(home: Home, daemon: Start) -> None:
    """A line that is not JSON ends the conversation."""

    def answer(asked: Asked) -> None:
        asked._connection.sendall(b"\xff\xfe nonsense\n")

    daemon({"x": answer})

    with pytest.raises(ConnectionLost, match="no answer"):
        Client(home).call("x")


def test_a_daemon_that_does_not_answer_in_time_is_lost(home: Home, daemon: Start) -> None:
    """A stuck daemon does not hang a quick question for ever."""
    release = threading.Event()
    daemon({"x": lambda asked: release.wait(5)})

    with pytest.raises(ConnectionLost, match=r"within 0\.05 s"):
        Client(home, patience_s=0.05).call("x")
    release.set()


def test_a_request_over_the_limit_is_not_sent(home: Home, daemon: Start) -> None:
    """The message says how to hand over something large."""
    fake = daemon({"x": always(1)})

    with pytest.raises(FrameTooLarge, match="--input"):
        Client(home).call("x", prompt="x" * REQUEST_BYTES_MAX)

    assert fake.asked == []


def test_a_strangers_socket_is_refused(home: Home, daemon: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's file at the place where ours should be is not talked to."""
    fake = daemon({"x": always(1)})
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(home.path).st_uid + 4242)
    _as_if_owned_by(monkeypatch, home.socket, 4243)

    with pytest.raises(PeerRefused):
        Client(home).call("x")

    assert fake.greetings == []


def test_a_strangers_directory_around_the_socket_is_refused(
    home: Home, daemon: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the directory can put another socket there."""
    daemon({"x": always(1)})
    _as_if_owned_by(monkeypatch, os.path.dirname(home.socket), 4243)

    with pytest.raises(PeerRefused, match="4243"):
        Client(home).call("x")


def test_root_may_talk_to_the_daemon_of_the_homes_owner(
    home: Home, daemon: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon answers root, so root's client asks it; other strangers stay refused."""
    daemon({"x": always(1)})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for path in (home.path, os.path.dirname(home.socket), home.socket):
        _as_if_owned_by(monkeypatch, path, 1000)

    assert Client(home).call("x") == 1

    _as_if_owned_by(monkeypatch, home.socket, 1001)
    with pytest.raises(PeerRefused):
        Client(home).call("x")


def _as_if_owned_by(monkeypatch: pytest.MonkeyPatch, path: str, uid: int) -> None:
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def fake(
            asked: str, *rest: object, real: Callable[..., os.stat_result] = real, **more: object
        ) -> os.stat_result:
            found = real(asked, *rest, **more)
            if asked != path:
                return found
            values = list(found)
            values[4] = uid
            return os.stat_result(values)

        monkeypatch.setattr(os, name, fake)


def test_a_wait_goes_on_with_the_next_daemon(home: Home, daemon: Start) -> None:
    """The connection is lost in the middle; a new daemon comes; the question is asked again."""
    first = daemon({"x": lambda asked: threading.Event().wait(5)})
    threading.Timer(0.2, lambda: (first.stop(), daemon({"x": always("from the second")}))).start()

    assert through_restarts(home, lambda client: client.call("x")) == "from the second"


def test_a_stopping_daemon_is_waited_for_too(home: Home, daemon: Start) -> None:
    """Its refusal means: ask the next one."""
    answers = iter([refuse("daemon_stopping", "stopping", 5), always("later")])
    daemon({"x": lambda asked: next(answers)(asked)})

    assert through_restarts(home, lambda client: client.call("x")) == "later"


def test_no_daemon_coming_back_is_told_with_a_word_on_the_work(home: Home, daemon: Start) -> None:
    """After its patience the wait gives up, with exit status 3."""
    first = daemon({"x": lambda asked: threading.Event().wait(5)})
    threading.Timer(0.1, first.stop).start()
    began = time.monotonic()

    with pytest.raises(DaemonUnreachable, match="the work goes on") as caught:
        through_restarts(home, lambda client: client.call("x"), patience_s=0.3)

    assert caught.value.exit_code == 3
    assert time.monotonic() - began < 5


def test_a_wait_without_any_daemon_fails_at_once(home: Home) -> None:
    """It waits for a restart, not for a start."""
    began = time.monotonic()

    with pytest.raises(DaemonUnreachable):
        through_restarts(home, lambda client: client.call("x"))

    assert time.monotonic() - began < client_module.RECONNECT_S / 2
