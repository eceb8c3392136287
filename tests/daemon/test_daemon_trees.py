"""What ends with what: cancels, deaths, time limits and crashes in trees of tasks."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate
from harness.invariants import processes_of
from harness.trees import TEAM, call, config, plan

_HOLD = "exec sleep 600"
_TEAM = TEAM.replace('"one"]', '"one"]\ntimeout = "10m"')


def tree(daemon: Daemon, *calls: dict[str, Any], count: int) -> rows.Task:
    """A lead that has made these calls, once so many tasks below it run with their processes."""
    lead = daemon.delegate("lead", json.dumps(plan(*calls)))["id"]
    until(lambda: len(working(daemon)) == count + 1, "the tree has not grown", 40)
    return rows.task(daemon.home, lead)


def working(daemon: Daemon) -> list[rows.Task]:
    return [task for task in rows.tasks(daemon.home) if task.status == "running" and task.worker_pid]


def statuses(daemon: Daemon) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in rows.tasks(daemon.home):
        found.setdefault(f"{task.agent} {task.kind}", []).append(task.status)
    return found


def hold(*words: str) -> dict[str, Any]:
    return call(*words, "sh", "--wait", _HOLD)


def held_subagent() -> dict[str, Any]:
    return call("spawn", input=plan(call("delegate", "sh", "--wait", _HOLD)))


def test_cancelling_the_root_ends_the_tree(daemon: Daemon) -> None:
    """Waited for or not, delegated or spawned, running or queued; every process is gone when the cancel answers."""
    daemon.configure(_TEAM)
    daemon.start()
    deep = plan(hold("delegate"), call("delegate", "tester", input=plan(hold("delegate"))))
    lead = tree(
        daemon, call("delegate", "coder", "--wait", input=deep), call("delegate", "one", _HOLD),
        call("delegate", "one", _HOLD), held_subagent(), count=7,
    )  # fmt: skip
    bystander = daemon.delegate("sh", _HOLD)["id"]
    below = {task.id for task in rows.tasks(daemon.home)} - {lead.id, bystander}

    answer = daemon.cancel(lead.id)

    assert answer["outcome"] == "cancelled"
    assert set(answer["ended_below"]) == below
    assert answer["living_below"] == []
    assert {task.status for task in rows.tasks(daemon.home) if task.id in below} == {"cancelled"}
    assert daemon.get(bystander)["status"] == "running"
    mine = {daemon.get(bystander)["worker"]["pid"]}
    assert set(processes_of(daemon.home)) - mine - {daemon.pid, daemon.keeper} == set()
    daemon.cancel(bystander)


def test_cancelling_a_branch_leaves_the_rest(daemon: Daemon) -> None:
    daemon.configure(_TEAM)
    daemon.start()
    tree(daemon, call("delegate", "coder", "--wait", input=plan(hold("delegate"))), hold("delegate"), count=3)
    (coder,) = [task for task in rows.tasks(daemon.home) if task.agent == "coder"]

    daemon.cancel(coder.id)

    assert sorted(statuses(daemon)["sh delegate"]) == ["cancelled", "running"]
    until(lambda: statuses(daemon)["lead delegate"] == ["running"], "the lead does not go on")


def test_a_cancel_of_what_has_ended_names_what_lives_below(daemon: Daemon) -> None:
    """It changes nothing: what was handed on in the background goes on."""
    daemon.configure(_TEAM)
    daemon.start()
    lead = daemon.delegate("lead", json.dumps(plan(call("delegate", "sh", _HOLD))), wait=True)["id"]
    (child,) = [task for task in rows.tasks(daemon.home) if task.agent == "sh"]

    answer = daemon.cancel(lead)

    assert (answer["outcome"], answer["ended_below"], answer["living_below"]) == ("already_completed", [], [child.id])
    assert child.status == "running"


@pytest.mark.parametrize("end", ["killed", "timeout", "ends well"])
def test_a_parent_takes_its_subagents_along(daemon: Daemon, ran: Ran, end: str) -> None:
    """Killed by somebody, out of time or done: they end with it, what it delegated goes on."""
    daemon.configure(config('[policies.team]\ndelegation = "allow"\n', lead='policy = "team"\ndelegates = ["sh"]'))
    daemon.start()
    calls = [held_subagent(), call("delegate", "sh", _HOLD)]
    agent, params = "lead", {}
    if end == "timeout":
        params = {"timeout_s": 4}
    lead = daemon.delegate(agent, json.dumps(plan(*calls)), **params)["id"]
    until(lambda: len(working(daemon)) == 4, "the tree has not grown", 40)
    worker = rows.task(daemon.home, lead).worker_pid
    assert worker is not None
    if end == "killed":
        os.kill(worker, signal.SIGKILL)
    elif end == "ends well":
        (spawning,) = [pid for pid in processes_of(daemon.home) if b"spawn" in _words(pid)]
        os.kill(spawning, signal.SIGKILL)  # its caller gives up waiting; the lead then ends by itself

    ended = daemon.wait_one(lead)
    until(lambda: len(working(daemon)) == 1, "its sub-agent lives on")

    assert ended["status"] == {"killed": "failed", "timeout": "timed_out", "ends well": "completed"}[end]
    found = statuses(daemon)
    assert found["lead subagent"] == ["cancelled"]
    assert sorted(found["sh delegate"]) == ["cancelled", "running"]
    (helper,) = [task for task in rows.tasks(daemon.home) if task.kind == "subagent"]
    assert daemon.get(helper.id)["reason"] == f"its parent {lead} ended ({ended['status']})"


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_parent_that_died_with_its_daemon_takes_them_along(daemon: Daemon) -> None:
    """Found at the restart: the parent is lost, its sub-agent, which lives, is ended."""
    daemon.configure(_TEAM)
    daemon.start()
    lead = tree(daemon, held_subagent(), hold("delegate"), count=3)
    daemon.kill()
    assert lead.worker_pid is not None
    os.kill(lead.worker_pid, signal.SIGKILL)

    daemon.start()

    until(lambda: len(working(daemon)) == 1, "its sub-agent lives on")
    found = statuses(daemon)
    assert found["lead delegate"] == ["lost"]
    assert found["lead subagent"] == ["cancelled"]
    assert sorted(found["sh delegate"]) == ["cancelled", "running"]


def test_many_parents_that_died_with_their_daemon_take_theirs_along(daemon: Daemon) -> None:
    """However the adoption of the one and the loss of the other fall together."""
    daemon.configure(
        config("[policies.team]\n") + '[agents.lead]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "team"\n'
    )
    daemon.start()
    spawn = " ".join(daemon.pawl_words("spawn", "'exec sleep 600'"))
    for _ in range(10):
        daemon.delegate("lead", f"{spawn} & exec sleep 600")
    until(lambda: len(working(daemon)) == 20, "not all have spawned", 60)
    daemon.kill()
    for task in working(daemon):
        if task.kind == "delegate":
            assert task.worker_pid is not None
            os.kill(task.worker_pid, signal.SIGKILL)

    daemon.start()

    until(lambda: not working(daemon), "some live on")
    until(lambda: {task.cleanup for task in rows.tasks(daemon.home)} == {"done"}, "not all are cleaned up after")
    assert statuses(daemon) == {"lead delegate": ["lost"] * 10, "lead subagent": ["cancelled"] * 10}


def test_a_tree_outlives_its_daemon(daemon: Daemon, ran: Ran) -> None:
    """Everybody is adopted; those that wait ask the next daemon and get their answers."""
    daemon.configure(_TEAM)
    daemon.start()
    held = call("delegate", "sh", "--wait", f"{gate()}; echo done", "--env", f"OUT={ran.path}")
    lead = tree(daemon, call("delegate", "coder", "--wait", input=plan(held)), call("spawn", input=plan(held)), count=4)
    daemon.kill()
    daemon.start()
    ran.go()

    daemon.wait(lead.id)

    assert {task.status for task in rows.tasks(daemon.home)} == {"completed"}
    did = json.loads(daemon.result(lead.id))["did"]
    assert [each["exit"] for each in did] == [0, 0]
    assert [each["out"]["did"][0]["out"] for each in did] == ["done\n", "done\n"]


@pytest.mark.crash
def test_a_crash_in_the_middle_of_a_cancel_leaves_no_half_a_tree(daemon: Daemon) -> None:
    """The whole tree is cancelled in one transaction; the next daemon ends the processes."""
    daemon.configure(_TEAM)
    daemon.start("cancel.after_commit=kill")
    lead = tree(daemon, call("delegate", "coder", "--wait", input=plan(hold("delegate"))), hold("delegate"), count=3)
    with pytest.raises(ConnectionError):
        daemon.cancel(lead.id)
    daemon.died()

    assert {task.status for task in rows.tasks(daemon.home)} == {"cancelled"}
    daemon.start()
    until(lambda: not set(processes_of(daemon.home)) - {daemon.pid, daemon.keeper}, "processes are left")
    until(lambda: {task.cleanup for task in rows.tasks(daemon.home)} == {"done"}, "not all are cleaned up after")


def test_no_child_slips_out_of_a_cancelled_tree(daemon: Daemon) -> None:
    """A program that starts children as fast as it can, cancelled in the middle of it."""
    daemon.configure(
        config('[policies.team]\ndelegation = "allow"\nmax_actions_per_hour = 100000\n')
        + '[agents.breeder]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "team"\ndelegates = ["sh"]\n'
    )
    daemon.start()
    words = " ".join(daemon.pawl_words("delegate", "sh", "'sleep 600'"))
    for _ in range(3):
        breeder = daemon.delegate("breeder", f"for i in 1 2 3; do while {words}; do :; done & done; wait")["id"]
        before = len(rows.tasks(daemon.home))
        until(lambda: len(rows.tasks(daemon.home)) > before + 3, "it has no children")  # noqa: B023
        daemon.cancel(breeder)
        assert {task.status for task in rows.tasks(daemon.home)} == {"cancelled"}
    assert not set(processes_of(daemon.home)) - {daemon.pid, daemon.keeper}


def test_a_subagent_can_be_cancelled(daemon: Daemon) -> None:
    """Its parent goes on, and is told."""
    daemon.configure(_TEAM)
    daemon.start()
    lead = tree(daemon, held_subagent(), count=2)
    (helper,) = [task for task in rows.tasks(daemon.home) if task.kind == "subagent"]

    daemon.cancel(helper.id, "enough")

    assert daemon.wait_one(lead.id)["status"] == "completed"
    (did,) = json.loads(daemon.result(lead.id))["did"]
    assert did["exit"] == 1
    assert "enough" in str(did["error"])


def test_a_subagent_is_as_its_row_says(daemon: Daemon) -> None:
    """No creator, chain, principal or heartbeat; its parent's agent, directory, priority and deadline."""
    daemon.configure(_TEAM)
    daemon.start()
    inner = plan(call("spawn", input=plan()), call("delegate", "echo", "--json", "from a sub-agent"))
    lead = daemon.delegate(
        "lead", json.dumps(plan(call("spawn", "--json", input=inner))), timeout_s=60, priority=3, wait=True
    )["id"]
    (did,) = json.loads(daemon.result(lead))["did"]
    task, parent = did["out"], daemon.get(lead)

    assert (task["kind"], task["agent"], task["status"], task["parent_id"]) == ("subagent", "lead", "completed", lead)
    assert (task["creator"], task["chain"], task["principal"], task["heartbeat_at"]) == (None, [], None, None)
    assert (task["cwd"], task["priority"], task["depth"]) == (parent["cwd"], 3, 1)
    assert task["deadline_at"] <= parent["deadline_at"]
    nested, delegated = json.loads(daemon.result(task["id"]))["did"]
    assert nested["exit"] == 6
    assert "one deep" in nested["error"]
    assert (delegated["out"]["creator"], delegated["out"]["chain"], delegated["out"]["depth"]) == ("lead", [], 2)


def test_what_a_subagent_may_do_is_narrower(daemon: Daemon) -> None:
    """Tools and variables as they were asked for, an own share of the actions, and all of it in the parent's budget."""
    policy = (
        '[policies.team]\ndelegation = "allow"\nallowed_tools = ["Read", "Write"]\nenv = ["PATH", "GIVEN", "MORE"]\n'
    )
    daemon.configure(
        config(policy)
        + '[agents.lead]\ncommand = ["sh"]\npolicy = "team"\ndelegates = ["echo"]\n'
    )  # fmt: skip
    daemon.start(env={"GIVEN": "1", "MORE": "2"})
    pawl = " ".join(daemon.pawl_words())
    show = 'echo "$PAWL_ALLOWED_TOOLS|$PAWL_DENIED_TOOLS|$GIVEN|$MORE|$OWN"'
    inner = f"{show}; {pawl} delegate echo x; {pawl} delegate echo y"
    words = "spawn --allow-tools Read,Write --deny-tools Write --env PATH,GIVEN --max-actions 1"
    script = f"{pawl} {words} <<'END'\n{inner}\nEND\n"

    lead = daemon.delegate("lead", script, wait=True, env={"OWN": "3"})["id"]

    first, *_ = daemon.result(lead).decode().splitlines()
    assert first == "Read|Write|1||"
    assert len([task for task in rows.tasks(daemon.home) if task.agent == "echo"]) == 1
    spent = dict(rows.query(daemon.home, "SELECT holder_id, sum(amount) FROM spent GROUP BY 1"))
    assert spent[lead] == 2
