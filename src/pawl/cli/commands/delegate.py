"""``delegate``: hand work over, and with ``--wait`` bring back what it printed."""

from __future__ import annotations

import os

from pawl.cli import output
from pawl.cli.call import Call, Interrupted, given
from pawl.cli.client import Client, ConnectionLost, through_restarts
from pawl.cli.commands.result import Once, print_result
from pawl.cli.commands.wait import until_ended
from pawl.errors import DaemonUnreachable, FrameTooLarge, TaskNotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def delegate(
    call: Call, *, agent: str, prompt: str | None, wait: bool, timeout: int | None, queue_timeout: int | None,
    retries: int | None, priority: int | None, cwd: str | None, env: list[tuple[str, str]],
    idempotency_key: str | None, parent: str | None, label: list[tuple[str, str]], input: list[str],
) -> int:  # fmt: skip
    request = given(
        timeout_s=_seconds(timeout), queue_timeout_s=_seconds(queue_timeout), retries=retries, priority=priority,
        cwd=cwd, caller_cwd=_here(), env=dict(env), idempotency_key=idempotency_key, parent=parent,
        labels=dict(label), inputs=input,
    )  # fmt: skip
    data = _prompt(agent, prompt)
    try:
        task = _submit(call, {"agent": agent, **request, **_spelled(data), "source": {"type": "cli"}})
    except FrameTooLarge as error:
        raise FrameTooLarge(
            f"cannot send a prompt of {len(data)} bytes: with it the request has {error.details['size_bytes']} bytes, "
            f"and the limit is {error.details['limit_bytes']}; hand a large prompt over as a file (--input)",
            prompt_bytes=len(data), **error.details,
        ) from None  # fmt: skip
    if wait:
        return _wait(call, task)
    call.show(task, [task["id"]])
    return 0


def _prompt(agent: str, prompt: str | None) -> bytes:
    """The prompt, from the command line or standard input."""
    if prompt is None or prompt == "-":
        if prompt is None and os.isatty(0):
            raise UsageError(
                "cannot delegate without a prompt: write it in quotes, or give it on standard input, like\n"
                f'  pawl delegate {agent} "What to do"\n'
                f"  pawl delegate {agent} < prompt.md\n"
                f"  pawl delegate {agent} -            (and type it, ending with Ctrl-D)"
            )
        return _standard_input()
    return os.fsencode(prompt)


def _spelled(data: bytes) -> dict[str, str]:
    """The prompt as a parameter: text where it is UTF-8, else base64."""
    try:
        return {"prompt": data.decode()}
    except UnicodeDecodeError:
        from binascii import b2a_base64

        return {"prompt_base64": b2a_base64(data, newline=False).decode()}


def _standard_input() -> bytes:
    pieces = []
    while piece := os.read(0, 65536):
        pieces.append(piece)
    return b"".join(pieces)


def _submit(call: Call, request: dict[str, Any]) -> dict[str, Any]:
    def ask(client: Client) -> dict[str, Any]:
        task: dict[str, Any] = client.call("task.delegate", **request)
        return task

    if "idempotency_key" in request:  # asking again starts nothing twice
        return through_restarts(call.home, ask)
    try:
        return ask(call.client(patience_s=None))
    except ConnectionLost as lost:
        raise ConnectionLost(
            f"{lost.message}. Whether the task was accepted is not known: `{call.command('list')}` shows it. "
            "With --idempotency-key it is safe to send it again",
            **lost.details,
        ) from lost


def _wait(call: Call, task: dict[str, Any]) -> int:
    call.note(f"task {task['id']} {'waits for a free slot' if task['status'] == 'queued' else task['status']}")
    try:
        task = _last_attempt(call, task["id"])
    except KeyboardInterrupt:
        again = call.command(f"wait {task['id']}")
        raise Interrupted(f"interrupted; the work goes on. To wait again: {again}", id=task["id"]) from None
    if call.json:
        output.document(task)
        return 0 if task["status"] == "completed" else 1
    once, task_id = Once(), task["id"]
    try:
        status = through_restarts(call.home, lambda client: print_result(call, client, task_id, once, noted=True))
    except DaemonUnreachable as error:
        raise DaemonUnreachable(
            f"task {task_id} {task['status']}, but what it printed could not be read: {error.message}", id=task_id
        ) from error
    if status == 0:
        output.note(f"task {task['id']} completed")
    return status


def _last_attempt(call: Call, task_id: str) -> dict[str, Any]:
    """The task when it has ended, or the last of its retries when that has."""
    while True:
        answer = until_ended(call, [task_id])
        if not answer["completed"]:
            raise TaskNotFound(f"no task {task_id}: it was removed while we waited for it", id=task_id)
        task: dict[str, Any] = answer["completed"][0]
        following = _next_attempt(call, task)
        if following is None:
            return task
        call.note(f"task {task['id']} {task['status']}; tried again as {following}")
        task_id = following


def _next_attempt(call: Call, task: dict[str, Any]) -> str | None:
    """The id of the task that tries it again. It is there as soon as the task has ended and is cleaned up after."""
    if not task.get("retries_left") or task["status"] == "completed":
        return None

    def ask(client: Client) -> dict[str, Any]:
        found: dict[str, Any] = client.call("task.get", id=task["id"])
        return found

    following: str | None = through_restarts(call.home, ask).get("retried_by")
    return following


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _here() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody removed it under us
        return None
