"""The finder of lines against documents in every layout that TOML allows."""

from __future__ import annotations

import time
import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st
from toml_documents import TREES, Document

from pawl.config.lines import Origin, locate


@settings(max_examples=80, deadline=None)
@given(st.data(), TREES)
def test_every_key_is_found_on_its_line(data, tree):
    """Whatever the layout, each table, key and list entry is found exactly on the line where it was written."""
    document = Document(data, tree)

    found = locate(document.text)

    assert tomllib.loads(document.text) == tree
    assert found == {path: line for path, line in document.lines.items() if len(path) <= 8}


def lines_of(text: str) -> dict[str, int]:
    tomllib.loads(text)  # the finder relies on a well-formed document
    return {".".join(map(str, path)): line for path, line in locate(text).items()}


def test_headers():
    """Bare, dotted and quoted headers lead to the same places as the keys below them."""
    text = '[a]\nx = 1\n[a."b.c".d]\ny = 2\n[ e . \'f g\' ]\n"z z" = 3\n'

    assert lines_of(text) == {
        "a": 1, "a.x": 2, "a.b.c": 3, "a.b.c.d": 3, "a.b.c.d.y": 4, "e": 5, "e.f g": 5, "e.f g.z z": 6,
    }  # fmt: skip


def test_arrays_of_tables():
    """Each ``[[table]]`` has its own index, and tables below one belong to the last of them."""
    text = "[[a]]\nx = 1\n[[a]]\n[a.b]\ny = 2\n[[a.c]]\n[[a.c]]\nz = 3\n"

    assert lines_of(text) == {
        "a": 1, "a.0": 1, "a.0.x": 2, "a.1": 3, "a.1.b": 4, "a.1.b.y": 5, "a.1.c": 6, "a.1.c.0": 6, "a.1.c.1": 7,
        "a.1.c.1.z": 8,
    }  # fmt: skip


def test_lists_over_several_lines():
    """Entries of a list are found on their own lines, past comments and brackets in text."""
    text = 'a = [\n  "]", # ]\n  [1,\n   2],\n  { b = 1, c.d = 2 },\n]\ne = 1\n'

    assert lines_of(text) == {
        "a": 1, "a.0": 2, "a.1": 3, "a.1.0": 3, "a.1.1": 4, "a.2": 5, "a.2.b": 5, "a.2.c": 5, "a.2.c.d": 5, "e": 7,
    }  # fmt: skip


def test_long_texts_hide_what_looks_like_keys():
    """A text over several lines is no place for keys, whatever it holds and however it ends."""
    text = 'a = """\nb = 1\n[c]\n\\"""" # " """\n""""\nd = \'\'\'\ne = 1\n\'\'\'\'\'\nf = 2\n'.replace(
        ' # " """\n""""', ""
    )

    assert lines_of(text) == {"a": 1, "d": 5, "f": 8}


def test_nearest_table_stands_for_a_missing_key():
    """A key that is not written down is looked for in the table around it; nothing is known of the rest."""
    origin = Origin("config.toml", locate("[a]\n\n[a.b]\nx = 1\n"))

    assert origin.line_of(("a", "b", "y", 0)) == 3
    assert origin.line_of(("a", "y")) == 1
    assert origin.line_of(("z",)) is None
    assert origin.line_of(()) is None


def test_deep_and_long_documents():
    """Neither nesting as deep as tomllib bears nor keys of thousands of parts take the finder's breath away."""
    started = time.monotonic()

    assert locate("a = " + "[" * 200 + "1" + "]" * 200)[("a", *[0] * 7)] == 1
    assert locate(".".join(["k"] * 5000) + " = 1\n")[("k",) * 8] == 1
    assert len(locate("\n".join(f"[t{n}]\nk = ['''\n''']" for n in range(5000)))) == 15_000
    assert time.monotonic() - started < 20
