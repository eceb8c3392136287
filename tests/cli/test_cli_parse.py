"""The strict parser and the Typer application read the same table and agree on every invocation."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pawl.cli import app
from pawl.cli.main import load
from pawl.cli.parse import Invocation, parse, raw_values
from pawl.cli.table import FILES, GROUPS, every, find
from pawl.cli.table.model import EVERYWHERE, Command, Option, Positional
from pawl.errors import PawlError

COMMANDS = list(every())


def by_typer(words: list[str]) -> Invocation | None:
    """What the Typer application makes of the words; nothing where it complains or helps."""
    seen: list[Invocation] = []

    def execute(invocation: Invocation) -> int:
        seen.append(invocation)
        return 0

    try:
        app.run_words(words, execute)
    except PawlError:
        return None
    return seen[0] if seen else None


def spelled(invocation: Invocation | None) -> Any:
    if invocation is None:
        return None
    return invocation.command.words, invocation.values, invocation.json, invocation.home


GOOD = {
    "text": ["x", "two words", "", "-", "é", "a=b", "0193f2a1"],
    "integer": ["7", "0", "-3", "+2"],
    "amount": ["0.25", "3", "0", "12.", ".5", "1e-05"],
    "names": ["a", "a,b", " a , b ", ""],
    "duration": ["90", "10m", "1h30m", "0.5s"],
    "size": ["512", "64KiB"],
    "path": ["/tmp", "a/../b", "~/x", "."],
    "pair": ["k=v", "k=", "k=a=b"],
}
BAD = ["banana", "a,,b", ",", "-0.5", "1e999", "nan", "--json", "-x", "--", "=", "", "٣", "1_000", "9" * 40, "10 m"]


def values_of(item: Option | Positional) -> st.SearchStrategy[str]:
    good = item.choices if isinstance(item, Option) and item.choices else GOOD.get(item.kind, ["x"])
    return st.one_of(
        st.sampled_from(list(good)), st.sampled_from(list(good)), st.sampled_from(BAD), st.text(max_size=4)
    )


@st.composite
def option_words(draw: st.DrawFn, option: Option) -> list[str]:
    flag = draw(st.sampled_from(option.flags))
    if option.kind == "flag":
        return [draw(st.sampled_from([flag, flag, flag, f"{flag}=1"]))]
    value = draw(values_of(option))
    return draw(st.sampled_from([[flag, value], [flag, value], [f"{flag}={value}"], [flag]]))


@st.composite
def invocations(draw: st.DrawFn) -> list[str]:
    """Words for a command: usually right, sometimes with something wrong."""
    command: Command = draw(st.sampled_from(COMMANDS))
    parts: list[list[str]] = []
    for positional in command.positionals:
        most = 3 if positional.repeat else 1
        parts += [[word] for word in draw(st.lists(values_of(positional), max_size=most))]
    options = [*command.options, *EVERYWHERE]
    for option in draw(st.lists(st.sampled_from(options), max_size=4)):
        parts.append(draw(option_words(option)))
    parts += draw(
        st.lists(st.sampled_from([["--"], ["--nonsense"], ["extra"], ["-fx"], ["-f"], ["--help"]]), max_size=1)
    )
    rest = [word for part in draw(st.permutations(parts)) for word in part]
    words = command.words.split()
    if draw(st.booleans()):
        words = words[:1] + draw(option_words(draw(st.sampled_from(EVERYWHERE)))) + words[1:]
    if draw(st.booleans()):
        words = draw(option_words(draw(st.sampled_from(EVERYWHERE)))) + words
    return words + rest


@given(invocations())
@settings(max_examples=400, deadline=None)
def test_both_parsers_give_the_same_values_or_the_strict_one_declines(words: list[str]) -> None:
    """Whatever the strict parser accepts, Typer accepts with the same values."""
    strict = parse(words)

    if strict is not None:
        assert spelled(strict) == spelled(by_typer(words))


@given(st.lists(st.sampled_from(["status", "daemon", "start", "--json", "--home", "/h", "--", "-", "x", "--version"])))
@settings(max_examples=200, deadline=None)
def test_both_parsers_agree_on_words_in_any_order(words: list[str]) -> None:
    """The same, for words that make no sense together."""
    strict = parse(words)

    if strict is not None:
        assert spelled(strict) == spelled(by_typer(words))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_strict_parser_accepts_the_plain_form_of_every_command(command: Command) -> None:
    """No well-formed call has to take the slow way: each command, with all its options."""
    words = command.words.split()
    for positional in command.positionals:
        words += [GOOD[positional.kind][0]] * (2 if positional.repeat else 1)
    for option in command.options:
        words += [option.flags[-1]]
        if option.kind != "flag":
            words += [option.choices[0] if option.choices else GOOD[option.kind][0]]

    strict = parse([*words, "--json", "--home", "/h"])

    assert strict is not None
    assert spelled(strict) == spelled(by_typer([*words, "--json", "--home", "/h"]))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_function_of_a_command_takes_exactly_what_the_table_declares(command: Command) -> None:
    """The table names a function that exists and takes its values by name."""
    parameters = inspect.signature(load(command.run)).parameters

    named = [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD]
    assert set(named) <= {"call", *raw_values(command)}
    if len(named) == len(parameters):  # else it takes the others together
        assert named == ["call", *raw_values(command)]


def test_the_index_of_first_words_is_that_of_the_tables() -> None:
    """Each file declares the words that the index says it does, and a word heads a group or is a command."""
    declared = {}
    for file in dict.fromkeys(FILES.values()):
        module = __import__(f"pawl.cli.table.{file}", fromlist=["COMMANDS"])
        declared |= {command.words.split()[0]: file for command in module.COMMANDS}

    assert declared == FILES
    assert {command.words.split()[0] for command in COMMANDS if " " in command.words} == set(GROUPS)
    assert all(find(name) is None for name in GROUPS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_every_command_has_help_and_examples_that_work(command: Command) -> None:
    """A newcomer finds a summary that is a sentence, and an example that the strict parser understands."""
    assert command.summary.endswith(".")
    assert command.examples
    for words, meaning in command.examples:
        assert meaning
        assert parse(_plain(words)) is not None, words


def _plain(example: str) -> list[str]:
    """The words of an example without what only a shell understands."""
    import shlex

    words = shlex.split(example.split(" && ")[0].split(" > ")[0].split(" < ")[0])
    assert words[0] == "pawl"
    return words[1:]


def test_options_for_everywhere_stand_before_or_after_the_words() -> None:
    """``--json`` and ``--home`` in any of the three places; the ``--home`` furthest right counts."""
    for words in (
        ["--json", "--home", "/h", "daemon", "start"],
        ["daemon", "--json", "--home=/h", "start"],
        ["--home", "/other", "daemon", "start", "--json", "--home", "/h"],
    ):
        strict = parse(words)
        assert strict is not None
        assert (strict.json, strict.home) == (True, "/h")
        assert spelled(strict) == spelled(by_typer(words))


@pytest.mark.parametrize(
    "words",
    [
        [], ["nonsense"], ["daemon"], ["daemon", "nonsense"], ["status", "a", "b"], ["wait"], ["list", "--limit"],
        ["list", "--limit", "x"], ["list", "--all=1"], ["logs", "-f=1", "x"], ["--help"], ["list", "--help"],
        ["delegate", "echo", "-5"], ["--home"], ["--home", "", "status"], ["--version"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_strict_parser_leaves_the_unusual_to_typer(words: list[str]) -> None:
    """What is wrong, incomplete or a question for help is declined, never guessed at."""
    assert parse(words) is None
