"""``delegate`` and ``spawn``: hand work over, and wait for it and bring back what it printed."""

from __future__ import annotations

import os

from pawl.cli import output
from pawl.cli.call import Call, Interrupted, given
from pawl.cli.client import Client, ConnectionLost, through_restarts
from pawl.cli.commands.result import Once, print_result, streamed
from pawl.cli.commands.tasks import why
from pawl.cli.commands.wait import until_ended
from pawl.errors import DaemonUnreachable, FrameTooLarge, TaskNotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


def delegate(
    call: Call, *, agent: str | None, prompt: str | None, wait: bool, parallel: list[str] | None, timeout: int | None,
    queue_timeout: int | None, retries: int | None, priority: int | None, cwd: str | None, env: list[tuple[str, str]],
    idempotency_key: str | None, parent: str | None, label: list[tuple[str, str]], input: list[str],
) -> int:  # fmt: skip
    who, prompt = _who(agent, prompt, parallel)
    request = given(
        timeout_s=_seconds(timeout), queue_timeout_s=_seconds(queue_timeout), retries=retries, priority=priority,
        cwd=cwd, caller_cwd=_here(), env=dict(env), idempotency_key=idempotency_key, parent=parent,
        labels=dict(label), inputs=input,
    )  # fmt: skip
    data = _prompt(f"delegate {agent}" if parallel is None else f"delegate --parallel {','.join(parallel)}", prompt)
    request = {**who, **request, **_spelled(data), "source": {"type": "cli"}}
    method = "task.delegate" if parallel is None else "task.fan_out"
    done = _submit(call, method, request, data)
    if wait:
        return _wait(call, done) if parallel is None else _wait_for_all(call, done)
    call.show(done, [task["id"] for task in ([done] if parallel is None else done)])
    return 0


def spawn(
    call: Call, *, prompt: str | None, timeout: int | None, allow_tools: list[str] | None,
    deny_tools: list[str] | None, env: list[str] | None, max_actions: int | None,
) -> int:  # fmt: skip
    data = _prompt("spawn", prompt)
    overrides = {
        "timeout_s": _seconds(timeout), "allow_tools": allow_tools, "deny_tools": deny_tools, "env": env,
        "max_actions": max_actions,
    }  # fmt: skip
    # Not ``given``: an empty list is no tool, or no variable, at all.
    narrower: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    request = {**narrower, **_spelled(data), "request_key": os.urandom(16).hex(), "source": {"type": "cli"}}
    return _wait(call, _submit(call, "task.spawn", request, data))


def _who(agent: str | None, prompt: str | None, parallel: list[str] | None) -> tuple[dict[str, Any], str | None]:
    """For whom it is, and the prompt: with ``--parallel`` that is the only word."""
    if parallel is None:
        if agent is None:
            raise UsageError(
                "cannot delegate to nobody: name an agent (`pawl agent list` shows them), or --parallel A,B.\n"
                "Try `pawl delegate --help`."
            )
        return {"agent": agent}, prompt
    if prompt is not None:
        raise UsageError(
            f"cannot use both {agent!r} and {prompt!r}: with --parallel the agents stand there, and one word follows, "
            'the prompt, in quotes: pawl delegate --parallel A,B "all of it"'
        )
    if not parallel:
        raise UsageError("cannot delegate to nobody: write agents behind --parallel, like --parallel coder,tester")
    return {"agents": parallel}, agent


def _prompt(words: str, prompt: str | None) -> bytes:
    """The prompt, from the command line or standard input."""
    if prompt is None or prompt == "-":
        if prompt is None and os.isatty(0):
            raise UsageError(
                f"cannot {words.split()[0]} without a prompt: write it in quotes, or give it on standard input, like\n"
                f'  pawl {words} "What to do"\n'
                f"  pawl {words} < prompt.md\n"
                f"  pawl {words} -            (and type it, ending with Ctrl-D)"
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


def _submit(call: Call, method: str, request: dict[str, Any], prompt: bytes) -> Any:
    """Ask for it; through restarts where a key makes sure that asking again starts nothing twice."""

    def ask(client: Client) -> Any:
        return client.call(method, **request)

    repeatable = "idempotency_key" in request or "request_key" in request
    try:
        return through_restarts(call.home, ask) if repeatable else ask(call.client(patience_s=None))
    except FrameTooLarge as error:
        file = "in a file" if method == "task.spawn" else "over as a file (--input)"
        raise FrameTooLarge(
            f"cannot send a prompt of {len(prompt)} bytes: with it the request has {error.details['size_bytes']} "
            f"bytes, and the limit is {error.details['limit_bytes']}; hand a large prompt {file}",
            prompt_bytes=len(prompt), **error.details,
        ) from None  # fmt: skip
    except DaemonUnreachable as lost:
        sent = isinstance(lost, ConnectionLost) or isinstance(lost.__cause__, ConnectionLost)
        told = _not_known(call, method, request) if sent else None
        if told is None:
            raise
        raise type(lost)(f"{lost.message}. {told}", **lost.details) from lost


def _not_known(call: Call, method: str, request: dict[str, Any]) -> str | None:
    """What to say of a request that may have been accepted; nothing where it is safe to send it again anyway."""
    if method == "task.spawn":
        listed = call.command("list --kind subagent")
        return f"Whether the sub-agent was started is not known: `{listed}` shows it"
    if "idempotency_key" in request:
        return None
    what, it = ("the task was", "it") if method == "task.delegate" else ("the tasks were", "them")
    return (
        f"Whether {what} accepted is not known: `{call.command('list')}` shows {it}. "
        f"With --idempotency-key it is safe to send {it} again"
    )


def _wait_for_all(call: Call, tasks: list[dict[str, Any]]) -> int:
    """Wait for several, and print each output under a line that says whose it is."""
    ids = [task["id"] for task in tasks]
    for task in tasks:
        call.note(f"task {task['id']} ({output.clean(task['agent'], one_line=True)}) {_stands(task)}")
    try:
        ended = _last_attempts(call, ids)
    except KeyboardInterrupt:
        again = call.command(f"wait {' '.join(ids)}")
        raise Interrupted(f"interrupted; the work goes on. To wait again: {again}", ids=ids) from None
    if call.json:
        output.document(ended)
    else:
        for at, task in enumerate(ended):
            _print_one_of_several(call, task, first=at == 0)
    return 0 if all(task["status"] == "completed" for task in ended) else 1


def _print_one_of_several(call: Call, task: dict[str, Any], *, first: bool) -> None:
    """What one wrote, below its head; the bytes are as they were, but the next head begins a line."""
    agent, status = output.clean(task["agent"], one_line=True), call.screen.status(task["status"])
    head = f"==> {agent} {call.screen.id(task['id'])} {status} <=="
    output.lines([head] if first else ["", head])
    once = Once()
    _read(call, task, lambda client: streamed(call, client, task["id"], once))
    if once.last not in b"\n":
        output.line()
    if task["status"] != "completed":
        reason = why(task)
        output.note(f"task {task['id']} {task['status']}" + (f": {output.clean(reason)}" if reason else ""))


def _read(call: Call, task: dict[str, Any], act: Callable[[Client], T]) -> T:
    """Read what a task printed, through restarts."""
    try:
        return through_restarts(call.home, act)
    except DaemonUnreachable as error:
        raise DaemonUnreachable(
            f"task {task['id']} {task['status']}, but what it printed could not be read: {error.message}", id=task["id"]
        ) from error


def _wait(call: Call, task: dict[str, Any]) -> int:
    """Wait for one, and print what it wrote and nothing else."""
    call.note(f"task {task['id']} {_stands(task)}")
    try:
        (task,) = _last_attempts(call, [task["id"]])
    except KeyboardInterrupt:
        again = call.command(f"wait {task['id']}")
        raise Interrupted(f"interrupted; the work goes on. To wait again: {again}", id=task["id"]) from None
    if call.json:
        output.document(task)
        return 0 if task["status"] == "completed" else 1
    task_id, once = task["id"], Once()
    status = _read(call, task, lambda client: print_result(call, client, task_id, once, noted=True))
    if status == 0:
        output.note(f"task {task_id} completed")
    return status


def _stands(task: dict[str, Any]) -> str:
    return "waits for a free slot" if task["status"] == "queued" else str(task["status"])


def _last_attempts(call: Call, ids: list[str]) -> list[dict[str, Any]]:
    """The tasks when they have ended, each the last of its retries, in the order of the ids."""
    ended: dict[str, dict[str, Any]] = {}
    waits = {each: each for each in ids}  # the first attempt: the one that is waited for
    while waits:
        found = {task["id"]: task for task in until_ended(call, list(waits.values()))["completed"]}
        for first, task_id in list(waits.items()):
            if task_id not in found:
                raise TaskNotFound(f"no task {task_id}: it was removed while we waited for it", id=task_id)
            task = found[task_id]
            following = _next_attempt(call, task)
            if following is None:
                ended[first] = task
                del waits[first]
            else:
                call.note(f"task {task_id} {task['status']}; tried again as {following}")
                waits[first] = following
    return [ended[each] for each in ids]


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
