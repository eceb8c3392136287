"""``SOP.toml``: what a procedure is called, how it runs, what starts it, and its steps where there is no ``SOP.md``.

A value of the wrong type keeps the procedure from loading, wherever it stands; a key that nobody knows is only
remarked on. All faults of a file are told, not the first one alone.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple

from pawl.config.lines import Path, locate
from pawl.config.load import not_toml
from pawl.config.wording import dotted, found, listed, nearest, quoted
from pawl.engines.sop.findings import MANIFEST, Remark
from pawl.engines.sop.literals import DEPTH_MAX, U32_MAX, Json, plain, too_deep
from pawl.engines.sop.model import (
    ADMISSIONS,
    CHANGES,
    KINDS,
    MODES,
    PRIORITIES,
    TRIGGERS,
    Call,
    Fail,
    Given,
    Goto,
    OnFailure,
    Place,
    Port,
    Procedure,
    Retry,
    Routing,
    Scope,
    Step,
    Trigger,
)

_U64_MAX = 2**64 - 1
_META = (
    "name", "description", "version", "priority", "execution_mode", "deterministic", "cooldown_secs",
    "max_concurrent", "admission_policy", "max_pending_approvals", "agent",
)  # fmt: skip
_STEP = (
    "number", "title", "body", "suggested_tools", "requires_confirmation", "kind", "schema", "scope", "routing",
    "on_failure", "mode", "calls", "pos", "agent", "capability", "with", "policy", "gate_prompt", "edit",
)  # fmt: skip


class Manifest(NamedTuple):
    """What the file says. ``name``: as far as it can be read, also of a file that does not load.

    ``procedure`` None: it does not load, and ``remarks`` say why. ``lines`` has the line of each key.
    """

    name: str | None
    procedure: Procedure | None
    positions: tuple[tuple[int, Place], ...]
    lines: dict[Path, int]
    remarks: tuple[Remark, ...]


def parse(text: str, *, default_mode: str) -> Manifest:
    """The file's text as a procedure. Raises nothing."""
    try:
        # With a line feed at its end, a fault in the last line is told with its place.
        raw = tomllib.loads(text.removeprefix("\ufeff") + "\n")
        deep = too_deep(raw)
    except RecursionError:
        deep = True
    except ValueError as error:
        fault = not_toml(error)
        return _not_loaded(Remark("not_toml", fault.message, fault.line, MANIFEST))
    if deep:
        message = f"its lists or tables are nested more than {DEPTH_MAX} deep"
        return _not_loaded(Remark("not_toml", message, None, MANIFEST))
    report = _Report(locate(text.removeprefix("\ufeff")))
    top = _Table(raw, (), report)
    top.known(("sop", "triggers", "positions", "steps"))
    procedure = _procedure(top, default_mode)
    places = tuple((one.whole("step", 0, required=True), _place(one, "step")) for one in top.tables("positions"))
    meta = raw.get("sop")
    name = meta.get("name") if isinstance(meta, dict) else None
    broken = any(remark.severity == "error" for remark in report.remarks)
    return Manifest(
        name if isinstance(name, str) else None, None if broken else procedure, places, report.lines,
        tuple(report.remarks),
    )  # fmt: skip


def _not_loaded(remark: Remark) -> Manifest:
    return Manifest(None, None, (), {}, (remark,))


def _procedure(top: _Table, default_mode: str) -> Procedure:
    meta = top.table("sop", required=True)
    meta.known(_META)
    deterministic = meta.flag("deterministic")
    mode = meta.word("execution_mode", MODES)
    return Procedure(
        name=meta.text("name", required=True) or "",
        description=meta.text("description", required=True) or "",
        version=meta.text("version", default="0.1.0") or "",
        priority=meta.word("priority", PRIORITIES) or "normal",
        execution_mode="deterministic" if deterministic else mode or default_mode,
        deterministic=deterministic,
        cooldown_secs=meta.whole("cooldown_secs", 0, most=_U64_MAX),
        max_concurrent=meta.whole("max_concurrent", 1),
        admission_policy=meta.word("admission_policy", ADMISSIONS) or "parallel",
        max_pending_approvals=meta.whole("max_pending_approvals", 0),
        agent=meta.text("agent"),
        triggers=tuple(map(_trigger, top.tables("triggers"))),
        steps=tuple(_step(table, place) for place, table in enumerate(top.tables("steps"), 1)),
    )


def _trigger(table: _Table) -> Trigger:
    kind = table.word("type", tuple(TRIGGERS), required=True)
    if kind is None:
        return Trigger("manual")
    keys = TRIGGERS[kind]
    table.known(keys.keys)
    values: dict[str, Json] = {key: table.text(key, required=True) for key in keys.required}
    for key in keys.lists:
        values[key] = list(table.texts(key, CHANGES if key == "events" else ()) or ())
    values |= {key: table.text(key) for key in keys.optional}
    return Trigger(kind, values)


def _step(table: _Table, place: int) -> Step:
    table.known(_STEP)
    kind = table.word("kind", KINDS) or "execute"
    capability = table.text("capability")
    schema = table.table("schema")
    schema.known(("input", "output"))
    return Step(
        number=table.whole("number", 0) or place,
        title=table.text("title") or (kind if capability is None else capability),
        body=table.text("body") or "",
        suggested_tools=table.texts("suggested_tools") or (),
        requires_confirmation=table.flag("requires_confirmation"),
        kind=kind,
        input=schema.given("input"),
        output=schema.given("output"),
        scope=_scope(table),
        routing=_routing(table.table("routing")),
        on_failure=_on_failure(table),
        mode=table.word("mode", MODES),
        calls=tuple(map(_call, table.tables("calls"))),
        pos=_place(table.table("pos")) if table.has("pos") else None,
        agent=table.text("agent"),
        capability=capability,
        with_=table.given("with"),
        policy=table.text("policy"),
        gate_prompt=table.text("gate_prompt"),
        edit=table.text("edit"),
    )


def _scope(step: _Table) -> Scope | None:
    if not step.has("scope"):
        return None
    table = step.table("scope")
    table.known(("allow", "deny"))
    return Scope(table.texts("allow"), table.texts("deny") or ())


def _routing(table: _Table) -> Routing:
    table.known(("when", "next", "terminal", "depends_on", "switch"))
    return Routing(
        when=table.text("when"),
        next=table.whole("next", None),
        terminal=table.flag("terminal"),
        depends_on=table.wholes("depends_on"),
        switch=tuple(map(_port, table.tables("switch"))),
    )


def _port(table: _Table) -> Port:
    table.known(("name", "when", "goto"))
    return Port(table.text("name", required=True) or "", table.text("when"), table.whole("goto", None))


def _call(table: _Table) -> Call:
    table.known(("tool", "args", "pinned"))
    args, pinned = table.given("args"), table.given("pinned")
    return Call(table.text("tool", required=True) or "", args and args.value, pinned and pinned.value)


def _place(table: _Table, *others: str) -> Place:
    table.known((*others, "x", "y"))
    return Place(table.number("x"), table.number("y"))


def _on_failure(step: _Table) -> OnFailure:
    """``"fail"``, or a table with exactly one of ``retry`` and ``goto``."""
    value = step.value("on_failure")
    if value in (None, "fail"):
        return Fail()
    if not isinstance(value, dict) or len(value) != 1 or not {"retry", "goto"} & value.keys():
        step.wrong("on_failure", '"fail", { retry = { max = N } } or { goto = { step = N } }')
        return Fail()
    table = step.table("on_failure")
    if table.has("retry"):
        retry = table.table("retry")
        retry.known(("max",))
        return Retry(retry.whole("max", 0, required=True))
    goto = table.table("goto")
    goto.known(("step",))
    return Goto(goto.whole("step", 0, required=True))


class _Report:
    """Where remarks go, and where their lines come from."""

    def __init__(self, lines: dict[Path, int]) -> None:
        self.lines = lines
        self.remarks: list[Remark] = []

    def say(self, code: str, path: Path, message: str) -> None:
        self.remarks.append(Remark(code, f"{dotted(path)} {message}", self.lines.get(path), MANIFEST))


class _Table:
    """One table: each call takes a key out of it as what it has to be, or reports that it is something else.

    ``stands_in``: there is no such table, which is reported already where it matters: it misses nothing.
    """

    def __init__(self, raw: dict[str, Any], path: Path, report: _Report, *, stands_in: bool = False) -> None:
        self._raw = raw
        self._stands_in = stands_in
        self._path = path
        self._report = report

    def has(self, key: str) -> bool:
        return key in self._raw

    def value(self, key: str) -> Any:
        return self._raw.get(key)

    def wrong(self, key: str, expected: str, index: int | None = None) -> None:
        value = self._raw[key] if index is None else self._raw[key][index]
        path = (*self._path, key) if index is None else (*self._path, key, index)
        self._report.say("bad_value", path, f"is {found(value)} and must be {expected}")

    def known(self, keys: Sequence[str]) -> None:
        """Remark on every key but these."""
        for key in self._raw:
            if key not in keys:
                near = nearest(key, keys)
                hint = f"did you mean {quoted(near)}?" if near else f"there is {listed(keys, last='and')}"
                self._report.say("unknown_key", (*self._path, key), f"is read by nobody; {hint}")

    def text(self, key: str, *, required: bool = False, default: str | None = None) -> str | None:
        if not self._there(key, required=required):
            return default
        value = self._raw[key]
        if isinstance(value, str):
            return value
        self.wrong(key, "text in quotes")
        return default

    def word(self, key: str, words: Sequence[str], *, required: bool = False) -> str | None:
        if not self._there(key, required=required):
            return None
        value = self._raw[key]
        if isinstance(value, str) and value in words:
            return value
        near = nearest(value, words) if isinstance(value, str) else None
        self.wrong(key, listed(words) + (f"; did you mean {quoted(near)}?" if near else ""))
        return None

    def flag(self, key: str) -> bool:
        value = self._raw.get(key, False)
        if isinstance(value, bool):
            return value
        self.wrong(key, "true or false")
        return False

    def whole(self, key: str, default: Any, *, most: int = U32_MAX, required: bool = False) -> Any:
        if not self._there(key, required=required):
            return default
        if _is_whole(self._raw[key], most):
            return self._raw[key]
        self.wrong(key, f"a whole number from 0 to {most}")
        return default

    def number(self, key: str) -> float:
        if not self._there(key, required=True):
            return 0.0
        value = self._raw[key]
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            return float(value) if math.isfinite(value) else 0.0
        self.wrong(key, "a number")
        return 0.0

    def wholes(self, key: str) -> tuple[int, ...]:
        values = self._list(key) or []
        return tuple(value for index, value in enumerate(values) if self._is_whole_at(key, index, value))

    def texts(self, key: str, words: Sequence[str] = ()) -> tuple[str, ...] | None:
        """A list of texts, each one of ``words`` where there are any; None where there is no list."""
        values = self._list(key)
        if values is None:
            return None
        for index, value in enumerate(values):
            if not isinstance(value, str) or (words and value not in words):
                self.wrong(key, listed(words) if words else "text in quotes", index)
        return tuple(value for value in values if isinstance(value, str))

    def given(self, key: str) -> Given | None:
        return Given(plain(self._raw[key])) if key in self._raw else None

    def table(self, key: str, *, required: bool = False) -> _Table:
        """The table under a key; an empty one where there is none."""
        path = (*self._path, key)
        if self._there(key, required=required):
            raw = self._raw[key]
            if isinstance(raw, dict):
                return _Table(raw, path, self._report)
            self.wrong(key, "a table")
        return _Table({}, path, self._report, stands_in=True)

    def tables(self, key: str) -> list[_Table]:
        """The tables of a list."""
        made = []
        for index, raw in enumerate(self._list(key) or []):
            if isinstance(raw, dict):
                made.append(_Table(raw, (*self._path, key, index), self._report))
            else:
                self.wrong(key, "a table", index)
        return made

    def _list(self, key: str) -> list[Any] | None:
        value = self._raw.get(key)
        if key not in self._raw or isinstance(value, list):
            return value
        self.wrong(key, "a list")
        return None

    def _is_whole_at(self, key: str, index: int, value: Any) -> bool:
        if _is_whole(value, U32_MAX):
            return True
        self.wrong(key, f"a whole number from 0 to {U32_MAX}", index)
        return False

    def _there(self, key: str, *, required: bool) -> bool:
        if required and key not in self._raw and not self._stands_in:
            line = self._report.lines.get(self._path)
            message = f"{dotted((*self._path, key))} is missing"
            self._report.remarks.append(Remark("missing_key", message, line, MANIFEST))
        return key in self._raw


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
