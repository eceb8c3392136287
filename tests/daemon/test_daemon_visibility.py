"""For whom a task exists: creator, ancestor, sibling, stranger, operator; older records too."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate
from harness.trees import call, config, plan, run
from pawl.ids import new_id

_LOOK = ("status", "result", "logs", "wait", "why", "cancel")
_AGENTS = config(
    '[policies.team]\ndelegation = "allow"\nmax_depth = 9\n[policies.apart]\ndelegation = "allow"\n',
    chief='policy = "team"\ndelegates = ["sh"]',
    boss='policy = "team"\ndelegates = ["sh"]',
    sibling='policy = "team"\ndelegates = ["sh"]',
    stranger='policy = "apart"',
)


def looks(task_id: str) -> list[dict[str, Any]]:
    """One call of each sort about a task; the cancel comes last and by itself where it matters."""
    return [call(verb, task_id, "--json", *(["--timeout", "10"] if verb == "wait" else [])) for verb in _LOOK]


def exits(did: list[dict[str, Any]]) -> dict[str, int]:
    return {verb: each["exit"] for verb, each in zip(_LOOK, did, strict=False)}


def grown(daemon: Daemon, words: str = "echo made") -> rows.Task:
    """The task of ``sh`` that boss created for chief, once it has ended."""
    inner = plan(call("delegate", "sh", "--wait", words))
    run(daemon, "chief", call("delegate", "boss", "--wait", input=inner))
    (made,) = [task for task in rows.tasks(daemon.home) if task.agent == "sh"]
    assert (made.creator, json.loads(made.chain)) == ("boss", ["chief"])
    return made


@pytest.mark.parametrize(
    ("who", "sees"), [("boss", True), ("chief", True), ("sibling", False), ("stranger", False), ("sh", False)]
)
def test_a_task_exists_for_its_creator_and_those_above(daemon: Daemon, who: str, sees: bool) -> None:
    """By every verb; to the others it is not found, by its whole id or a prefix, and it is in no list."""
    daemon.configure(_AGENTS)
    daemon.start()
    made = grown(daemon)
    if who == "sh":  # its own agent, in another task
        words = [f"{' '.join(daemon.pawl_words(*each['words']))} >&2; echo $?" for each in looks(made.id)]
        out = daemon.result(daemon.delegate("sh", "; ".join(words), wait=True)["id"]).decode()
        assert out.split() == ["4"] * len(_LOOK)
        return

    did = run(daemon, who, *looks(made.id), call("wait", made.id, new_id(), "--json"), call("list", "--all", "--json"))

    *found, both, listed = did
    if sees:
        assert exits(found) == dict.fromkeys(_LOOK, 0) | {"cancel": 5}
        assert found[1]["out"]["text"] == "made\n"
        assert made.id in {task["id"] for task in listed["out"]}
    else:
        assert exits(found) == dict.fromkeys(_LOOK, 4)
        assert {each["error"]["error"]["code"] for each in found} == {"task_not_found"}
        assert made.id in both["out"]["missing"]
        assert listed["out"] == []


def test_the_operator_sees_everything(daemon: Daemon) -> None:
    daemon.configure(_AGENTS)
    daemon.start()
    made = grown(daemon)

    answers = [daemon.pawl(*each["words"]) for each in looks(made.id)]

    assert [answer.returncode for answer in answers] == [0, 0, 0, 0, 0, 5]
    assert len(daemon.call("task.list", all=True)) == 3


@pytest.mark.parametrize(("who", "may"), [("boss", True), ("chief", True), ("sibling", False), ("stranger", False)])
def test_who_may_see_a_task_may_cancel_it(daemon: Daemon, ran: Ran, who: str, may: bool) -> None:
    """And nobody else: to them it does not exist, and it runs on."""
    daemon.configure(_AGENTS)
    daemon.start()
    inner = plan(call("delegate", "sh", gate(), "--env", f"OUT={ran.path}"))
    run(daemon, "chief", call("delegate", "boss", "--wait", input=inner))
    (made,) = [task for task in rows.tasks(daemon.home) if task.agent == "sh"]
    until(lambda: rows.task(daemon.home, made.id).worker_pid, "it never ran")

    (did,) = run(daemon, who, call("cancel", made.id, "--json"))

    assert did["exit"] == (0 if may else 4)
    assert rows.task(daemon.home, made.id).status == ("cancelled" if may else "running")
    ran.go()
    daemon.wait(made.id)


def test_a_prefix_tells_nothing_of_foreign_tasks(daemon: Daemon) -> None:
    """Among many that begin alike only one's own count: it is found, and no other id is told."""
    daemon.configure(_AGENTS)
    daemon.start()
    foreign = [daemon.delegate("echo", str(number), wait=True)["id"] for number in range(5)]

    own, by_prefix = run(
        daemon, "boss", call("delegate", "sh", "--wait", "echo mine", "--json"), call("list", "--json")
    )
    prefix = own["out"]["id"][:8]
    assert all(each.startswith(prefix[:6]) for each in foreign)
    found, missing = run(daemon, "boss", call("status", prefix, "--json"), call("status", foreign[0][:13], "--json"))

    assert found["exit"] == 0 or found["error"]["error"]["code"] == "ambiguous_id"
    assert not [each for each in foreign if each in json.dumps([found, missing, by_prefix])]


def test_a_task_may_look_at_itself(daemon: Daemon) -> None:
    """At its state and its gates, not at more: it did not create itself."""
    daemon.configure(_AGENTS + '[agents.self]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "team"\n')
    daemon.start()
    verbs = ["status", "why", "cancel", "result", "logs"]
    pawl = " ".join(daemon.pawl_words())
    prompt = "; ".join(f"{pawl} {verb} $PAWL_TASK_ID > /dev/null 2>&1; echo $?" for verb in verbs)

    task = daemon.delegate("self", prompt, wait=True)

    assert daemon.result(task["id"]).decode().split() == ["0", "0", "4", "4", "4"]


def test_the_overview_of_a_task_counts_what_it_may_see(daemon: Daemon) -> None:
    daemon.configure(_AGENTS)
    daemon.start()
    grown(daemon)
    daemon.delegate("sh", "exit 3", wait=True)

    for who, tasks in (("boss", {"completed": 1}), ("chief", {"completed": 2}), ("stranger", {})):
        (did,) = run(daemon, who, call("status", "--json"))
        assert (did["out"]["tasks"], did["out"]["findings"]) == (tasks, [])


def test_a_subagent_exists_for_its_parents_kin(daemon: Daemon) -> None:
    """Its row names nobody: who may see its parent may see it, and its parent may."""
    daemon.configure(_AGENTS)
    daemon.start()
    run(daemon, "chief", call("delegate", "boss", "--wait", input=plan(call("spawn", input=plan()))))
    (helper,) = [task for task in rows.tasks(daemon.home) if task.kind == "subagent"]

    for who, status in (("boss", 0), ("chief", 0), ("sibling", 4), ("stranger", 4)):
        (did,) = run(daemon, who, call("result", helper.id, "--json"))
        assert did["exit"] == status, who


def test_events_are_seen_with_their_task(daemon: Daemon) -> None:
    daemon.configure(_AGENTS)
    daemon.start()
    made = grown(daemon)

    for who, status in (("boss", 0), ("stranger", 4)):
        (did,) = run(daemon, who, call("events", "--task", made.id, "--json"))
        assert did["exit"] == status


def test_the_roster_is_what_an_agent_reaches(daemon: Daemon) -> None:
    """Not itself, not those under another policy unless named, nobody where delegation is forbidden."""
    daemon.configure(_AGENTS)
    daemon.start()

    (boss, of_other, of_own), (stranger,) = (
        run(daemon, "boss", *(call(*words, "--json") for words in (
            ["agent", "list"], ["agent", "show", "stranger"], ["agent", "show", "boss"],
        ))),
        run(daemon, "stranger", call("agent", "list", "--json")),
    )  # fmt: skip

    assert {each["name"]: each["mode"] for each in boss["out"]} == dict.fromkeys(("chief", "sh", "sibling"), "bounded")
    assert (of_other["exit"], of_own["exit"], stranger["out"]) == (4, 0, [])


def test_a_message_names_only_whom_an_agent_reaches(daemon: Daemon) -> None:
    """A name that is nearly another agent's, or nobody's: by delegate, fan-out and show, in message and details."""
    daemon.configure(_AGENTS + '[agents.secretary]\ncommand = ["true"]\n')
    daemon.start()
    asked = [
        call(*words, "--json") for name in ("secretari", "stranged", "siblinq", "xyzzy")
        for words in (["delegate", name, "x"], ["delegate", "--parallel", f"sh,{name}", "x"], ["agent", "show", name])
    ]  # fmt: skip

    did = run(daemon, "boss", *asked)
    (of_none,) = run(daemon, "stranger", call("delegate", "xyzzy", "x", "--json"))

    assert {(each["exit"], each["error"]["error"]["code"]) for each in (*did, of_none)} == {(4, "agent_not_found")}
    said = json.dumps([each["error"] for each in did])
    assert "did you mean" in said
    assert {tuple(each["error"]["error"]["details"].get("nearest", ())) for each in did} == {(), ("sibling",)}
    assert not [name for name in ("secretary", "stranger", "cat", "echo", '"one') if name in said]
    assert of_none["error"]["error"]["details"]["known"] == []
    assert "nobody" in of_none["error"]["error"]["message"]
    assert "secretary" in daemon.pawl("delegate", "secretari", "x").stderr.decode()


# --- older records ----------------------------------------------------------------------------------------------

_OLD = """
INSERT INTO task (id, kind, agent, status, created_at_ms, started_at_ms, finished_at_ms, timeout_ms, creator, chain,
  prompt, inline_output, owner_pid, owner_start, owner_boot)
VALUES (?, 'delegate', ?, ?, 1, 1, ?, 1, ?, '[]', x'', ?, ?, '1', 'b')
"""


def older(daemon: Daemon, status: str, creator: str | None, output: bytes | None = None, pid: int = 0) -> str:
    """Lay a row into the database as an older program had written it. The daemon is not running."""
    daemon.checked = False  # there is no entry of it in the audit log
    task_id = new_id()
    ended = None if status in ("running", "queued") else 2
    with sqlite3.connect(daemon.home.database) as connection:
        connection.execute(_OLD, (task_id, "old", status, ended, creator, output, pid or os.getpid()))
    return task_id


def test_an_ended_row_without_an_origin_is_read_by_its_whole_id(daemon: Daemon) -> None:
    """With the output that lies in it; it is in no list, and nobody inside changes it."""
    daemon.configure(_AGENTS)
    daemon.start()
    daemon.stop()
    old = older(daemon, "completed", None, b"from long ago")
    daemon.start()

    *found, by_prefix, listed = run(daemon, "stranger", *looks(old), call("status", old[:23]), call("list", "--json"))

    assert exits(found) == {"status": 0, "result": 0, "logs": 4, "wait": 0, "why": 0, "cancel": 4}
    assert found[1]["out"]["text"] == "from long ago"
    assert found[1]["out"]["sha256"] == hashlib.sha256(b"from long ago").hexdigest()
    assert (by_prefix["exit"], listed["out"]) == (4, [])
    assert daemon.result(old) == b"from long ago"
    assert old in {task["id"] for task in daemon.call("task.list")}


def test_a_row_without_an_origin_that_has_not_ended_is_hidden(daemon: Daemon) -> None:
    """From everybody inside; the operator sees it, and ends it."""
    daemon.configure(_AGENTS)
    daemon.start()
    daemon.stop()
    daemon.checked = False
    living = subprocess.Popen(["sleep", "600"])
    try:
        start = Path(f"/proc/{living.pid}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        held = older(daemon, "running", None, pid=living.pid)
        rows.edit(daemon.home, "UPDATE task SET owner_start = ?, owner_boot = ? WHERE id = ?", start, boot, held)
        daemon.start()
        found = run(daemon, "stranger", *looks(held))
        assert exits(found) == dict.fromkeys(_LOOK, 4)
        assert daemon.get(held)["status"] == "running"
    finally:
        living.kill()
        living.wait()


def test_a_row_with_an_empty_chain_is_its_creators_only(daemon: Daemon) -> None:
    daemon.configure(_AGENTS)
    daemon.start()
    daemon.stop()
    old = older(daemon, "completed", "boss", b"x")
    daemon.start()

    for who, status in (("boss", 0), ("chief", 4), ("stranger", 4)):
        (did,) = run(daemon, who, call("result", old, "--json"))
        assert did["exit"] == status, who


def legacy(workspace: Path, task_id: str, **fields: Any) -> Path:
    folder = workspace / "delegate_results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{task_id}.json"
    about = {"task_id": task_id, "agent": "old", "status": "completed", "output": "by file", "error": None}
    path.write_text(json.dumps(about | {"started_at": "2025-01-01T00:00:00Z", "finished_at": None} | fields))
    return path


def test_a_result_file_of_an_older_program_is_read(daemon: Daemon, tmp_path: Path) -> None:
    """Where no row exists, in one's own workspace, with the status that it carries; it cannot be cancelled."""
    daemon.configure(
        config(
            f'[policies.here]\nworkspace = "{tmp_path}"\n[policies.away]\nworkspace = "/usr"\n',
            here='policy = "here"', away='policy = "away"',
        )
    )  # fmt: skip
    daemon.start()
    good, bad, stale = new_id(), new_id(), new_id()
    legacy(tmp_path, good)
    legacy(tmp_path, bad, status="failed", error="it broke", output="half")
    legacy(tmp_path, stale, status="running")

    (result, wait, failed, lost, cancel, logs), (away,) = (
        run(daemon, "here", call("result", good, "--json"), call("wait", good, bad, "--json"),
            call("result", bad, "--json"), call("status", stale, "--json"), call("cancel", good), call("logs", good)),
        run(daemon, "away", call("result", good)),
    )  # fmt: skip

    assert (result["exit"], result["out"]["text"], result["out"]["status"]) == (0, "by file", "completed")
    assert (wait["exit"], wait["out"]["status"], wait["out"]["failed"]) == (1, "complete", [bad])
    assert (failed["exit"], failed["out"]["text"]) == (1, "half")
    assert (lost["out"]["status"], "nobody runs it" in lost["out"]["error"]["message"]) == ("lost", True)
    assert (cancel["exit"], logs["exit"], away["exit"]) == (4, 4, 4)
    assert daemon.result(good) == b"by file"


def test_a_row_goes_before_its_file(daemon: Daemon, tmp_path: Path) -> None:
    """Whatever the file says: a lost row is lost, and a foreign one is not found through a file."""
    daemon.configure(config(f'[policies.here]\nworkspace = "{tmp_path}"\n', here='policy = "here"'))
    daemon.start()
    made = daemon.delegate("sh", "exit 3", wait=True)["id"]
    legacy(tmp_path, made, output="lies")

    (did,) = run(daemon, "here", call("result", made, "--json"))

    assert did["exit"] == 4
    assert daemon.get(made)["status"] == "failed"


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "no json", "another's", "no status", "deep"])
def test_what_is_no_result_file_is_not_read(daemon: Daemon, tmp_path: Path, what: str) -> None:
    """Nothing that a program can lay there makes the daemon read elsewhere, hang or fail."""
    daemon.configure(config(f'[policies.here]\nworkspace = "{tmp_path}"\n', here='policy = "here"'))
    daemon.start()
    task_id = new_id()
    path = legacy(tmp_path, task_id)
    path.unlink()
    match what:
        case "link":
            path.symlink_to(legacy(tmp_path, new_id()))
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "deep":
            path.write_text("[" * 200_000)
        case _:
            text = {"no json": "{", "another's": '{"task_id": "x", "status": "completed"}'}
            path.write_text(text.get(what, json.dumps({"task_id": task_id})))

    (did, traversal) = run(
        daemon, "here", call("result", task_id, "--json"), call("result", "../../etc/passwd", "--json")
    )

    assert (did["exit"], did["error"]["error"]["code"]) == (4, "task_not_found")
    assert traversal["exit"] == 2
