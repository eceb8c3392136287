"""The page about the format: its examples load without a finding, and its table of findings is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reading import KNOWN, folder, noticed

from pawl.engines.sop import steps
from pawl.engines.sop.capability import CAPABILITIES
from pawl.engines.sop.findings import ERRORS, WARNINGS
from pawl.engines.sop.model import MODES, TRIGGERS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sop-format.md"
EXAMPLES = re.findall(r"^```(?:toml|markdown) (SOP\.\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
HEAD = '[sop]\nname = "x"\ndescription = "x"\nagent = "echo"\n[[triggers]]\ntype = "manual"\n'


@pytest.mark.parametrize(("file", "text"), EXAMPLES)
def test_an_example_loads_without_a_finding(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / "SOP.toml").write_text(HEAD)
    (tmp_path / file).write_text(text)
    if file == "SOP.toml" and "[[steps]]" not in text:
        (tmp_path / "SOP.md").write_text("## Steps\n1. **A**\n")

    found = folder(tmp_path, known=KNOWN)

    assert found.procedure is not None
    assert noticed(found) == []


def test_the_page_has_every_finding() -> None:
    """With the words of the code, in its order."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text().partition("## Findings")[2], re.MULTILINE)

    assert rows == [*ERRORS.items(), *WARNINGS.items()]


def test_the_page_has_every_word_of_the_format() -> None:
    page = PAGE.read_text()

    assert {word for word in [*steps._KEYS, *TRIGGERS, *MODES, *CAPABILITIES] if f"`{word}`" not in page} == set()
    assert {key for kind in TRIGGERS.values() for key in kind.keys if f"`{key}`" not in page} == set()
