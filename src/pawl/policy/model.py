"""What can be true: an effective policy, as a value with a canonical text."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

_MICROS = 1_000_000
SANDBOXES = ("off", "preferred", "required")  # from the widest to the narrowest
_PUBLIC = {"max_cost_per_day_micros": "max_cost_per_day", "cpu_ms": "cpu_s"}
_LISTS = ("env", "denied_tools", "always_ask")
_COUNTS = ("max_depth", "max_actions_per_hour", "max_output_bytes")
_LIMITS = ("max_cost_per_day_micros", "cpu_ms", "memory_bytes", "processes", "open_files")
_WORDS = {"delegation": ("forbid", "allow"), "sandbox": SANDBOXES, "network": ("on", "off")}


class Policy(NamedTuple):
    """What a task may do. None: no limit; for ``allowed_tools`` every tool, for ``workspace`` any directory.

    Made by ``normal``, so that equal meaning is an equal value: lists are sorted, and ``allowed_tools`` and
    ``always_ask`` hold nothing that is denied. What must be asked for need not be among the allowed tools: names are
    the agents' own, and one may be a part of another (``Bash(rm:*)`` of ``Bash``).
    """

    delegation: str
    max_depth: int
    max_actions_per_hour: int
    max_cost_per_day_micros: int | None
    env: tuple[str, ...]
    workspace: str | None
    max_output_bytes: int
    cpu_ms: int | None
    memory_bytes: int | None
    processes: int | None
    open_files: int | None
    allowed_tools: tuple[str, ...] | None
    denied_tools: tuple[str, ...]
    always_ask: tuple[str, ...]
    sandbox: str
    network: str

    def normal(self) -> Policy:
        """The same in its one normal form."""
        denied = set(self.denied_tools)
        allowed = None if self.allowed_tools is None else tuple(sorted(set(self.allowed_tools) - denied))
        return self._replace(
            env=tuple(sorted(set(self.env))),
            allowed_tools=allowed,
            denied_tools=tuple(sorted(denied)),
            always_ask=tuple(sorted(set(self.always_ask) - denied)),
        )

    @property
    def document(self) -> str:
        """Its canonical text: JSON with sorted keys, ASCII, no spaces."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        """The digest of its text, as each task records it."""
        return hashlib.sha256(self.document.encode()).hexdigest()

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Read such a text; its digest is the policy's. Raises ValueError, naming what is wrong with it.

        A field that joins later needs a value here for the texts that lack it.
        """
        try:
            found = json.loads(text)
        except RecursionError:
            raise ValueError("a policy does not nest") from None
        if not isinstance(found, dict) or set(found) != set(cls._fields):
            raise ValueError("a policy has exactly the keys " + ", ".join(cls._fields))
        for name, value in found.items():
            if not _fits(name, value):
                raise ValueError(f"a policy cannot have {name} = {value!r}")
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in found.items()}
        policy = cls(**values)
        if policy.normal().document != text:
            raise ValueError("a policy is written in its canonical form only")
        return policy

    def public(self) -> dict[str, Any]:
        """As JSON shows it: durations in seconds, cost in whole units."""
        values: dict[str, Any] = {}
        for field, value in self._asdict().items():
            if field == "max_cost_per_day_micros" and value is not None:
                value = value / _MICROS
            elif field == "cpu_ms" and value is not None:
                value = value / 1000
            values[public_name(field)] = list(value) if isinstance(value, tuple) else value
        return values


class Sourced(NamedTuple):
    """A policy, and in words for people where each of its values comes from, by field."""

    policy: Policy
    sources: dict[str, str]

    def public_sources(self) -> dict[str, str]:
        """The sources under the names of ``Policy.public``."""
        return {public_name(field): source for field, source in self.sources.items()}


def public_name(field: str) -> str:
    """A field's name in JSON."""
    return _PUBLIC.get(field, field)


def _fits(name: str, value: object) -> bool:
    if name in _WORDS:
        return value in _WORDS[name]
    if name in _COUNTS:
        return _is_count(value)
    if name in _LIMITS:
        return value is None or _is_count(value)
    if name in _LISTS:
        return _are_words(value)
    if name == "allowed_tools":
        return value is None or _are_words(value)
    return value is None or isinstance(value, str)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # not isinstance: True is no count


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
