"""The reference page is the table, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pawl.cli import reference
from pawl.cli.table import every

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"


def test_the_page_is_what_the_table_makes_of_it() -> None:
    """Make it anew with: python -m pawl.cli.reference > docs/reference/commands.md"""
    assert PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_command_and_option_is_on_the_page() -> None:
    """With what its JSON is."""
    page = PAGE.read_text(encoding="utf-8")

    for command in every():
        assert f"### `pawl {command.words}`" in page
        assert command.json in page
        for option in command.options:
            assert option.flags[0] in page
