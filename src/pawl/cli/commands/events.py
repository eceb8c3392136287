"""``events``: the audit log."""

from __future__ import annotations

from pawl.cli import output
from pawl.cli.call import Call, Interrupted, given
from pawl.cli.client import Client, through_restarts
from pawl.errors import InvalidValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NEWEST = 100  # what is shown where nothing says how many
_LIMIT_MAX = 10_000
_BEFORE = 10  # what is shown of the past before events are followed


def events(call: Call, *, follow: bool, after: int | None, limit: int | None, task: str | None) -> int:
    if follow:
        return _follow(call, after, limit, task)
    if limit is not None and limit > _LIMIT_MAX:
        raise InvalidValue(f"cannot use --limit {limit}: write a number from 1 to {_LIMIT_MAX}", value=limit)
    client = call.client()
    which = {"last": limit or _NEWEST} if after is None else {"after": after, **given(limit=limit)}
    found = client.call("event.list", **which, **given(subject=_whole(client, task)))
    call.show(found, rows(call, found, subject=task is None) if found else [])
    if not found:
        call.note("no events" + (f" after {after}" if after else " yet"))
    return 0


def rows(call: Call, found: list[dict[str, Any]], *, subject: bool) -> list[str]:
    """Events as a table; ``subject``: with a column that says whose they are."""
    screen = call.screen
    heads = ["SEQ", "WHEN", *(["SUBJECT"] if subject else []), "EVENT", "CHANGE", "BY", "WHY"]
    return screen.table(heads, [_row(call, event, subject) for event in found], whole=2 if subject else -1)


def _row(call: Call, event: dict[str, Any], subject: bool) -> list[str | None]:
    screen = call.screen
    about = [_subject(call, event)] if subject else []
    return [
        str(event["seq"]),
        screen.when(event["at"]),
        *about,
        event["event"],
        _change(event),
        event["actor"],
        event["reason"],
    ]


def _line(call: Call, event: dict[str, Any]) -> str:
    """One event that has just happened: the moment itself, for "0.0s ago" would soon be wrong."""
    about = _subject(call, event)
    parts = (
        str(event["seq"]),
        event["at"],
        about,
        event["event"],
        _change(event),
        event["actor"],
        event["reason"],
    )
    return "  ".join(output.clean(part, one_line=True) if part else "-" for part in parts)


def _subject(call: Call, event: dict[str, Any]) -> str:
    kind, subject = str(event["subject_kind"]), str(event["subject_id"])
    return kind if kind == subject else f"{kind} {call.screen.id(subject)}"


def _change(event: dict[str, Any]) -> str | None:
    before, after = event["from"], event["to"]
    return f"{before} > {after}" if before and after else after


def _follow(call: Call, after: int | None, limit: int | None, task: str | None) -> int:
    """The last few and new ones for ever, or ``limit`` of them.

    When the daemon went and came back, it goes on behind the last one that was shown.
    """
    seen = {"after": after, "left": limit}

    def show(client: Client) -> int:
        subject = _whole(client, task)
        where = {"last": _BEFORE} if seen["after"] is None else {"after": seen["after"]}
        stream = client.stream("event.list", follow=True, **where, **given(subject=subject))
        for event in stream:
            if call.json:
                output.document(event)
            else:
                output.line(_line(call, event))
            seen["after"] = event["seq"]
            if seen["left"] is not None:
                seen["left"] -= 1
                if seen["left"] <= 0:
                    return 0
        return 0

    try:
        return through_restarts(call.home, show)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the work goes on", after=seen["after"]) from None


def _whole(client: Client, task: str | None) -> str | None:
    """The whole id, and an error for a task that does not exist: no events would say nothing."""
    return None if task is None else str(client.call("task.get", id=task)["id"])
