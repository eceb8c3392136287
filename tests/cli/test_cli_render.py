"""Text for people: it fits a terminal, and into a pipe it is whole."""

from __future__ import annotations

import calendar
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pawl.cli import output, render
from pawl.cli.render import Screen, cut, epoch_ms, width
from pawl.values import rfc3339


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal of forty columns."""
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


ROWS = [["0193f2a1", "completed", "x" * 60, None], ["0193f2a2", "failed", "short", "é"]]


def test_a_table_into_a_pipe_has_no_head_and_is_not_cut() -> None:
    """Two spaces between the columns, a dash for nothing, no colour."""
    assert Screen().table(["ID", "STATUS", "WHAT", "NOTE"], ROWS, status=1) == [
        f"0193f2a1  completed  {'x' * 60}  -",
        "0193f2a2  failed  short  é",
    ]


def test_a_table_on_a_terminal_fits_it(terminal: Screen) -> None:
    """The longest column is cut, the others stay whole; only the status is coloured."""
    lines = terminal.table(["ID", "STATUS", "WHAT", "NOTE"], ROWS, status=1)

    assert lines[0] == "ID        STATUS     WHAT           NOTE"
    assert lines[1] == f"0193f2a1  \x1b[32mcompleted\x1b[0m  {'x' * 12}…"
    assert lines[2].startswith("0193f2a2  \x1b[31mfailed\x1b[0m     short")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(60, ["ID", "STATUS", "WHAT", "NOTE"]), (45, ["ID", "STATUS", "WHAT"]), (30, ["ID", "STATUS"]), (9, ["ID"])],
)
def test_a_column_that_stays_whole_is_never_cut(
    terminal: Screen, monkeypatch: pytest.MonkeyPatch, columns: int, shown: list[str]
) -> None:
    """The others are cut and then left out, from the right."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [["0193f2a1-7c3b-7abc", "completed", "x" * 60, "y" * 60]]

    lines = Screen().table(["ID", "STATUS", "WHAT", "NOTE"], rows, status=1, whole=0)

    assert lines[0].split() == shown
    assert lines[1].startswith("0193f2a1-7c3b-7abc")
    assert max(map(len, lines)) <= max(columns, 18)


def test_no_color_takes_the_colour_away(terminal: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR, and a terminal that says it is dumb."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen().status("failed") == "failed"

    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Screen().status("failed") == "failed"
    assert terminal.status("failed") == "\x1b[31mfailed\x1b[0m"


@given(st.lists(st.lists(st.text(max_size=30), min_size=3, max_size=3), max_size=5), st.integers(40, 120))
def test_a_table_never_is_wider_than_the_terminal(rows: list[list[str]], columns: int) -> None:
    """Whatever is in it: wide characters, control characters, nothing."""
    screen = Screen()
    screen.terminal = True
    screen.colour = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        lines = screen.table(["ONE", "TWO", "THREE"], rows)

    assert all(width(line) <= columns for line in lines)
    assert all(line.isprintable() for line in lines)


@given(st.lists(st.lists(st.text(max_size=60), min_size=3, max_size=3), max_size=5), st.integers(40, 120))
def test_a_wrapped_table_fits_the_terminal_and_loses_nothing(rows: list[list[str]], columns: int) -> None:
    """Whatever is in it: every character that is no white space is there, in its order."""
    screen = Screen()
    screen.terminal = True
    screen.colour = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        lines = screen.table(["ONE", "TWO", "THREE"], rows, wrap=True)

    assert all(width(line) <= columns for line in lines)
    shown = sorted("".join("".join(lines).split()))
    assert shown == sorted(
        "ONETWOTHREE" + "".join("".join(output.clean(cell, one_line=True) for row in rows for cell in row).split())
    )


def test_wrapped_text_breaks_at_spaces_and_long_words_anywhere() -> None:
    """An empty text is one empty line."""
    assert render.wrapped("one two  three", 7) == ["one two", "three"]
    assert render.wrapped("a 0123456789 b", 4) == ["a", "0123", "4567", "89 b"]
    assert render.wrapped("日本語", 4) == ["日本", "語"]
    assert render.wrapped("", 4) == [""]


def test_usage_is_told_with_what_says_something() -> None:
    """Two decimals of money at least, six at most; one of a thing is one."""
    assert render.spent(1, 0.1) == "1 token, 0.10"
    assert render.spent(None, None) == "0 tokens, 0.00"
    assert render.spent(4_200_000, 1234567.5) == "4200000 tokens, 1234567.50"
    assert render.price(0.000042) == "0.000042"


def test_ids_and_moments_are_short_on_a_terminal_and_whole_in_a_pipe(terminal: Screen) -> None:
    """Eighteen characters and an age; into a pipe what the daemon said."""
    identifier = "0193f2a1-7c3b-7abc-8def-0123456789ab"
    moment = rfc3339(round(time.time() * 1000) - 185_000)
    pipe = Screen()
    pipe.terminal = False

    assert terminal.id(identifier) == "0193f2a1-7c3b-7abc"
    assert pipe.id(identifier) == identifier
    assert terminal.when(moment) in {"3m05s ago", "3m06s ago"}
    assert pipe.when(moment) == moment


@given(st.integers(0, 4_102_444_800_000))
def test_a_moment_is_read_as_it_was_written(ms: int) -> None:
    """To the millisecond, over a century of leap years."""
    text = rfc3339(ms)

    assert text is not None
    assert epoch_ms(text) == ms
    assert epoch_ms(text) // 1000 == calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))


def test_east_asian_characters_take_two_columns() -> None:
    """And a text is cut by columns, not by characters."""
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert cut("日本語", 5) == "日本…"
    assert cut("short", 5) == "short"


def test_control_characters_of_others_are_shown_and_not_obeyed() -> None:
    """A title, a colour or a cleared screen in somebody's label stays text."""
    assert output.clean("a\x1b[2Jb\x9b0m\x07\n") == "a\\x1b[2Jb\\x9b0m\\x07\n"
    assert output.clean("a\nb\tc", one_line=True) == "a\\nb\\tc"
    assert render.joined({"k": "v\x1b"}) == "k=v\\x1b"
