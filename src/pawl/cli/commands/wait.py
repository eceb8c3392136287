"""``wait``: until tasks have ended, through restarts of the daemon."""

from __future__ import annotations

import time

from pawl.cli import output
from pawl.cli.call import Call, Interrupted
from pawl.cli.client import Client, through_restarts
from pawl.cli.commands.tasks import why
from pawl.errors import TaskNotFound, UsageError, WaitTimeout
from pawl.values import duration_text

_ID_CHARACTERS = 36

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def wait(call: Call, *, tasks: list[str], timeout: int | None, all: bool, any: bool) -> int:
    if all and any:
        raise UsageError("cannot wait both for all and for the first that ends: give --all or --any")
    try:
        answer = until_ended(call, tasks, timeout_ms=timeout, first=any)
    except KeyboardInterrupt:
        raise _interrupted(call, tasks, any=any) from None
    _show(call, tasks, answer)
    if answer["missing"]:
        raise TaskNotFound("; ".join(map(_not_found, answer["missing"])), ids=answer["missing"])
    if answer["status"] == "timeout":
        raise WaitTimeout(
            f"the wait of {duration_text(timeout or 0)} ran out; the work goes on: {', '.join(answer['pending'])}",
            pending=answer["pending"],
        )
    failed = [task for task in answer["completed"] if task["status"] != "completed"]
    enough = len(failed) < len(answer["completed"]) if any else not failed
    return 0 if enough else 1


def until_ended(call: Call, ids: list[str], *, timeout_ms: int | None = None, first: bool = False) -> dict[str, Any]:
    """The answer of ``task.wait``; ``first``: when one has ended. Monotonic clock: time without a daemon counts too."""
    until = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000

    def ask(client: Client) -> dict[str, Any]:
        rest: dict[str, Any] = {} if until is None else {"timeout_s": max(0.0, until - time.monotonic())}
        if first:
            rest["any"] = True
        answer: dict[str, Any] = client.call("task.wait", ids=ids, **rest)
        return answer

    return through_restarts(call.home, ask)


def _show(call: Call, ids: list[str], answer: dict[str, Any]) -> None:
    if not call.json:
        output.lines(_lines(call, answer))
    elif len(ids) > 1:
        output.document(answer)
    elif answer["completed"]:
        output.document(answer["completed"][0])
    elif answer["pending"]:
        output.document(call.ask("task.get", id=answer["pending"][0]))


def _lines(call: Call, answer: dict[str, Any]) -> list[str]:
    lines = []
    for task in answer["completed"]:
        reason = why(task)
        lines.append(f"{task['id']}  {call.screen.status(task['status'])}" + (f"  ({_line(reason)})" if reason else ""))
    return lines + [f"{pending}  not ended" for pending in answer["pending"]]


def _line(text: str) -> str:
    return output.clean(text, one_line=True)


def _not_found(text: str) -> str:
    """As every other command says it."""
    return f"cannot find a task {'with the id' if len(text) >= _ID_CHARACTERS else 'whose id begins with'} {text}"


def _interrupted(call: Call, ids: list[str], *, any: bool) -> Interrupted:
    again = call.command(f"wait {'--any ' if any else ''}{' '.join(ids)}")
    return Interrupted(f"interrupted; the work goes on. To wait again: {again}", ids=ids)
