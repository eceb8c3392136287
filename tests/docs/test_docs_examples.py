"""What the pages show can be used as it stands: configuration loads, commands exist, terminals are real."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from transcript import DOCS, blocks, masked, play, runnable, steps

from pawl.cli.parse import parse
from pawl.cli.table import GROUPS, find
from pawl.cli.table.model import EVERYWHERE
from pawl.config import check

ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(pawl [a-z][^`]*)`(?!`)")
PAWL = re.compile(r"(?:^|[\s(;])(pawl [a-z][^|<>&;#)]*)")


@pytest.mark.parametrize(
    ("page", "example"), [(page.name, text) for page in PAGES for text in TOML.findall(page.read_text())]
)
def test_toml_examples_load(tmp_path, page, example):
    """Each fenced ``toml`` block is a configuration without a fault."""
    file = tmp_path / "config.toml"
    file.write_text(example)

    assert [fault.text(page) for fault in check(file)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_typed_commands_are_well_formed(page):
    """Each ``pawl`` command in a block is one that the strict parser recognises."""
    assert [command for command in typed(page) if parse(shlex.split(command)[1:]) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_exist(page):
    """Each ``pawl`` command that a sentence names is in the table, with the options that it is named with."""
    assert [span for span in SPAN.findall(page.read_text()) if not is_declared(span)] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="the pages are played in bash")
@pytest.mark.parametrize("page", runnable(), ids=lambda page: str(page.relative_to(DOCS)))
def test_pages_show_what_is_printed(page):
    """Each terminal on the page shows what the commands print; running ``transcript.py`` on a page puts it there."""
    for step, printed in play(page.read_text()):
        assert masked(printed) == masked(step.shown), step.command


def test_steps_of_a_block():
    """A command, its here-document and its output are told apart."""
    block = "$ cat > x <<'END'\nline\nEND\n$ pawl list\none\ntwo\n"

    assert list(steps(block)) == [("cat > x <<'END'\nline\nEND", ""), ("pawl list", "one\ntwo")]
    assert blocks(f"text\n```console\n{block}```\n") == [block]


def typed(page: Path) -> list[str]:
    """The ``pawl`` commands of a page's blocks, each as somebody would type it."""
    blocks = SHELL.findall(page.read_text())
    lines = [line for block in blocks for line in block.splitlines() if _is_typed(line, block)]
    return [match.strip() for line in lines for match in PAWL.findall(_without_quotes(line))]


def is_declared(span: str) -> bool:
    """Whether the table has the command that begins so, and the options in it."""
    words = [word for word in re.split(r"[\s|]+", span.partition(" -- ")[0])[1:] if word]
    command = find(*words[:2]) if words[0] in GROUPS else find(words[0])
    if words in (["COMMAND", "--help"], ["--version"], ["--help"]):
        return True
    known = {flag for option in (*(command.options if command else ()), *EVERYWHERE) for flag in option.flags}
    return command is not None and {word for word in words if word.startswith("-") and word != "-"} <= known


def _is_typed(line: str, block: str) -> bool:
    return line.startswith("$ ") or "\n$ " not in f"\n{block}"


def _without_quotes(line: str) -> str:
    """Quoted text and what ``$(...)`` gives as one word: a pipe or a semicolon in them ends no command."""
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", line.removeprefix("$ "))
    return re.sub(r"\d(?=>)", "", line.replace("$(", " TEXT; "))
