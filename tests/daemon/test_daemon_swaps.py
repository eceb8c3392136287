"""Places that are swapped between the moment they are judged and the moment they are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness import rows
from harness.client import Refused
from harness.daemon import CONFIG, Daemon
from pawl.runner.sandbox import available

_works = pytest.mark.skipif(not available().works, reason=available().reason)
_ONE = CONFIG.replace("max_concurrent = 32", "max_concurrent = 1")


def boxes(daemon: Daemon, config: str = _ONE, **workspaces: Path | str) -> None:
    """Configure agents, each in a sandbox with this workspace."""
    for name, workspace in workspaces.items():
        config += (
            f'[policies.{name}]\nsandbox = "required"\ndelegation = "allow"\nworkspace = "{workspace}"\n'
            f'[agents.{name}]\ncommand = ["sh", "-c"]\nprompt = "argument"\npolicy = "{name}"\n'
        )
    daemon.configure(config)


def started_after(daemon: Daemon, fifo: Path, swap: Any, agent: str, prompt: str, **params: Any) -> dict[str, Any]:
    """A task that waits behind another while ``swap`` is done, once it has ended."""
    os.mkfifo(fifo)
    first = daemon.delegate("sh", f"read _ < {fifo}", cwd="/")
    second = daemon.delegate(agent, prompt, **params)
    assert second["status"] == "queued"
    swap()
    fifo.write_text("go\n")
    daemon.wait(first["id"])
    return daemon.wait_one(second["id"])


def link_to(place: Path, target: Path) -> Any:
    def swap() -> None:
        place.rename(place.with_name("moved"))
        place.symlink_to(target)

    return swap


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A workspace with a directory ``sub`` in it, and a directory that is nobody's to write to."""
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("secret")
    return tmp_path / "work", tmp_path / "other"


@_works
def test_a_nested_workspace_that_became_a_link_does_not_start(
    daemon: Daemon, places: tuple[Path, Path], tmp_path: Path
) -> None:
    """Between admission and start: the link's target would be writable."""
    work, other = places
    boxes(daemon, outer=work, inner=work / "sub")
    daemon.start()

    ended = started_after(daemon, tmp_path / "go", link_to(work / "sub", other), "inner", f"echo x > {other}/new")

    assert not (other / "new").exists()
    assert (ended["status"], ended["error"]["code"]) == ("failed", "sandbox_unavailable")


@_works
def test_a_nested_workspace_that_is_a_link_is_not_admitted(daemon: Daemon, places: tuple[Path, Path]) -> None:
    """It was swapped before anybody asked: what lies in a workspace is its tasks' to replace."""
    work, other = places
    boxes(daemon, outer=work, inner=work / "sub")
    daemon.start()
    link_to(work / "sub", other)()

    with pytest.raises(Refused) as no:
        daemon.delegate("inner", f"echo x > {other}/new")

    assert no.value.code == "sandbox_unavailable"
    assert rows.tasks(daemon.home) == []


@_works
def test_a_workspace_behind_a_link_of_the_operators_is_fine(daemon: Daemon, places: tuple[Path, Path]) -> None:
    """Nobody in a sandbox can replace that link."""
    work, _other = places
    link = work.with_name("link")
    link.symlink_to(work)
    boxes(daemon, outer=link)
    daemon.start()

    task = daemon.delegate("outer", "echo x > new; pwd", wait=True)

    assert (task["status"], (work / "new").exists()) == ("completed", True)
    policy = daemon.call("task.why", id=task["id"])["policy"]
    assert policy["values"]["workspace"] == str(work)
    assert policy["sources"]["workspace"].startswith("[policies.outer], line")


@_works
def test_an_operators_link_that_leads_elsewhere_by_the_start_is_told(
    daemon: Daemon, places: tuple[Path, Path], tmp_path: Path
) -> None:
    """It was admitted for where the link led when it was asked for."""
    work, other = places
    link = work.with_name("link")
    link.symlink_to(work)
    boxes(daemon, outer=link)
    daemon.start()

    ended = started_after(daemon, tmp_path / "go", link_to(link, other), "outer", "echo x > new")

    assert (ended["status"], ended["error"]["code"]) == ("failed", "policy_disjoint")
    assert not (work / "new").exists()
    assert not (other / "new").exists()


@_works
def test_a_target_without_a_sandbox_brings_no_workspace_that_defeats_its_callers(
    daemon: Daemon, tmp_path: Path
) -> None:
    """Its own policy has none, so that the whole machine is a workspace; cut down to the caller's it has one."""
    boxes(daemon, CONFIG, all="/", boxed=tmp_path)
    text = Path(daemon.home.config).read_text().replace('sandbox = "required"', 'sandbox = "off"', 1)
    text = text.replace(f'workspace = "{tmp_path}"', "").replace(
        'policy = "boxed"', 'policy = "boxed"\ndelegates = ["all"]'
    )
    daemon.configure(text)
    daemon.start()
    pawl = " ".join(daemon.pawl_words())

    task = daemon.delegate("boxed", f"{pawl} delegate all --wait 'echo x > {tmp_path}/new'", cwd="/", wait=True)

    assert (task["exit_code"], (tmp_path / "new").exists()) == (6, False)
    assert len(rows.tasks(daemon.home)) == 1


@_works
def test_a_directory_that_became_a_link_does_not_start(
    daemon: Daemon, places: tuple[Path, Path], tmp_path: Path
) -> None:
    """``--cwd``: where the link leads would be put back into the sandbox."""
    work, other = places
    boxes(daemon, outer=work)
    daemon.start()

    ended = started_after(
        daemon, tmp_path / "go", link_to(work / "sub", other), "outer", "cat secret", cwd=str(work / "sub")
    )

    assert (ended["status"], ended["error"]["code"]) == ("failed", "sandbox_unavailable")
    assert b"secret" not in daemon.logs(ended["id"])
