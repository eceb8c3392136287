"""The strict parser: recognises well-formed invocations and nothing else.

It says no (``None``) to everything unusual: unknown words, missing values, ``--help``, joined short
options. Those go to ``app``, which explains. What it does recognise it reads exactly as ``app`` would; a
property test holds them to it.

On the command line's fast path.
"""

from __future__ import annotations

from pawl.cli.table import GROUPS, find
from pawl.cli.table.model import EVERYWHERE
from pawl.cli.values import read
from pawl.errors import InvalidValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pawl.cli.table.model import Command, Option


class Invocation:
    """A command and its values by name; what was not given is there as ``None``, ``False`` or an empty list."""

    __slots__ = ("command", "home", "json", "values")

    def __init__(self, command: Command, values: dict[str, Any], *, json: bool, home: str | None) -> None:
        self.command = command
        self.values = values
        self.json = json
        self.home = home


class _Declined(Exception):
    """These words are not for the strict parser."""


def parse(words: Sequence[str]) -> Invocation | None:
    """The invocation that the words spell, or nothing where they are unusual in any way."""
    try:
        return _Parser(words).run()
    except (_Declined, InvalidValue):
        return None


def raw_values(command: Command) -> dict[str, Any]:
    """Every name of the command with the value it has when it is not given."""
    values: dict[str, Any] = {}
    for positional in command.positionals:
        values[positional.name] = [] if positional.repeat else None
    for option in command.options:
        values[option.name] = [] if option.repeat else False if option.kind == "flag" else None
    return values


class _Parser:
    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.at = 0
        self.everywhere: dict[str, Any] = {"json": False, "home": None}

    def run(self) -> Invocation:
        command = self.command()
        values = raw_values(command)
        options = {flag: option for option in command.options for flag in option.flags}
        places: list[str] = []
        while (word := self.next()) is not None:
            if word == "--":
                places += self.words[self.at :]
                break
            if len(word) < 2 or word[0] != "-":
                places.append(word)
            elif not self.global_option(word):
                self.option(word, options, values)
        _place(command, places, values)
        return Invocation(command, values, json=self.everywhere["json"], home=self.everywhere["home"])

    def next(self) -> str | None:
        if self.at >= len(self.words):
            return None
        self.at += 1
        return self.words[self.at - 1]

    def command(self) -> Command:
        first = self.command_word()
        command = find(first, self.command_word()) if first in GROUPS else find(first)
        if command is None:
            raise _Declined
        return command

    def command_word(self) -> str:
        while (word := self.next()) is not None:
            if not word.startswith("-"):
                return word
            if not self.global_option(word):
                break
        raise _Declined

    def global_option(self, word: str) -> bool:
        flag = word.partition("=")[0]
        for option in EVERYWHERE:
            if flag in option.flags:
                self.option(word, {flag: option}, self.everywhere)
                return True
        return False

    def option(self, word: str, options: dict[str, Option], values: dict[str, Any]) -> None:
        flag, equals, text = word.partition("=")
        option = options.get(flag)
        if option is None:
            raise _Declined
        if option.kind == "flag":
            if equals:
                raise _Declined
            values[option.name] = True
            return
        if equals and not flag.startswith("--"):
            raise _Declined
        given = text if equals else self.next()
        if given is None:
            raise _Declined
        value = read(option.kind, given, option.choices, least=option.least, most=option.most)
        if option.repeat:
            values[option.name].append(value)
        else:
            values[option.name] = value


def _place(command: Command, places: list[str], values: dict[str, Any]) -> None:
    rest = places
    for positional in command.positionals:
        if not rest:
            if positional.required:
                raise _Declined
        elif positional.repeat:
            values[positional.name] = [read(positional.kind, word) for word in rest]
            rest = []
        else:
            values[positional.name] = read(positional.kind, rest[0])
            rest = rest[1:]
    if rest:
        raise _Declined
