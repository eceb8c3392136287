"""``sop list``, ``validate`` and ``show``: pure, with or without a daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Ran

from pawl.home import Home

Pawl = Callable[..., Ran]

MANIFEST = '[sop]\nname = "{}"\ndescription = "A case."\n[[triggers]]\ntype = "manual"\n'
STEPS = "## Steps\n1. **Ask** - Say it.\n   - switch: yes>$.steps.1.ok == true>2\n2. **Do**\n"


def procedure(at: Path, name: str, *, manifest: str = MANIFEST, steps: str = STEPS) -> None:
    (at / name).mkdir(parents=True)
    (at / name / "SOP.toml").write_text(manifest.format(name))
    (at / name / "SOP.md").write_text(steps)


@pytest.fixture
def sops(home: Home) -> Path:
    """A good procedure, one with a warning, and one that does not load."""
    at = Path(home.path) / "sops"
    procedure(at, "good")
    procedure(at, "odd", steps=STEPS + "   - Next: 1\n")
    procedure(at, "broken", manifest='[sop]\nname = "{}"\n')
    return at


def test_the_list(pawl: Pawl, sops: Path) -> None:
    """Good and bad ones, by name, each with its findings."""
    ran, text = pawl("sop", "list", "--json"), pawl("sop", "list")

    assert [(one["name"], one["loaded"], len(one["findings"])) for one in ran.json] == [
        ("broken", False, 1), ("good", True, 0), ("odd", True, 1),
    ]  # fmt: skip
    assert ran.json[1]["path"] == str(sops / "good")
    assert (ran.status, text.status) == (0, 0)
    assert [line.split()[0] for line in text.out.splitlines()] == ["broken", "good", "odd"]


def test_validate_tells_what_does_not_load_by_exit_status(pawl: Pawl, sops: Path) -> None:
    """Exit 2 for an error, with the array on stdout all the same; a warning is exit 0."""
    every, odd, good = (
        pawl("sop", "validate", "--json"), pawl("sop", "validate", "odd", "--json"), pawl("sop", "validate", "good"),
    )  # fmt: skip

    assert (every.status, every.err) == (2, "")
    assert [one["code"] for one in every.json] == ["missing_key", "unknown_bullet"]
    assert (odd.status, odd.json) == (0, [every.json[1]])
    assert odd.json[0] == {
        "sop": "odd", "severity": "warning", "code": "unknown_bullet", "file": str(sops / "odd" / "SOP.md"), "line": 5,
        "message": '"Next" is no key, so the line is text of the step; did you mean "next"?',
    }  # fmt: skip
    assert (good.status, good.out) == (0, "")
    assert "no findings" in good.err


def test_validate_for_people_is_what_editors_jump_to(pawl: Pawl, sops: Path) -> None:
    ran = pawl("sop", "validate", "odd", "good", "odd")

    assert ran.out.startswith(f"{sops}/odd/SOP.md:5: warning: ")
    assert ran.out.count("\n") == 1


def test_show_has_the_keys_of_the_file(pawl: Pawl, sops: Path) -> None:
    shown = pawl("sop", "show", "good", "--json").json

    assert (shown["name"], shown["version"], shown["triggers"]) == ("good", "0.1.0", [{"type": "manual"}])
    assert shown["steps"][0]["number"] == 1
    assert shown["steps"][0]["title"] == "Ask"
    assert shown["steps"][0]["kind"] == "execute"
    assert shown["steps"][0]["routing"]["switch"] == [{"name": "yes", "when": "$.steps.1.ok == true", "goto": 2}]
    assert shown["graph"].startswith("start: manual\n")


def test_the_drawings(pawl: Pawl, sops: Path) -> None:
    """Alone for people, under ``graph`` for programs."""
    text, mermaid, document = (pawl("sop", "show", "good", "--graph", form) for form in ("text", "mermaid", "json"))
    both = pawl("sop", "show", "good", "--graph", "json", "--json").json

    assert text.out == (
        "start: manual\n\n1  Ask  (asks first: mode)\n   -> 2  yes: $.steps.1.ok == true\n   -> end  no port fits\n\n"
        "2  Do\n   -> end\n"
    )
    assert mermaid.out == (
        'flowchart TD\n  start(["manual"]) --> s1\n  s1["1. Ask"]\n  s2["2. Do"]\n'
        '  s1 -->|"yes: $.steps.1.ok == true"| s2\n  s1 -->|"no port fits"| done([end])\n  s2 --> done([end])\n'
    )
    assert json.loads(document.out) == both["graph"]
    assert both["graph"]["edges"][0] == {"from": 1, "to": 2, "kind": "switch", "label": "yes: $.steps.1.ok == true"}


def test_what_is_not_there_or_does_not_load(pawl: Pawl, sops: Path) -> None:
    """Exit 4 for a name that nobody has, 2 for a procedure that does not load."""
    unknown, broken = pawl("sop", "show", "nope", "--json"), pawl("sop", "show", "broken", "--json")

    assert (unknown.status, unknown.error["code"]) == (4, "sop_not_found")
    assert (broken.status, broken.error["code"]) == (2, "sop_invalid")
    assert broken.error["details"]["findings"][0]["code"] == "missing_key"
    assert pawl("sop", "validate", "nope").status == 4


def test_a_home_without_procedures(pawl: Pawl) -> None:
    for verb in ("list", "validate"):
        ran = pawl("sop", verb, "--json")

        assert (ran.status, ran.json) == (0, [])
    assert "there are no procedures in" in pawl("sop", "list").err


def test_the_configuration_says_where_they_are_and_what_is_known(pawl: Pawl, home: Home, tmp_path: Path) -> None:
    """``dir``, the default mode, agents, policies; and cron's own reader for schedules."""
    Path(home.path).mkdir()
    Path(home.config).write_text(
        f'[sop]\ndir = "{tmp_path / "elsewhere"}"\ndefault_execution_mode = "auto"\n[sop.approval.policies.two]\n'
    )
    cron = MANIFEST + '[[triggers]]\ntype = "cron"\nexpression = "61 * * * *"\n'
    steps = "## Steps\n1. **A**\n- agent: nobody\n- requires_confirmation: true\n- policy: tow\n"
    procedure(tmp_path / "elsewhere", "x", manifest=cron, steps=steps)

    ran = pawl("sop", "validate", "--json")

    assert [one["code"] for one in ran.json] == ["bad_schedule", "unknown_agent", "unknown_policy"]
    assert "minute" in ran.json[0]["message"]
    assert 'did you mean "two"?' in ran.json[2]["message"]
    assert pawl("sop", "show", "x", "--json").json["execution_mode"] == "auto"


def test_a_relative_directory_hangs_off_the_home(pawl: Pawl, home: Home) -> None:
    Path(home.path).mkdir()
    Path(home.config).write_text('[sop]\ndir = "procedures"\n')
    procedure(Path(home.path) / "procedures", "x")

    assert [one["name"] for one in pawl("sop", "list", "--json").json] == ["x"]


def test_a_directory_that_is_none(pawl: Pawl, home: Home) -> None:
    Path(home.path).mkdir()
    (Path(home.path) / "sops").write_text("x")

    ran = pawl("sop", "list", "--json")

    assert (ran.status, ran.error["code"]) == (2, "sop_dir_unreadable")


def test_the_example_of_init_has_no_findings(pawl: Pawl) -> None:
    """Nor has the copy of it in the source."""
    pawl("init")

    assert pawl("sop", "validate", "--json").json == []
    assert pawl("sop", "show", "example").status == 0


def test_what_authors_write_cannot_command_the_terminal(pawl: Pawl, home: Home) -> None:
    """Control characters of a title are shown and not obeyed."""
    procedure(Path(home.path) / "sops", "x", steps="## Steps\n1. **\x1b[31mred** - x\n   - \x1b[2Jkey: 1\n")

    for words in (["show", "x"], ["show", "x", "--graph", "mermaid"], ["validate"], ["list"]):
        assert "\x1b" not in pawl("sop", *words).out
