"""``init``: a home that works, and nothing overwritten."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from cli_runs import Ran

from pawl import config
from pawl.home import Home

Pawl = Callable[..., Ran]


def test_a_new_home_is_private_and_its_configuration_good(home: Home, pawl: Pawl) -> None:
    """0700 and 0600; the files are there and have no faults."""
    ran = pawl("init", "--json")

    assert ran.status == 0
    assert ran.json["written"] == [
        home.config,
        os.path.join(home.path, "sops", "example", "SOP.toml"),
        os.path.join(home.path, "sops", "example", "SOP.md"),
    ]
    assert stat.S_IMODE(os.stat(home.path).st_mode) == 0o700
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in ran.json["written"])
    assert config.check(home.config) == []
    assert not ran.json["test_clock"]


def test_the_switched_off_settings_are_good_too(home: Home, pawl: Pawl, tmp_path: Path) -> None:
    """Whoever takes the "#" away in front of them has a file without faults, with the defaults it promised."""
    pawl("init")
    text = Path(home.config).read_text()
    everything = tmp_path / "everything.toml"

    everything.write_text(re.sub(r"^#(?=[a-z\[])", "", text, flags=re.MULTILINE))

    assert config.check(str(everything)) == []
    assert config.load(str(everything)).daemon == config.load(str(tmp_path / "absent.toml")).daemon


def test_a_home_with_a_configuration_is_left_alone(home: Home, pawl: Pawl) -> None:
    """Exit 5, and nothing at all is written, not even the mark of a test clock."""
    Path(home.path).mkdir()
    Path(home.config).write_text("# mine\n")

    ran = pawl("init", "--test-clock", "--json")

    assert (ran.status, ran.error["code"]) == (5, "already_exists")
    assert os.listdir(home.path) == ["config.toml"]
    assert Path(home.config).read_text() == "# mine\n"


def test_force_keeps_what_was_there_beside_it(home: Home, pawl: Pawl) -> None:
    """Every time under another name."""
    Path(home.path).mkdir()
    for number in (1, 2):
        Path(home.config).write_text(f"# mine, {number}\n")

        ran = pawl("init", "--force", "--json")

        backup = f"{home.config}.backup-{number}"
        assert ran.json["backups"] == [backup]
        assert Path(backup).read_text() == f"# mine, {number}\n"
        assert config.check(home.config) == []


def test_somebodys_own_procedures_are_kept(home: Home, pawl: Pawl) -> None:
    """A procedure of that name that is there already is not written over."""
    own = Path(home.path, "sops", "example", "SOP.md")
    own.parent.mkdir(parents=True)
    own.write_text("mine")

    ran = pawl("init", "--json")

    assert ran.json["kept"] == [str(own)]
    assert own.read_text() == "mine"


def test_a_home_for_tests_is_marked(home: Home, pawl: Pawl) -> None:
    """By an empty file; ``init`` elsewhere makes none."""
    assert pawl("init", "--test-clock", "--json").json["test_clock"] is True
    assert os.stat(home.test_clock).st_size == 0


def test_the_example_procedure_is_one(home: Home, pawl: Pawl) -> None:
    """Its TOML can be read and names a trigger that only a person fires; its steps are three."""
    import tomllib

    pawl("init")
    folder = Path(home.path, "sops", "example")
    document = tomllib.loads((folder / "SOP.toml").read_text())
    steps = (folder / "SOP.md").read_text().partition("## Steps")[2]

    assert document["sop"]["name"] == "example"
    assert document["triggers"] == [{"type": "manual"}]
    assert len(re.findall(r"^\d+\. \*\*", steps, flags=re.MULTILINE)) == 3
