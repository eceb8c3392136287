"""``usage`` and ``progress``: what a program says of the task that it runs in."""

from __future__ import annotations

import os

from pawl.cli.call import Call, given
from pawl.cli.client import Client, ConnectionLost, through_restarts
from pawl.cli.render import counted, price, spent
from pawl.errors import DaemonUnreachable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def usage(call: Call, *, tokens: int | None, cost: float | None, model: str | None) -> int:
    if tokens is None and cost is None:
        raise UsageError(
            "cannot report nothing: give --tokens, --cost or both, like\n  pawl usage --tokens 1200 --cost 0.03"
        )
    key = os.urandom(16).hex()  # with it the daemon counts the report once, however often it is sent
    answer = _tell(call, "task.usage", "counted", **given(tokens=tokens, cost=cost, model=model), request_key=key)
    call.show(answer, [_line(answer)])
    return 0


def progress(call: Call, *, text: str, phase: str | None) -> int:
    answer = _tell(call, "task.progress", "taken down", text=text, **given(phase=phase))
    call.show(answer, [])
    return 0


def _tell(call: Call, method: str, done: str, **params: Any) -> dict[str, Any]:
    """Tell the daemon, through restarts: telling it twice does no harm."""

    def ask(client: Client) -> dict[str, Any]:
        answer: dict[str, Any] = client.call(method, **params)
        return answer

    try:
        return through_restarts(call.home, ask)
    except DaemonUnreachable as error:
        if not isinstance(error.__cause__, ConnectionLost):
            raise
        raise DaemonUnreachable(f"{error.message}. Whether this was {done} is not known", **error.details) from error


def _line(answer: dict[str, Any]) -> str:
    tree, left = answer["tree"], (answer.get("left") or {}).get("cost")
    line = f"{spent(answer['tokens'], answer['cost'])} in all for this task"
    line += f"; {spent(tree['tokens'], tree['cost'])} for its tree"
    if tree.get("tasks", 1) > 1:
        line += f" of {counted(tree['tasks'], 'task')}"
    return line if left is None else f"{line}; {price(left)} of the cost for a day is left"
