"""``init``: a home with a commented configuration and an example procedure."""

from __future__ import annotations

import os

from pawl.cli.call import Call
from pawl.errors import Exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where in the home each of our templates goes.
_FILES = {
    "config.toml": "config.toml",
    "SOP.toml": os.path.join("sops", "example", "SOP.toml"),
    "SOP.md": os.path.join("sops", "example", "SOP.md"),
}


def init(call: Call, *, test_clock: bool, force: bool) -> int:
    home = call.home
    if os.path.lexists(home.config) and not force:
        raise Exists(
            f"cannot write {home.config}: it is there already, and nothing was changed; "
            f"{call.command('init --force')} keeps it as a backup beside a new one",
            path=home.config,
        )
    home.prepare()
    done: dict[str, Any] = {
        "home": home.path,
        "config": home.config,
        "written": [],
        "kept": [],
        "backups": [],
    }
    for template, place in _FILES.items():
        _put(os.path.join(home.path, place), _template(template), force=force, done=done)
    if test_clock:
        os.close(os.open(home.test_clock, os.O_WRONLY | os.O_CREAT, 0o600))
    done["test_clock"] = os.path.exists(home.test_clock)
    call.show(done, _lines(call, done))
    return 0


def _template(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "..", "templates", name), "rb") as file:
        return file.read()


def _put(path: str, data: bytes, *, force: bool, done: dict[str, Any]) -> None:
    """Write one file: never over another, which is kept as it is or, with ``force``, beside the new one."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    if os.path.lexists(path):
        if not force or _holds(path, data):
            done["kept"].append(path)
            return
        done["backups"].append(_set_aside(path))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    done["written"].append(path)


def _holds(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == data
    except OSError:
        return False


def _set_aside(path: str) -> str:
    """Rename to the first free ``path.backup-N``."""
    number = 1
    while os.path.lexists(f"{path}.backup-{number}"):
        number += 1
    os.rename(path, f"{path}.backup-{number}")
    return f"{path}.backup-{number}"


def _lines(call: Call, done: dict[str, Any]) -> list[str]:
    lines = [f"written: {path}" for path in done["written"]]
    lines += [f"kept as it was: {path}" for path in done["kept"]]
    lines += [f"backup: {path}" for path in done["backups"]]
    if done["test_clock"]:
        lines.append("its clock may be moved by tests: not a home for real work")
    return [
        *lines,
        "",
        "Next:",
        f"  {call.command('daemon start')}",
        f"  {call.command('delegate echo hello --wait')}",
        f"Then name your own agents in {done['config']} and type {call.command('config reload')}.",
    ]
