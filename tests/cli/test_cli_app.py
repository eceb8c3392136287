"""What happens when the words are wrong, or a question: Typer helps, and programs get an object."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import pytest
from cli_runs import Ran
from fake_daemon import TASK_ID, Asked, FakeDaemon, always, task

from pawl import __version__
from pawl.cli import app
from pawl.cli.table import GROUPS, every
from pawl.cli.table.model import Command

Start = Callable[..., FakeDaemon]
Pawl = Callable[..., Ran]
Process = Callable[..., subprocess.Popen[bytes]]

WRONG = [
    ["nonsense"], ["daemon"], ["daemon", "nonsense"], ["delegate"], ["status", "a", "b"], ["list", "--nonsense"],
    ["list", "--limit"], ["list", "--limit", "x"], ["list", "--status", "runing"], ["wait"],
    ["wait", "--timeout", "soon", "x"],
    ["delegate", "echo", "--env", "noequals", "x"], ["delegate", "--parallel", "a,,b", "x"], ["usage", "--cost", "-1"],
    ["usage", "--cost", "nan"], ["usage", "--tokens", "0.5"], ["progress"], ["why"],
    ["--home"], ["--home", "", "list"], ["list", "--all=1"], ["-x"],
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_words_exit_two_and_say_how_it_is_done(pawl: Pawl, words: list[str]) -> None:
    """On stderr, with a way to more help; nothing on stdout."""
    ran = pawl(*words)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("pawl: ")
    assert "--help`" in ran.err


@pytest.mark.parametrize("words", [*WRONG, []], ids=" ".join)
@pytest.mark.parametrize("first", [False, True])
def test_wrong_words_with_json_are_an_error_object(pawl: Pawl, words: list[str], first: bool) -> None:
    """Code ``usage`` on stderr, one line, wherever ``--json`` stands among the words."""
    if words[-1:] in (["--home"], ["--limit"]) and not first:
        pytest.skip("there --json is the value that was missing")

    ran = pawl("--json", *words) if first else pawl(*words, "--json")

    assert (ran.status, ran.out, ran.error["code"]) == (2, "", "usage")


def test_a_slip_of_the_finger_gets_a_suggestion(pawl: Pawl) -> None:
    """For commands, for options and for values."""
    assert "Did you mean 'delegate'" in pawl("delegat").err
    assert "--timeout" in pawl("delegate", "echo", "x", "--tiemout", "3").err
    assert "running" in pawl("list", "--status", "runing").err


@pytest.mark.parametrize(
    ("word", "meant"),
    [("run", "delegate"), ("tasks", "list"), ("ls", "list"), ("ps", "list"), ("stop", "daemon stop")],
)
def test_the_words_of_other_programs_get_a_suggestion(pawl: Pawl, word: str, meant: str) -> None:
    """What means the same is named."""
    ran = pawl(word)

    assert (ran.status, ran.out) == (2, "")
    assert f"Did you mean `pawl {meant}`?" in ran.err
    assert ran.err.count("Did you mean") == 1


def test_what_is_suggested_exists() -> None:
    """Each suggestion is a command of the table."""
    known = {command.words for command in every()}

    assert {meant.removesuffix(" TASK") for meant in app._ALIASES.values()} <= known
    assert not set(app._ALIASES) & (known | set(GROUPS))


def test_a_group_alone_names_its_commands(pawl: Pawl) -> None:
    """So that the next try is the right one."""
    assert "Its commands: run, start, stop, restart, status, install." in pawl("daemon").err


def test_help_is_a_word_too(pawl: Pawl) -> None:
    """Before any command, for all of them, for a group; never for one that is not there."""
    assert pawl("help") == pawl("help", "help") == pawl("--help")
    assert pawl("help", "daemon", "stop") == pawl("daemon", "stop", "--help")
    assert pawl("--home", "/h", "help", "daemon") == pawl("daemon", "--help")
    assert pawl("help", "nonsense").status == 2
    assert pawl("help", "run").err.startswith("pawl: No such command 'run'. Did you mean `pawl delegate`?")


def test_the_first_help_tells_every_exit_status_within_the_terminal(
    pawl: Pawl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """141 among them; nothing is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "60")

    out = pawl("--help").out

    assert "141 nobody reads" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 60


def test_a_prompt_without_quotes_is_explained(pawl: Pawl) -> None:
    """The commonest slip of all."""
    ran = pawl("delegate", "coder", "Fix", "the", "test")

    assert ran.status == 2
    assert "in quotes" in ran.err


@pytest.mark.parametrize("command", list(every()), ids=lambda command: command.words)
def test_every_command_has_help(pawl: Pawl, command: Command) -> None:
    """On stdout, exit 0, with every option and an example."""
    ran = pawl(*command.words.split(), "--help")

    assert (ran.status, ran.err) == (0, "")
    assert command.summary.split()[0] in ran.out
    for option in command.options:
        assert option.flags[0] in ran.out
    assert command.examples[0][0] in ran.out


def test_the_first_help_lists_every_command(pawl: Pawl) -> None:
    """With and without ``--help``; groups have theirs."""
    ran = pawl()

    assert ran.status == 0
    assert ran == pawl("--help")
    for first in {command.words.split()[0] for command in every()}:
        assert f"  {first} " in ran.out
    for group in GROUPS:
        assert f"pawl {group}" in pawl(group, "--help").out


def test_the_version(pawl: Pawl) -> None:
    """As text and as a document."""
    for words in (["--version"], ["-V"], ["version"]):
        assert pawl(*words) == (0, f"pawl {__version__}\n", "")
    assert pawl("--json", "version").json == {"version": __version__}
    assert pawl("--version", "--json").json == {"version": __version__}


def test_joined_short_forms_run_through_typer_to_the_same_command(daemon: Start, pawl: Pawl) -> None:
    """What the strict parser declines still works if it is right."""
    fake = daemon({"task.list": always([])})

    assert pawl("list", "--json", "--limit=3").status == 0
    assert pawl("--home", str(fake.home.path), "list", "--json").json == []


# --- completion -----------------------------------------------------------------------------------------------------


@pytest.fixture
def complete(process: Process) -> Callable[..., list[str]]:
    def run(words: str) -> list[str]:
        """What bash offers behind these words."""
        environment = {
            "_PAWL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        out, err = process(env=environment).communicate()
        assert err == b""
        return out.decode().split()

    return run


def test_completion_offers_live_ids_and_names(daemon: Start, complete: Callable[..., list[str]]) -> None:
    """Task ids and agent names come from the daemon, fixed words from the table."""
    daemon(
        {"task.list": always([task()]), "agent.list": always([{"name": "coder", "command": ["c"]}, {"name": "echo"}])}
    )

    assert complete("pawl status ") == [TASK_ID]
    assert complete("pawl wait 0193") == [TASK_ID]
    assert complete("pawl delegate co") == ["coder"]
    assert complete("pawl delegate --parallel co") == ["coder"]
    assert complete("pawl delegate --parallel coder,") == ["coder,echo"]
    assert complete("pawl list --status q") == ["queued"]
    assert complete("pawl del") == ["delegate"]
    assert complete("pawl daemon sta") == ["start", "status"]


def test_completion_is_silent_without_a_daemon(complete: Callable[..., list[str]]) -> None:
    """Nothing to offer is nothing said."""
    assert complete("pawl status ") == []
    assert complete("pawl delegate ") == []


def test_completion_does_not_wait_for_a_stuck_daemon(daemon: Start, complete: Callable[..., list[str]]) -> None:
    """The shell's prompt does not hang."""

    def stuck(asked: Asked) -> None:
        time.sleep(5)

    daemon({"task.list": stuck})
    began = time.monotonic()

    assert complete("pawl status ") == []
    assert time.monotonic() - began < 4
