"""The table: every command of ``pawl``, declared once.

Both parsers, help, shell completion and the reference page are made from it.
The commands lie in one file a noun; ``FILES`` tells which first word is declared where, so that a call loads
one of them only.

On the command line's fast path: no imports but the file that is asked for.
"""

from __future__ import annotations

from pawl.cli.table.model import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# First word of a command -> the module here that declares it. The order is the order of help.
FILES = {
    "demo": "home",
    "init": "home",
    "daemon": "daemon",
    "delegate": "tasks",
    "spawn": "inside",
    "status": "tasks",
    "list": "tasks",
    "result": "tasks",
    "logs": "tasks",
    "wait": "tasks",
    "cancel": "tasks",
    "why": "tasks",
    "usage": "inside",
    "progress": "inside",
    "agent": "agent",
    "cron": "cron",
    "sop": "sop",
    "events": "events",
    "config": "config",
    "doctor": "home",
}

# Words that are no command of their own but head a group of them.
GROUPS = {
    "daemon": "Start, stop and look at the daemon that owns the work.",
    "cron": "Schedules, and when they fire.",
    "sop": "Procedures: what they say, and whether they can be read.",
    "agent": "The programs that work can be given to.",
    "config": "The configuration file: check it, show it, load it anew.",
}


def find(first: str, second: str | None = None) -> Command | None:
    """The command of that name, or nothing."""
    file = FILES.get(first)
    if file is None:
        return None
    words = first if second is None else f"{first} {second}"
    for command in _load(file):
        if command.words == words:
            return command
    return None


def every() -> Iterator[Command]:
    """Every command, in the order of help."""
    for first, file in FILES.items():
        for command in _load(file):
            if command.words.split()[0] == first:
                yield command


def _load(file: str) -> tuple[Command, ...]:
    module = __import__(f"pawl.cli.table.{file}", fromlist=["COMMANDS"])
    commands: tuple[Command, ...] = module.COMMANDS
    return commands
