"""The help of a command as text, from the table: the same words on the terminal and on the reference page."""

from __future__ import annotations

import textwrap

from pawl.cli.table.model import EVERYWHERE, Command, Option, Positional

_WIDTH_MAX = 100
_COLUMN_MAX = 26  # longer names have their help on the next line


def usage(command: Command) -> str:
    """``pawl delegate [OPTIONS] AGENT [PROMPT]``"""
    return " ".join([f"pawl {command.words} [OPTIONS]", *map(place, command.positionals)])


def full(command: Command, columns: int) -> str:
    """Everything about a command, for a terminal of that width."""
    columns = min(columns, _WIDTH_MAX)
    parts = [f"Usage: {usage(command)}", _wrapped(command.summary, columns)]
    if command.paragraph:
        parts.append(_wrapped(command.paragraph, columns))
    examples = [f"  {words}\n      {meaning}" for words, meaning in command.examples]
    parts.append("\n".join(["Examples:", *examples]))
    if command.positionals:
        parts.append(_list("Values:", [(place(one), one.help) for one in command.positionals], columns))
    if command.options:
        parts.append(_list("Options:", [(name(one), note(one)) for one in command.options], columns))
    everywhere = [(name(one), note(one)) for one in EVERYWHERE]
    parts.append(_list("Everywhere:", [*everywhere, ("-h, --help", "Show this.")], columns))
    parts.append(_wrapped(f"With --json: {command.json}.", columns))
    return "\n\n".join(parts)


def name(option: Option) -> str:
    """``-f, --follow`` or ``--timeout D``"""
    flags = ", ".join(sorted(option.flags, key=len))
    return f"{flags} {option.metavar}".strip()


def note(option: Option) -> str:
    """The option's help, with what it may be and whether it may be repeated."""
    text = option.help
    if option.choices:
        text += f" One of: {', '.join(option.choices)}."
    if option.repeat:
        text += " May be repeated."
    return text


def place(positional: Positional) -> str:
    """``TASK...`` or ``[PROMPT]``"""
    text = positional.metavar + ("..." if positional.repeat else "")
    return text if positional.required else f"[{text}]"


def _list(head: str, rows: list[tuple[str, str]], columns: int) -> str:
    column = min(_COLUMN_MAX, max(len(left) for left, _ in rows))
    lines = [head]
    for left, right in rows:
        indent = " " * (column + 4)
        text = textwrap.fill(right, columns, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        if len(left) > column:
            lines += [f"  {left}", text]
        else:
            lines.append(f"  {left.ljust(column)}  {text[column + 4 :]}")
    return "\n".join(lines)


def _wrapped(text: str, columns: int) -> str:
    return textwrap.fill(" ".join(text.split()), columns, break_on_hyphens=False, break_long_words=False)
