"""The pages that are made from the code say what the code says, and the words that no code has are complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from transcript import DOCS

import pawl
from pawl import errors, reference
from pawl.control_plane.model import TASK

SOURCE = Path(pawl.__file__).parent
# Calls whose argument at this place, or keyword, is the error code of a task.
CODE_ARGUMENTS = {"Outcome": 3, "_failed": 0, "Refusal": 0, "Refused": 0, "_refused": 1}


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_page_is_up_to_date(name):
    """The committed page is what the code makes now; `python -m pawl.reference` writes it."""
    committed = (DOCS / "reference" / name).read_text()

    assert committed == reference.PAGES[name]()


def test_commands_page_is_up_to_date():
    """The page of commands is what the table of commands makes now."""
    from pawl.cli.reference import page

    assert (DOCS / "reference" / "commands.md").read_text() == page()


def test_every_status_has_a_meaning():
    """The page explains each status of the table, in the table's order, and no other."""
    assert sorted(reference.STATUSES) == sorted(TASK.states)


def test_every_error_of_a_task_is_explained():
    """Each code that the source can put into a row is on the page of errors, and no other is."""
    assert set(reference.TASK_ERRORS) == set(codes_in_the_source())


def test_every_error_class_is_on_the_page():
    """Each class of the tree with a code of its own is on the page of errors."""
    page = reference.error_page()
    codes = {one.code for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.PawlError)}

    assert {code for code in codes if f"| `{code}` |" not in page} == set()


def test_every_section_of_the_configuration_is_on_the_page():
    """No table of the file is missing from the page, whatever is added to the models."""
    from pawl.config.section import Named, Section

    known = {part.model for part in reference._PARTS}
    there = {model for model in subclasses(Section) if model.__module__.startswith("pawl.")}

    assert {model.__name__ for model in there - known} == {Named.__name__, "Config", "ApprovalConfig"}


@pytest.mark.parametrize("attribute", ["capabilities"])
def test_keys_without_effect_are_still_without(attribute):
    """The page says that nothing acts on this key; when something does, it must leave ``NOT_YET``."""
    readers = [
        file.relative_to(SOURCE)
        for file in SOURCE.rglob("*.py")
        if "config" not in file.parts and f".{attribute}" in file.read_text()
    ]

    assert attribute in {name for _, name in reference.NOT_YET}
    assert readers == []


def test_diagram_of_the_explanation_is_the_tables():
    """The diagram of a task's life in the explanation is made from the table."""
    assert f"```mermaid\n{TASK.mermaid()}```" in (DOCS / "explanation" / "truth.md").read_text()


def test_every_finding_of_status_is_explained():
    """The findings that ``pawl status`` can show are those of the page about what may look wrong."""
    page = (DOCS / "how-to" / "something-looks-wrong.md").read_text()
    source = (SOURCE / "daemon" / "app.py").read_text() + (SOURCE / "engines" / "cron" / "findings.py").read_text()

    explained = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)

    said = re.findall(r'(?:_finding|say)\(\s*"(\w+)"', source)
    assert said
    assert sorted(explained) == sorted(set(said))


def test_every_call_is_on_the_protocol_page():
    """The page of the protocol has each method with each of its parameters, and no other method."""
    from pawl.daemon.routes import _TABLE
    from pawl.ipc.messages import Hello

    page = (DOCS / "reference" / "protocol.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|", page.partition("## Calls")[2], re.MULTILINE))
    parameters = {name: route.params.model_fields for name, route in _TABLE.items()} | {"hello": Hello.model_fields}

    assert set(rows) == set(parameters)
    assert [(name, one) for name, known in parameters.items() for one in known if f"`{one}`" not in rows[name]] == []


def codes_in_the_source() -> Iterator[str]:
    """The error codes that can end up in a task's row, read off the calls that make them."""
    for room in ("control_plane", "engines", "runner"):
        for file in (SOURCE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                yield from _codes(node)


def _codes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in CODE_ARGUMENTS:
            place = CODE_ARGUMENTS[name]
            given = [word.value for word in node.keywords if word.arg == "error_code"] or node.args[place : place + 1]
            yield from (one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str))
        case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id="code")])], value=ast.IfExp(body=one, orelse=other)):
            yield from (pair.elts[-1].value for pair in (one, other))
        case ast.ClassDef(name="KeeperLost" | "LaunchRefused"):
            yield from (line.value.value for line in node.body if ast.unparse(line).startswith("code = "))
        case _:
            return


def subclasses(model: type) -> Iterator[type]:
    for one in model.__subclasses__():
        yield one
        yield from subclasses(one)
