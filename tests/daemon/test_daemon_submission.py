"""Asking for work: once, in order, within limits, with the right prompt, files and surroundings (K14, K15)."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon
from harness.fixtures import Ran, gate

# --- order and limits -----------------------------------------------------------------------------------------------

_ALONE = 'echo in >> "$OUT"; sleep 0.25; echo out >> "$OUT"'


def _most_at_once(lines: list[str]) -> int:
    now = most = 0
    for line in lines:
        now += 1 if line == "in" else -1
        most = max(most, now)
    return most


@pytest.mark.parametrize(("total", "agent", "most"), [(3, 32, 3), (32, 2, 2), (4, 4, 4)])
def test_concurrency_is_bound_in_all_and_by_agent(daemon: Daemon, ran: Ran, total: int, agent: int, most: int) -> None:
    """Never more at once than either limit allows, and as many as both do."""
    text = CONFIG.replace("max_concurrent = 32", f"max_concurrent = {total}")
    daemon.configure(text.replace("max_concurrent = 1\n", f"max_concurrent = {agent}\n"))
    daemon.start()

    ids = [daemon.delegate("one", _ALONE, env=ran.env)["id"] for _ in range(12)]
    daemon.wait(*ids)

    assert _most_at_once(ran.lines) == most


def test_priority_comes_first_then_age(daemon: Daemon, ran: Ran) -> None:
    """Larger priority first; among equals the older; a late urgent one passes those that wait."""
    daemon.start()
    blocker = daemon.delegate("one", gate(), env=ran.env)["id"]
    order = [("c", 0), ("d", 0), ("b", 7), ("e", -1), ("a", 1000)]
    ids = [daemon.delegate("one", f'echo {name} >> "$OUT"', env=ran.env, priority=p)["id"] for name, p in order]
    ran.go()

    daemon.wait(blocker, *ids)

    assert ran.lines == ["a", "b", "c", "d", "e"]


def test_a_full_agent_does_not_hold_up_the_others(daemon: Daemon) -> None:
    """What waits for its agent's slot lets others pass, whatever its priority."""
    daemon.start()
    blocker = daemon.delegate("one", "sleep 600")["id"]
    waiting = daemon.delegate("one", "true", priority=1000)["id"]

    other = daemon.delegate("sh", "echo hello", wait=True)

    assert other["status"] == "completed"
    assert daemon.get(waiting)["status"] == "queued"
    daemon.cancel(waiting)
    daemon.cancel(blocker)


def test_a_queue_time_that_is_over(daemon: Daemon, ran: Ran) -> None:
    """It waited too long: failed, ``queue_timeout``, never started; one that got its slot in time does not fail."""
    daemon.start()
    daemon.delegate("one", gate(), env=ran.env)
    late = daemon.delegate("one", 'echo late >> "$OUT"', env=ran.env, queue_timeout_s=0.3)["id"]
    fine = daemon.delegate("one", 'sleep 2.2; echo fine >> "$OUT"', env=ran.env, queue_timeout_s=2)["id"]

    failed = daemon.wait_one(late)
    ran.go()

    assert (failed["status"], failed["error"]["code"]) == ("failed", "queue_timeout")
    assert failed["started_at"] is None
    assert daemon.wait_one(fine)["status"] == "completed"
    assert ran.lines == ["fine"]


def test_a_queue_time_that_is_over_while_no_daemon_runs(daemon: Daemon, ran: Ran) -> None:
    """The next daemon does not start it."""
    daemon.start()
    blocker = daemon.delegate("one", "exec sleep 600")["id"]
    late = daemon.delegate("one", 'echo late >> "$OUT"', env=ran.env, queue_timeout_s=0.2)["id"]
    daemon.kill()
    time.sleep(0.3)
    daemon.start()

    assert daemon.wait_one(late)["error"]["code"] == "queue_timeout"
    daemon.cancel(blocker)
    assert ran.lines == []


def test_retries_are_a_chain_of_tasks(daemon: Daemon, ran: Ran) -> None:
    """Each attempt is a row of its own with the same wishes; ``wait`` answers with the last; none follows a success."""
    daemon.start()
    flaky = 'echo ran >> "$OUT"; [ $(wc -l < "$OUT") -ge 3 ] && echo good'

    last = daemon.delegate("sh", flaky, env=ran.env, retries=5, labels={"a": "b"}, priority=3, wait=True)
    chain = rows.tasks(daemon.home)

    assert (last["status"], last["attempt"], last["retries_left"]) == ("completed", 3, 3)
    assert [task.status for task in chain] == ["failed", "failed", "completed"]
    assert [task.retry_of for task in chain] == [None, chain[0].id, chain[1].id]
    assert {(task.labels, task.priority, task.env, task.creator) for task in chain} == {
        ('{"a": "b"}', 3, chain[0].env, "operator")
    }
    assert daemon.get(chain[0].id)["retried_by"] == chain[1].id
    assert len(ran.lines) == 3


def test_a_cancel_ends_the_chain_of_retries(daemon: Daemon) -> None:
    """Nobody wants it any more: no further attempt."""
    daemon.start()
    task_id = daemon.delegate("sh", "exec sleep 600", retries=5)["id"]

    daemon.cancel(task_id)

    assert daemon.get(task_id)["retried_by"] is None
    assert len(rows.tasks(daemon.home)) == 1


def test_timeouts_are_retried_where_that_was_asked_for(daemon: Daemon, ran: Ran) -> None:
    """Retries declare it safe to repeat."""
    daemon.start()

    last = daemon.delegate("sh", 'echo ran >> "$OUT"; exec sleep 600', env=ran.env, timeout_s=0.3, retries=1, wait=True)

    assert (last["status"], last["attempt"]) == ("timed_out", 2)
    assert len(ran.lines) == 2


# --- what the program gets ------------------------------------------------------------------------------------------

_MODES = (
    CONFIG
    + """
[agents.last]
command = ["cat"]
prompt = "file"
[agents.named]
command = ["sh", "-c", "cat \\"$1\\"; echo; pwd", "x", "{prompt_file}"]
prompt = "file"
[agents.printf]
command = ["printf", "%s"]
prompt = "argument"
"""
)


@pytest.mark.parametrize("agent", ["cat", "last", "printf"])
@pytest.mark.parametrize(
    "prompt", [b"", b"hello\n", "gr\u00fc\u00dfe \u2764\n\n".encode(), b"caf\xe9 \xff\xfe", b"-n --help $(id) `id`"]
)
def test_prompts_arrive_byte_for_byte(daemon: Daemon, agent: str, prompt: bytes) -> None:
    """On standard input, in a file, as an argument: the same bytes, and no shell reads them."""
    daemon.configure(_MODES)
    daemon.start()

    task = daemon.call("task.delegate", agent=agent, prompt_base64=base64.b64encode(prompt).decode(), wait=True)

    assert task["status"] == "completed"
    assert daemon.result(task["id"]) == prompt


def test_the_prompt_file_stands_where_the_command_says(daemon: Daemon, tmp_path: Path) -> None:
    """``{prompt_file}`` is its path, absolute, whatever the working directory."""
    daemon.configure(_MODES)
    daemon.start()

    task = daemon.delegate("named", "hello", cwd=str(tmp_path), wait=True)

    assert daemon.result(task["id"]).decode() == f"hello\n{tmp_path}\n"


def test_a_large_prompt_on_standard_input(daemon: Daemon) -> None:
    """Five megabytes: more than a pipe holds, read slowly."""
    daemon.start()
    prompt = "0123456789abcdef" * 327_680

    task = daemon.delegate("cat", prompt, wait=True)

    assert task["output"]["size_bytes"] == len(prompt)
    assert daemon.result(task["id"]).decode() == prompt


def test_a_zero_byte_is_no_argument(daemon: Daemon) -> None:
    """Said so, and not cut off there."""
    daemon.start()

    task = daemon.call("task.delegate", agent="sh", prompt_base64=base64.b64encode(b"echo a\0b").decode(), wait=True)

    assert (task["status"], task["error"]["code"]) == ("failed", "prompt_not_an_argument")


def test_working_directory_and_environment(daemon: Daemon, tmp_path: Path) -> None:
    """The directory that was asked for, else the caller's; the variables that were asked for and ours, which win."""
    daemon.start()
    (tmp_path / "a").mkdir()
    names = ("A", "PAWL_TASK_ID", "PAWL_AGENT", "PAWL_DEPTH", "PAWL_HOME", "PAWL_SOCKET", "PAWL_IDEMPOTENCY_KEY")
    script = f'pwd; echo "{"|".join(f"${name}" for name in names)}"; ls -d "$PAWL_TASK_DIR"'

    asked = daemon.delegate("sh", script, cwd=str(tmp_path / "a"), caller_cwd="/", env={"A": "b c"}, wait=True)
    callers = daemon.delegate("sh", "pwd", caller_cwd=str(tmp_path), wait=True)
    with pytest.raises(Refused) as refused:
        daemon.delegate("sh", "true", env={"PAWL_TASK_ID": "x"})

    home = daemon.home
    assert daemon.result(asked["id"]).decode().splitlines() == [
        str(tmp_path / "a"),
        f"b c|{asked['id']}|sh|0|{home.path}|{home.socket}|{asked['id']}",
        f"{home.spool}/{asked['id']}/files",
    ]
    assert daemon.result(callers["id"]).decode() == f"{tmp_path}\n"
    assert refused.value.code == "invalid_params"


def test_input_files_are_copies(daemon: Daemon, ran: Ran, tmp_path: Path) -> None:
    """The task has what the file held when it was handed over, in a directory of its own, also when it waited."""
    daemon.start()
    for name, data in (("a.txt", b"one"), ("b bin", b"\0\xff")):
        (tmp_path / name).write_bytes(data)
    blocker = daemon.delegate("one", gate(), env=ran.env)["id"]
    task = daemon.delegate(
        "one", 'cd "$PAWL_TASK_DIR"; ls; cat *', inputs=[str(tmp_path / "a.txt"), str(tmp_path / "b bin")]
    )
    (tmp_path / "a.txt").write_bytes(b"changed")
    (tmp_path / "b bin").unlink()
    ran.go()

    daemon.wait(blocker, task["id"])

    assert daemon.result(task["id"]) == b"a.txt\nb bin\none\0\xff"
    assert [each["name"] for each in daemon.get(task["id"])["inputs"]] == ["a.txt", "b bin"]


def test_input_files_go_with_every_attempt(daemon: Daemon, tmp_path: Path) -> None:
    """A retry finds them too."""
    daemon.start()
    (tmp_path / "a").write_bytes(b"one")

    last = daemon.delegate("sh", 'cat "$PAWL_TASK_DIR/a"; exit 3', inputs=[str(tmp_path / "a")], retries=1, wait=True)

    assert last["attempt"] == 2
    assert daemon.result(last["id"]) == b"one"


@pytest.mark.parametrize("inputs", [["/nowhere/at/all"], ["/"], ["/etc/hostname", "/tmp/../etc/hostname"]])
def test_input_files_that_cannot_be_taken(daemon: Daemon, inputs: list[str]) -> None:
    """Missing, no file, two of one name: refused, and nothing is stored."""
    daemon.start()

    with pytest.raises(Refused) as refused:
        daemon.delegate("sh", "true", inputs=inputs)

    assert (refused.value.code, refused.value.exit) == ("invalid_params", 2)
    assert rows.tasks(daemon.home) == []


# --- what cannot be started -----------------------------------------------------------------------------------------

_BROKEN = """
[agents.missing]
command = ["no-such-program"]
[agents.missing_path]
command = ["/no/such/program"]
[agents.not_executable]
command = ["{dir}/plain"]
[agents.directory]
command = ["{dir}"]
[agents.no_interpreter]
command = ["{dir}/script"]
[agents.not_a_program]
command = ["{dir}/garbage"]
[agents.argument]
command = ["true"]
prompt = "argument"
"""


@pytest.mark.parametrize(
    ("agent", "wishes", "code", "words"),
    [
        ("missing", {}, "program_not_found", "No such file"),
        ("missing_path", {}, "program_not_found", "No such file"),
        ("not_executable", {}, "program_not_executable", "Permission denied"),
        ("directory", {}, "program_not_executable", "directory"),
        ("no_interpreter", {}, "program_not_executable", "interpreter"),
        ("not_a_program", {}, "program_not_executable", "Exec format"),
        ("cat", {"cwd": "/no/such/directory"}, "cwd_missing", "No such file"),
        ("cat", {"cwd": "/etc/hostname"}, "cwd_not_directory", "Not a directory"),
        ("argument", {"prompt": "x" * 300_000}, "launch_failed", "too long"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_be_started_fails_at_once_and_says_why(
    daemon: Daemon, tmp_path: Path, agent: str, wishes: dict[str, object], code: str, words: str
) -> None:
    """Within a second, with the system's reason; the slot is free again."""
    for name, text, mode in (
        ("plain", "x", 0o644),
        ("script", "#!/no/such/interpreter\n", 0o755),
        ("garbage", "\0\1", 0o755),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    daemon.configure(CONFIG + _BROKEN.replace("{dir}", str(tmp_path)))
    daemon.start()
    daemon.delegate("sh", "true", wait=True)  # the keeper is warm

    began = time.monotonic()
    task = daemon.call("task.delegate", **{"agent": agent, "prompt": ""} | wishes, wait=True)

    assert time.monotonic() - began < 1
    assert (task["status"], task["error"]["code"]) == ("failed", code)
    assert words.lower() in task["error"]["message"].lower()
    assert daemon.delegate("sh", "echo hello", wait=True)["status"] == "completed"


def test_an_agent_that_is_not_configured(daemon: Daemon) -> None:
    """Refused at the door with exit 4 and the nearest name; a disabled one with 5; nothing is stored."""
    daemon.configure(CONFIG + '\n[agents.off]\ncommand = ["true"]\nenabled = false\n')
    daemon.start()

    with pytest.raises(Refused) as unknown:
        daemon.delegate("ech", "x")
    with pytest.raises(Refused) as disabled:
        daemon.delegate("off", "x")

    assert (unknown.value.code, unknown.value.exit) == ("agent_not_found", 4)
    assert "echo" in unknown.value.message
    assert (disabled.value.code, disabled.value.exit) == ("agent_disabled", 5)
    assert rows.tasks(daemon.home) == []


def test_an_agent_that_went_while_its_task_waited(daemon: Daemon, ran: Ran) -> None:
    """The configuration in force at its start counts: failed, with the reason, and not forgotten."""
    daemon.start()
    blocker = daemon.delegate("one", gate(), env=ran.env)["id"]
    task_id = daemon.delegate("one", "echo hello")["id"]
    daemon.configure(CONFIG.partition("[agents.one]")[0])
    daemon.call("config.reload")
    ran.go()

    daemon.wait(blocker)
    task = daemon.wait_one(task_id)

    assert (task["status"], task["error"]["code"]) == ("failed", "agent_not_found")


def test_limits_of_the_policy_are_set(daemon: Daemon) -> None:
    """The limits of the policy are the limits of the process."""
    limits = '[policies.tight]\nlimits = { cpu = "100s", memory = "2GiB", open_files = 77 }\n'
    agent = '\n[agents.tight]\ncommand = ["sh", "-c", "ulimit -t; ulimit -n; ulimit -v"]\npolicy = "tight"\n'
    daemon.configure(CONFIG + agent + limits)
    daemon.start()

    task = daemon.delegate("tight", "", wait=True)

    assert daemon.result(task["id"]).split() == [b"100", b"77", str(2 * 1024**2).encode()]
