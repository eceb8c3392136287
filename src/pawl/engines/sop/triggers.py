"""Which events a trigger answers to. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from pawl.engines.sop.conditions import holds
from pawl.engines.sop.literals import Json, from_json
from pawl.engines.sop.model import Trigger

_NO_SHOW = "calendar.no_show"
_CALENDAR_KEYS = ("event_id", "event_title", "expected_start", "detected_at", "calendar_source", "calendar_id")


class Event(NamedTuple):
    """Something that happened. ``source`` is a trigger's type; ``payload`` is text, and may be JSON."""

    source: str
    topic: str | None = None
    payload: str | None = None


def matches(trigger: Trigger, event: Event) -> bool:
    """Whether the event starts a run: it fits the trigger, and the condition holds for its payload."""
    return trigger.type == event.source and _fits(trigger, event) and holds(trigger.condition, event.payload)


def _fits(trigger: Trigger, event: Event) -> bool:
    values, topic = trigger.values, event.topic
    match trigger.type:
        case "manual":
            return True
        case "calendar":
            return topic == _NO_SHOW and _calendar(values, event.payload)
        case _ if topic is None:
            return False
        case "mqtt":
            return _mqtt(values["topic"].split("/"), topic.split("/"))
        case "amqp":
            return _amqp(values["routing_key"].split("."), topic.split("."))
        case "webhook":
            return bool(topic == values["path"])
        case "cron":
            return bool(topic == values["expression"])
        case "peripheral":
            return topic == f"{values['board']}/{values['signal']}"
        case "filesystem":
            return _path(values["path"], topic) and _change(values["events"], event.payload)
    return _channel(values["channel"], values["alias"], topic)


def _mqtt(pattern: list[str], topic: list[str]) -> bool:
    """``#`` is one level or more: not the level above it."""
    for place, level in enumerate(pattern):
        if level == "#":
            return len(topic) > place
        if place >= len(topic) or level not in ("+", topic[place]):
            return False
    return len(pattern) == len(topic)


def _amqp(pattern: list[str], words: list[str]) -> bool:
    """``*`` is one word, ``#`` any number of them. One row of answers for each word of the pattern."""
    reach = [True, *[False] * len(words)]
    for one in pattern:
        if one == "#":
            first = reach.index(True) if True in reach else len(reach)
            reach = [place >= first for place in range(len(reach))]
        else:
            fits = [one in ("*", word) for word in words]
            reach = [False, *(before and fit for before, fit in zip(reach, fits, strict=False))]
    return reach[-1]


def _path(pattern: str, path: str) -> bool:
    """A glob, or a plain directory, which means itself and all below it."""
    below = path.startswith(pattern.rstrip("/") + "/")
    return path == pattern or below or _glob(pattern).fullmatch(path) is not None


@lru_cache(maxsize=256)
def _glob(pattern: str) -> re.Pattern[str]:
    """``*`` and ``**`` are anything, slashes too; ``?`` is one character; ``[a-z]`` and ``[!a]`` are one of some.

    Groups of stars are one star: with several the search for a match would take for ever.
    """
    made = ""
    for token in re.findall(r"\*+|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if token[0] == "*":
            made += ".*"
        elif token == "?":
            made += "."
        elif token[0] == "[" and len(token) > 1:
            made += _one_of(token[1:-1])
        else:
            made += re.escape(token)
    return re.compile(made, re.DOTALL)


def _one_of(inside: str) -> str:
    negated, inside = inside.startswith("!"), inside.removeprefix("!")
    parts = re.findall(r"(.)-(.)|(.)", inside, re.DOTALL)
    ranges = [
        f"{re.escape(low)}-{re.escape(high)}" if low else re.escape(one) for low, high, one in parts if low <= high
    ]
    return f"[{'^' if negated else ''}{''.join(ranges)}]" if ranges else r"(?!)"


def _change(wanted: list[str], payload: str | None) -> bool:
    return not wanted or _object(payload).get("event") in wanted


def _calendar(values: dict[str, Json], payload: str | None) -> bool:
    found = _object(payload)
    if not all(isinstance(found.get(key), str) for key in _CALENDAR_KEYS):
        return False
    ids = values["calendar_ids"]
    return found["calendar_source"] == values["calendar_source"] and (not ids or found["calendar_id"] in ids)


def _channel(kind: str, alias: str | None, topic: str) -> bool:
    """A topic is ``kind``, ``kind/alias`` or ``kind.alias:event``; the kind in any case, the alias exactly."""
    before, _, _ = topic.partition(":")
    found, _, name = before.replace("/", ".", 1).partition(".")
    return found.lower() == kind.lower() and alias in (None, name)


def _object(payload: str | None) -> dict[str, Json]:
    try:
        found = from_json(payload or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
