"""The entries DL01 to DL30 on delegation and sub-agents, each with its right value here.

Three speak of what Pawl leaves to the agents' own programs: DL10 (memory tools), DL14 (tools that appear later), DL24
(receipts of a chat). DL16 and DL17 speak of a model's answers; what a program's end means stands in their place.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran, gate
from harness.trees import TEAM, call, config, plan, refused, run
from pawl.ids import new_id

_TWO = config(
    """
[policies.mine]
delegation = "allow"
workspace = "/tmp"
allowed_tools = ["Read", "Write"]
limits = { open_files = 500 }
[policies.theirs]
delegation = "allow"
allowed_tools = ["Read", "Web"]
limits = { open_files = 400, processes = 4000 }
[policies.asking]
always_ask = ["Web"]
""",
    boss='policy = "mine"\ndelegates = ["named", { agent = "free", mode = "independent" },\n'
    '  { agent = "asks", mode = "independent" }, "mute", "echo"]',
    peer='policy = "mine"',
    named='policy = "theirs"',
    free='policy = "theirs"',
    other='policy = "theirs"',
    asks='policy = "asking"',
    off='policy = "mine"\nenabled = false',
    shut="",
    mute="",
)


@pytest.fixture
def team(daemon: Daemon) -> Daemon:
    daemon.configure(_TWO)
    daemon.start()
    return daemon


def agents_of(daemon: Daemon) -> list[str]:
    """The agents of all tasks there are, oldest first."""
    return [task.agent for task in rows.tasks(daemon.home)]


def policy_of(daemon: Daemon, agent: str) -> dict[str, Any]:
    (task,) = [task for task in rows.tasks(daemon.home) if task.agent == agent]
    values: dict[str, Any] = daemon.call("task.why", id=task.id)["policy"]["values"]
    return values


def test_dl01_names_are_trimmed_and_blank_ones_refused(team: Daemon) -> None:
    """DL01."""
    assert team.delegate(" echo\t", "x", wait=True)["agent"] == "echo"
    for blank in ("", "  "):
        with pytest.raises(Refused) as no:
            team.delegate(blank, "x")
        assert no.value.code == "invalid_params"
    assert team.pawl("delegate").returncode == 2
    with pytest.raises(Refused) as unknown:
        team.call("task.nothing")
    assert unknown.value.code == "unknown_method"
    assert agents_of(team) == ["echo"]


def test_dl02_the_roster(team: Daemon) -> None:
    """DL02: not oneself, no other policy but by name, nobody where it is forbidden, no peers where that is off."""
    (boss,) = run(team, "boss", call("agent", "list", "--json"))
    assert {each["name"]: each["mode"] for each in boss["out"]} == {
        "peer": "bounded", "named": "bounded", "free": "independent", "asks": "independent", "mute": "bounded",
        "echo": "bounded",
    }  # fmt: skip
    (shut,) = run(team, "shut", call("agent", "list", "--json"))
    assert shut["out"] == []
    team.configure(
        _TWO.replace('policy = "mine"\ndelegates', 'policy = "mine"\ndelegate_same_policy = false\ndelegates')
    )
    team.call("config.reload")
    (boss,) = run(team, "boss", call("agent", "list", "--json"))
    assert "peer" not in {each["name"] for each in boss["out"]}
    assert "named" in {each["name"] for each in boss["out"]}


def test_dl03_three_is_the_usual_depth(daemon: Daemon) -> None:
    """DL03: a chain goes down to depth 3, whose task may not delegate."""
    daemon.configure(config('[policies.p]\ndelegation = "allow"\n', a='policy = "p"', b='policy = "p"'))
    daemon.start()
    down = plan(call("delegate", "b", "--json"))
    for agent in ("a", "b", "a"):
        down = plan(call("delegate", agent, "--wait", input=down))
    run(daemon, "b", *down["do"])

    deepest = max(rows.tasks(daemon.home), key=lambda task: task.depth)
    (answer,) = json.loads(daemon.result(deepest.id))["did"]
    assert (deepest.depth, refused(answer)) == (3, (6, "depth_exceeded"))


def test_dl04_an_exhausted_budget_starts_nothing(daemon: Daemon) -> None:
    """DL04."""
    daemon.configure(TEAM.replace("max_actions_per_hour = 20", "max_actions_per_hour = 0"))
    daemon.start()

    for words in (["delegate", "echo"], ["delegate", "--parallel", "echo,cat"], ["spawn"]):
        (did,) = run(daemon, "lead", call(*words, "--json", input="x"))
        assert refused(did) == (6, "actions_exhausted")
    assert set(agents_of(daemon)) == {"lead"}


def test_dl05_an_unnamed_agent_of_another_policy_is_refused(team: Daemon) -> None:
    """DL05: whatever the policies allow; the error names the caller and both policies."""
    (did,) = run(team, "boss", call("delegate", "other", "x", "--json"))

    assert refused(did) == (6, "not_reachable")
    details = did["error"]["error"]["details"]
    assert (details["caller"], details["caller_policy"], details["agent_policy"]) == ("boss", "mine", "theirs")


def test_dl06_a_bounded_target_may_be_wider_or_narrower(team: Daemon) -> None:
    """DL06: it gets what both have."""
    run(team, "boss", call("delegate", "named", "--wait", input=plan()))

    values = policy_of(team, "named")
    assert values["allowed_tools"] == ["Read"]
    assert (values["open_files"], values["processes"], values["workspace"]) == (400, 4000, "/tmp")


def test_dl07_an_independent_target_keeps_its_own(team: Daemon) -> None:
    """DL07: its tools and its limits; the caller's are as before."""
    run(team, "boss", call("delegate", "free", "--wait", input=plan()))

    assert policy_of(team, "free")["allowed_tools"] == ["Read", "Web"]
    assert policy_of(team, "free")["workspace"] is None
    assert policy_of(team, "boss")["allowed_tools"] == ["Read", "Write"]
    boss, free = rows.tasks(team.home)
    holders = {holder for (holder,) in rows.query(team.home, "SELECT holder_id FROM spent")}
    assert (holders, free.mode) == ({boss.id}, "independent")


def test_dl08_a_peer_shares_workspace_and_budget(team: Daemon) -> None:
    """DL08."""
    run(team, "boss", call("delegate", "peer", "--wait", input=plan(call("delegate", "boss", "--wait", input=plan()))))

    first, peer, _ = rows.tasks(team.home)
    assert first.cwd == peer.cwd == "/tmp"
    assert dict(rows.query(team.home, "SELECT holder_id, sum(amount) FROM spent GROUP BY 1")) == {
        first.id: 2,
        peer.id: 1,
    }


def test_dl09_an_independent_target_that_asks_is_refused_first(team: Daemon) -> None:
    """DL09: before there is an id, and before any sibling starts."""
    one, several = run(
        team, "boss", call("delegate", "asks", "x", "--json"),
        call("delegate", "--parallel", "echo,peer,asks", "x", "--json"),
    )  # fmt: skip

    assert refused(one) == refused(several) == (6, "approval_needed")
    assert agents_of(team) == ["boss"]


def test_dl11_permission_is_judged_on_the_caller(team: Daemon) -> None:
    """DL11: a target that may not delegate is delegated to, and then may not delegate."""
    below = plan(call("delegate", "echo", "x", "--json"))
    (alone, together) = run(
        team, "boss", call("delegate", "mute", "--wait", "--json", input=below),
        call("delegate", "--parallel", "mute", "--wait", "--json", input=below),
    )  # fmt: skip

    for task in (alone["out"], *together["out"]):
        (did,) = json.loads(team.result(task["id"]))["did"]
        assert refused(did) == (6, "delegation_forbidden")


def test_dl12_a_child_delegates_within_bounds_only(team: Daemon) -> None:
    """DL12: here a child may, where its own policy, its caller's and the depth allow it; a sub-agent spawns none."""
    nested = plan(call("spawn", "--json", input=plan()))
    (did,) = run(team, "boss", call("spawn", input=nested))

    assert refused(did["out"]["did"][0]) == (6, "spawn_nested")


def test_dl13_lists_of_tools(daemon: Daemon) -> None:
    """DL13: none set is all, an empty one is none; what matches nothing gives none; padded names are a fault."""
    cases = {"": "*", "allowed_tools = []": "", 'allowed_tools = ["Nothing"]': "Nothing"}
    cases |= {'allowed_tools = ["A", "B"]\ndenied_tools = ["A"]': "B"}
    daemon.configure(CONFIG)
    daemon.start()
    for tools, seen in cases.items():
        agent = '[agents.a]\ncommand = ["sh", "-c", "set -f; echo ${PAWL_ALLOWED_TOOLS-*}"]\npolicy = "p"\n'
        daemon.configure(f"{CONFIG}[policies.p]\n{tools}\n{agent}")
        daemon.call("config.reload")
        assert daemon.result(daemon.delegate("a", "", wait=True)["id"]).decode().strip() == seen
    daemon.configure(f'{CONFIG}[policies.p]\nallowed_tools = [" A"]\n')
    with pytest.raises(Refused) as fault:
        daemon.call("config.reload")
    assert fault.value.code == "config_invalid"


def test_dl15_the_limits_of_the_target_hold(daemon: Daemon) -> None:
    """DL15: its own output cap, where that is smaller than its caller's."""
    daemon.configure(
        config(
            '[policies.p]\ndelegation = "allow"\n[policies.small]\nmax_output = "1KiB"\n',
            boss='policy = "p"\ndelegates = ["little"]',
        )
        + '[agents.little]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "small"\n'
    )  # fmt: skip
    daemon.start()

    (did,) = run(daemon, "boss", call("delegate", "little", "--wait", "--json", "head -c 5000 /dev/zero"))

    assert (did["exit"], did["out"]["error"]["code"]) == (1, "output_limit")


def test_dl16_an_empty_answer_is_what_it_is(team: Daemon) -> None:
    """DL16: a program that says nothing and ends well has completed; its exit code decides, not its words."""
    assert team.delegate("sh", "true", wait=True)["status"] == "completed"
    assert team.delegate("sh", "echo fine; exit 1", wait=True)["status"] == "failed"


def test_dl17_a_timeout_is_told_apart(team: Daemon) -> None:
    """DL17: from any other failure."""
    slow = team.delegate("sh", "exec sleep 60", timeout_s=0.3, wait=True)

    assert (slow["status"], slow["error"]["code"]) == ("timed_out", "timeout")


@pytest.mark.parametrize("task_id", ["../../etc/passwd", "a/b", "..", "0190c0de-0000-7000-8000-000000000000"])
def test_dl18_ids_lead_nowhere_else(team: Daemon, task_id: str) -> None:
    """DL18: in every verb."""
    for method in ("task.get", "task.result", "task.logs", "task.why"):
        with pytest.raises(Refused) as no:
            team.call(method, id=task_id)
        assert no.value.code in ("invalid_params", "task_not_found", "ambiguous_id")
    with pytest.raises(Refused):
        team.call("task.cancel", ids=[task_id])


def test_dl19_waiting_for_many(team: Daemon, ran: Ran) -> None:
    """DL19: completed, failed, pending at the timeout, missing; the same id twice counts once; bad limits refused."""
    good, bad = team.delegate("echo", "x", wait=True)["id"], team.delegate("sh", "exit 1", wait=True)["id"]
    slow, unknown = team.delegate("sh", gate(), env=ran.env)["id"], new_id()

    answer = team.call("task.wait", ids=[good, bad, slow, unknown, good], timeout_s=0.2)

    assert answer["status"] == "timeout"
    assert [task["id"] for task in answer["completed"]] == [good, bad]
    assert (answer["pending"], answer["missing"], answer["failed"]) == ([slow], [unknown], [bad])
    for broken in ({"ids": []}, {"ids": [good], "timeout_s": -1}, {"ids": ["x/y"]}, {"ids": [good] * 1001}):
        with pytest.raises(Refused) as no:
            team.call("task.wait", **broken)
        assert no.value.code == "invalid_params"
    ran.go()
    team.wait(slow)


def test_dl20_a_fan_out_is_checked_as_a_whole(team: Daemon) -> None:
    """DL20: nobody, an unknown one, no prompt to be had."""
    assert team.pawl("delegate", "--parallel", "", "x").returncode == 2
    assert team.pawl("delegate", "--parallel", "echo,nobody", "x").returncode == 4
    assert team.pawl("delegate", "--parallel", "echo,off", "x").returncode == 5
    assert agents_of(team) == []


def test_dl21_in_the_background(daemon: Daemon, ran: Ran) -> None:
    """DL21: unknown agents refused; no more at once than may; the result on disk, listed; a cancel leaves nothing."""
    daemon.configure(CONFIG.replace("max_concurrent = 32", "max_concurrent = 2"))
    daemon.start()
    with pytest.raises(Refused):
        daemon.delegate("nobody", "x")
    held = [daemon.delegate("sh", gate(), env=ran.env) for _ in range(3)]
    assert [task["status"] for task in held] == ["running", "running", "queued"]
    daemon.cancel(held[0]["id"])
    until(lambda: daemon.get(held[2]["id"])["status"] == "running", "the slot of the cancelled one is not free")
    ran.go()
    ended = daemon.wait(held[1]["id"], held[2]["id"])
    assert all(os.path.exists(task["output"]["path"]) for task in ended)
    assert len(daemon.call("task.list")) == 3
    until(lambda: os.listdir(daemon.home.spool) == [], "spools are left")


def test_dl22_a_row_goes_before_a_file(daemon: Daemon, tmp_path: Path) -> None:
    """DL22: a lost row is lost, whatever a file beside it says."""
    daemon.configure(f'{CONFIG}[policies.default]\nworkspace = "{tmp_path}"\n')
    daemon.start()
    task_id = daemon.delegate("sh", "exec sleep 60")["id"]
    worker = until(lambda: rows.task(daemon.home, task_id).worker_pid, "it never ran")
    daemon.kill()
    os.kill(worker, signal.SIGKILL)
    folder = tmp_path / "delegate_results"
    folder.mkdir()
    (folder / f"{task_id}.json").write_text(json.dumps({"task_id": task_id, "status": "running", "output": "lies"}))
    daemon.start()

    assert daemon.wait_one(task_id)["status"] == "lost"
    assert daemon.result(task_id) == b""


def test_dl23_a_child_is_cancelled_by_itself(team: Daemon, ran: Ran) -> None:
    """DL23: its parent and its siblings go on."""
    held = call("delegate", "peer", "--wait", input=plan(gate=Path(f"{ran.path}.go")))
    boss = team.delegate("boss", json.dumps(plan(held, held)))["id"]
    peers = until(
        lambda: [task for task in rows.tasks(team.home) if task.agent == "peer" and task.worker_pid][1:], "no"
    )
    team.cancel(peers[0].id)
    ran.go()

    assert team.wait_one(boss)["status"] == "completed"
    assert sorted(each["exit"] for each in json.loads(team.result(boss))["did"]) == [0, 1]


def test_dl25_a_spawn_is_refused_for_its_reasons(daemon: Daemon) -> None:
    """DL25: nested, denied, budget used up; bad input takes nothing of the budget."""
    policy = 'delegation = "allow"\nmax_actions_per_hour = 1\n'
    daemon.configure(
        config(
            f'[policies.p]\n{policy}[policies.d]\ndenied_tools = ["spawn"]\n',
            boss='policy = "p"',
            denied='policy = "d"',
        )
    )
    daemon.start()
    (denied,) = run(daemon, "denied", call("spawn", "x", "--json"))
    assert refused(denied) == (6, "spawn_denied")

    bad, wide = run(
        daemon,
        "boss",
        call("spawn", "x", "--allow-tools", "a;b", "--json"),
        call("spawn", "x", "--max-actions", "5", "--json"),
    )
    assert (refused(bad)[0], refused(wide)) == (2, (6, "policy_widens"))
    assert rows.query(daemon.home, "SELECT * FROM spent") == []
    nested = plan(call("spawn", "--json", input=plan()))
    (did,) = run(daemon, "boss", call("spawn", input=nested))
    assert refused(did["out"]["did"][0]) == (6, "spawn_nested")
    both = run(daemon, "boss", *(call("spawn", "--json", input=plan()) for _ in "ab"))
    assert sorted(each["exit"] for each in both) == [0, 6]


def test_dl26_overrides_only_narrow(team: Daemon) -> None:
    """DL26: none is the parent's policy word for word; wider ones are refused by field; the budget is shared."""
    run(team, "boss", call("spawn", input=plan()))
    boss, helper = rows.tasks(team.home)
    assert helper.policy_sha256 == boss.policy_sha256
    wider = {"allowed_tools": ["--allow-tools", "Web"], "env": ["--env", "SECRET"], "timeout": ["--timeout", "3h"]}
    for field, words in wider.items():
        (did,) = run(team, "boss", call("spawn", "x", "--json", *words))
        assert (refused(did), did["error"]["error"]["details"]["field"]) == ((6, "policy_widens"), field)
    (did,) = run(team, "boss", call("spawn", "--json", "--allow-tools", "Read", input=plan()))
    assert did["exit"] == 0


def test_dl27_a_foreign_alias_sees_nothing(team: Daemon) -> None:
    """DL27: neither result, nor wait, nor list, nor cancel; an ancestor sees all of it."""
    run(team, "boss", call("delegate", "peer", "--wait", input=plan(call("delegate", "boss", "--wait", input=plan()))))
    deepest = rows.tasks(team.home)[-1].id
    words = [["result", deepest], ["wait", deepest], ["cancel", deepest], ["list", "--all", "--json"]]

    foreign = run(team, "other", *(call(*each) for each in words))
    ancestor = run(team, "boss", *(call(*each) for each in words))

    assert [each["exit"] for each in foreign] == [4, 4, 4, 0]
    assert foreign[3]["out"] == []
    assert [each["exit"] for each in ancestor] == [0, 0, 5, 0]


def test_dl29_a_cancel_that_loses_says_so(team: Daemon) -> None:
    """DL29: whoever settled it first is told, and nothing is ended twice. (DL28 and DL30: who sees what; the crash
    matrix.)"""
    done = team.delegate("echo", "x", wait=True)

    answer = team.cancel(done["id"])

    assert (answer["outcome"], answer["status"]) == ("already_completed", "completed")
    assert rows.ends_of(team.home, done["id"]) == ["completed"]
