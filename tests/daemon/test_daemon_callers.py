"""Who is calling: a program acts as the task that it is part of, whatever it says of itself."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import rows
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran, gate
from pawl.daemon.callers import Callers
from pawl.errors import PeerRefused
from pawl.ipc.peer import Peer
from pawl.runner.identity import identity_of

_POLICY = """
[policies.boss]
delegation = "allow"
max_depth = 5

[agents.boss]
command = ["sh", "-c"]
prompt = "argument"
policy = "boss"
delegates = ["worker", "echo", "sh"]

[agents.worker]
command = ["sh", "-c"]
prompt = "argument"
policy = "boss"
delegates = ["echo"]
"""

_CALL = """
import json, socket, sys
path, method, params = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
s = socket.socket(socket.AF_UNIX)
s.connect(path)
asked = [("hello", {"protocol": 1}), (method, params)]
frames = [{"jsonrpc": "2.0", "id": number, "method": name, "params": what} for number, (name, what) in enumerate(asked)]
try:
    s.sendall("".join(json.dumps(frame) + "\\n" for frame in frames).encode())
except OSError:
    pass  # refused before we said anything: it says why
for line in s.makefile():
    if json.loads(line).get("id") != 0:
        print(line, flush=True)
        break
"""


@pytest.fixture
def call(daemon: Daemon, tmp_path: Path) -> Any:
    """The shell words that call the daemon from inside a program."""
    script = tmp_path / "call.py"
    script.write_text(_CALL)
    daemon.configure(CONFIG + _POLICY)

    def words(method: str, **params: Any) -> str:
        text = json.dumps(params).replace("'", "'\\''")
        return f"{sys.executable} -I -S {script} {daemon.home.socket} {method} '{text}'"

    return words


def _answer(daemon: Daemon, task_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(daemon.result(task_id))
    return answer


_WAYS = {
    "directly": "{}",
    "through a shell": "sh -c '{}; exit'",
    "in a new session": "setsid -w {}",
    "in a new session, orphaned": "setsid -f {}; sleep 1",
    "with an empty environment": "env -i {}",
    "with an empty environment in a new session": "env -i setsid -w {}",
    "saying it is another task": "PAWL_TASK_ID=0190c0de-0000-7000-8000-000000000000 {}",
    "in a new session, saying it is nobody": "env -u PAWL_TASK_ID setsid -w {}",
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_program_calls_as_its_task(daemon: Daemon, call: Any, way: str) -> None:
    """Creator, chain, depth, parent and principal come from the row of the task that the caller is part of."""
    daemon.start()
    inner = call("task.delegate", agent="echo", prompt="inner")
    prompt = _WAYS[way].replace("{}", inner.replace("'", "'\\''") if "'{}" in _WAYS[way] else inner)

    outer = daemon.delegate("boss", prompt, wait=True)
    child = _answer(daemon, outer["id"])["result"]

    assert child["parent_id"] == outer["id"]
    assert (child["creator"], child["chain"], child["depth"]) == ("boss", [], 1)
    assert child["principal"] == f"task:{outer['id']}"
    assert (outer["creator"], outer["depth"], outer["chain"]) == ("operator", 0, [])
    assert outer["principal"] == f"uid:{os.getuid()}"


@pytest.mark.parametrize(
    "way", ["env -i setsid -f {}; sleep 1", "env -i setsid -f sh -c 'sleep 0.3; {}' & exec sleep 1.5"]
)
def test_a_program_that_escaped_everything_is_nobody(daemon: Daemon, call: Any, way: str) -> None:
    """A new session, no parent, an empty environment: it is some task's, and nobody can say whose, so it is refused. It
    does not become the operator by that."""
    daemon.start()
    inner = call("task.delegate", agent="echo", prompt="inner")

    daemon.delegate("boss", way.replace("{}", inner.replace("'", "'\\''") if "'" in way else inner), wait=True)

    assert [task.creator for task in rows.tasks(daemon.home)] == ["operator"]
    assert "peer_refused" in daemon.log()


def _nested(times: int, words: str, tmp_path: Path) -> str:
    """A program that forks that deep, each generation living on, then runs these words with nothing to tell by."""
    script = tmp_path / "nested.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        os._exit(0)\n"
        "os.setsid()\n"
        "subprocess.run(['/bin/sh', '-c', sys.argv[2]], env={})\n"
    )
    quoted = words.replace("'", "'\\''")
    return f"{sys.executable} -I -S {script} {times} '{quoted}'"


def test_depth_is_no_escape(daemon: Daemon, call: Any, tmp_path: Path) -> None:
    """However many generations lie between, it descends from its worker."""
    daemon.start()
    inner = call("task.delegate", agent="echo", prompt="inner")

    outer = daemon.delegate("boss", _nested(200, inner, tmp_path), wait=True)

    child = _answer(daemon, outer["id"])["result"]
    assert (child["creator"], child["parent_id"]) == ("boss", outer["id"])


def test_a_connector_that_has_ended_is_nobody(daemon: Daemon, call: Any, tmp_path: Path) -> None:
    """A child connects on a shared socket and ends: whose connection it is cannot be told any more."""
    daemon.start()
    script = tmp_path / "dead.py"
    script.write_text(
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "if not os.fork():\n"
        "    os.kill(int(sys.argv[2]), 19)  # the daemon, so that it looks too late\n"
        "    s.connect(sys.argv[1])\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "os.kill(int(sys.argv[2]), 18)\n"
        "print(s.recv(65536).decode(), flush=True)\n"
    )

    outer = daemon.delegate("boss", f"{sys.executable} -I -S {script} {daemon.home.socket} {daemon.pid}", wait=True)

    assert b"peer_refused" in daemon.result(outer["id"])
    assert [task.agent for task in rows.tasks(daemon.home)] == ["boss"]


def test_a_pid_that_changed_hands_is_nobody() -> None:
    """Whoever has the number now did not connect."""
    callers = Callers(SimpleNamespace(supervisor=SimpleNamespace(live={})))  # type: ignore[arg-type]

    with pytest.raises(PeerRefused):
        callers.caller(Peer(os.getpid(), os.getuid(), "1"))


_LATER = "env -i setsid -f sh -c 'sleep 0.3; while [ ! -e {go} ]; do sleep 0.05; done; {inner} > {out} 2>&1'"


def test_an_escaped_program_is_nobody_after_a_restart_either(daemon: Daemon, call: Any, tmp_path: Path) -> None:
    """It is below the keeper of the daemon before, which stays as long as it has a child."""
    daemon.start()
    go, out = tmp_path / "go", tmp_path / "out"
    script = tmp_path / "inner.sh"
    script.write_text(call("task.delegate", agent="echo", prompt="inner"))
    words = _LATER.format(go=go, out=out, inner=f"sh {script}")
    outer = daemon.delegate("boss", f"{words}; exec sleep 600")["id"]
    until(lambda: rows.task(daemon.home, outer).worker_pid, "it never ran")
    daemon.kill()
    daemon.start()
    go.touch()

    answer = until(lambda: out.exists() and out.read_text(), "it never called")
    assert "peer_refused" in answer
    assert [task.agent for task in rows.tasks(daemon.home)] == ["boss"]
    daemon.cancel(outer)


def test_a_stray_ends_with_the_last_task_that_could_have_made_it(daemon: Daemon, tmp_path: Path) -> None:
    """No session, no parent, no environment says whose it is: it lives as long as an older worker."""
    daemon.start()
    older = daemon.delegate("sh", "exec sleep 600")["id"]
    until(lambda: rows.task(daemon.home, older).worker_pid, "it never ran")
    pid_file = tmp_path / "pid"
    words = (
        f"env -i setsid -f sh -c 'echo $$ > {pid_file}; exec sleep 600'; while [ ! -s {pid_file} ]; do sleep 0.02; done"
    )
    daemon.delegate("sh", words, wait=True)
    stray = int(pid_file.read_text())

    assert identity_of(stray)  # it may be the older task's
    daemon.cancel(older)
    until(lambda: not identity_of(stray), "it lives on")


@pytest.mark.parametrize("lie", ["PAWL_TASK_ID={other}", "PAWL_TASK_ID={other} PAWL_TASK_TOKEN=0", "PAWL_TASK_TOKEN=0"])
def test_a_task_that_an_escaped_program_names_is_not_believed(
    daemon: Daemon, call: Any, tmp_path: Path, lie: str
) -> None:
    """An id is no secret. Only the token beside it proves that a program was started as part of that task."""
    daemon.start()
    other = daemon.delegate("sh", "exec sleep 600")["id"]
    until(lambda: rows.task(daemon.home, other).worker_pid, "it never ran")
    script, out = tmp_path / "inner.sh", tmp_path / "out"
    script.write_text(call("task.delegate", agent="echo", prompt="inner"))

    words = f"{lie.format(other=other)} setsid -f sh -c 'sleep 0.3; sh {script} > {out}.new 2>&1; mv {out}.new {out}'"
    outer = daemon.delegate("boss", f"{words} & exec sleep 600")["id"]

    answer = until(lambda: out.exists() and out.read_text(), "it never called")
    assert "peer_refused" in answer
    assert {task.agent for task in rows.tasks(daemon.home)} == {"boss", "sh"}
    for task_id in (outer, other):
        daemon.cancel(task_id)


def test_an_escaped_program_with_its_own_environment_is_its_task_after_a_restart(
    daemon: Daemon, call: Any, tmp_path: Path
) -> None:
    """The token holds across daemons: session and ancestry say nothing, and it is known all the same."""
    daemon.start()
    script, go, out = tmp_path / "inner.sh", tmp_path / "go", tmp_path / "out"
    script.write_text(call("task.delegate", agent="echo", prompt="inner"))
    wait = f"while [ ! -e {go} ]; do sleep 0.05; done"
    words = f"setsid -f sh -c '{wait}; sh {script} > {out}.new 2>&1; mv {out}.new {out}'"
    outer = daemon.delegate("boss", f"{words} & exec sleep 600")["id"]
    until(lambda: rows.task(daemon.home, outer).worker_pid, "it never ran")
    daemon.kill()
    daemon.start()
    go.touch()

    answer = until(lambda: out.exists() and out.read_text(), "it never called")
    assert json.loads(answer)["result"]["parent_id"] == outer
    daemon.cancel(outer)


def test_a_quick_program_is_no_operator(daemon: Daemon, call: Any) -> None:
    """It calls before the daemon has heard that it was started: it is known by its environment."""
    daemon.start(bent="")
    daemon.bend(deaf=True)
    outer = daemon.delegate("boss", call("task.delegate", agent="echo", prompt="inner"))["id"]
    child = until(lambda: [task for task in rows.tasks(daemon.home) if task.agent == "echo"], "it never called")[0]
    daemon.bend()

    assert (child.creator, child.parent_id, child.depth) == ("boss", outer, 1)
    daemon.wait(outer)


def test_a_grandchild_has_its_whole_chain(daemon: Daemon, call: Any) -> None:
    """The callers above the creator stand in the chain, the operator does not."""
    daemon.start()
    inner = call("task.delegate", agent="echo", prompt="x").replace("\\", "\\\\").replace('"', '\\"')
    middle = call("task.delegate", agent="worker", prompt="@", wait=True).replace("@", inner.replace("'", "'\\''"))

    outer = daemon.delegate("boss", middle, wait=True)
    tasks = {task["agent"]: task for task in daemon.call("task.list")}

    assert outer["status"] == "completed"
    assert (tasks["worker"]["creator"], tasks["worker"]["chain"], tasks["worker"]["depth"]) == ("boss", [], 1)
    assert (tasks["echo"]["creator"], tasks["echo"]["chain"], tasks["echo"]["depth"]) == ("worker", ["boss"], 2)
    assert tasks["echo"]["parent_id"] == tasks["worker"]["id"]
    assert tasks["echo"]["principal"] == f"task:{tasks['worker']['id']}"


def test_a_program_names_no_parent_but_its_own_task(daemon: Daemon, call: Any) -> None:
    """The operator may hang a task below another; what a program asks for hangs below its own, and it is told so."""
    daemon.start()
    other = daemon.delegate("echo", "x", wait=True)["id"]

    outer = daemon.delegate("boss", call("task.delegate", agent="echo", prompt="y", parent=other), wait=True)
    by_operator = daemon.delegate("echo", "z", parent=other)

    error = _answer(daemon, outer["id"])["error"]["data"]
    assert (error["code"], error["exit"]) == ("invalid_params", 2)
    assert [task.parent_id for task in rows.tasks(daemon.home)] == [None, None, other]
    assert by_operator["parent_id"] == other
    assert (by_operator["creator"], by_operator["depth"]) == ("operator", 0)


def test_a_program_may_name_itself_as_the_parent(daemon: Daemon, call: Any) -> None:
    """By its id or what tells it apart; with a key it is the same request as without."""
    daemon.start()
    plain, named = (
        call("task.delegate", agent="echo", prompt="y", idempotency_key="k", **more) for more in ({}, {"parent": "@"})
    )
    whole, short = (named.replace("@", f"'\"{text}\"'") for text in ("$PAWL_TASK_ID", "${PAWL_TASK_ID%?}"))

    outer = daemon.delegate("boss", f"{whole}; {short}; {plain}", wait=True)

    answers = [json.loads(line) for line in daemon.result(outer["id"]).split(b"\n") if line]
    assert [answer["result"]["parent_id"] for answer in answers] == [outer["id"]] * 3
    assert len({answer["result"]["id"] for answer in answers}) == 1


def test_an_adopted_program_is_known_after_a_restart(daemon: Daemon, ran: Ran, call: Any) -> None:
    """The next daemon knows its sessions and ancestry too."""
    daemon.start()
    prompt = f"{gate()}; {call('task.delegate', agent='echo', prompt='inner')}"
    outer = daemon.delegate("boss", prompt, env=ran.env)["id"]
    until(lambda: rows.task(daemon.home, outer).worker_pid, "it never ran")
    daemon.kill()
    daemon.start()
    ran.go()

    assert daemon.wait_one(outer)["status"] == "completed"
    assert _answer(daemon, outer)["result"]["parent_id"] == outer


def test_the_audit_log_names_the_task_that_acted(daemon: Daemon, call: Any) -> None:
    """A cancel from inside is the task's deed, one from outside the operator's."""
    daemon.start()
    sleeper = daemon.delegate("sh", "exec sleep 600")["id"]

    outer = daemon.delegate("boss", call("task.cancel", ids=[sleeper]), wait=True)
    other = daemon.delegate("sh", "exec sleep 600")["id"]
    daemon.cancel(other)

    actors = dict(rows.query(daemon.home, "SELECT subject_id, actor FROM event WHERE event = 'cancelled'"))
    if sleeper in actors:  # it is not this task's own: a policy may refuse that
        assert actors[sleeper] == f"task:{outer['id']}"
    assert actors[other] == f"uid:{os.getuid()}"
    daemon.cancel(sleeper)


# --- connections that outlive their task ----------------------------------------------------------------------------

_HAND_OVER = """
import array, json, os, socket, sys
daemon, ours = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
daemon.connect(os.environ["PAWL_SOCKET"])
hello = {"jsonrpc": "2.0", "id": 0, "method": "hello", "params": {"protocol": 1}}
daemon.sendall(json.dumps(hello).encode() + b"\\n")
daemon.recv(65536)
ours.connect(os.environ["OUT"])
ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [daemon.fileno()]))])
ours.recv(1)
"""


class Kept:
    """The connection of a task, in other hands."""

    def __init__(self, handed: socket.socket) -> None:
        self._task = handed
        _, (fd, *_), _, _ = socket.recv_fds(handed, 1, 1)
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(20)
        self._file = self._socket.makefile("rb")

    def let_go(self) -> None:
        """The program of the task may end now."""
        self._task.close()

    def send(self, method: str, **params: Any) -> None:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._socket.sendall(json.dumps(body).encode() + b"\n")

    def answer(self) -> Any:
        """The result, or the code of the error."""
        while (message := json.loads(self._file.readline())).get("method") == "stream":
            pass
        return message["error"]["data"]["code"] if "error" in message else message["result"]

    def call(self, method: str, **params: Any) -> Any:
        self.send(method, **params)
        return self.answer()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def keep(daemon: Daemon, tmp_path: Path) -> Iterator[Callable[[], tuple[str, Kept]]]:
    """Start a task that hands its connection over; its id and that."""
    path = str(tmp_path / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.settimeout(20)
    handing = f'[agents.handing]\ncommand = {json.dumps([sys.executable, "-c", _HAND_OVER])}\npolicy = "boss"\n'
    daemon.configure(CONFIG + _POLICY + handing + 'delegates = ["sh"]\n')
    kept: list[Kept] = []

    def start() -> tuple[str, Kept]:
        task_id = daemon.delegate("handing", "", env={"OUT": path})["id"]
        kept.append(Kept(listener.accept()[0]))
        return task_id, kept[-1]

    yield start
    for each in kept:
        each.close()
    listener.close()


_CALLS: dict[str, dict[str, Any]] = {
    "task.usage": {"tokens": 1, "cost": 1.0}, "task.progress": {"text": "x"}, "task.list": {},
    "task.spawn": {"prompt": ""},
    "task.delegate": {"agent": "sh", "prompt": "true"}, "agent.list": {}, "daemon.status": {},
}  # fmt: skip


@pytest.mark.parametrize("how", ["completed", "cancelled"])
def test_a_connection_speaks_for_its_task_no_longer_than_that_runs(daemon: Daemon, keep: Any, how: str) -> None:
    """By every call; also one that was waiting when it ended. What it had used by then stands."""
    daemon.start()
    task_id, kept = keep()
    running = daemon.delegate("sh", "exec sleep 600")["id"]
    assert kept.call("task.usage", tokens=7)["tokens"] == 7
    mine = kept.call("task.delegate", agent="sh", prompt="exec sleep 600")["id"]
    kept.send("task.wait", ids=[mine])

    if how == "cancelled":
        daemon.cancel(task_id)
    kept.let_go()
    assert daemon.wait_one(task_id)["status"] == how

    waited = kept.answer()
    assert waited == "caller_ended" or [task["id"] for task in waited["completed"]] == [mine]
    for method, params in _CALLS.items():
        assert kept.call(method, **params) == "caller_ended", method
    for method in ("task.get", "task.why", "task.result", "task.logs"):
        for each in (task_id, mine, running):
            assert kept.call(method, id=each) == "caller_ended", method
    assert daemon.get(task_id)["usage"]["tokens"] == 7


def test_what_is_spent_while_a_task_is_ended_counts(daemon: Daemon, call: Any, ran: Ran) -> None:
    """Its program may say so until it is gone; it is told the truth about everything else."""
    daemon.start()
    words = f"{call('task.usage', tokens=5)}; {call('task.list')}"
    script = f'trap \'\' TERM; echo up >> "$OUT"; read _ < "$OUT.go"; {words}'
    task_id = daemon.delegate("boss", script, env=ran.env)["id"]
    until(lambda: ran.lines, "it never began")

    with daemon.connect() as connection:
        connection.send("task.cancel", ids=[task_id])
        until(lambda: rows.task(daemon.home, task_id).status == "cancelled", "it is not cancelled")
        ran.go()
        connection.read()

    assert daemon.get(task_id)["usage"]["tokens"] == 5
    assert "caller_ended" in daemon.result(task_id).decode()
