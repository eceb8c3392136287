"""On which line each key of a TOML document stands; ``tomllib`` does not tell.

The document has been read by ``tomllib`` before, so it is known to be well formed: this reader looks only for
what moves the place (keys, headers, brackets, commas) and skips over everything else. It keeps its own stack,
for a document may nest deeper than Python likes to call.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

_DEPTH_MAX = 8  # no key of ours lies deeper: what does is found through the table around it
# Long strings first, or their first two quotes would pass for an empty string. A long string may end in one
# or two quotes of its own before the three that close it. No possessive quantifiers: Python before 3.11.5 gets
# them wrong; each alternative begins otherwise, so there is nothing to go back to.
_TOKEN = re.compile(
    r"""
      (?P<skip>[ \t]+ | \#[^\n]*)
    | (?P<long>\"{3} (?: [^"\\] | \\. | "(?!"") )* "{3,5} | '{3} (?: [^'] | '(?!'') )* '{3,5})
    | (?P<quoted>" (?: [^"\\\n] | \\. )* " | '[^'\n]*')
    | (?P<mark>[\[\]{}=,\n])
    | (?P<dot>\.)
    | (?P<bare>[^\s\[\]{}=,."'\#]+)
    """,
    re.VERBOSE | re.DOTALL,
)


class Origin:
    """Where a configuration was written: the file, and the line of each key."""

    def __init__(self, path: str | None = None, lines: dict[Path, int] | None = None) -> None:
        self.path = path
        self._lines = lines or {}

    def line_of(self, path: Path) -> int | None:
        """The line of this key, or of the innermost table around it that is written down; from 1."""
        for end in range(min(len(path), _DEPTH_MAX), 0, -1):
            if path[:end] in self._lines:
                return self._lines[path[:end]]
        return None

    def has(self, path: Path) -> bool:
        """Whether exactly this key is written down."""
        return path in self._lines

    def __eq__(self, other: object) -> bool:
        # Where it was written is no part of what a configuration says: moving a line is no change of it.
        return isinstance(other, Origin)


def locate(text: str) -> dict[Path, int]:
    """The line of every table, key and list entry of a well-formed document, by key path."""
    reader = _Reader()
    for kind, token, line in _tokens(text):
        reader.take(kind, token, line)
    return reader.lines


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    text = text.replace("\r\n", "\n")
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match.group()
        if kind != "skip":
            yield kind, token, line
        line += token.count("\n")


@dataclass
class _Frame:
    """An open bracket, or the document itself: ``kind`` is the bracket, empty for the document."""

    kind: str
    base: Path = ()
    parts: list[str] = field(default_factory=list)  # of the key that is being read
    line: int = 0  # of that key
    value: Path | None = None  # the key whose value is being read
    index: int = 0  # the entry of the list that is being read


class _Reader:
    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._entries: dict[Path, int] = {}  # how many [[headers]] each array of tables had so far
        self._stack = [_Frame("")]

    def take(self, kind: str, token: str, line: int) -> None:
        top = self._stack[-1]
        if kind == "mark":
            self._mark(top, token, line)
        elif top.kind == "[":
            self._note((*top.base, top.index), line)
        elif top.value is None and kind in ("bare", "quoted"):
            top.line = top.line if top.parts else line
            top.parts.append(token if kind == "bare" else _unquoted(token))

    def _mark(self, top: _Frame, mark: str, line: int) -> None:
        if mark == "[" and top.kind in ("", "header") and top.value is None:
            self._open_header(top)
        elif mark in "[{":
            self._open_value(top, mark, line)
        elif mark == "]" and "header" in top.kind:
            self._close_header(top, line)
        elif mark in "]}":
            if len(self._stack) > 1:  # the second bracket of [[header]] closes nothing any more
                self._stack.pop()
        elif mark == "=":
            top.value = self._key(top)
        elif mark == "," or top.kind == "":
            top.value, top.parts, top.index = None, [], top.index + 1

    def _open_header(self, top: _Frame) -> None:
        if top.kind == "header":
            top.kind = "array header"
        else:
            self._stack.append(_Frame("header"))

    def _open_value(self, top: _Frame, bracket: str, line: int) -> None:
        path = (*top.base, top.index) if top.kind == "[" else top.value or ()
        self._note(path, line)
        self._stack.append(_Frame(bracket, path))

    def _close_header(self, top: _Frame, line: int) -> None:
        self._stack.pop()
        path: Path = ()
        for number, part in enumerate(top.parts, 1):
            path = (*path, part)
            self._note(path, line)
            if number == len(top.parts) and top.kind == "array header":
                self._entries[path] = self._entries.get(path, 0) + 1
            if path in self._entries:
                path = (*path, self._entries[path] - 1)
                self._note(path, line)
        self._stack[0].base = path

    def _key(self, top: _Frame) -> Path:
        for end in range(1, min(len(top.parts), _DEPTH_MAX) + 1):
            self._note((*top.base, *top.parts[:end]), top.line)
        return (*top.base, *top.parts)

    def _note(self, path: Path, line: int) -> None:
        if len(path) <= _DEPTH_MAX:
            self.lines.setdefault(path, line)


def _unquoted(token: str) -> str:
    return str(tomllib.loads(f"key = {token}")["key"])
