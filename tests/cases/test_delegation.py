"""Delegation, seen from outside: who starts when, with what, where, and in whose name."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import sys
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from scenes import Gate, Marker, command, config, pawl, said

from harness import rows
from harness.client import Refused
from harness.daemon import Daemon, NotStarted, until
from harness.fixtures import Ran
from pawl.home import Home
from pawl.runner.identity import Liveness, identity_of, probe

# --- who starts when -------------------------------------------------------------------------------------------


def test_larger_priority_starts_first_then_age(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """Behind one slot the queue is taken by priority, and among equals the oldest first."""
    daemon.start()
    blocker = daemon.delegate("one", gate.wait)["id"]
    wanted = [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 10), ("f", 0)]
    ids = [daemon.delegate("one", f'echo {name} >> "$OUT"', priority=p, env=ran.env)["id"] for name, p in wanted]
    assert {daemon.get(each)["status"] for each in ids} == {"queued"}

    gate.open()
    daemon.wait(blocker, *ids)

    assert ran.lines == ["e", "b", "d", "a", "f", "c"]


def test_the_limits_of_agent_and_daemon_really_bind(daemon: Daemon, tmp_path: Path, ran: Ran) -> None:
    """Never more than two of an agent with two slots run at once, nor more than four in all; and as many as may, do.

    Each program waits for a gate of its own, so that every moment can be looked at: each time one ends, exactly one
    other begins.
    """
    daemon.configure(config(max_concurrent=4, more=PAIR))
    daemon.start()
    ids, gates = [], {}
    for number in range(12):
        agent, gate = ("pair" if number % 2 else "sh"), Gate(tmp_path / f"gate{number}")
        prompt = f'echo +{agent} >> "$OUT"; {gate.wait}; echo -{agent} >> "$OUT"'
        task_id = daemon.delegate(agent, prompt, env=ran.env)["id"]
        ids.append(task_id)
        gates[task_id] = gate

    for ended in range(12):
        expected = min(4, 12 - ended)
        running = until(partial(_running, daemon, expected), "not as many run as may")
        of_pair = [task for task in running if task["agent"] == "pair"]
        assert len(of_pair) <= 2
        oldest = min(running, key=lambda task: task["id"])
        until(partial(_begun, ran, ended + expected), "not all have begun")
        gates[oldest["id"]].open()
        daemon.wait_one(oldest["id"])

    assert _overlap(ran.lines, "") == 4
    assert _overlap(ran.lines, "pair") == 2
    assert {task["status"] for task in daemon.wait(*ids)} == {"completed"}


PAIR = """
[agents.pair]
command = ["sh", "-c"]
prompt = "argument"
max_concurrent = 2
"""


def _running(daemon: Daemon, count: int) -> list[dict[str, Any]]:
    """What runs, once it is so many; more than that is never right."""
    found: list[dict[str, Any]] = daemon.call("task.list", statuses=["running"], all=True)
    assert len(found) <= 4
    return found if len(found) == count else []


def _begun(ran: Ran, count: int) -> bool:
    return len([line for line in ran.lines if line[0] == "+"]) >= count


def _overlap(lines: list[str], agent: str) -> int:
    """How many ran at once at most, by what the programs themselves wrote."""
    now = most = 0
    for line in lines:
        if line[1:].startswith(agent):
            now += 1 if line[0] == "+" else -1
            most = max(most, now)
    return most


def test_what_waits_too_long_in_the_queue_fails(daemon: Daemon, gate: Gate, ran: Ran) -> None:
    """It is `failed` with `queue_timeout`, never ran, and the one behind it without a queue time runs."""
    daemon.start()
    blocker = daemon.delegate("one", gate.wait)["id"]
    waits = daemon.delegate("one", 'echo late >> "$OUT"', env=ran.env, queue_timeout_s=0.3)["id"]
    patient = daemon.delegate("one", 'echo patient >> "$OUT"', env=ran.env)["id"]

    task = daemon.wait_one(waits)
    gate.open()
    daemon.wait(blocker, patient)

    assert (task["status"], task["error"]["code"], task["started_at"]) == ("failed", "queue_timeout", None)
    assert ran.lines == ["patient"]


def test_retries_are_linked_attempts_that_never_overlap(daemon: Daemon, ran: Ran, marker: Marker) -> None:
    """Each attempt is a task that names the one before it. It begins when nothing of that one is left, be it a child
    that ignores TERM; the attempt that succeeds is the last.
    """
    daemon.configure(config(kill_grace="300ms"))
    daemon.start()
    prompt = (
        f'if [ "$(pgrep -f "^sleep {marker}$")" ]; then echo overlap >> "$OUT"; fi; echo ran >> "$OUT"; '
        f'[ "$(grep -c ran "$OUT")" = 3 ] && echo third && exit 0; '
        f'trap "" TERM; sleep {marker} & echo first; exit 7'
    )
    first = daemon.delegate("sh", prompt, env=ran.env, retries=5, labels={"kind": "retry"})["id"]

    chain = [daemon.wait_one(first)]
    while following := daemon.get(chain[-1]["id"])["retried_by"]:
        chain.append(daemon.wait_one(following))

    assert [task["status"] for task in chain] == ["failed", "failed", "completed"]
    assert [task["exit_code"] for task in chain] == [7, 7, 0]
    assert [task["attempt"] for task in chain] == [1, 2, 3]
    assert [task["retries_left"] for task in chain] == [5, 4, 3]
    assert [task["retry_of"] for task in chain] == [None, chain[0]["id"], chain[1]["id"]]
    assert all(task["labels"] == {"kind": "retry"} for task in chain)
    for before, after in itertools.pairwise(chain):
        assert before["finished_at"] <= after["started_at"]
    assert ran.lines == ["ran", "ran", "ran"]
    assert daemon.result(chain[-1]["id"]) == b"third\n"


def test_waiting_for_a_delegation_waits_for_its_last_attempt(daemon: Daemon, ran: Ran) -> None:
    """`delegate --wait --retries` answers with the attempt that succeeded."""
    daemon.start()
    prompt = 'echo ran >> "$OUT"; [ "$(grep -c ran "$OUT")" = 2 ] && echo second'

    shown = pawl(
        daemon.home, "delegate", "sh", prompt, "--retries", "3", "--env", f"OUT={ran.path}", "--wait", "--json"
    )

    assert (shown.status, shown.json["status"], shown.json["attempt"]) == (0, "completed", 2)
    assert ran.lines == ["ran", "ran"]


# --- with what and where ---------------------------------------------------------------------------------------


def test_inputs_arrive_as_they_were_when_they_were_handed_over(
    daemon: Daemon, gate: Gate, tmp_path: Path, ran: Ran
) -> None:
    """`--input` files lie in `PAWL_TASK_DIR` under their own names, also for a task that had to queue while they were
    changed and removed, and for each of its attempts.
    """
    daemon.start()
    (tmp_path / "a.bin").write_bytes(b"\0\xffa")
    (tmp_path / "b c.txt").write_text("b\n")
    blocker = daemon.delegate("one", gate.wait)["id"]
    prompt = 'echo ran >> "$OUT"; cd "$PAWL_TASK_DIR" && ls && cat a.bin "b c.txt"; [ "$(grep -c ran "$OUT")" = 2 ]'
    shown = pawl(
        daemon.home, "delegate", "one", prompt, "--retries", "1", "--env", f"OUT={ran.path}", "--json",
        "--input", str(tmp_path / "a.bin"), "--input", str(tmp_path / "b c.txt"),
    )  # fmt: skip
    (tmp_path / "a.bin").write_bytes(b"changed")
    (tmp_path / "b c.txt").unlink()
    gate.open()

    daemon.wait(blocker, shown.json["id"])
    first = daemon.get(shown.json["id"])
    second = daemon.wait_one(first["retried_by"])

    assert [each["name"] for each in first["inputs"]] == ["a.bin", "b c.txt"]
    assert (first["status"], second["status"]) == ("failed", "completed")
    for task in (first, second):
        assert daemon.result(task["id"]) == b"a.bin\nb c.txt\n\0\xffab\n"


def test_inputs_that_cannot_be_taken_are_refused_and_nothing_is_stored(daemon: Daemon, tmp_path: Path) -> None:
    """Two of one name, one that is not there, one that is a directory: exit 2, and there is no task."""
    daemon.start()
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text(folder)
    same = [str(tmp_path / "x" / "same"), str(tmp_path / "y" / "same")]

    for inputs in (same, [str(tmp_path / "none")], [str(tmp_path)]):
        words = [word for path in inputs for word in ("--input", path)]
        shown = pawl(daemon.home, "delegate", "echo", "x", *words, "--json")
        assert (shown.status, shown.out) == (2, b""), inputs
        assert Path(inputs[0]).name in shown.error["message"]
    assert rows.tasks(daemon.home) == []


def test_the_directory_is_the_one_asked_for_else_the_workspace_else_the_callers(daemon: Daemon, tmp_path: Path) -> None:
    """Where work is done: `--cwd`, else the policy's workspace, else where the caller stands."""
    explicit, workspace, caller = (tmp_path / name for name in ("explicit", "workspace", "caller"))
    for path in (explicit, workspace, caller):
        path.mkdir()
    more = f'[policies.ws]\nworkspace = "{workspace}"\n[agents.ws]\ncommand = ["pwd"]\npolicy = "ws"\n'
    daemon.configure(config(more=more + '[agents.pwd]\ncommand = ["pwd"]\n'))
    daemon.start()

    def where(agent: str, *words: str) -> str:
        ran = said(command(daemon.home, "delegate", agent, "x", "--wait", *words, cwd=caller))
        assert ran.status == 0, ran.err
        return ran.out.decode().strip()

    assert where("pwd", "--cwd", str(explicit)) == str(explicit)
    assert where("ws", "--cwd", str(explicit)) == str(explicit)
    assert where("pwd", "--cwd", "../explicit") == str(explicit)
    assert where("ws") == str(workspace)
    assert where("pwd") == str(caller)


def test_variables_of_the_request_reach_the_program(daemon: Daemon) -> None:
    """`--env` sets what it says, the value as it is; the names that are Pawl's own are refused."""
    daemon.start()
    prompt = 'printf "%s|%s|%s" "$A" "$B" "$PAWL_AGENT"'
    words = ["delegate", "sh", prompt, "--env", "A=1=2", "--env", "B=x y $HOME", "--wait"]

    assert pawl(daemon.home, *words).out == b"1=2|x y $HOME|sh"
    refused = pawl(daemon.home, *words, "--env", "PAWL_AGENT=other", "--json")
    assert (refused.status, refused.out) == (2, b"")


PROMPTS = """
[agents.stdin]
command = ["cat"]

[agents.argument]
command = ["printf", "%s"]
prompt = "argument"

[agents.file]
command = ["cat"]
prompt = "file"

[agents.placed]
command = ["sh", "-c", "cat \\"$0\\"; echo \\"$1\\"", "{prompt_file}", "after"]
prompt = "file"
"""


def test_the_prompt_arrives_as_it_was_given(daemon: Daemon) -> None:
    """On standard input, as the last argument, in a file: the same bytes, whatever they are; `{prompt_file}` stands
    for the file's path where it is written.
    """
    daemon.configure(config(more=PROMPTS))
    daemon.start()
    prompt = "two lines\n-n 'quotes' \"$HOME\" %s ünï\n\n"

    def answer(agent: str, **prompt: str) -> bytes:
        task = daemon.call("task.delegate", agent=agent, **prompt)
        assert daemon.wait_one(task["id"])["status"] == "completed"
        return daemon.result(task["id"])

    for agent in ("stdin", "argument", "file", "echo"):
        assert answer(agent, prompt=prompt) == prompt.encode(), agent
        assert answer(agent, prompt="") == b"", agent
    assert answer("placed", prompt=prompt) == prompt.encode() + b"after\n"
    raw = bytes(range(256)) * 5000
    for agent in ("stdin", "file"):
        assert answer(agent, prompt_base64=base64.b64encode(raw).decode()) == raw, agent
    ran = said(command(daemon.home, "delegate", "argument", "-", "--wait", stdin=_piped(b"caf\xe9 \xff")))
    assert (ran.status, ran.out) == (0, b"caf\xe9 \xff")


def _piped(data: bytes) -> int:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


@pytest.mark.parametrize(
    ("command_words", "cwd", "code", "reason"),
    [
        (["/no/such/program"], None, "program_not_found", "No such file or directory"),
        (["no-such-program-anywhere"], None, "program_not_found", "No such file or directory"),
        (["{tmp}/plain"], None, "program_not_executable", "Permission denied"),
        (["{tmp}"], None, "program_not_executable", "Is a directory"),
        (["{tmp}/no-interpreter"], None, "program_not_executable", "No such file or directory"),
        (["{tmp}/garbage"], None, "program_not_executable", "Exec format error"),
        (["cat"], "/no/such/directory", "cwd_missing", "No such file or directory"),
        (["cat"], "{tmp}/plain", "cwd_not_directory", "Not a directory"),
    ],
    ids=["absolute", "in-path", "plain-file", "directory", "interpreter", "garbage", "cwd", "cwd-a-file"],
)
def test_what_cannot_be_started_fails_at_once_with_the_systems_reason(
    daemon: Daemon, tmp_path: Path, command_words: list[str], cwd: str | None, code: str, reason: str
) -> None:
    """`failed`, quickly, with a code and the words of the system; no exit code is made up; others go on."""
    (tmp_path / "plain").write_text("text")
    for name, content in (("no-interpreter", b"#!/no/such/shell\n"), ("garbage", b"\x7fELF but no more")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o755)
    words = json.dumps([word.format(tmp=tmp_path) for word in command_words])
    daemon.configure(config(more=f"[agents.bad]\ncommand = {words}\n"))
    daemon.start()

    began = time.monotonic()
    where = {} if cwd is None else {"cwd": cwd.format(tmp=tmp_path)}
    task = daemon.wait_one(daemon.delegate("bad", "x", **where)["id"])

    assert time.monotonic() - began < 5
    assert (task["status"], task["error"]["code"], task["exit_code"]) == ("failed", code, None)
    assert reason in task["error"]["message"]
    assert daemon.wait_one(daemon.delegate("sh", "true")["id"])["status"] == "completed"


# --- the daemon and its configuration --------------------------------------------------------------------------


def test_a_second_daemon_is_refused_and_told_who_is_first(daemon: Daemon) -> None:
    """Exit 5, the PID of the one that runs, and that one is not disturbed."""
    daemon.start()

    ran = pawl(daemon.home, "daemon", "run")
    with pytest.raises(NotStarted) as refused:
        Daemon(daemon.home).start()

    assert ran.status == 5
    assert f"pid {daemon.pid}" in ran.err
    assert (refused.value.code, refused.value.error["details"]["pid"]) == ("daemon_already_running", daemon.pid)
    assert daemon.call("daemon.status")["daemon"]["pid"] == daemon.pid


GOOD = '[agents.fresh]\ncommand = ["sh", "-c", "echo fresh"]\n'
BAD = '[agents.fresher]\ncommand = ["true"]\n[agents.worse]\ncomand = ["true"]\n'


@pytest.mark.parametrize("by", ["call", "signal"])
def test_a_configuration_is_taken_whole_or_not_at_all(daemon: Daemon, by: str) -> None:
    """By `config.reload` and by SIGHUP: a good one is in force; of one with a single fault nothing is, the old one
    stays and a finding says so until a good one comes.
    """
    daemon.start()

    def agents() -> set[str]:
        return {each["name"] for each in daemon.call("agent.list")}

    def findings() -> set[str]:
        return {each["code"] for each in daemon.call("daemon.status")["findings"]}

    def reload() -> None:
        assert daemon.process is not None
        if by == "signal":
            daemon.process.send_signal(signal.SIGHUP)
        else:
            daemon.call("config.reload")

    daemon.configure(config(more=GOOD))
    reload()
    until(lambda: "fresh" in agents(), "the good configuration is not taken")
    assert daemon.wait_one(daemon.delegate("fresh", "")["id"])["status"] == "completed"

    daemon.configure(config(more=GOOD + BAD))
    if by == "signal":
        reload()
    else:
        with pytest.raises(Refused) as refused:
            reload()
        assert (refused.value.code, refused.value.exit) == ("config_invalid", 2)
        assert "comand" in refused.value.message
    until(lambda: "config_invalid" in findings(), "nothing says that the configuration is bad")
    assert {"fresh", "sh"} <= agents()
    assert not {"fresher", "worse"} & agents()

    daemon.configure(config(more=GOOD + BAD.replace("comand", "command")))
    reload()
    until(lambda: {"fresher", "worse"} <= agents(), "the mended configuration is not taken")
    assert "config_invalid" not in findings()


def test_running_work_keeps_its_terms_through_a_reload(daemon: Daemon, gate: Gate) -> None:
    """An agent that is gone from the configuration finishes what it runs; what is still queued for it fails and says
    why; a new limit counts from now on.
    """
    daemon.start()
    running = daemon.delegate("one", f"{gate.wait}; echo done")["id"]
    queued = daemon.delegate("one", "echo never")["id"]
    daemon.configure('[agents.sh]\ncommand = ["sh", "-c"]\nprompt = "argument"\n')
    daemon.call("config.reload")

    with pytest.raises(Refused) as refused:
        daemon.delegate("one", "x")
    gate.open()
    first, second = daemon.wait(running, queued)

    assert refused.value.code == "agent_not_found"
    assert (first["status"], daemon.result(running)) == ("completed", b"done\n")
    assert (second["status"], second["error"]["code"]) == ("failed", "agent_not_found")


def test_a_bad_configuration_keeps_the_daemon_from_starting(daemon: Daemon) -> None:
    """Exit 2; key, line and the nearest known key are named; with the key mended it starts."""
    text = '[daemon]\nmax_concurent = 4\n\n[agents.a]\ncommand = "true"\n'
    daemon.configure(text)

    with pytest.raises(NotStarted) as refused:
        daemon.start()
    ran = pawl(daemon.home, "daemon", "run")

    assert (refused.value.code, ran.status) == ("config_invalid", 2)
    faults = refused.value.error["details"]["faults"]
    assert [fault["line"] for fault in faults] == [2, 5]
    for words in (str(refused.value), ran.err):
        assert "max_concurent" in words
        assert "max_concurrent" in words
    assert not Path(daemon.home.socket).exists()

    daemon.configure('[daemon]\nmax_concurrent = 4\n\n[agents.a]\ncommand = ["true"]\n')
    daemon.start()


# --- the clock of tests ----------------------------------------------------------------------------------------


def test_the_clock_of_a_test_home_can_be_moved(home: Home, marker: Marker) -> None:
    """In a home made with a test clock two hours pass as soon as `clock-offset` says so: a timeout of one hour fires
    within two seconds, and the times in the row are two hours on.
    """
    assert pawl(home, "init", "--test-clock").status == 0
    daemon = Daemon(home)
    daemon.configure(config(kill_grace="1s"))
    daemon.start()
    try:
        task_id = daemon.delegate("sh", f"exec sleep {marker}", timeout_s=3600)["id"]
        marker.appears()

        began = time.monotonic()
        Path(home.clock_offset).write_text("7200")
        task = daemon.call("task.wait", ids=[task_id])["completed"][0]  # a time limit would run out as well
        took = time.monotonic() - began

        assert (task["status"], task["error"]["code"]) == ("timed_out", "timeout")
        assert took < 2 + 1
        assert _hours(task["started_at"], task["finished_at"]) == pytest.approx(2, abs=0.01)
        assert marker.alive() == []
    finally:
        daemon.close()


def _hours(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 3600


@pytest.mark.parametrize("name", ["clock-offset", "wall-offset"])
def test_another_home_does_not_start_beside_an_offset(daemon: Daemon, name: str) -> None:
    """A file that would move the clock of a home without a test clock is refused, and named."""
    path = Path(daemon.home.run, name)
    path.write_text("7200")

    with pytest.raises(NotStarted) as refused:
        daemon.start()

    assert refused.value.code == "home_refused"
    assert str(path) in str(refused.value)
    path.unlink()
    daemon.start()


# --- in whose name ---------------------------------------------------------------------------------------------

# A program that speaks the socket protocol itself: it delegates what its prompt says and prints the task.
SPEAKER = """
import json, os, socket, sys, time
order = json.loads(sys.stdin.read())
path = order.pop("socket")
how = order.pop("how", "plainly")
if how != "plainly":
    reading, writing = os.pipe()
    if os.fork():  # the parent lives as long as the one that hides
        os.close(writing)
        sys.stdout.write(os.fdopen(reading).read())
        sys.exit(0)
    os.setsid()
    middle = os.getpid()
    if how.endswith("orphan"):  # and with no parent of ours
        if os.fork():
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.001)
    if how.startswith("bare"):  # and with nothing in its environment
        os.set_inheritable(writing, True)
        os.dup2(writing, 1)
        body = json.dumps({"socket": path, **order})
        read, write = os.pipe()
        os.write(write, body.encode())
        os.close(write)
        os.dup2(read, 0)
        os.execve(sys.executable, [sys.executable, "-I", os.path.abspath(__file__)], {})
    os.dup2(writing, 1)
s = socket.socket(socket.AF_UNIX)
s.connect(path)
f = s.makefile("rb")
def call(number, method, params):
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    try:
        s.sendall(body.encode() + b"\\n")
    except BrokenPipeError:
        pass  # refused at the door: why is there to read
    return json.loads(f.readline())
answer = call(1, "hello", {"protocol": 1, "client": "operator"})
if "error" not in answer:
    answer = call(2, "task.delegate", order)
sys.stdout.write(json.dumps(answer.get("result") or answer) + "\\n")
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def speaking(daemon: Daemon, tmp_path: Path) -> Daemon:
    """A daemon with agents that call it themselves."""
    script = tmp_path / "speaker.py"
    script.write_text(SPEAKER)
    words = json.dumps([sys.executable, "-I", str(script)])
    policy = '[policies.free]\ndelegation = "allow"\n'
    agents = "".join(
        f'[agents.{name}]\ncommand = {words}\npolicy = "free"\ndelegates = ["inner", "echo"]\n'
        for name in ("outer", "inner")
    )
    daemon.configure(config(more=policy + agents))
    daemon.start()
    return daemon


def _ask(daemon: Daemon, asked: str, **order: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let an agent delegate; its task and the task it started."""
    task = daemon.wait_one(daemon.delegate(asked, json.dumps({"socket": daemon.home.socket, **order}))["id"])
    assert task["status"] == "completed", task
    said = json.loads(daemon.result(task["id"]))
    assert "id" in said, said
    return task, daemon.wait_one(said["id"])


@pytest.mark.parametrize("how", ["plainly", "setsid", "bare", "orphan"])
def test_a_caller_inside_a_task_is_that_task_whatever_it_says(speaking: Daemon, how: str) -> None:
    """What an agent's program starts is recorded as its: creator, chain, depth, parent and principal come from its own
    row, not from its words. A session of its own, an empty environment or the death of its parents do not help it.
    """
    parent, child = _ask(
        speaking, "outer", how=how, agent="echo", prompt="child", source={"type": "cli", "creator": "operator"}
    )

    assert (child["creator"], child["chain"], child["depth"]) == ("outer", [], 1)
    assert (child["parent_id"], child["principal"]) == (parent["id"], f"task:{parent['id']}")
    assert (child["status"], speaking.result(child["id"])) == ("completed", b"child")
    submitted = speaking.call("event.list", subject=child["id"])[0]
    assert (submitted["event"], submitted["actor"]) == ("submitted", f"task:{parent['id']}")


@pytest.mark.parametrize("how", ["plainly", "setsid", "bare", "orphan"])
def test_a_caller_inside_a_task_names_no_other_parent(speaking: Daemon, how: str) -> None:
    """It is told so, and nothing is started."""
    stranger = speaking.delegate("echo", "x")["id"]
    order = {"socket": speaking.home.socket, "how": how, "agent": "echo", "prompt": "child", "parent": stranger}
    task = speaking.wait_one(speaking.delegate("outer", json.dumps(order))["id"])
    said = json.loads(speaking.result(task["id"]))

    assert (said["error"]["data"]["code"], said["error"]["data"]["exit"]) == ("invalid_params", 2)
    assert [each.id for each in rows.tasks(speaking.home)] == [stranger, task["id"]]


def test_a_caller_that_hid_every_trace_of_its_task_is_refused(speaking: Daemon) -> None:
    """With a session of its own, no parent of ours and nothing in its environment nobody can tell which task it is: it
    is then not the operator, but nobody, and nothing is started.
    """
    order = {"socket": speaking.home.socket, "how": "bare-orphan", "agent": "echo", "prompt": "child"}
    task = speaking.wait_one(speaking.delegate("outer", json.dumps(order))["id"])
    said = json.loads(speaking.result(task["id"]))

    assert said["error"]["data"]["code"] == "peer_refused"
    assert [each.id for each in rows.tasks(speaking.home)] == [task["id"]]


def test_a_chain_of_callers_is_kept(speaking: Daemon) -> None:
    """A child of a child has depth 2, the inner agent as its creator and the outer one in its chain."""
    order = {"socket": speaking.home.socket, "agent": "echo", "prompt": "grandchild"}
    _, child = _ask(speaking, "outer", agent="inner", prompt=json.dumps(order))
    grandchild = speaking.wait_one(json.loads(speaking.result(child["id"]))["id"])

    assert (child["creator"], child["chain"], child["depth"]) == ("outer", [], 1)
    assert (grandchild["creator"], grandchild["chain"], grandchild["depth"]) == ("inner", ["outer"], 2)
    assert grandchild["parent_id"] == child["id"]


def test_the_real_command_inside_a_task_acts_as_the_task(daemon: Daemon) -> None:
    """`pawl` called from a program finds its daemon and is the task; only that one can be its `--parent`."""
    daemon.configure(config(more='[policies.default]\ndelegation = "allow"\n'))
    daemon.start()
    other = daemon.delegate("echo", "x")["id"]
    words = f"{sys.executable} -m pawl delegate echo hi --json --parent"
    prompt = f"{words} {other} 2>/dev/null; [ $? = 2 ] && exec {words} $PAWL_TASK_ID"
    task = daemon.wait_one(daemon.delegate("sh", prompt)["id"])
    assert task["status"] == "completed", daemon.logs(task["id"], "stderr")
    child = json.loads(daemon.result(task["id"]))

    assert (child["creator"], child["depth"], child["parent_id"]) == ("sh", 1, task["id"])


def test_a_parent_named_by_the_operator_is_a_link_only(daemon: Daemon) -> None:
    """`--parent` of the operator's links the task and nothing more: creator, depth, chain and principal stay the
    operator's; a parent that is not there is refused.
    """
    daemon.start()
    parent = daemon.delegate("echo", "x")["id"]
    child = pawl(daemon.home, "delegate", "echo", "y", "--parent", parent, "--json").json
    alone = daemon.delegate("echo", "z")

    assert child["parent_id"] == parent
    for key in ("creator", "depth", "chain", "principal"):
        assert child[key] == alone[key]
    assert (child["creator"], child["depth"], child["chain"]) == ("operator", 0, [])
    assert child["principal"] == f"uid:{os.getuid()}"
    missing = pawl(daemon.home, "delegate", "echo", "y", "--parent", "00000000-0000-7000-8000-000000000000", "--json")
    assert (missing.status, missing.error["code"]) == (4, "task_not_found")


def test_labels_filter_the_list(daemon: Daemon) -> None:
    """A task is listed where it has every label asked for, with exactly that value; newest first."""
    daemon.start()
    both = daemon.delegate("echo", "1", labels={"team": "a", "ticket": "42"})["id"]
    team = daemon.delegate("echo", "2", labels={"team": "a"})["id"]
    daemon.delegate("echo", "3", labels={"team": "b", "ticket": "421"})
    daemon.delegate("echo", "4")

    def listed(*labels: str) -> list[str]:
        words = [word for label in labels for word in ("--label", label)]
        return [task["id"] for task in pawl(daemon.home, "list", *words, "--json").json]

    assert listed("team=a") == [team, both]
    assert listed("team=a", "ticket=42") == [both]
    assert listed("ticket=4") == []
    assert listed("team=") == []
    assert len(listed()) == 4


# --- the keeper ------------------------------------------------------------------------------------------------


def test_work_ends_rightly_though_its_keeper_was_killed(daemon: Daemon, gate: Gate, marker: Marker, ran: Ran) -> None:
    """The process that starts and reaps workers is killed while they run: those that end well, end badly, are
    cancelled or time out do so all the same, once each and with their output; new work starts with another keeper.

    How a program ended is known to its parent alone: where that is gone, the end is told as unknown and never as
    success.
    """
    daemon.start()
    exits = [daemon.delegate("sh", f'echo ran >> "$OUT"; {gate.wait}; echo out; exit {code}', env=ran.env)["id"]
             for code in (0, 3)]  # fmt: skip
    cancelled = daemon.delegate("sh", f"sleep {marker}; :")["id"]
    timed_out = daemon.delegate("sh", f"echo out; sleep {marker}; :", timeout_s=2)["id"]
    until(lambda: len(ran.lines) == 2 and len(marker.sleepers()) == 2, "not all run")
    before = daemon.keeper
    keeper = identity_of(before)
    assert keeper is not None

    os.kill(before, signal.SIGKILL)
    until(lambda: probe(keeper) is Liveness.GONE, "the keeper does not die")
    fresh = daemon.wait_one(daemon.delegate("sh", "echo fresh")["id"])
    answer = daemon.cancel(cancelled)
    late = daemon.wait_one(timed_out)
    gate.open()
    ended = daemon.wait(*exits)

    assert (fresh["status"], daemon.result(fresh["id"])) == ("completed", b"fresh\n")
    assert daemon.keeper != before
    assert answer["status"] == "cancelled"
    assert (late["status"], daemon.result(timed_out)) == ("timed_out", b"out\n")
    assert marker.alive() == []
    for task, wanted in zip(ended, ("completed", "failed"), strict=True):
        known = (task["status"], task["exit_code"]) == (wanted, 0 if wanted == "completed" else 3)
        unknown = task["status"] == "failed" and task["error"]["code"] == "exit_unknown"
        assert known or unknown, task
        assert daemon.result(task["id"]) == b"out\n"
        assert rows.ends_of(daemon.home, task["id"]) == [task["status"]]
    assert ran.lines == ["ran", "ran"]
    assert psutil.pid_exists(daemon.pid)
