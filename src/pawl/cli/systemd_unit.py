"""The systemd user unit: its text, with everything quoted as systemd wants it, and where it lies."""

from __future__ import annotations

import os
import sys

from pawl.cli.call import Call
from pawl.errors import Exists, UsageError
from pawl.home import Home

_NEXT = ("systemctl --user daemon-reload", "systemctl --user enable --now pawl.service")
_AFTER_LOGOUT = "loginctl enable-linger"


def install(call: Call, *, only_print: bool) -> int:
    """Write the unit, or print it."""
    unit, path = text(call.home), unit_path()
    document = {"path": path, "unit": unit, "written": False, "next": [*_NEXT, _AFTER_LOGOUT]}
    if only_print:
        call.show(document, unit.splitlines())
        return 0
    if not sys.platform.startswith("linux"):
        raise UsageError("cannot install: systemd is only on Linux; `pawl daemon start` works everywhere")
    document["written"] = _write(path, unit)
    call.show(document, [f"{'written' if document['written'] else 'already there'}: {path}", "", *_advice()])
    return 0


def unit_path() -> str:
    """Where systemd looks for a user's own units."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(config, "systemd", "user", "pawl.service")


def text(home: Home) -> str:
    """The unit. ``KillMode=process``: stopping the daemon leaves the work alive, for the next one to take
    over.

    PATH is the caller's: systemd's own seldom has the directories that agents are installed in.
    """
    words = [sys.executable, "-P", "-m", "pawl.daemon", "--home", home.path]
    command = " ".join([quoted(words[0], program=True), *map(quoted, words[1:])])
    return f"""[Unit]
Description=Pawl, the daemon that owns background work
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={command}
Environment={variable("PATH", os.environ.get("PATH", os.defpath))}
KillMode=process
Restart=on-failure
RestartSec=1
TimeoutStopSec=90

[Install]
WantedBy=default.target
"""


def quoted(word: str, *, program: bool = False) -> str:
    """A word of ``ExecStart``: in quotes where it needs them, with ``%``, ``$``, quotes and backslashes
    escaped.

    systemd replaces ``$NAME`` in arguments and not in the program, so the program's ``$`` stays single.
    """
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    if not program:
        escaped = escaped.replace("$", "$$")
    plain = all(char.isalnum() or char in "/._-+=@:," for char in word) and word != ""
    return word if plain else f'"{escaped}"'


def variable(name: str, value: str) -> str:
    """An assignment of ``Environment=``, where ``$`` has no meaning."""
    return quoted(f"{name}={value}", program=True)


def _write(path: str, unit: str) -> bool:
    """Write the unit where there is none; whether it was written. A different one there is not overwritten."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        with open(path, "rb") as file:
            if file.read() == os.fsencode(unit):
                return False
        raise Exists(
            f"cannot install: {path} is there already and says something else; move it away, or see what would be "
            "written with `pawl daemon install --print`",
            path=path,
        ) from None
    with os.fdopen(fd, "wb") as file:
        file.write(os.fsencode(unit))
    return True


def _advice() -> list[str]:
    return [
        "Start it now and at every login:",
        *(f"  {command}" for command in _NEXT),
        "Keep it running after you log out:",
        f"  {_AFTER_LOGOUT}",
    ]
