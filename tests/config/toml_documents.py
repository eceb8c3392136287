"""Random TOML documents in every layout that the language allows, each with the line of every key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

_BARE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_TEXT = st.text(st.sampled_from("ab \t\n\"'\\#=[]{},.é\r"), max_size=8)
_EARLY = datetime(1000, 1, 1)  # noqa: DTZ001  hypothesis adds the zone
_KEYS = st.one_of(st.text(st.sampled_from("abc1_-"), min_size=1, max_size=3), _TEXT)
_SCALARS = st.one_of(
    _TEXT,
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.dates(min_value=date(1000, 1, 1)),
    st.times(),
    st.datetimes(min_value=_EARLY, timezones=st.just(timezone(timedelta(hours=1)))),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)
TREES = st.dictionaries(_KEYS, _VALUES, max_size=4)


class Document:
    """Writes a tree as TOML, taking each choice of layout from hypothesis, and notes where every key went."""

    def __init__(self, data: st.DataObject, tree: dict[str, Any]) -> None:
        self.lines: dict[Path, int] = {}
        self._data = data
        self._text = ""
        self._body((), (), tree)

    @property
    def text(self) -> str:
        return self._text

    def _chance(self) -> bool:
        return self._data.draw(st.booleans())

    def _put(self, text: str, path: Path | None = None) -> None:
        if path is not None:
            self.lines.setdefault(path, self._text.count("\n") + 1)
        self._text += text

    def _noise(self) -> None:
        self._put(self._data.draw(st.sampled_from(["", "", " ", "\n", "# x = [\n", ' \n\t# """ \n'])))

    def _body(self, header: tuple[str, ...], path: Path, table: dict[str, Any]) -> None:
        """Plain keys first, since a header takes all keys after it; then what is written under headers."""
        later = []
        for key, value in table.items():
            if self._wants_header(value) and self._chance():
                later.append((key, value))
                continue
            self._noise()
            self._put("\n" if self._text and not self._text.endswith("\n") else "")
            self._pair(path, key, value)
            self._put(self._data.draw(st.sampled_from(["\n", " # [a]\n", "\r\n", "\n\n"])))
        for key, value in later:
            entries = value if isinstance(value, list) else [value]
            for index, entry in enumerate(entries):
                self._header((*header, key), path, key, index if isinstance(value, list) else None)
                place = (*path, key, index) if isinstance(value, list) else (*path, key)
                self._body((*header, key), place, entry)

    def _wants_header(self, value: Any) -> bool:
        if isinstance(value, list):
            return bool(value) and all(isinstance(entry, dict) for entry in value)
        return isinstance(value, dict)

    def _header(self, header: tuple[str, ...], path: Path, key: str, index: int | None) -> None:
        self._put("" if not self._text or self._text.endswith("\n") else "\n")
        self._put("", (*path, key))
        self._put("", (*path, key) if index is None else (*path, key, index))
        name = self._data.draw(st.sampled_from([".", " . "])).join(self._key(part) for part in header)
        self._put(f"[{name}]" if index is None else f"[[ {name} ]]")
        self._put(self._data.draw(st.sampled_from(["\n", " # ]]\n", "\n\n"])))

    def _pair(self, path: Path, key: str, value: Any) -> None:
        self._put(self._key(key), (*path, key))
        if isinstance(value, dict) and len(value) == 1 and self._chance():
            ((inner, value),) = value.items()
            self._put(".")
            self._pair((*path, key), inner, value)
            return
        self._put(" = ")
        self._value((*path, key), value)

    def _value(self, path: Path, value: Any) -> None:
        self._put("", path)
        if isinstance(value, dict):
            self._put("{")
            for index, (key, inner) in enumerate(value.items()):
                self._put(", " if index else " ")
                self._pair(path, key, inner)
            self._put("}")
        elif isinstance(value, list):
            self._put("[")
            for index, inner in enumerate(value):
                self._noise()
                self._value((*path, index), inner)
                self._noise()
                self._put("," if index < len(value) - 1 or self._chance() else "")
            self._noise()
            self._put("]")
        else:
            self._put(self._scalar(value))

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return self._data.draw(st.sampled_from(list(_forms(value))))
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, datetime):
            return value.isoformat(sep=self._data.draw(st.sampled_from(["T", " "])))
        return value.isoformat() if isinstance(value, date | time) else repr(value)

    def _key(self, key: str) -> str:
        forms = [_basic(key)]
        if key and set(key) <= _BARE:
            forms += [key, key]
        if not set(key) & set("'\n\r"):
            forms.append(f"'{key}'")
        return self._data.draw(st.sampled_from(forms))


def _basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _forms(text: str) -> Iterator[str]:
    """Every way to write a text: the tricky ones are long texts that hold quotes, or end in them."""
    yield _basic(text)
    if not set(text) & set("'\n\r"):
        yield f"'{text}'"
    if "\r" in text:
        return
    if "'''" not in text and not text.endswith("'" * 3):
        yield f"'''\n{text}'''"
    long = text.replace("\\", "\\\\").replace('"""', '""\\"')
    yield f'"""\n{long}"""'
    yield f'"""\\\n  \n\n{long}"""' if text[:1] not in (" ", "\t", "\n") else _basic(text)
