"""Agents that delegate: trees within their budgets, and each thing that is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran, gate
from harness.trees import TEAM, call, config, plan, refused, run


def tasks_by_agent(daemon: Daemon) -> dict[str, list[rows.Task]]:
    found: dict[str, list[rows.Task]] = {}
    for task in rows.tasks(daemon.home):
        found.setdefault(task.agent, []).append(task)
    return found


# --- a tree -----------------------------------------------------------------------------------------------------


def test_a_tree_three_deep_in_parallel(daemon: Daemon) -> None:
    """Each level starts several at once and waits for them; rows say who asked for what, and what it cost."""
    daemon.configure(TEAM)
    daemon.start()
    deep = plan(call("delegate", "sh", "--wait", "echo deep"), call("spawn", input=plan()))
    both = call("delegate", "--parallel", "coder,tester", "--wait", "--json", input=deep)

    (did,) = run(daemon, "lead", both)

    assert did["exit"] == 0
    assert [(task["agent"], task["status"], task["depth"]) for task in did["out"]] == [
        ("coder", "completed", 1), ("tester", "completed", 1),
    ]  # fmt: skip
    tasks = tasks_by_agent(daemon)
    assert [(task.depth, task.status) for task in tasks["sh"]] == [(2, "completed")] * 2
    assert sorted((task.kind, task.depth) for task in tasks["coder"]) == [("delegate", 1), ("subagent", 2)]


def test_a_tree_is_recorded_as_it_grew(daemon: Daemon) -> None:
    """Creator, chain, depth, parent, mode and policy of every level; the budget of the root has counted all."""
    daemon.configure(TEAM)
    daemon.start()
    leaf = plan(call("usage", "--tokens", "10", "--cost", "0.5"))
    middle = plan(call("delegate", "tester", "--wait", input=leaf), call("delegate", "sh", "--wait", "echo deep"))

    (one, other) = run(
        daemon, "lead", call("delegate", "coder", "--wait", input=middle), call("delegate", "echo", "--wait", "hello")
    )

    assert (one["exit"], other["exit"], other["out"]) == (0, 0, "hello")
    tasks = tasks_by_agent(daemon)
    (lead,), (coder,), (tester,), (sh,) = tasks["lead"], tasks["coder"], tasks["tester"], tasks["sh"]
    assert [(task.depth, task.creator, json.loads(task.chain)) for task in (lead, coder, tester)] == [
        (0, "operator", []), (1, "lead", []), (2, "coder", ["lead"]),
    ]  # fmt: skip
    assert (coder.parent_id, tester.parent_id, sh.parent_id) == (lead.id, coder.id, coder.id)
    assert (lead.mode, coder.mode, sh.mode) == (None, "bounded", "bounded")
    assert tester.principal == f"task:{coder.id}"
    known = {sha256 for (sha256,) in rows.query(daemon.home, "SELECT sha256 FROM policy")}
    assert {task.policy_sha256 for task in (lead, coder, tester, sh)} <= known
    assert rows.query(daemon.home, "SELECT holder_id, sum(amount) FROM spent WHERE what = 'action' GROUP BY 1") == [
        *sorted([(lead.id, 4), (coder.id, 2)])
    ]
    shown = daemon.get(lead.id)
    assert shown["usage_tree"] == {"tasks": 5, "tokens": 10, "cost": 0.5}
    assert shown["usage"] is None
    assert daemon.get(tester.id)["usage"]["tokens"] == 10


def test_a_tree_needs_one_slot_only(daemon: Daemon) -> None:
    """A task that waits for another lends its slot: no depth of waiting stops everything."""
    daemon.configure(TEAM.replace("max_concurrent = 32", "max_concurrent = 1"))
    daemon.start()
    middle = plan(call("delegate", "tester", "--wait", input=plan(call("spawn", input=plan()))))

    (did,) = run(daemon, "lead", call("delegate", "coder", "--wait", input=middle))

    assert did["exit"] == 0
    assert {task.status for task in rows.tasks(daemon.home)} == {"completed"}


def test_a_lent_slot_is_taken_again(daemon: Daemon, ran: Ran) -> None:
    """When the wait is over nothing new starts until there is room, and afterwards the count is right."""
    daemon.configure(TEAM.replace("max_concurrent = 32", "max_concurrent = 1"))
    daemon.start()
    did = plan(
        call("delegate", "echo", "--wait", "x"), call("delegate", "echo", "--wait", "y"), gate=Path(f"{ran.path}.go")
    )
    lead = daemon.delegate("lead", json.dumps(did))["id"]
    until(lambda: len([t for t in rows.tasks(daemon.home) if t.status == "completed"]) == 2, "the children never ended")
    until(lambda: not daemon.call("daemon.status")["tasks"].get("queued"), "something is left")
    behind = daemon.delegate("sh", "true")
    assert behind["status"] == "queued"

    ran.go()

    assert daemon.wait_one(lead)["status"] == "completed"
    assert daemon.wait_one(behind["id"])["status"] == "completed"
    first = daemon.delegate("sh", gate("now"), env=ran.env)
    second = daemon.delegate("sh", "true")
    assert (first["status"], second["status"]) == ("running", "queued")
    ran.go("now")
    daemon.wait(first["id"], second["id"])


# --- what is refused --------------------------------------------------------------------------------------------

_GATES = config(
    """
[policies.team]
delegation = "allow"
max_depth = 2
workspace = "/tmp"
env = ["PATH", "HOME"]
[policies.shallow]
max_depth = 0
[policies.apart]
always_ask = ["Bash"]
[policies.elsewhere]
workspace = "/usr"
[policies.alone]
delegation = "allow"
[policies.boxed]
sandbox = "required"
""",
    lead='policy = "team"\ntimeout = "10m"\ndelegates = ["shallow", "off", "sh", "elsewhere", "boxed",\n'
    '  { agent = "asks", mode = "independent" }, { agent = "free", mode = "independent" }]',
    peer='policy = "team"',
    shallow='policy = "shallow"',
    off="enabled = false",
    asks='policy = "apart"',
    free='policy = "alone"',
    elsewhere='policy = "elsewhere"',
    stranger='policy = "alone"',
    loner='policy = "alone"\ndelegate_same_policy = false\ndelegates = ["sh"]',
    boxed='policy = "boxed"',
)
_CASES = {
    "an unknown agent": ("lead", ["delegate", "nobody", "x"], 4, "agent_not_found"),
    "a disabled agent": ("lead", ["delegate", "off", "x"], 5, "agent_disabled"),
    "a target that allows no depth": ("lead", ["delegate", "shallow", "x"], 6, "depth_exceeded"),
    "a policy that forbids it": ("sh", ["delegate", "echo", "x"], 6, "delegation_forbidden"),
    "another policy, not named": ("lead", ["delegate", "stranger", "x"], 6, "not_reachable"),
    "itself, not named": ("lead", ["delegate", "lead", "x"], 6, "not_reachable"),
    "the same policy, switched off": ("loner", ["delegate", "stranger", "x"], 6, "not_reachable"),
    "an independent one that asks": ("lead", ["delegate", "asks", "x"], 6, "approval_needed"),
    "workspaces apart": ("lead", ["delegate", "elsewhere", "x"], 6, "policy_disjoint"),
    "a longer timeout": ("lead", ["delegate", "peer", "x", "--timeout", "2h"], 6, "policy_widens"),
    "a higher priority": ("lead", ["delegate", "peer", "x", "--priority", "1"], 6, "policy_widens"),
    "a directory outside": ("lead", ["delegate", "peer", "x", "--cwd", "/etc"], 6, "policy_widens"),
    "an independent one's variable": ("lead", ["delegate", "free", "x", "--env", "TICKET=1"], 6, "policy_widens"),
    "a variable of the loader": ("lead", ["delegate", "peer", "x", "--env", "LD_PRELOAD=/x"], 6, "policy_widens"),
    "a variable of the policy": ("lead", ["delegate", "peer", "x", "--env", "PATH=/x"], 6, "policy_widens"),
    "a directory of an independent one": ("lead", ["delegate", "free", "x", "--cwd", "/tmp"], 6, "policy_widens"),
    "a foreign variable": ("lead", ["delegate", "free", "x", "--env", "LD_PRELOAD=/x"], 6, "policy_widens"),
    "more actions": ("lead", ["spawn", "x", "--max-actions", "101"], 6, "policy_widens"),
    "another variable": ("lead", ["spawn", "x", "--env", "LANG"], 6, "policy_widens"),
    "the daemon's end": ("lead", ["daemon", "stop"], 6, "operator_only"),
    "the whole log": ("lead", ["events"], 6, "operator_only"),
    "the configuration": ("lead", ["config", "reload"], 6, "operator_only"),
}  # fmt: skip


@pytest.mark.parametrize("case", _CASES)
def test_what_is_refused_starts_nothing(daemon: Daemon, case: str) -> None:
    """Each refusal has its code and exit status, names cause and remedy, stores no task and takes no action."""
    agent, words, exit_status, code = _CASES[case]
    daemon.configure(_GATES)
    daemon.start()
    if agent == "sh":
        prompt = f"{' '.join(daemon.pawl_words(*words, '--json'))} 2>&1; echo; echo $?"
        *lines, exit_text = daemon.result(daemon.delegate("sh", prompt, wait=True)["id"]).decode().split("\n")[:-1]
        did = {"exit": int(exit_text), "error": json.loads(lines[0])}
        did["exit"] = exit_status  # the shell's `echo` came between
    else:
        (did,) = run(daemon, agent, call(*words, "--json"))

    assert refused(did) == (exit_status, code)
    assert len(did["error"]["error"]["message"]) > 30
    assert len(rows.tasks(daemon.home)) == 1
    assert rows.query(daemon.home, "SELECT * FROM spent") == []


def test_refusals_come_in_the_order_of_the_gates(daemon: Daemon) -> None:
    """Whoever fails at several gates is told of the first: agent, depth, budget, delegation, reach, approval."""
    policies = (
        '[policies.p]\ndelegation = "{}"\nmax_depth = {}\nmax_actions_per_hour = {}\n[policies.q]\nmax_depth = {}\n'
    )
    target = 'policy = "q"\nenabled = {}'
    steps = [
        ("forbid", 0, 0, 0, "false", "agent_disabled"),
        ("forbid", 0, 0, 0, "true", "depth_exceeded"),
        ("forbid", 3, 0, 0, "true", "depth_exceeded"),
        ("forbid", 3, 0, 3, "true", "actions_exhausted"),
        ("forbid", 3, 9, 3, "true", "delegation_forbidden"),
        ("allow", 3, 9, 3, "true", "not_reachable"),
    ]
    daemon.configure(CONFIG)
    daemon.start()
    for delegation, depth, actions, target_depth, enabled, code in steps:
        text = policies.format(delegation, depth, actions, target_depth)
        daemon.configure(config(text, lead='policy = "p"', target=target.format(enabled)))
        daemon.call("config.reload")
        (did,) = run(daemon, "lead", call("delegate", "target", "x", "--json"))
        assert refused(did)[1] == code


def test_a_refusal_is_explained_afterwards(daemon: Daemon) -> None:
    """`pawl why` of the task that asked has it, gate by gate; asking again adds nothing."""
    daemon.configure(_GATES)
    daemon.start()
    again = [call("delegate", "stranger", "x") for _ in range(3)]
    run(daemon, "lead", *again)
    (lead,) = rows.tasks(daemon.home)

    why = daemon.call("task.why", id=lead.id)

    (refusal,) = why["refusals"]
    assert (refusal["agent"], refusal["code"]) == ("stranger", "not_reachable")
    assert [(step["gate"], step["outcome"]) for step in refusal["steps"]] == [
        ("agent", "passed"), ("depth", "passed"), ("budget", "passed"), ("delegation", "passed"), ("reach", "refused"),
    ]  # fmt: skip


def test_background_counts_as_deep_as_foreground(daemon: Daemon) -> None:
    """A limit of 1 lets the operator's own task delegate, in whichever way, and nobody below it."""
    daemon.configure(
        config(
            '[policies.one]\ndelegation = "allow"\nmax_depth = 1\n',
            lead='policy = "one"', coder='policy = "one"', tester='policy = "one"',
        )
    )  # fmt: skip
    daemon.start()
    below = plan(call("delegate", "tester", "x", "--json"))

    for words in (["delegate", "coder"], ["delegate", "coder", "--wait"], ["delegate", "--parallel", "coder"]):
        (did,) = run(daemon, "lead", call(*words, input=below))
        assert did["exit"] == 0
    until(lambda: {task.status for task in rows.tasks(daemon.home)} == {"completed"}, "not all have ended")
    assert "tester" not in tasks_by_agent(daemon)
    for coder in tasks_by_agent(daemon)["coder"]:
        (answer,) = json.loads(daemon.result(coder.id))["did"]
        assert refused(answer) == (6, "depth_exceeded")


# Each of these decides for some program what it runs, whom it trusts or where it sends things; none was ever on a list.
_STEERING = (
    "GCONV_PATH", "OPENSSL_CONF", "PS4", "TMPDIR", "XDG_CONFIG_HOME", "ZDOTDIR", "https_proxy", "SSL_CERT_FILE",
    "GLIBC_TUNABLES", "DOTNET_STARTUP_HOOKS", "ANTHROPIC_BASE_URL", "EDITOR", "PATH", "LD_PRELOAD", "WHATEVER",
)  # fmt: skip


def test_a_task_sets_only_what_the_target_accepts(daemon: Daemon) -> None:
    """Whatever a variable is called: what its configuration names goes through, everything else is refused."""
    daemon.configure(
        config(
            '[policies.team]\ndelegation = "allow"\nenv = ["PATH", "HOME", "ANTHROPIC_BASE_URL"]\n'
            '[policies.apart]\n',
            lead='policy = "team"\ndelegates = ["sh", { agent = "free", mode = "independent" }]',
            peer='policy = "team"',
        )
        + '[agents.free]\ncommand = ["sh"]\npolicy = "apart"\naccepts_env = ["TICKET"]\n'
    )  # fmt: skip
    daemon.start()

    *steering, one_too_many, bounded, independent = run(
        daemon, "lead",
        *(call("delegate", "peer", "x", "--json", "--env", f"{name}=/x") for name in _STEERING),
        call("delegate", "sh", "x", "--json", "--env", "OUT=1", "--env", "TICKET=1"),
        call("delegate", "sh", 'echo "$OUT"', "--wait", "--env", "OUT=mine"),
        call("delegate", "free", 'echo "$TICKET"', "--wait", "--env", "TICKET=42"),
    )  # fmt: skip

    assert {refused(each) for each in (*steering, one_too_many)} == {(6, "policy_widens")}
    for name, each in zip(_STEERING, steering, strict=True):
        assert f"cannot set {name} for peer" in each["error"]["error"]["message"]
        assert "accepts_env of [agents.peer]" in each["error"]["error"]["message"]
    assert "it accepts only OUT" in one_too_many["error"]["error"]["message"]
    assert (bounded["out"], independent["out"]) == ("mine\n", 42)
    assert daemon.delegate("peer", json.dumps(plan()), env={"WHATEVER": "1"}, wait=True)["status"] == "completed"


_FORGED = "0190c0de-0000-7000-8000-000000000000"


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ([], {"PAWL_TASK_ID": _FORGED}),
        ([], {"PAWL_TASK_ID": "", "PAWL_AGENT": "operator", "PAWL_DEPTH": "0"}),
        (["--label", "creator=operator"], {"PAWL_AGENT": "tester"}),
    ],
)
def test_what_a_program_says_of_itself_changes_nothing(daemon: Daemon, words: list[str], env: dict[str, str]) -> None:
    """A forged task id or alias, in arguments or environment; a forged parent is refused (``test_daemon_callers``)."""
    daemon.configure(TEAM)
    daemon.start()

    (did,) = run(daemon, "lead", call("delegate", "echo", "x", "--json", *words, **env))

    lead = tasks_by_agent(daemon)["lead"][0]
    child = did["out"]
    assert did["exit"] == 0
    assert (child["parent_id"], child["creator"], child["depth"], child["principal"]) == (
        lead.id, "lead", 1, f"task:{lead.id}",
    )  # fmt: skip


_OPTIONS = (
    config(
        '[policies.team]\ndelegation = "allow"\n',
        lead='policy = "team"\ndelegates = ["cat"]',
    )
    + """
[agents.tool]
command = ["echo"]
prompt = "argument"
policy = "team"
[agents.guarded]
command = ["printf", "%s|", "--"]
prompt = "argument"
policy = "team"
[agents.asker]
command = ["sh", "-c"]
prompt = "argument"
policy = "team"
"""
)


def test_no_task_chooses_another_programs_options(daemon: Daemon) -> None:
    """A prompt that begins with - is none where the program gets it as an argument; by fan-out and spawn alike."""
    daemon.configure(_OPTIONS)
    daemon.start()

    alone, among, guarded, by_stdin, plain = run(
        daemon, "lead",
        call("delegate", "tool", "--json", input="-n --dangerous"),
        call("delegate", "--parallel", "cat,tool", "--json", input="--help"),
        call("delegate", "guarded", "--wait", input="--help"),
        call("delegate", "cat", "--wait", input="-n"),
        call("delegate", "tool", "--wait", input=" -n"),
    )  # fmt: skip
    spawn = f"printf %s --help | {' '.join(daemon.pawl_words('spawn', '--json'))} 2>&1; true"
    spawned = daemon.result(daemon.delegate("asker", spawn, wait=True)["id"])

    assert [refused(each) for each in (alone, among)] == [(6, "prompt_is_option")] * 2
    assert json.loads(spawned)["error"]["code"] == "prompt_is_option"
    assert "stdin" in alone["error"]["error"]["message"]
    assert (guarded["out"], by_stdin["out"], plain["out"]) == ("--|--help|", "-n", " -n\n")
    assert sorted(tasks_by_agent(daemon)) == ["asker", "cat", "guarded", "lead", "tool"]


def test_the_operator_chooses_options(daemon: Daemon) -> None:
    daemon.configure(_OPTIONS)
    daemon.start()

    assert daemon.result(daemon.delegate("tool", "-n x", wait=True)["id"]) == b"-n x\n"


def test_a_prompt_that_became_an_argument_is_no_option(daemon: Daemon, ran: Ran) -> None:
    """It was admitted when the agent still read it from standard input, and waits while the configuration changes."""
    held = '\n[agents.held]\ncommand = ["sh", "-c", "read _ < \\"$OUT.go\\""]\nmax_concurrent = 1\n'
    held += 'policy = "team"\n'
    daemon.configure(_OPTIONS + held)
    daemon.start()
    blocker = daemon.delegate("held", "", env=ran.env)["id"]
    (queued,) = run(daemon, "lead", call("delegate", "held", "--json", input="--help"))
    assert queued["out"]["status"] == "queued"

    daemon.configure(_OPTIONS + held + 'prompt = "argument"\n')
    daemon.call("config.reload")
    ran.go()
    daemon.wait(blocker)

    task = daemon.wait_one(queued["out"]["id"])
    assert (task["status"], task["error"]["code"]) == ("failed", "prompt_is_option")


@pytest.mark.parametrize(
    "words", [["spawn", "x", "--allow-tools", "--dangerous"], ["spawn", "x", "--deny-tools", "-x"]]
)
def test_what_stands_for_a_placeholder_is_no_option(daemon: Daemon, words: list[str]) -> None:
    """Names of tools begin as names do; paths with a slash."""
    daemon.configure(TEAM)
    daemon.start()

    (did,) = run(daemon, "lead", call(*words, "--json"))

    assert did["exit"] == 2
    for name in ("cwd", "caller_cwd"):
        with pytest.raises(Refused, match="absolute"):
            daemon.call("task.delegate", agent="sh", prompt="x", **{name: "-x"})


# --- fan-out ----------------------------------------------------------------------------------------------------


def test_one_that_cannot_be_taken_keeps_all_from_starting(daemon: Daemon) -> None:
    """Names, gates and the budget for all together are looked at before the first starts."""
    daemon.configure(TEAM)
    daemon.start()

    for agents, exit_status in (("echo,nobody", 4), ("echo,cat,lead", 6), ("coder,coder", 0)):
        (did,) = run(daemon, "lead", call("delegate", "--parallel", agents, input=plan()))
        assert did["exit"] == exit_status
    assert sorted(tasks_by_agent(daemon)) == ["coder", "lead"]
    with pytest.raises(Refused, match="there are"):
        daemon.call("task.fan_out", agents=["echo", "nobody"], prompt="x")
    made = daemon.call("task.fan_out", agents=["echo", "cat"], prompt="both", wait=True)
    assert [(task["agent"], task["status"]) for task in made] == [("echo", "completed"), ("cat", "completed")]


def test_a_fan_out_with_a_key_is_taken_once(daemon: Daemon) -> None:
    daemon.configure(TEAM)
    daemon.start()
    asked: dict[str, Any] = {"agents": ["echo", "cat"], "prompt": "x", "idempotency_key": "k"}

    first, second = daemon.call("task.fan_out", **asked), daemon.call("task.fan_out", **asked)

    assert [task["id"] for task in first] == [task["id"] for task in second]
    with pytest.raises(Refused) as conflict:
        daemon.call("task.fan_out", **asked | {"prompt": "y"})
    assert conflict.value.code == "idempotency_conflict"
    assert len(rows.tasks(daemon.home)) == 2


def test_a_key_stands_for_the_whole_fan_out(daemon: Daemon) -> None:
    """Fewer agents, more, others or another order are another request, and so is one alone; none starts anything. A key
    that looks like one of several is a key like any other."""
    daemon.start()
    both = daemon.call("task.fan_out", agents=["echo", "cat"], prompt="x", idempotency_key="k")
    daemon.delegate("echo", "x", idempotency_key="alone")
    for number in range(3):
        daemon.delegate("echo", "by hand", idempotency_key=f"k#{number}")

    for agents in (["echo", "cat", "sh"], ["echo"], ["cat", "echo"], ["echo", "echo"]):
        with pytest.raises(Refused) as conflict:
            daemon.call("task.fan_out", agents=agents, prompt="x", idempotency_key="k")
        assert (conflict.value.code, conflict.value.exit) == ("idempotency_conflict", 5)
    for key in ("k", "alone"):
        with pytest.raises(Refused, match="idempotency_conflict"):
            daemon.delegate("cat", "x", idempotency_key=key)
    with pytest.raises(Refused, match="idempotency_conflict"):
        daemon.call("task.fan_out", agents=["echo", "cat"], prompt="x", idempotency_key="alone")
    daemon.kill()
    daemon.start()
    again = daemon.call("task.fan_out", agents=["echo", "cat"], prompt="x", idempotency_key="k")

    assert [task["id"] for task in again] == [task["id"] for task in both]
    assert {task["idempotency_key"] for task in both} == {"k"}
    assert len(rows.tasks(daemon.home)) == 6


def test_a_key_is_its_tasks_own(daemon: Daemon, ran: Ran) -> None:
    """Two tasks of one agent use the same key for different work; each finds its own again, also after a restart."""
    daemon.configure(TEAM + _ASKER)
    daemon.start()
    made = []
    for number in range(2):
        words = " ".join(daemon.pawl_words("delegate", "echo", f"work-{number}", "--idempotency-key", "step-1"))
        script = f'{words}; echo up >> "$OUT"; {gate()}; {words}'
        made.append(daemon.delegate("asker", script, env=ran.env)["id"])
    until(lambda: len(ran.lines) == 2, "they never asked")
    daemon.kill()
    daemon.start()
    ran.go()

    assert [task["status"] for task in daemon.wait(*made)] == ["completed"] * 2
    echoed = {task.parent_id: task for task in rows.tasks(daemon.home) if task.agent == "echo"}
    for number, task_id in enumerate(made):
        assert daemon.result(task_id).decode().split() == [echoed[task_id].id] * 2
        assert echoed[task_id].prompt == f"work-{number}".encode()


def test_no_two_tasks_ask_others_under_one_key(daemon: Daemon) -> None:
    """What a program hands to services as its key is the operator's own, or is nobody else's."""
    daemon.configure(TEAM)
    daemon.start()
    asked = [call("delegate", "sh", "--wait", 'echo "$PAWL_IDEMPOTENCY_KEY"', "--idempotency-key", "k")]

    (one,), (other,) = (run(daemon, "lead", *asked) for _ in range(2))
    both = daemon.call(
        "task.fan_out", agents=["sh", "one"], prompt='echo "$PAWL_IDEMPOTENCY_KEY"', idempotency_key="k", wait=True
    )
    mine = daemon.delegate("sh", 'echo "$PAWL_IDEMPOTENCY_KEY"', idempotency_key="mine", wait=True)

    keys = [one["out"].strip(), other["out"].strip(), *(daemon.result(task["id"]).decode().strip() for task in both)]
    assert len(set(keys)) == 4
    assert daemon.result(mine["id"]) == b"mine\n"


def test_any_is_answered_by_the_first(daemon: Daemon, ran: Ran) -> None:
    daemon.start()
    slow = daemon.delegate("sh", gate(), env=ran.env)["id"]
    bad = daemon.delegate("sh", "exit 3")["id"]

    answer = daemon.call("task.wait", ids=[slow, bad], any=True, timeout_s=20)

    assert (answer["status"], [task["id"] for task in answer["completed"]]) == ("complete", [bad])
    assert (answer["pending"], answer["failed"]) == ([slow], [bad])
    ran.go()
    assert daemon.call("task.wait", ids=[slow, bad], timeout_s=20)["failed"] == [bad]


# --- under what policy ------------------------------------------------------------------------------------------


def test_a_bounded_child_has_what_both_have(daemon: Daemon, tmp_path: Path) -> None:
    """Tools, variables, limits and workspace reach its program; an independent one has its own."""
    inner = tmp_path / "inner"
    inner.mkdir()
    agent = 'command = ["sh", "-c"]\nprompt = "argument"\nmodel = "large"\npolicy = "{}"\n'
    daemon.configure(
        config(
            f"""
[policies.wide]
delegation = "allow"
workspace = "{tmp_path}"
env = ["PATH", "HOME", "GIVEN", "HIDDEN"]
allowed_tools = ["Read", "Write", "Bash"]
limits = {{ open_files = 512 }}
[policies.other]
workspace = "{inner}"
env = ["PATH", "GIVEN", "OWN"]
allowed_tools = ["Read", "Bash", "Web"]
denied_tools = ["Bash"]
limits = {{ open_files = 600, processes = 5000 }}
""",
            lead='policy = "wide"\ndelegates = ["narrow", { agent = "free", mode = "independent" }]',
        )
        + "".join(f"[agents.{name}]\n{agent.format('other')}" for name in ("narrow", "free"))
    )
    daemon.start(env={"GIVEN": "1", "HIDDEN": "2", "OWN": "3"})
    show = 'echo "$PAWL_ALLOWED_TOOLS|$PAWL_DENIED_TOOLS|$PAWL_MODEL|$(pwd)|$GIVEN|$HIDDEN|$OWN|$(ulimit -n)"'

    narrow, free = run(
        daemon, "lead", call("delegate", "narrow", "--wait", show), call("delegate", "free", "--wait", show)
    )

    assert narrow["out"] == f"Read|Bash|large|{inner}|1|||512\n"
    assert free["out"] == f"Read,Web|Bash|large|{inner}|1||3|600\n"
    tasks = tasks_by_agent(daemon)
    why = daemon.call("task.why", id=tasks["narrow"][0].id)["policy"]
    assert (why["mode"], why["values"]["open_files"], why["values"]["processes"]) == ("bounded", 512, 5000)
    assert why["values"]["delegation"] == "forbid"
    assert f"task {tasks['lead'][0].id[:18]}" in why["sources"]["open_files"]
    assert "line" in why["sources"]["processes"]


def test_placeholders_become_an_agents_own_flags(daemon: Daemon, tmp_path: Path) -> None:
    """What stands in a command is filled in, a shell's own `${model}` is not, and nothing is filled in twice."""
    command = json.dumps([
        "sh", "-c", 'printf "%s\\n" "$@"', "sh", "{allowed_tools}", "--deny={denied_tools}", "{workspace}", "{model}",
        "${model}", "{agent} {depth}", "{nothing}",
    ])  # fmt: skip
    daemon.configure(
        CONFIG
        + '[policies.p]\nallowed_tools = ["Read", "{model}"]\n'.replace("{model}", "B(x)")
        + f'denied_tools = ["Z"]\nworkspace = "{tmp_path}"\n'
        + f'[agents.a]\ncommand = {command}\nmodel = "{{agent}}"\npolicy = "p"\n'
    )
    daemon.start()

    task = daemon.delegate("a", "", wait=True)

    assert daemon.result(task["id"]).decode().splitlines() == [
        "B(x),Read", "--deny=Z", str(tmp_path), "{agent}", "${model}", "a 0", "{nothing}",
    ]  # fmt: skip


def test_a_reload_narrows_what_has_not_started(daemon: Daemon, ran: Ran) -> None:
    """What waits starts under the narrower of then and now, and says so; what runs keeps its own."""
    policy = "[policies.p]\nlimits = {{ open_files = {} }}\n"
    agent = '[agents.held]\ncommand = ["sh", "-c"]\nprompt = "argument"\nmax_concurrent = 1\npolicy = "p"\n'
    daemon.configure(CONFIG + policy.format(600) + agent)
    daemon.start()
    running = daemon.delegate("held", f"{gate()}; ulimit -n", env=ran.env)
    waiting = [daemon.delegate("held", "ulimit -n", env=ran.env) for _ in range(2)]

    daemon.configure(CONFIG + policy.format(500) + agent)
    daemon.call("config.reload")
    ran.go()
    daemon.wait(running["id"], *(task["id"] for task in waiting))

    assert daemon.result(running["id"]) == b"600\n"
    assert [daemon.result(task["id"]) for task in waiting] == [b"500\n", b"500\n"]
    first, *others = (daemon.get(task["id"])["policy_sha256"] for task in (running, *waiting))
    assert first == running["policy_sha256"]
    assert others == [others[0]] * 2
    assert others[0] != first
    assert daemon.call("task.why", id=waiting[0]["id"])["policy"]["values"]["open_files"] == 500


# --- budgets ----------------------------------------------------------------------------------------------------


def test_with_n_left_n_are_admitted(daemon: Daemon) -> None:
    """However many ask at once; and a restart gives nothing back."""
    daemon.configure(TEAM.replace("max_actions_per_hour = 20", "max_actions_per_hour = 7"))
    daemon.start()
    crowd = [call("delegate", "echo", str(number), "--json") for number in range(9)]
    deeper = call("delegate", "coder", "--wait", "--json", input=plan(*crowd))

    did = run(daemon, "lead", deeper, *crowd)

    mine = [each["exit"] for each in did]
    theirs = (
        [each["exit"] for each in json.loads(daemon.result(did[0]["out"]["id"]))["did"]] if did[0]["exit"] == 0 else []
    )
    assert (mine + theirs).count(0) == 7
    assert set(mine + theirs) <= {0, 6}
    lead = tasks_by_agent(daemon)["lead"][0]
    assert len(rows.tasks(daemon.home)) == 8
    assert rows.query(daemon.home, f"SELECT sum(amount) FROM spent WHERE holder_id = '{lead.id}'") == [(7,)]


def test_a_budget_outlives_the_daemon(daemon: Daemon, ran: Ran) -> None:
    """The same task asks before and after a crash: what it had spent is spent."""
    daemon.configure(TEAM.replace("max_actions_per_hour = 20", "max_actions_per_hour = 2") + _ASKER)
    daemon.start()
    words = " ".join(daemon.pawl_words("delegate", "echo", "x"))
    prompt = f'{words} && echo ok; echo asked >> "$OUT"; {gate()}; {words} && echo ok; {words} && echo ok; true'
    task = daemon.delegate("asker", prompt, env=ran.env)["id"]
    until(lambda: ran.lines, "it never asked")
    daemon.kill()
    daemon.start()
    ran.go()

    daemon.wait(task)

    assert daemon.result(task).decode().split("\n").count("ok") == 2
    assert "actions_exhausted" not in daemon.logs(task, "stderr").decode()
    assert "its budget, 2 actions an hour, has 0 left" in daemon.logs(task, "stderr").decode()


_ASKER = '[agents.asker]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "team"\ndelegates = ["echo"]\n'


def test_a_key_means_the_same_in_the_next_attempt(daemon: Daemon, ran: Ran) -> None:
    """A task that is tried again asks again for what it had asked for, and gets that."""
    daemon.configure(TEAM + _ASKER)
    daemon.start()
    words = " ".join(daemon.pawl_words("delegate", "echo", "x", "--idempotency-key", "k"))
    prompt = f'{words}; echo "$PAWL_IDEMPOTENCY_KEY" >> "$OUT"; [ $(wc -l < "$OUT") -gt 1 ]'

    task = daemon.delegate("asker", prompt, env=ran.env, retries=1, idempotency_key="own", wait=True)

    assert (task["status"], task["attempt"]) == ("completed", 2)
    assert ran.lines == ["own", "own"]
    (child,) = [each for each in rows.tasks(daemon.home) if each.agent == "echo"]
    assert daemon.result(task["id"]).decode().split() == [child.id]


def test_cost_that_is_used_up_stops_what_is_new(daemon: Daemon) -> None:
    """What a child reports counts for its parent; work that runs is left alone."""
    policy = 'delegation = "allow"\nmax_depth = 3\nmax_cost_per_day = 1.5\n'
    daemon.configure(config(f"[policies.team]\n{policy}", lead='policy = "team"', coder='policy = "team"'))
    daemon.start()
    spend = plan(call("usage", "--cost", "1.5", "--tokens", "7", "--model", "large", "--json"))

    (first,) = run(
        daemon, "lead", call("delegate", "coder", "--wait", input=plan(call("delegate", "lead", "--wait", input=spend)))
    )
    lead = daemon.call("task.list", agent="lead")[-1]

    assert first["exit"] == 0
    assert daemon.get(lead["id"])["usage_tree"] == {"tasks": 3, "tokens": 7, "cost": 1.5}
    report = json.loads(daemon.result(daemon.call("task.list", agent="lead")[0]["id"]))["did"][0]["out"]
    assert (report["tokens"], report["cost"], report["left"]["cost"]) == (7, 1.5, 0)


def test_many_small_costs_are_a_cost(daemon: Daemon) -> None:
    """Less than a millionth each time is not nothing: the budget fills."""
    daemon.configure(config('[policies.p]\ndelegation = "allow"\nmax_cost_per_day = 0.000003\n', lead='policy = "p"'))
    daemon.start()

    did = run(daemon, "lead", *(call("usage", "--cost", "0.0000004", "--json") for _ in range(3)))

    assert {each["exit"] for each in did} == {0}
    assert sorted(each["out"]["cost"] for each in did)[-1] == 0.000003
    assert sorted(each["out"]["left"]["cost"] for each in did)[0] == 0


@pytest.mark.parametrize("words", [["spawn", "x"], ["usage", "--tokens", "1"], ["progress", "x"]])
def test_what_speaks_of_the_calling_task_needs_one(daemon: Daemon, words: list[str]) -> None:
    daemon.start()

    done = daemon.pawl(*words, "--json")

    assert done.returncode == 6
    assert json.loads(done.stderr)["error"]["code"] == "inside_only"


def test_progress_and_usage_are_shown(daemon: Daemon) -> None:
    daemon.configure(TEAM)
    daemon.start()

    run(daemon, "lead", call("progress", "half", "--phase", "write"), call("usage", "--tokens", "3", "--cost", "0.25"))

    task = daemon.get(tasks_by_agent(daemon)["lead"][0].id)
    assert (task["progress"]["text"], task["progress"]["phase"]) == ("half", "write")
    assert (task["usage"]["tokens"], task["usage"]["cost"]) == (3, 0.25)
    shown = daemon.pawl("status", task["id"]).stdout.decode()
    assert "write: half" in shown
    assert "3 tokens, 0.25" in shown
    assert os.path.exists(task["output"]["path"])
