"""Findings: for each code a text that provokes it, and the nearest one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from reading import folder

from pawl.engines.sop.findings import ERRORS, WARNINGS
from pawl.engines.sop.loader import load
from pawl.engines.sop.validate import Known
from pawl.errors import SopDirUnreadable

MANUAL = '[[triggers]]\ntype = "manual"\n'
HEAD = f'[sop]\nname = "x"\ndescription = "x"\n{MANUAL}'
KNOWN = Known(agents={"echo"}, policies={"two"}, schedule_fault=lambda text: None if "*" in text else f"no {text}")
TWO = "\n2. **B**"


class Case(NamedTuple):
    """What is written in step 1, or in SOP.toml, or as the whole of one of them."""

    code: str
    bad: str
    good: str
    where: str = "step"


def toml(code: str, bad: str, good: str) -> Case:
    return Case(code, bad, good, "toml")


def head(code: str, bad: str, good: str) -> Case:
    return Case(code, bad, good, "head")


def md(code: str, bad: str, good: str) -> Case:
    return Case(code, bad, good, "md")


def tomls(code: str, bad: str, good: str) -> Case:
    """Steps in SOP.toml, without SOP.md."""
    return Case(code, bad, good, "steps")


CASES = [
    head("not_toml", "[sop", '[sop]\nname = "x"\ndescription = "x"'),
    head("missing_key", '[sop]\nname = "x"', '[sop]\nname = "x"\ndescription = "x"'),
    toml("bad_value", 'priority = "urgent"', 'priority = "high"'),
    toml("bad_value", "deterministic = 1", "deterministic = true"),
    tomls("bad_value", "number = -1", "number = 1"),
    Case("capability_missing", "- kind: capability", "- kind: capability\n- capability: noop"),
    Case("capability_unknown", "- kind: capability\n- capability: nop", "- kind: capability\n- capability: noop"),
    Case("capability_without_config", "- kind: capability\n- capability: llm.generate",
         '- kind: capability\n- capability: llm.generate\n- with: {"instruction": "x"}'),
    toml("unknown_key", "cooldown = 5", "cooldown_secs = 5"),
    Case("unknown_bullet", "- nxt: 2", "- next: 2"),
    Case("unknown_bullet", "- Next: 2", "- see https://example.org"),
    Case("unreadable_value", "- next: two", "- next: 2"),
    Case("unreadable_value", "- kind: gate", "- kind: approval"),
    Case("unreadable_value", "- mode: careful", "- mode: AUTO"),
    Case("unreadable_value", "- terminal: yes", "- terminal: TRUE"),
    Case("unreadable_value", "- on_failure: retry", "- on_failure: retry:1"),
    Case("unreadable_value", "- switch: a>>b", "- switch: a>>2"),
    Case("repeated_key", "- next: 2\n- next: 2", "- next: 2"),
    Case("repeated_key", "- prompt: a\n- prompt: b\n- kind: checkpoint", "- prompt: a\n- prompt:\n- kind: checkpoint"),
    Case("bad_json", '- output: {"type": }', '- output: {"type": "string"}'),
    Case("bad_call", "- call: fetch", '- call: {"tool": "fetch"}'),
    Case("bad_schema", "- input: a number", '- input: {"type": "number"}'),
    md("list_splits_step", "1. **A**\n   1. sub", "1. **A**\n   * sub"),
    md("list_splits_step", "1. **A**\n2. plain", "1. **A**\n2. **plain**"),
    md("list_splits_step", "1. a\n2. b\n1. c", "1. a\n2. b\n3. c"),
    md("written_number", "1. **A**\n3. **B**", "1. **A**\n2. **B**"),
    md("written_number", "1. **A**\n3. **B**", "3. **A**\n3. **B**"),
    Case("switch_guard_split", "- switch: a>$.steps.1.n >= 1>2", "- switch: a>$.steps.1.n == 1>2"),
    Case("switch_port_unnamed", "- switch: >$.steps.1.n == 1>2", "- switch: a>$.steps.1.n == 1>2; "),
    Case("switch_port_without_target", "- switch: a", "- switch: a>>2"),
    Case("switch_port_shadowed", "- switch: a>>2; b>$.steps.1.n == 1>1", "- switch: b>$.steps.1.n == 1>1; a>>2"),
    head("empty_name", '[sop]\nname = " "\ndescription = "x"', '[sop]\nname = "x"\ndescription = "x"'),
    head("name_not_plain", '[sop]\nname = "a/b"\ndescription = "x"', '[sop]\nname = "a b"\ndescription = "x"'),
    head("name_not_plain", '[sop]\nname = ".."\ndescription = "x"', '[sop]\nname = "..."\ndescription = "x"'),
    head("empty_description", '[sop]\nname = "x"\ndescription = ""', '[sop]\nname = "x"\ndescription = "x"'),
    head("no_triggers", '[sop]\nname = "x"\ndescription = "x"', HEAD),
    md("no_steps", "", "1. **A**"),
    toml("admits_nothing", "max_concurrent = 0", "max_concurrent = 1"),
    toml("trigger_not_fed", '[[triggers]]\ntype = "mqtt"\ntopic = "x"', '[[triggers]]\ntype = "webhook"\npath = "/x"'),
    toml("bad_schedule", '[[triggers]]\ntype = "cron"\nexpression = "daily"',
         '[[triggers]]\ntype = "cron"\nexpression = "0 0 * * *"'),
    tomls("duplicate_number", "number = 1\n[[steps]]\nnumber = 1", "number = 1\n[[steps]]\nnumber = 2"),
    tomls("number_gap", "number = 2", "number = 1"),
    md("empty_title", "1. ****", "1. **A**"),
    Case("dangling_target", "- next: 3", "- next: 2"),
    Case("dangling_target", "- on_failure: goto:3", "- on_failure: goto:2"),
    Case("dangling_target", "- switch: a>>3", "- switch: a>>2"),
    Case("dangling_target", "- depends_on: 3", "- next: 2"),
    tomls("dangling_target", "number = 1\n[[steps]]\nnumber = 3", "number = 1\n[[steps]]\nnumber = 2"),
    Case("impossible_dependency", "- depends_on: 1", f"{TWO}\n- depends_on: 1"),
    Case("impossible_dependency", f"- next: 3{TWO}\n3. **C**\n- depends_on: 2", f"{TWO}\n3. **C**\n- depends_on: 2"),
    Case("unreachable_step", "- terminal: true", "- on_failure: goto:2\n- terminal: true"),
    Case("condition_never_true", "- when: $.n == 1\n- next: 2", "- when: $.steps.1.n == 1\n- next: 2"),
    Case("condition_never_true", "- when: > 1\n- next: 2", "- when: $.steps.1 > 1\n- next: 2"),
    toml("condition_never_true", '[[triggers]]\ntype = "filesystem"\npath = "x"\ncondition = "n > 1"',
         '[[triggers]]\ntype = "filesystem"\npath = "x"\ncondition = "$.n > 1"'),
    Case("condition_ambiguous", "- when: $.steps.1.n == a != b\n- next: 2", "- when: $.steps.1.n == a\n- next: 2"),
    Case("capability_unavailable", "- kind: capability\n- capability: git.diff",
         "- kind: capability\n- capability: noop"),
    Case("unused_key", "- capability: noop", "- kind: capability\n- capability: noop"),
    Case("unused_key", "- with: 1", "- kind: capability\n- capability: noop\n- with: 1"),
    Case("unused_key", "- edit: body", "- kind: checkpoint\n- edit: body"),
    Case("unused_key", f"{TWO}\n- policy: two", "- policy: two"),
    Case("unused_key", f"{TWO}\n- prompt: Well?", "- prompt: Well?"),
    Case("unused_key", "- switch: a>>2\n- next: 2", "- switch: a>>2"),
    Case("unused_key", "- next: 2\n- terminal: true", "- when: $.steps.1.n == 1\n- next: 2\n- terminal: true"),
    Case("unused_key", "- when: $.steps.1.n == 1", "- when: $.steps.1.n == 1\n- next: 2"),
    Case("bad_binding", '- call: {"tool": "x", "args": "{{steps.1.a}}"}',
         f'{TWO}\n- call: {{"tool": "x", "args": "{{{{steps.1.a}}}}"}}'),
    Case("bad_binding", '- call: {"tool": "x", "args": "{{calls.0}}"}',
         '- call: {"tool": "x"}\n- call: {"tool": "x", "args": "{{calls.0}}"}'),
    Case("unknown_agent", "- agent: ecko", "- agent: echo"),
    toml("unknown_agent", 'agent = "ecko"', 'agent = "echo"'),
    Case("unknown_policy", "- policy: three", "- policy: two"),
]  # fmt: skip
# What takes more than one text: each has a test of its own below.
OWN = {"unreadable_file", "no_manifest", "duplicate_name", "steps_replaced"}


def codes(path: Path, case: Case, text: str) -> list[str]:
    manifest, steps = HEAD, f"1. **A**\n{text}"
    if case.where == "toml":
        manifest, steps = HEAD.replace("\n[[", f"\n{text}\n[[", 1), "1. **A**"
    elif case.where == "head":
        manifest, steps = text, "1. **A**"
    elif case.where == "md":
        steps = text
    elif case.where == "steps":
        manifest = f"{HEAD}[[steps]]\n{text}"
    path.mkdir()
    (path / "SOP.toml").write_text(manifest)
    if case.where != "steps":
        last = TWO if case.where == "step" and TWO not in text else ""
        (path / "SOP.md").write_text(f"## Steps\n{steps}{last}\n")
    found = folder(path, known=KNOWN)
    assert all((one.severity == "error") == (one.code in ERRORS) for one in found.findings)
    assert (found.procedure is None) == any(one.severity == "error" for one in found.findings)
    return [one.code for one in found.findings]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{case.bad[:20]!r}")
def test_a_finding_is_provoked_and_mended(tmp_path: Path, case: Case) -> None:
    """The bad text has it, the good one has not."""
    assert case.code in codes(tmp_path / "bad", case, case.bad)
    assert case.code not in codes(tmp_path / "good", case, case.good)


def test_every_code_has_its_case() -> None:
    assert {case.code for case in CASES} | OWN == {*ERRORS, *WARNINGS}


def write(path: Path, manifest: str = HEAD, steps: str | None = "## Steps\n1. **A**\n") -> Path:
    path.mkdir(parents=True)
    (path / "SOP.toml").write_text(manifest)
    if steps is not None:
        (path / "SOP.md").write_text(steps)
    return path


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """No text, no file, no access: the procedure does not load, and the finding says which file it is."""
    latin = write(tmp_path / "latin")
    (latin / "SOP.md").write_bytes(b"\n\xe9")
    nested = write(tmp_path / "nested", steps=None)
    (nested / "SOP.md").mkdir()
    manifest = tmp_path / "manifest"
    (manifest / "SOP.toml").mkdir(parents=True)

    found = {path.name: folder(path).findings for path in (latin, nested, manifest)}

    assert {name: [one.code for one in findings] for name, findings in found.items()} == {
        "latin": ["unreadable_file"], "nested": ["unreadable_file"], "manifest": ["unreadable_file"],
    }  # fmt: skip
    assert found["latin"][0].line == 2
    assert found["latin"][0].file == str(latin / "SOP.md")
    assert found["manifest"][0].file == str(manifest / "SOP.toml")


def test_steps_of_the_manifest_beside_a_file_of_steps(tmp_path: Path) -> None:
    """They are not used, whatever the other file holds; without it they are."""
    manifest = f'{HEAD}[[steps]]\ntitle = "T"\n'

    beside = folder(write(tmp_path / "beside", manifest, "no section"))
    alone = folder(write(tmp_path / "alone", manifest, None))

    assert [one.code for one in beside.findings] == ["steps_replaced", "no_steps"]
    assert beside.procedure is not None
    assert beside.procedure.steps == ()
    assert alone.findings == ()


def test_one_bad_folder_keeps_no_other_from_loading(tmp_path: Path) -> None:
    """Procedures come by name, bad ones among them; folders without SOP.toml, files and links into nothing do not."""
    write(tmp_path / "2", HEAD.replace('"x"', '"beta"', 1))
    write(tmp_path / "1", HEAD.replace('"x"', '"gamma"', 1))
    write(tmp_path / "3", "nonsense")
    (tmp_path / "4").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")

    found = load(str(tmp_path))

    assert [(one.name, one.procedure is not None) for one in found.folders] == [
        ("3", False), ("beta", True), ("gamma", True),
    ]  # fmt: skip
    assert found.stray == ()


def test_two_procedures_of_one_name(tmp_path: Path) -> None:
    """Both load; the first folder's is used, and the second has the finding."""
    write(tmp_path / "a", HEAD)
    write(tmp_path / "b", HEAD, "## Steps\n1. **Other**\n")
    write(tmp_path / "c", HEAD.replace('"x"', '"y"', 1))

    found = load(str(tmp_path))

    used = found.named("x")
    assert used is not None
    assert used.path == str(tmp_path / "a")
    assert [(one.path[-1], [finding.code for finding in one.findings]) for one in found.folders] == [
        ("a", []), ("b", ["duplicate_name"]), ("c", []),
    ]  # fmt: skip


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    """It is ignored, and ``validate`` says so where it has steps."""
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "SOP.md").write_text("## Steps\n")

    found = load(str(tmp_path))

    assert found.folders == ()
    assert [(one.sop, one.code, one.severity) for one in found.findings] == [("draft", "no_manifest", "warning")]


def test_the_directory_itself(tmp_path: Path) -> None:
    """Where there is none there are no procedures; one that cannot be listed is an error."""
    (tmp_path / "file").write_text("x")

    assert load(str(tmp_path / "nowhere")).folders == ()
    with pytest.raises(SopDirUnreadable, match="file"):
        load(str(tmp_path / "file"))


def test_the_mode_that_the_configuration_names(tmp_path: Path) -> None:
    """It holds where the procedure names none; ``deterministic`` beats both."""
    write(tmp_path / "a", HEAD)
    write(tmp_path / "b", HEAD.replace('"x"\n', '"b"\nexecution_mode = "step_by_step"\n', 1))
    write(tmp_path / "c", HEAD.replace('"x"\n', '"c"\nexecution_mode = "auto"\ndeterministic = true\n', 1))

    found = load(str(tmp_path), default_mode="auto").folders

    modes = {one.path[-1]: one.procedure.execution_mode for one in found if one.procedure}
    assert modes == {"a": "auto", "b": "step_by_step", "c": "deterministic"}
