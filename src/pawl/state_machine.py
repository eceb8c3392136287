"""What a state machine is here: one table of transitions, from which everything else is derived.

A room's ``model.py`` holds the table; the terminal set, the CHECK constraints and triggers of the schema, the
diagrams in the docs and the property tests come from it. There is never a second list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Transition(NamedTuple):
    """One arrow: from (None = the thing does not exist yet), event, to, who fires it, and why it exists."""

    source: str | None
    event: str
    target: str
    fired_by: str
    because: str


class StateMachine:
    """A named table of transitions and what follows from it."""

    def __init__(self, name: str, table: Iterable[Transition]) -> None:
        self.name = name
        self.table = tuple(table)
        named = [state for row in self.table for state in (row.source, row.target) if state is not None]
        self.states = tuple(dict.fromkeys(named))
        self.initial = tuple(dict.fromkeys(row.target for row in self.table if row.source is None))
        self.pairs = frozenset((row.source, row.target) for row in self.table if row.source is not None)
        leaving = {row.source for row in self.table}
        self.terminal = tuple(state for state in self.states if state not in leaving)

    def allows(self, source: str, target: str) -> bool:
        """Whether some arrow leads from one state to the other."""
        return (source, target) in self.pairs

    def mermaid(self) -> str:
        """The diagram of the docs, as Mermaid text."""
        lines = ["stateDiagram-v2"]
        for row in self.table:
            lines.append(f"    {row.source or '[*]'} --> {row.target}: {row.event}")
        lines += [f"    {state} --> [*]" for state in self.terminal]
        return "\n".join(lines) + "\n"

    def markdown(self) -> str:
        """The table of the docs, as Markdown text."""
        lines = ["| from | event | to | fired by | because |", "| --- | --- | --- | --- | --- |"]
        for row in self.table:
            cells = (row.source or "(none)", row.event, row.target, row.fired_by, row.because)
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"
