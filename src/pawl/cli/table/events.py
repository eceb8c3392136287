"""The command about the audit log."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option

EVENTS = Command(
    "events",
    "events:events",
    """Show the audit log: what happened, when, by whom and why.
    Every change of a task's status is one event. The newest 100 are shown, or as many as `--limit` says; `--after`
    shows those behind a number that you have seen. `-f` shows the last ten and goes on for ever.""",
    options=(
        Option("--follow -f", "Go on with new events as they happen.", kind="flag"),
        Option("--after", "Only events behind this number; 0 begins at the first.", kind="integer", least=0),
        Option("--limit", "At most so many.", kind="integer", least=1),
        Option("--task", "Only events of this task.", complete="task", metavar="TASK"),
    ),
    examples=(
        ("pawl events --task 0193f2a1-b2c3", "the life of one task"),
        ("pawl events -f --json", "one JSON object a line, for a program"),
    ),
    json="an array of events; with `-f` one object a line",
)

COMMANDS = (EVENTS,)
