"""``cancel``, ``list``, ``status``, ``events`` and ``agent``: what they ask and what they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cli_runs import Ran
from fake_daemon import (
    OTHER_ID,
    TASK_ID,
    Asked,
    FakeDaemon,
    Hangup,
    always,
    event,
    overview,
    refuse,
    task,
)

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]


# --- cancel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status"), [("cancelled", 0), ("already_cancelled", 0), ("already_completed", 5), ("already_lost", 5)]
)
def test_cancel_exits_five_only_for_what_had_ended_otherwise(
    daemon: Start, pawl: Pawl, outcome: str, status: int
) -> None:
    """The outcome is printed in every case, and the error says how it had ended."""
    ended = outcome.removeprefix("already_")
    fake = daemon({"task.cancel": always([task(status=ended, outcome=outcome)])})

    text = pawl("cancel", TASK_ID, "--reason", "wrong branch")
    json = pawl("cancel", TASK_ID, "--json")

    assert (text.status, text.out) == (status, f"{TASK_ID}  {outcome.replace('_', ' ')}\n")
    assert (json.status, json.json["outcome"]) == (status, outcome)
    assert fake.asked[0] == ("task.cancel", {"ids": [TASK_ID], "reason": "wrong branch"})
    if status:
        assert "it had already" in text.err
        assert json.error["details"]["tasks"] == {TASK_ID: ended}


def test_cancel_names_what_it_could_not_end(daemon: Start, pawl: Pawl) -> None:
    """A process that is left is told of, not passed over."""
    left = {"left": [{"pid": 77, "command": "sleep 300"}]}
    daemon({"task.cancel": always([task(status="cancelled", outcome="cancelled", leftovers=left)])})

    ran = pawl("cancel", TASK_ID)

    assert (ran.status, ran.err) == (0, f"{TASK_ID}: could not end process 77 sleep 300\n")


@pytest.mark.parametrize(
    ("outcome", "below", "told"),
    [
        ("cancelled", [], "cancelled"),
        ("cancelled", ["a"], "cancelled, and 1 task below it"),
        ("cancelled", ["a", "b"], "cancelled, and 2 tasks below it"),
        ("already_cancelled", ["a", "b"], "already cancelled; 2 tasks below it cancelled"),
    ],
)
def test_cancel_says_how_many_it_ended_below(
    daemon: Start, pawl: Pawl, outcome: str, below: list[str], told: str
) -> None:
    """On the task's own line."""
    daemon({"task.cancel": always([task(status="cancelled", outcome=outcome, ended_below=below, living_below=[])])})

    assert pawl("cancel", TASK_ID) == (0, f"{TASK_ID}  {told}\n", "")
    assert pawl("cancel", TASK_ID, "--json").json["ended_below"] == below


@pytest.mark.parametrize(
    ("living", "told"),
    [
        (["a"], "1 task below it still runs: pawl cancel a\n"),
        (["a", "b"], "2 tasks below it still run: pawl cancel a b\n"),
        (["a", "b", "c", "d", "e"], "5 tasks below it still run: pawl cancel a b c, and 2 more\n"),
    ],
)
def test_cancel_names_what_lives_on_below(daemon: Start, pawl: Pawl, living: list[str], told: str) -> None:
    """A task that had ended before takes nothing with it: what to type next stands there."""
    daemon({"task.cancel": always([task(outcome="already_completed", ended_below=[], living_below=living)])})

    ran = pawl("cancel", TASK_ID)

    assert (ran.status, ran.out) == (5, f"{TASK_ID}  already completed\n")
    assert f"{TASK_ID}: {told}" in ran.err


def test_cancel_of_several_is_an_array(daemon: Start, pawl: Pawl) -> None:
    """Each with its outcome."""
    both = [task(status="cancelled", outcome="cancelled"), task(id=OTHER_ID, outcome="already_completed")]
    daemon({"task.cancel": always(both)})

    ran = pawl("cancel", TASK_ID, OTHER_ID, "--json")

    assert (ran.status, ran.json) == (5, both)


# --- list and status -------------------------------------------------------------------------------------------------


def test_b132_an_empty_list_is_not_a_failure_and_a_failure_is_not_an_empty_list(daemon: Start, pawl: Pawl) -> None:
    """B-132: fresh: exit 0 and ``[]``; no daemon: exit 3, a message, nothing on stdout."""
    fake = daemon({"task.list": always([])})

    assert pawl("list", "--json").json == []
    assert pawl("list").out == ""
    fake.stop()
    ran = pawl("list", "--json")
    assert (ran.status, ran.out, ran.error["code"]) == (3, "", "daemon_unreachable")


def test_list_filters_and_prints_a_line_a_task(daemon: Start, pawl: Pawl) -> None:
    """Into a pipe: whole ids, two spaces, no head."""
    fake = daemon(
        {"task.list": always([task(labels={"ticket": "42"}), task(id=OTHER_ID, status="queued", started_at=None)])}
    )

    ran = pawl("list", "--status", "queued", "--status", "completed", "--agent", "coder", "--kind", "delegate",
               "--label", "ticket=42", "--limit", "5")  # fmt: skip

    assert ran.out == (
        f"{TASK_ID}  completed  coder  delegate  2026-01-31T09:30:00.000Z  3m05s  ticket=42\n"
        f"{OTHER_ID}  queued  coder  delegate  2026-01-31T09:30:00.000Z  -  -\n"
    )
    assert fake.params("task.list") == {
        "statuses": ["queued", "completed"], "agent": "coder", "kind": "delegate", "labels": {"ticket": "42"},
        "limit": 5,
    }  # fmt: skip


@pytest.mark.parametrize(("words", "count"), [([], 50), (["--limit", "250"], 250), (["--all"], 320)])
def test_a_long_list_is_asked_for_page_by_page(daemon: Start, pawl: Pawl, words: list[str], count: int) -> None:
    """However many there are and however much stands in them; what comes out is one array, newest first."""
    ids = [f"{number:036d}" for number in range(320)]

    def page(asked: Asked) -> list[dict[str, Any]]:
        behind = asked.params.get("before")
        start = ids.index(behind) + 1 if behind else 0
        return [task(id=each) for each in ids[start : start + asked.params["limit"]]]

    fake = daemon({"task.list": page})

    found = pawl("list", *words, "--json").json

    assert [each["id"] for each in found] == ids[:count]
    assert len(fake.methods()) == (count + 99) // 100


def test_an_id_in_a_narrow_terminal_is_whole_enough(daemon: Start, pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen characters, whatever has to give way."""
    import os

    daemon({"task.list": always([task(agent="a" * 40, error={"message": "e" * 90})])})
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    for columns in (80, 40, 20, 10):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert f"{TASK_ID[:18]}" in pawl("list").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["delegate", "echo", "x", "--timeout", "0"],
            "--timeout: '0' is out of range: write a duration longer than 0",
        ),
        (
            ["delegate", "echo", "x", "--retries", "-1"],
            "--retries: '-1' is out of range: write a number from 0 to 100",
        ),
        (["list", "--limit", "0"], "--limit: '0' is out of range: write a number from 1 to 100000"),
        (["events", "--after", "-1"], "--after: '-1' is out of range: write a number of at least 0"),
        (["events", "--limit", "10001"], "--limit 10001: write a number from 1 to 10000"),
    ],
)
def test_a_number_out_of_range_names_the_option_and_the_range(pawl: Pawl, words: list[str], told: str) -> None:
    """Without asking a daemon."""
    ran = pawl(*words)

    assert ran.status == 2
    assert told in ran.err


def test_the_overview_tells_what_needs_attention(daemon: Start, pawl: Pawl) -> None:
    """Counts, what the last start mended, findings with their message."""
    findings = [{"code": "disk_nearly_full", "message": "only 5 MiB are free", "subject": "/home"}]
    daemon({"daemon.status": always(overview(findings=findings))})

    ran = pawl("status")

    assert "pid 4711" in ran.out
    assert "1 running, 3 completed" in ran.out
    assert "2 adopted, 1 lost" in ran.out
    assert "only 5 MiB are free (/home)  [disk_nearly_full]" in ran.out
    assert pawl("status", "--json").json == overview(findings=findings)


def test_a_fresh_home_says_what_to_do_next(daemon: Start, pawl: Pawl) -> None:
    """A newcomer is not left with zeros."""
    daemon({"daemon.status": always(overview(tasks={}))})

    assert "pawl delegate echo hello --wait" in pawl("status").out


def test_the_status_of_a_task_tells_everything_and_its_events(daemon: Start, pawl: Pawl) -> None:
    """Why it failed, what to do, and its life; text of others cannot play with the terminal."""
    found = task(
        status="failed", exit_code=3, error={"code": "exit_code", "message": "ended with \x1b[31mexit code 3"},
        prompt="Fix\n  the test", labels={"a": "b"}, retry_of=OTHER_ID, retried_by=None,
    )  # fmt: skip
    fake = daemon(
        {"task.get": always(found), "event.list": always([event(to="running"), event(2, reason="exit code 3")])}
    )

    ran = pawl("status", TASK_ID[:8])

    for part in ("failed, exit code 3", "pawl logs --stderr", "Fix the test", "a=b", OTHER_ID, "pid 4720", "submitted"):
        assert part in ran.out
    assert "\x1b" not in ran.out
    assert fake.params("event.list")["subject"] == TASK_ID


TREE = {
    "policy_sha256": "3f2a9c01b2d4" + "0" * 52, "mode": "bounded", "creator": None, "kind": "subagent",
    "usage": {"tokens": 1200, "cost": 0.03, "models": {"large": {"tokens": 1200, "cost": 0.03}}},
    "usage_tree": {"tasks": 4, "tokens": 4200, "cost": 0.1},
    "progress": {"text": "12 of 40\x1b[2J", "phase": "tests", "at": "2026-01-31T09:31:00.000Z"},
    "children": [{"id": OTHER_ID, "agent": "tester", "kind": "delegate", "status": "running"}], "children_more": 2,
}  # fmt: skip


def test_the_status_of_a_task_tells_of_its_tree(daemon: Start, pawl: Pawl) -> None:
    """Progress, usage, children, and where the policy is shown; a sub-agent has no creator."""
    daemon({"task.get": always(task(**TREE)), "event.list": always([])})

    lines = {
        line.partition("  ")[0]: line.partition("  ")[2].strip() for line in pawl("status", TASK_ID).out.split("\n")
    }

    assert lines["progress"] == "tests: 12 of 40\\x1b[2J (2026-01-31T09:31:00.000Z)"
    assert lines["used"] == "1200 tokens, 0.03 (large); 4200 tokens, 0.10 for its tree of 4 tasks"
    assert lines["policy"] == f"3f2a9c01b2d4…, bounded (pawl why {TASK_ID})"
    assert lines[OTHER_ID] == "running  tester  delegate"
    assert "and 2 more" in lines
    assert "creator" not in lines
    assert pawl("status", TASK_ID, "--json").json == task(**TREE)


def test_a_task_alone_says_nothing_of_a_tree(daemon: Start, pawl: Pawl) -> None:
    """Neither of one that it has not, nor of what was never reported."""
    alone = {"usage": None, "usage_tree": {"tasks": 1, "tokens": 0, "cost": 0}, "progress": None, "children": []}
    found = task(**alone, children_more=0, policy_sha256=None, mode=None)
    daemon({"task.get": always(found), "event.list": always([])})

    out = pawl("status", TASK_ID).out

    assert not [word for word in ("used", "tree", "progress", "policy", "it started", "more") if word in out]


def test_the_status_of_a_tree_fits_the_terminal(daemon: Start, pawl: Pawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of children, with ids of eighteen characters."""
    import os

    children = [{"id": OTHER_ID, "agent": "a" * 64, "kind": "delegate", "status": "running"}]
    daemon({"task.get": always(task(**TREE | {"children": children})), "event.list": always([event()])})
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    out = pawl("status", TASK_ID).out

    assert f"{OTHER_ID[:18]}  running" in out
    assert max(map(len, out.splitlines())) <= 80


def test_an_empty_id_is_not_the_overview(daemon: Start, pawl: Pawl) -> None:
    """``pawl status "$ID"`` with an unset variable asks for a task, and is refused."""
    fake = daemon({"task.get": refuse("ambiguous_id", "too short", 2)})

    assert pawl("status", "").status == 2
    assert fake.params("task.get") == {"id": ""}


# --- events and agents -----------------------------------------------------------------------------------------------


def test_events_are_an_array_and_followed_one_a_line(daemon: Start, pawl: Pawl) -> None:
    """The same objects both ways."""
    import json

    def answer(asked: Asked) -> Any:
        if not asked.params.get("follow"):
            return [event(1), event(2)]
        asked.item(event(1))
        asked.item(event(2))
        return None

    fake = daemon({"event.list": answer, "task.get": always(task())})

    assert pawl("events", "--json").json == [event(1), event(2)]
    followed = pawl("events", "-f", "--after", "0", "--limit", "2", "--task", TASK_ID[:8], "--json")
    assert [json.loads(line) for line in followed.out.splitlines()] == [event(1), event(2)]
    assert fake.params("event.list") == {"after": 0, "subject": TASK_ID, "follow": True}


def test_followed_events_go_on_behind_the_last_one_after_a_restart(daemon: Start, pawl: Pawl) -> None:
    """None twice, none left out."""

    def first(asked: Asked) -> None:
        asked.item(event(7))
        raise Hangup

    def second(asked: Asked) -> None:
        asked.item(event(8))

    answers = iter([first, second])
    fake = daemon({"event.list": lambda asked: next(answers)(asked)})

    ran = pawl("events", "-f", "--limit", "2")

    assert [line.split()[0] for line in ran.out.splitlines()] == ["7", "8"]
    assert fake.params("event.list") == {"after": 7, "follow": True}


def test_agents_are_listed_with_their_commands(daemon: Start, pawl: Pawl) -> None:
    """And one is shown with the policy it works under."""
    echo = {"name": "echo", "command": [], "policy": "default", "enabled": True, "builtin": True}
    coder = {"name": "coder", "command": ["claude", "-p"], "policy": "work", "description": "Codes.", "timeout_s": 3600}
    coder["max_concurrent"] = 2
    shown = coder | {
        "effective_policy": {"name": "work", "env": ["PATH"], "max_depth": 3, "sandbox": "required", "cpu_s": None},
        "policy_sources": {"env": "[policies.work], line 7", "max_depth": "default"},
        "delegates_to": [{"agent": "tester", "mode": "bounded", "why": "named"}], "sandbox_works": False,
    }  # fmt: skip
    daemon({"agent.list": always([coder, echo]), "agent.show": always(shown)})

    assert pawl("agent", "list").out == "coder  claude -p  work  2  1h00m  Codes.\necho  (built in)  default  -  -  -\n"
    assert pawl("agent", "list", "--json").json == [coder, echo]
    out = pawl("agent", "show", "coder").out
    assert "env  PATH  [policies.work], line 7\n" in out
    assert "cpu_s  no limit  -\n" in out
    assert "this machine makes no sandbox" in out
    assert "tester  bounded  named\n" in out
    assert pawl("agent", "show", "coder", "--json").json == shown


def test_from_inside_a_task_agents_have_a_mode(daemon: Start, pawl: Pawl) -> None:
    """A column more, where any has one; nobody at all is told of."""
    tester = {"name": "tester", "command": ["t"], "policy": "work", "mode": "bounded", "why": "named"}
    answers = iter([[tester], []])
    daemon({"agent.list": lambda asked: next(answers)})

    assert pawl("agent", "list").out == "tester  bounded  t  work  -  -  -\n"
    assert pawl("agent", "list") == (0, "", "there is no agent that this task may hand work to\n")


def test_an_agent_that_reaches_nobody_says_so(daemon: Start, pawl: Pawl) -> None:
    """And of a sandbox that works, or is not known of, nothing."""
    shown = {"name": "echo", "effective_policy": {"name": "default", "delegation": "forbid"}, "policy_sources": {},
             "delegates_to": [], "sandbox_works": None}  # fmt: skip
    daemon({"agent.show": always(shown)})

    out = pawl("agent", "show", "echo").out

    assert "its work may hand work to nobody" in out
    assert "delegation  forbid  -\n" in out
    assert "sandbox" not in out
