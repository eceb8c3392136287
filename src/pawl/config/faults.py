"""A fault of the configuration file, and how pydantic's errors become faults in plain language."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pawl.config.lines import Origin, Path
from pawl.config.section import SLIP
from pawl.config.wording import dotted, found, listed, nearest, quoted


class Fault(NamedTuple):
    """One thing that is wrong with the file."""

    path: str
    """The key, dotted, as in ``agents.coder.comand`` or ``cron[0].name``; empty for the file as a whole."""
    line: int | None
    """The line, from 1: the key's own, or that of the table in which it is missing."""
    message: str
    """What was found and what is expected."""
    nearest: str | None = None
    """The known key or name that was probably meant."""

    def as_json(self) -> dict[str, object]:
        """The fault as ``details.faults`` of an error holds it."""
        return self._asdict()

    def text(self, file: str) -> str:
        """The fault on one line, in the form that editors jump to: ``config.toml:12: daemon.x: ...``."""
        place = file if self.line is None else f"{file}:{self.line}"
        return ": ".join(part for part in (place, self.path, self.message) if part)


def faults_of(error: ValidationError, origin: Origin) -> list[Fault]:
    """Every fault, in the order of the file."""
    faults = {_fault(details, origin) for details in error.errors(include_url=False)}
    return sorted(faults, key=lambda fault: (fault.line or 0, fault.path, fault.message))


def _fault(details: ErrorDetails, origin: Origin) -> Fault:
    path: Path = details["loc"]
    # Where a key itself is wrong (no good name), pydantic puts this behind it; the file may have such a key, though.
    if path[-1:] == ("[key]",) and not origin.has(path):
        path = path[:-1]
    message, near = _worded(details, dotted(path))
    return Fault(dotted(path), origin.line_of(path), message, near)


def _worded(details: ErrorDetails, path: str) -> tuple[str, str | None]:
    ctx, value = details.get("ctx", {}), details["input"]
    if details["type"] == SLIP:
        return ctx["text"], ctx["nearest"]
    if details["type"] == "literal_error":
        return _choice(value, re.findall(r"'([^']*)'", ctx["expected"]))
    if isinstance(value, dict) and details["type"] == "tuple_type" and path == "cron":
        return (
            "found a single table, expected a list of jobs: write [[cron]] in two brackets above each",
            None,
        )
    if isinstance(value, list) and details["type"] in ("dict_type", "model_type"):
        return f"found a list, expected one table: write [{path}] in single brackets", None
    if details["type"] in _WORDS:
        return _WORDS[details["type"]](found(value), ctx), None
    return f"{found(value)} cannot be used here", None


def _choice(value: object, choices: list[str]) -> tuple[str, str | None]:
    near = nearest(value, choices) if isinstance(value, str) else None
    hint = f"; did you mean {quoted(near)}?" if near else ""
    return f"{found(value)} is not one of {listed(choices)}{hint}", near


_Words = Callable[[str, dict[str, Any]], str]
_WORDS: dict[str, _Words] = {
    "missing": lambda _, __: "is missing; it has no default",
    "string_type": lambda it, _: f"found {it}, expected text in quotes",
    "int_type": lambda it, _: f"found {it}, expected a whole number without quotes",
    "bool_type": lambda it, _: f"found {it}, expected true or false without quotes",
    "tuple_type": lambda it, _: f"found {it}, expected a list in square brackets",
    "dict_type": lambda it, _: f"found {it}, expected a table",
    "model_type": lambda it, _: f"found {it}, expected a table",
    "greater_than_equal": lambda it, ctx: f"{it} is too small; it must be at least {ctx['ge']}",
    "less_than_equal": lambda it, ctx: f"{it} is too large; it must be at most {ctx['le']}",
}
