"""Anything on the socket: every line is answered by one document with a stable code, and the daemon goes on.

Every example is a batch of lines on one connection. Behind it a call on another connection must be answered in time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.client import Connection
from harness.daemon import Daemon
from ipc.wire import HELLO, Wire, request
from pawl.daemon import routes

PROBE_S = 10.0
_END = "the end of the batch"
_fuzz = partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

# --- what is sent ---------------------------------------------------------------------------------------------------

_texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),  # lone surrogates and zero bytes too
    st.sampled_from(
        ["", "\0", "\ud800", "\udfff\ud800", "a" * 100_000, "é" * 5000, "../..", "%s{}'\";--", "PAWL_HOME"]
    ),
)
_numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**62, 2**63, 2**64, -(2**63), -(2**64), 10**400, 10**4000]),
    st.floats(),
)
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_texts, inner, max_size=5)),
    max_leaves=12,
)
_DEEP, _HUGE = "@deep@", "@huge@"  # what Python's encoder does not write stands in their place
_odd = st.sampled_from([_DEEP, _HUGE])
_IDS = st.one_of(
    st.sampled_from(["0" * 36, "0" * 8, "0", "ffffffff", "daemon", "-" * 64, "a" * 65, "@task@", "@prefix@"]), _texts
)
_PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "agent": st.sampled_from(["echo", "cat", "off", "nobody", "\ud800"]),
    "name": st.sampled_from(["echo", "cat", "off", "nobody", "\0"]),
    "id": _IDS,
    "ids": st.lists(_IDS, max_size=4),
    "parent": _IDS,
    "subject": _IDS,
    "prompt": _texts,
    "prompt_base64": st.sampled_from(["", "aGk=", "aGk", "é", "////", "AAAA" * 1000]),
    "statuses": st.lists(st.sampled_from(["queued", "running", "completed", "lost", "so"]), max_size=60),
    "kind": st.sampled_from(["delegate", "cron", "\0"]),
    "stream": st.sampled_from(["stdout", "stderr", "both"]),
    "cwd": st.sampled_from(["/", "/tmp", "/nowhere", "here", "/\0", "/" + "a" * 5000]),
    "caller_cwd": st.sampled_from(["/", "/nowhere", "/\ud800"]),
    "env": st.dictionaries(st.sampled_from(["A", "PAWL_X", "1", "a" * 300, "\0"]), _texts, max_size=3),
    "labels": st.dictionaries(_texts, _texts, max_size=3),
    "source": st.dictionaries(_texts, _texts, max_size=3),
    "inputs": st.lists(st.sampled_from(["/etc/hostname", "/", "/dev/zero", "/nowhere", "/dev/stdin", "x"]), max_size=3),
    "idempotency_key": _texts,
    "reason": _texts,
    "wait": st.booleans(),
    "follow": st.booleans(),
    "all": st.booleans(),
    "timeout_s": st.sampled_from([0, 1e-9, 0.01, 3600, 3_155_760_000, 1e300]),
    "queue_timeout_s": st.sampled_from([0.01, 60, 3_155_760_000]),
    "limit": st.sampled_from([0, 1, 10, 10_000, 100_001]),
    "last": st.sampled_from([0, 1, 10_000]),
    "after": st.sampled_from([0, 5, 2**62]),
    "priority": st.sampled_from([0, -1_000_000, 1_000_001]),
    "retries": st.sampled_from([0, 1, 101]),
    "protocol": st.sampled_from([1, 1, 0, 2, "1", 10**4000]),
}
_methods = st.sampled_from(["hello", *sorted(routes._TABLE)])


@st.composite
def _params(draw: st.DrawFn, method: str) -> Any:
    """Parameters of a method: some as they should be, some not, some that it does not know."""
    if draw(st.integers(0, 15)) == 0:
        value = draw(_values | _odd)
        return "not empty" if method == "daemon.stop" and not value else value
    fields = routes._TABLE[method].params.model_fields if method in routes._TABLE else {"protocol": 1, "client": 1}
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(fields)), unique=True)) if fields else ():
        plausible = _PLAUSIBLE.get(name, st.booleans())
        found[name] = draw(st.one_of(plausible, plausible, plausible, _values | _odd))
    required = {"agent": "echo", "name": "echo", "id": "@task@", "ids": ["@task@"], "protocol": 1}
    for name, value in required.items():
        if name in fields and draw(st.integers(0, 7)):
            found.setdefault(name, value)
    if method == "daemon.stop":
        found["unknown"] = True  # or there is no daemon any more
    elif draw(st.integers(0, 7)) == 0:
        found[draw(_texts)] = draw(_values | _odd)
    return found


_numbers_of_requests = st.one_of(
    st.integers(0, 3),  # the same one more than once
    st.integers(10, 10**6),
    st.sampled_from(["a", "", "\ud800", "x" * 200]),
    st.none(),
    st.sampled_from([True, 1.5, [], {}, [[1]], 2**63, "x" * 201, _DEEP]),
)


@st.composite
def _request(draw: st.DrawFn, task: str) -> bytes:
    """One line that is a request, or nearly one."""
    method = draw(_methods)
    body: dict[str, Any] = {
        "jsonrpc": "2.0", "id": draw(_numbers_of_requests), "method": method, "params": draw(_params(method)),
    }  # fmt: skip
    bent = draw(st.integers(0, 11))
    if bent == 0:
        gone = draw(st.sampled_from(sorted(body)))
        if method != "daemon.stop" or gone != "params":
            body.pop(gone)
    elif bent == 1 and method != "daemon.stop":
        body[draw(st.sampled_from(sorted(body)))] = draw(_values | _odd)
    document = [body, body] if bent == 2 else body
    text = json.dumps(document, ensure_ascii=True)
    text = text.replace("@task@", task).replace("@prefix@", task[:8])
    text = text.replace(f'"{_DEEP}"', "[" * 3000 + "]" * 3000).replace(f'"{_HUGE}"', "9" * 5000)
    return text.encode() + b"\n"


_bytes = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"\n", b"\r\n", b"\0\n", b"\xff\xfe\n", b"[]\n", b"null\n", b"[" * 100_000 + b"\n", b'"\n', b"{}\n"]
    ),
    st.sampled_from([HELLO, request("hello", 1, protocol=2), b"\xef\xbb\xbf" + HELLO, HELLO[:-1], HELLO * 2 + b"{"]),
)


# --- what must come back --------------------------------------------------------------------------------------------


class Due:
    """What a batch of lines must be answered with, by the number of each request."""

    def __init__(self, data: bytes) -> None:
        self.certain: Counter[Any] = Counter()  # exactly one answer each
        self.possible: Counter[Any] = Counter()  # at most one: no id that could be told, or no end
        for line in data.split(b"\n")[:-1]:
            if line:
                self._line(line)

    def _line(self, line: bytes) -> None:
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        number = body.get("id") if isinstance(body, dict) else None
        if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
            self.certain[None] += 1
        elif number is None:
            self.possible[None] += 1
        elif isinstance(number, bool | float | list | dict) or len(str(number)) > 200 or _beyond(number):
            self.certain[None] += 1
        elif isinstance(body.get("params"), dict) and body["params"].get("follow") is True:
            self.possible[number] += 1
        else:
            self.certain[number] += 1

    def met_by(self, found: Counter[Any]) -> bool:
        return all(found[number] >= count for number, count in self.certain.items())

    def exceeded_by(self, found: Counter[Any]) -> list[Any]:
        return [number for number in found if found[number] > self.certain[number] + self.possible[number]]


def _beyond(number: Any) -> bool:
    return isinstance(number, int) and number.bit_length() > 63


def _converse(daemon: Daemon, probe: Connection, data: bytes, *, greet: bool) -> None:
    """Send a batch and hold the daemon to every claim of this module."""
    if data.endswith(b"\n") or not data:
        data += request("daemon.status", _END)
    else:
        data += b"\n" + request("daemon.status", _END)
    due = Due(data)
    found: Counter[Any] = Counter()
    codes = []

    with Wire(daemon.home.socket, greet=greet) as client:
        client.send(data)
        closed = False
        while not closed and not due.met_by(found):
            message = client.read()
            if message is None:
                closed = True
            elif "method" not in message:
                found[message["id"]] += 1
                codes.append(message.get("error", {}).get("data", {}).get("code"))

    assert due.exceeded_by(found) == []
    if closed:
        assert {"protocol_mismatch", "frame_too_large"} & set(codes), f"it closed after {codes}"
    assert probe.call("daemon.status")["daemon"]["pid"] == daemon.pid


@pytest.fixture(scope="module")
def probe(harmless: Daemon) -> Iterator[Connection]:
    """Another client, which must be answered whatever the first one does."""
    with harmless.connect(timeout_s=PROBE_S) as connection:
        yield connection


@pytest.fixture(scope="module")
def task(harmless: Daemon) -> str:
    """The id of an ended task."""
    return str(harmless.delegate("echo", "known", wait=True)["id"])


@_fuzz(max_examples=150)
@given(pieces=st.lists(_bytes, max_size=8), greet=st.booleans())
def test_any_bytes(pieces: list[bytes], greet: bool, harmless: Daemon, probe: Connection) -> None:
    """Whatever arrives is answered line by line, greeted or not."""
    _converse(harmless, probe, b"".join(pieces), greet=greet)


@pytest.mark.parametrize("method", sorted(routes._TABLE))
@_fuzz(max_examples=30)
@given(data=st.data())
def test_any_parameters(method: str, data: st.DataObject, harmless: Daemon, probe: Connection, task: str) -> None:
    """Every method takes any parameters, and does its work or says what is wrong with them."""
    lines = []
    for number in range(data.draw(st.integers(1, 4))):
        text = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": data.draw(_params(method))})
        text = text.replace("@task@", task).replace("@prefix@", task[:8])
        text = text.replace(f'"{_DEEP}"', "[" * 900 + "]" * 900).replace(f'"{_HUGE}"', "9" * 4000)
        lines.append(text.encode() + b"\n")

    _converse(harmless, probe, b"".join(lines), greet=True)


@_fuzz(max_examples=200)
@given(data=st.data(), greet=st.sampled_from([True, True, True, False]))
def test_any_conversation(data: st.DataObject, greet: bool, harmless: Daemon, probe: Connection, task: str) -> None:
    """Requests of every kind and nearly requests, batches, notifications, odd and equal ids, in any order."""
    lines = data.draw(st.lists(_request(task), min_size=1, max_size=8))

    _converse(harmless, probe, b"".join(lines), greet=greet)


@pytest.mark.parametrize(
    "params",
    [
        {f"k{number}": 1 for number in range(500_000)},
        {"statuses": [1] * 2_000_000},
        {"labels": {f"k{number}": 1 for number in range(500_000)}},
        {"statuses": ["queued"] * 700_000},
        {"agent": "\ud800" * 1_000_000},
        {"agent": "a" * 8_000_000},
    ],
)
def test_a_line_full_of_faults_holds_nobody_up(params: dict[str, Any], harmless: Daemon, probe: Connection) -> None:
    """The largest line that may be sent is judged in a moment, however much is wrong in it."""
    _converse(harmless, probe, request("task.list", 1, **params), greet=True)


def test_no_line_was_a_bug(harmless: Daemon) -> None:
    """After all this the daemon's log holds no fault of its own."""
    lines = [json.loads(line) if line.startswith("{") else {"event": line} for line in harmless.log().splitlines()]

    bad = [line for line in lines if line.get("level") not in ("info", "debug", "warning")]

    assert bad == []
