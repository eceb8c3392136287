"""Whatever the file holds: a configuration or ``InvalidConfig``, and every fault with a key has its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_keys import KEYS, sections_in
from toml_documents import TREES, Document

from pawl.config import Config, check, load
from pawl.config.section import Section, toml_key
from pawl.errors import InvalidConfig


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "config.toml"


def judged(file: Path, content: bytes) -> None:
    """The promises that hold for any content."""
    file.write_bytes(content)
    faults = check(file)
    if faults:
        with pytest.raises(InvalidConfig) as caught:
            load(file)
        assert caught.value.details["faults"] == [fault.as_json() for fault in faults]
        json.dumps(caught.value.as_json())
    else:
        assert isinstance(load(file), Config)
    for fault in faults:
        assert fault.line is not None or not fault.path
        assert "cannot be used here" not in fault.message
        assert len(fault.message) < 400


@st.composite
def slips(draw: st.DrawFn, word: str) -> str:
    """The word with one letter dropped, doubled, changed, or swapped with the next."""
    at = draw(st.integers(0, len(word) - 2))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    return draw(
        st.sampled_from(
            [
                word[:at] + word[at + 1 :],
                word[:at] + word[at] + word[at:],
                word[:at] + letter + word[at + 1 :],
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            ]
        )
    )


def document_with(path: tuple[str, ...], key: str) -> str:
    """A file in which this key stands alone in its table, on line 3, however deep that lies."""
    header, inline = path, ""
    if "delegates" in path:
        header, inline = path[:2], f"delegates = [{{ {key} = 1 }}]"
    parts = ".".join(part for part in header if part != "0")
    brackets = f"[[{parts}]]" if header[-1:] == ("0",) else f"[{parts}]"
    return f"\n{brackets if header else ''}\n{inline or f'{key} = 1'}\n"


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(KEYS))
def test_misspelt_key_is_named_with_the_one_that_was_meant(file, data, place):
    """Any key of any table with one slip in it is a fault on its line, and a key that is known is proposed."""
    path, key = place
    misspelt = data.draw(slips(key))
    if misspelt in {known for table, known in KEYS if table == path}:
        return

    file.write_text(document_with(path, misspelt))
    faults = [fault for fault in check(file) if fault.message.startswith("unknown key")]

    assert [(fault.path.rpartition(".")[2], fault.line) for fault in faults] == [(misspelt, 3)]
    # Two letters with a slip in them have too little left in common with anything.
    assert len(key) == 2 or faults[0].nearest in {known for table, known in KEYS if table == path}
    assert len(key) < 6 or faults[0].nearest == key
    judged(file, file.read_bytes())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(file, content):
    """Bytes of no meaning at all come out as faults."""
    judged(file, content)


FRAGMENTS = st.sampled_from(
    [
        *("[", "]", "[[", "]]", "{", "}", "=", ",", ".", "#", "\n", "\\", '"', "'''", '"""'),
        *("agents", "cron", "daemon", "policies", "sop", "name", "command", "timeout", "delegates", "limits"),
        *("x", "1", "-1", "1.5", "true", "inf", "9e999", "1979-05-27", "07:32:00", "'a'"),
        *("\n[agents.a]\n", "\n[[cron]]\n", "= 1\n", '= ["x"]\n'),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25))
def test_pieces_of_toml_in_any_order(file, pieces):
    """Text that is nearly TOML comes out as a configuration or as faults."""
    judged(file, " ".join(pieces).encode())


@settings(max_examples=50, deadline=None)
@given(st.data(), TREES)
def test_any_document(file, data, tree):
    """Well-formed documents about anything else come out as faults, each on the line of its key."""
    judged(file, Document(data, tree).text.encode())


ANY = st.deferred(
    lambda: st.one_of(
        st.sampled_from(["", "x", "1h", "64MiB", "echo", "a", "\0", "9" * 400, "{text}", "[key]", "cafe@1", "~"]),
        st.integers(-2, 20_000),
        st.sampled_from([2**70, 1e300, float("inf"), float("nan"), 0.25, True, False]),
        st.lists(ANY, max_size=3),
        st.dictionaries(st.sampled_from(["a", "agent", "mode", "cpu", "x y", "[key]"]), ANY, max_size=2),
    )
)


def tables_for(model: type[Section]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables with the keys of this model, some of them holding what they should and some anything."""
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for attribute, field in model.model_fields.items():
        values = ANY
        for inner, way in sections_in(field.annotation):
            values = st.one_of(ANY, *[shaped(way, tables_for(inner))] * 9)
        optional[toml_key(attribute)] = values
    optional["wrong"] = ANY
    return st.fixed_dictionaries({}, optional=optional)


def shaped(way: tuple[str, ...], tables: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    if way == ("NAME",):
        return st.dictionaries(st.sampled_from(["a", "b", "echo", "default", "x y", ""]), tables, max_size=2)
    return st.lists(tables, max_size=2) if way == ("0",) else tables


@settings(max_examples=60, deadline=None)
@given(st.data(), tables_for(Config))
def test_known_keys_with_any_values(file, data, tree):
    """The file's own keys with values of every kind come out as a configuration or as faults in plain words."""
    judged(file, Document(data, tree).text.encode())
