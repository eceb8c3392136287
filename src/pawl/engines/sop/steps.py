"""The grammar of ``SOP.md``, line by line.

It is not Markdown: indentation says nothing, any line ``1. ...`` below ``## Steps`` begins a step, and what is no key
is text. ``_KEYS`` has every key of a bullet. No text is an error here; what is dropped or read as something else than
it seems to be leaves a remark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pawl.config.wording import nearest, quoted
from pawl.engines.sop.findings import STEPS, Remark
from pawl.engines.sop.literals import Json, from_json, trim, value_of, whole
from pawl.engines.sop.model import (
    KINDS,
    MODES,
    Call,
    Fail,
    Given,
    Goto,
    OnFailure,
    Port,
    Retry,
    Routing,
    Scope,
    Step,
)

_SECTION = "## steps"
_HEADING = "## "
_BULLET = "- "
_DASHES = ("\N{EM DASH}", "\N{EN DASH}", "-")
_LIKE_A_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s*:(?!//)")

Lines = dict[tuple[int, str], int]


class Parsed(NamedTuple):
    """The steps; the line of each, by its place from 0 and a key as in ``SOP.toml``; and what was noticed.

    The line of a step itself is under the key ``""``.
    """

    steps: tuple[Step, ...]
    lines: Lines
    remarks: tuple[Remark, ...]


def parse(text: str) -> Parsed:
    """Every step of the text. Raises nothing."""
    reader = _Reader()
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        reader.take(line, number)
    return reader.end()


@dataclass
class _Draft:
    """The step that is being read: the fields of a ``Step``, and what its routing and scope are made of."""

    title: str
    body: str
    line: int
    values: dict[str, Any] = field(default_factory=dict)
    routing: dict[str, Any] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def add_text(self, line: str) -> None:
        self.body = f"{self.body}\n{line}" if self.body else line

    def step(self, number: int) -> Step:
        scope = Scope(**self.scope) if self.scope else None
        return Step(number, self.title, trim(self.body), **self.values, scope=scope, routing=Routing(**self.routing))


class _Reader:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.lines: Lines = {}
        self.remarks: list[Remark] = []
        self._inside = False
        self._draft: _Draft | None = None
        self._section = _Section()
        self._written: list[tuple[int, int, bool]] = []

    def take(self, raw: str, number: int) -> None:
        line = trim(raw)
        if line.startswith(_HEADING):
            self._heading(line)
        elif self._inside:
            self._line(line, raw, number)

    def end(self) -> Parsed:
        """The end of the text."""
        self._close()
        # Who writes one number throughout counts on being numbered by the reader.
        if len({value for value, _, _ in self._written}) > 1:
            for place, (value, line, is_list) in enumerate(self._written, 1):
                if value != place and not is_list:
                    said = f"is written as {value} and is step {place}; it is meant by {place}"
                    self._say("written_number", said, line)
        remarks = sorted(self.remarks, key=lambda remark: remark.line or 0)
        return Parsed(tuple(self.steps), self.lines, tuple(remarks))

    def _close(self) -> None:
        """End the step that is open, if one is."""
        if self._draft is not None:
            self.steps.append(self._draft.step(len(self.steps) + 1))
            self._draft = None

    def _heading(self, line: str) -> None:
        if line.lower() == _SECTION:  # a step that is open goes on: only other headings end it
            self._inside = True
            self._section = _Section()
            return
        self._close()
        self._inside = False

    def _line(self, line: str, raw: str, number: int) -> None:
        written, dot, rest = line.partition(". ")
        if dot and written.isascii() and written.isdigit():
            self._begin(written, trim(rest), raw, number)
        elif self._draft is None or not line:
            return
        elif not line.startswith(_BULLET) or not self._bullet(self._draft, line, number):
            self._draft.add_text(line)

    def _begin(self, written: str, rest: str, raw: str, number: int) -> None:
        self._close()
        title, body, bold = _title(rest)
        self._draft = _Draft(title, body, number)
        self.lines[len(self.steps), ""] = number
        value = int(written[-10:])
        is_list = self._section.is_list(value, raw, bold=bold)
        self._written.append((value, number, is_list))
        if is_list:
            said = f"begins step {len(self._written)}; if it belongs to the step above, write it with * or no number"
            self._say("list_splits_step", said, number)

    def _bullet(self, draft: _Draft, line: str, number: int) -> bool:
        """Take a bullet; whether it is a key. ``- - next: 2`` is one: every dash in front is dropped."""
        text = line
        while text.startswith(_BULLET):
            text = text.removeprefix(_BULLET)
        name, colon, value = trim(text).partition(":")
        key = _KEYS.get(name) if colon else None
        if key is None:
            self._unknown(trim(text), number)
            return False
        self.lines[len(self.steps), key.path] = number
        value = trim(value)
        if key.keeps and not value:
            return True
        if key.path in draft.seen and key.path != "calls":
            self._say("repeated_key", f"{quoted(name)} is written before in this step; the last one counts", number)
        draft.seen.add(key.path)
        key.read(draft, value, lambda code, message: self._say(code, message, number))
        return True

    def _unknown(self, text: str, number: int) -> None:
        match = _LIKE_A_KEY.match(text)
        if match is None:
            return
        near = nearest(match[1], _KEYS)
        hint = f"; did you mean {quoted(near)}?" if near else ""
        if near == match[1]:
            hint = "; a key stands right before its colon"
        self._say("unknown_bullet", f"{quoted(match[1])} is no key, so the line is text of the step{hint}", number)

    def _say(self, code: str, message: str, line: int) -> None:
        self.remarks.append(Remark(code, message, line, STEPS))


class _Section:
    """What has been seen of one section, to tell a list inside a step from the steps."""

    def __init__(self) -> None:
        self._indent: int | None = None
        self._some_bold = False
        self._last = 0

    def is_list(self, written: int, raw: str, *, bold: bool) -> bool:
        """Whether a numbered line looks like part of the step above: further in, less bold, or counted anew."""
        indent = len(raw) - len(raw.lstrip())
        first = self._indent is None
        found = not first and (indent > (self._indent or 0) or (self._some_bold and not bold) or written < self._last)
        self._indent = indent if first else self._indent
        self._some_bold |= bold
        self._last = written
        return found


def _title(text: str) -> tuple[str, str, bool]:
    """Title, beginning of the body, and whether the title is bold."""
    _, opened, rest = text.partition("**")
    title, closed, after = rest.partition("**")
    if not opened or not closed:
        return text, "", False
    after = trim(after)
    for dash in _DASHES:
        if after.startswith(dash):
            return title, trim(after.removeprefix(dash)), True
    return title, after, True


Say = Callable[[str, str], None]


class _Key(NamedTuple):
    """A key of a bullet: where ``SOP.toml`` has it, what reads its value, and whether a blank one changes nothing."""

    path: str
    read: Callable[[_Draft, str, Say], None]
    keeps: bool = False


def _flag(name: str) -> Callable[[_Draft, str, Say], None]:
    def read(draft: _Draft, value: str, say: Say) -> None:
        on = value.lower() == "true"
        if not on and value.lower() != "false":
            say("unreadable_value", f"{quoted(value)} is neither true nor false, and counts as false")
        (draft.routing if name == "terminal" else draft.values)[name] = on

    return read


def _text(name: str) -> Callable[[_Draft, str, Say], None]:
    """A text; blank is none."""

    def read(draft: _Draft, value: str, say: Say) -> None:
        draft.values[name] = value or None

    return read


def _value(name: str) -> Callable[[_Draft, str, Say], None]:
    def read(draft: _Draft, value: str, say: Say) -> None:
        found = value_of(value)
        if not found.understood and value[:1] in ("{", "[", '"'):
            say("bad_json", "is neither JSON nor a value of TOML, and is taken as plain text")
        draft.values[name] = Given(found.value)

    return read


def _capability(draft: _Draft, value: str, say: Say) -> None:
    draft.values["capability"] = value


def _kind(draft: _Draft, value: str, say: Say) -> None:
    word = value.lower()
    kind = "checkpoint" if word == "approval" else word
    if kind not in KINDS:
        say("unreadable_value", f"there is no kind {quoted(value)}, and it counts as execute{_meant(value, KINDS)}")
    draft.values["kind"] = kind if kind in KINDS else "execute"


def _mode(draft: _Draft, value: str, say: Say) -> None:
    mode = value.lower()
    if mode not in MODES:
        say("unreadable_value", f"there is no mode {quoted(value)}, and it counts as supervised{_meant(value, MODES)}")
    draft.values["mode"] = mode if mode in MODES else "supervised"


def _tools(draft: _Draft, value: str, say: Say) -> None:
    draft.values["suggested_tools"] = _list(value)


def _allow(draft: _Draft, value: str, say: Say) -> None:
    draft.scope["allow"] = _list(value)


def _deny(draft: _Draft, value: str, say: Say) -> None:
    draft.scope["deny"] = _list(value)


def _when(draft: _Draft, value: str, say: Say) -> None:
    draft.routing["when"] = value


def _next(draft: _Draft, value: str, say: Say) -> None:
    draft.routing["next"] = whole(value)
    if draft.routing["next"] is None:
        say("unreadable_value", f"{quoted(value)} is no step number, and is dropped")


def _depends_on(draft: _Draft, value: str, say: Say) -> None:
    found = []
    for part in _list(value):
        number = whole(part)
        if number is None:
            say("unreadable_value", f"{quoted(part)} is no step number, and is dropped")
        else:
            found.append(number)
    draft.routing["depends_on"] = tuple(found)


def _switch(draft: _Draft, value: str, say: Say) -> None:
    ports = []
    for part in value.split(";"):
        name, when, goto, *_ = [*(trim(one) for one in part.split(">", 2)), "", ""]
        if name:
            ports.append(Port(name, when or None, whole(goto)))
            _check_port(ports[-1], goto, say)
        elif trim(part):
            say("switch_port_unnamed", f"{quoted(trim(part))} has no name before its first >, and is dropped")
    draft.routing["switch"] = tuple(ports)


def _check_port(port: Port, goto: str, say: Say) -> None:
    if port.goto is not None or not goto:
        return
    if ">" in goto or goto.startswith("="):
        say(
            "switch_guard_split",
            f"the guard of {quoted(port.name)} has a > in it and is cut there, so the port has no target: one with > "
            "or >= can be written in SOP.toml only",
        )
    else:
        say("unreadable_value", f"the target {quoted(goto)} of {quoted(port.name)} is no step number, and is dropped")


def _on_failure(draft: _Draft, value: str, say: Say) -> None:
    found = _failure(value)
    if found is None:
        say("unreadable_value", f"{quoted(value)} is none of fail, retry:N and goto:N, and counts as fail")
    draft.values["on_failure"] = found or Fail()


def _failure(value: str) -> OnFailure | None:
    if value.lower() == "fail":
        return Fail()
    for word, made in (("retry", Retry), ("goto", Goto)):
        number = whole(trim(value[len(word) + 1 :]))
        if value[: len(word) + 1] in (f"{word}:", f"{word} ") and number is not None:
            return made(number)
    return None


def _call(draft: _Draft, value: str, say: Say) -> None:
    try:
        found = from_json(value)
    except ValueError:
        found = None
    call = call_of(found)
    if call is None:
        say("bad_call", 'is dropped: write it like {"tool": "name", "args": {}}')
        return
    draft.values["calls"] = (*draft.values.get("calls", ()), call)


def call_of(found: Json) -> Call | None:
    """A planned call from its object; None where it is none."""
    if not isinstance(found, dict) or not isinstance(found.get("tool"), str):
        return None
    return Call(found["tool"], found.get("args"), found.get("pinned"))


def _list(value: str) -> tuple[str, ...]:
    return tuple(filter(None, map(trim, value.split(","))))


def _meant(value: str, known: tuple[str, ...]) -> str:
    near = nearest(value, known)
    return f"; did you mean {near}?" if near else ""


_KEYS = {
    "tools": _Key("suggested_tools", _tools),
    "allow-tools": _Key("scope.allow", _allow),
    "allow_tools": _Key("scope.allow", _allow),
    "deny-tools": _Key("scope.deny", _deny),
    "deny_tools": _Key("scope.deny", _deny),
    "requires_confirmation": _Key("requires_confirmation", _flag("requires_confirmation")),
    "kind": _Key("kind", _kind),
    "capability": _Key("capability", _capability),
    "with": _Key("with", _value("with_")),
    "input": _Key("schema.input", _value("input")),
    "output": _Key("schema.output", _value("output")),
    "when": _Key("routing.when", _when, keeps=True),
    "next": _Key("routing.next", _next),
    "terminal": _Key("routing.terminal", _flag("terminal")),
    "depends_on": _Key("routing.depends_on", _depends_on),
    "depends-on": _Key("routing.depends_on", _depends_on),
    "switch": _Key("routing.switch", _switch),
    "on_failure": _Key("on_failure", _on_failure),
    "on-failure": _Key("on_failure", _on_failure),
    "mode": _Key("mode", _mode),
    "agent": _Key("agent", _text("agent")),
    "call": _Key("calls", _call),
    "prompt": _Key("gate_prompt", _text("gate_prompt"), keeps=True),
    "policy": _Key("policy", _text("policy")),
    "edit": _Key("edit", _text("edit")),
}
