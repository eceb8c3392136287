"""The calls about tasks."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from pawl.control_plane.model import KINDS, TASK, Task, public
from pawl.control_plane.statements import Q
from pawl.engines.delegation.model import Request
from pawl.errors import InvalidParams, TaskNotEnded, TaskNotFound
from pawl.ipc import messages
from pawl.ipc.server import Call
from pawl.storage import open_plain

if TYPE_CHECKING:
    from pawl.daemon.app import App

_CHUNK_BYTES = 1024 * 1024
_LOG_POLL_FIRST_MS = 50
_LOG_POLL_MAX_MS = 500


async def delegate(app: App, call: Call, params: messages.Delegate) -> dict[str, Any]:
    """Take a request; with ``wait`` answer when its last attempt has ended."""
    app.refuse_when_stopping()
    request = Request(
        agent=params.agent,
        prompt=_prompt(params),
        timeout_ms=_ms(params.timeout_s),
        queue_timeout_ms=_ms(params.queue_timeout_s),
        retries=params.retries,
        priority=params.priority,
        cwd=params.cwd,
        caller_cwd=params.caller_cwd,
        env=params.env,
        idempotency_key=params.idempotency_key,
        parent_id=params.parent,
        labels=params.labels,
        inputs=tuple(params.inputs),
        source=params.source,
    )
    task = (await app.delegation.delegate(request, call.caller)).task
    if not params.wait:
        return show(app, task)
    call.changes_nothing_more()
    return show(app, await _last_attempt(app, await app.plane.wait(task)))


async def get(app: App, call: Call, params: messages.One) -> dict[str, Any]:
    """Everything about one task."""
    return await full(app, await app.plane.find(params.id))


async def list_(app: App, call: Call, params: messages.Listing) -> list[dict[str, Any]]:
    """Tasks, newest first."""
    _known(params.statuses or [], TASK.states, "status")
    _known([params.kind] if params.kind else [], KINDS, "kind")
    values = {
        "statuses": json.dumps(params.statuses) if params.statuses else None,
        "agent": params.agent,
        "kind": params.kind,
        "labels": json.dumps(params.labels) if params.labels else None,
        "limit": -1 if params.all else params.limit,
    }
    if params.statuses and set(params.statuses) <= {"queued", "running"}:
        rows = []
        for status in set(params.statuses):
            rows += await app.reader.all(Q.list_live, values | {"status": status})
        rows = sorted(rows, reverse=True)[: None if params.all else params.limit]
    else:
        rows = await app.reader.all(Q.list, values)
    return [show(app, Task._make(row)) for row in rows]


async def wait(app: App, call: Call, params: messages.Wait) -> dict[str, Any]:
    """Wait until all are terminal, or the time is over."""
    found: dict[str, Task] = {}
    missing: list[str] = []
    for text in params.ids:
        try:
            task = await app.plane.find(text)
            found[task.id] = task
        except TaskNotFound:
            missing.append(text)
    waits = {each: asyncio.ensure_future(app.plane.wait(task)) for each, task in found.items()}
    await asyncio.sleep(0)  # what is over already is told whatever the time limit
    timer = (
        asyncio.ensure_future(app.timers.sleep(_ms(params.timeout_s) or 0)) if params.timeout_s is not None else None
    )
    try:
        await _until(list(waits.values()), timer)
        done = {each for each, future in waits.items() if future.done()}
        completed = [show(app, waits[each].result()) for each in found if each in done]
    finally:
        for future in (*waits.values(), *([timer] if timer else [])):
            future.cancel()
    pending = [each for each in found if each not in done]
    return {
        "status": "timeout" if pending else "complete",
        "completed": completed,
        "pending": pending,
        "missing": missing,
    }


async def cancel(app: App, call: Call, params: messages.Cancel) -> list[dict[str, Any]]:
    """Cancel tasks; each answer says what became of it. Ids are looked up before anything is cancelled."""
    tasks = [await app.plane.find(text) for text in params.ids]
    actor = call.caller.actor

    async def one(task: Task) -> dict[str, Any]:
        ended = await app.plane.cancel(task, params.reason, actor)
        if ended.won:
            outcome = "cancelled"
        elif ended.task.status == "cancelled":
            outcome = "already_cancelled"
        else:
            outcome = f"already_{ended.task.status}"
        return show(app, ended.task) | {"outcome": outcome}

    return list(await asyncio.gather(*(one(task) for task in tasks)))


async def result(app: App, call: Call, params: messages.One) -> dict[str, Any]:
    """The output of an ended task, checked against its digest before the first byte is sent."""
    task = await app.plane.find(params.id)
    if not task.ended:
        raise TaskNotEnded(f"cannot show the result of {task.id}: it is {task.status}", id=task.id, status=task.status)
    if task.cleanup == "pending":
        task = await app.plane.wait(task)
    output = task.output
    if output is None:
        return {"id": task.id, "status": task.status, "sha256": None, "size_bytes": 0}
    with await asyncio.to_thread(app.artifacts.open_verified, output) as file:
        await _send_file(call, file)
    return {"id": task.id, "status": task.status, "sha256": output.sha256, "size_bytes": output.size_bytes}


async def logs(app: App, call: Call, params: messages.Logs) -> dict[str, Any]:
    """What a task has written so far; with ``follow`` until it has ended."""
    task = await app.plane.find(params.id)
    sent = 0
    delay_ms = _LOG_POLL_FIRST_MS
    if params.follow:
        await app.plane.begun(task)
    ended = asyncio.ensure_future(app.plane.wait(task)) if params.follow else None
    try:
        while True:
            # asked before the file is read: what is there after the end was written before it
            over = ended.done() if ended else True
            live = app.plane.supervisor.live.get(task.id)
            if live is None:
                break
            fresh = await _send_spool(call, live.spool.stdout if params.stream == "stdout" else live.spool.stderr, sent)
            sent += fresh
            if over:
                break
            delay_ms = _LOG_POLL_FIRST_MS if fresh else min(delay_ms * 2, _LOG_POLL_MAX_MS)
            assert ended is not None
            await asyncio.wait(
                {ended, pause := asyncio.ensure_future(app.timers.sleep(delay_ms))},
                return_when="FIRST_COMPLETED",
            )
            pause.cancel()
    finally:
        if ended is not None:
            ended.cancel()
    task = await app.plane.find(task.id)
    artifact = task.output if params.stream == "stdout" else task.stderr
    if artifact is not None and sent < artifact.size_bytes:
        with await asyncio.to_thread(app.artifacts.open_verified, artifact) as file:
            file.seek(sent)
            sent += await _send_file(call, file)
    return {"id": task.id, "status": task.status, "stream": params.stream, "size_bytes": sent}


def _known(values: list[str], known: tuple[str, ...], what: str) -> None:
    for value in values:
        if value not in known:
            raise InvalidParams(f"cannot list by the {what} {value!r}: there is {', '.join(known)}", known=list(known))


def show(app: App, task: Task) -> dict[str, Any]:
    """A task as the contract shows it."""
    return public(task, app.artifacts.path)


async def full(app: App, task: Task) -> dict[str, Any]:
    """A task with what other rows say of it: its next attempt and its inputs, and the beginning of its prompt."""
    retried = await app.reader.one(Q.retry_of, (task.id,))
    inputs = await app.reader.all(Q.inputs, (task.seq,))
    return show(app, task) | {
        "retried_by": retried[0] if retried else None,
        "inputs": [{"name": name, "sha256": sha256, "size_bytes": size} for name, sha256, size in inputs],
        "prompt": task.prompt[:65536].decode(errors="replace"),
        "prompt_bytes": len(task.prompt),
    }


async def _last_attempt(app: App, task: Task) -> Task:
    """Follow the retries of a task to the one that was the last, waiting for each."""
    while task.retries_left and (retried := await app.reader.one(Q.retry_of, (task.id,))):
        task = await app.plane.wait(await app.plane.find(retried[0]))
    return task


async def _until(waits: list[asyncio.Future[Task]], timer: asyncio.Future[None] | None) -> None:
    """Wait for all, or for the timer."""
    pending = set(waits)
    while pending and not (timer and timer.done()):
        either: set[asyncio.Future[Any]] = {*pending, *([timer] if timer else [])}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        pending = {each for each in pending if not each.done()}


async def _send_file(call: Call, file: BinaryIO) -> int:
    sent = 0
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        await call.send(chunk)
        sent += len(chunk)
    return sent


async def _send_spool(call: Call, path: str, start: int) -> int:
    """Send what a spool file holds beyond ``start``. A file that is not there yet holds nothing."""
    try:
        if os.stat(path).st_size <= start:
            return 0
        with open_plain(path) as file:
            file.seek(start)
            return await _send_file(call, file)
    except FileNotFoundError:
        return 0


def _prompt(params: messages.Delegate) -> bytes:
    if params.prompt_base64 is None:
        try:
            return (params.prompt or "").encode()
        except UnicodeEncodeError:
            raise InvalidParams(
                "cannot use the prompt: it holds half of a surrogate pair; send prompt_base64"
            ) from None
    try:
        return base64.b64decode(params.prompt_base64, validate=True)
    except ValueError:
        raise InvalidParams("cannot use the parameter prompt_base64: it is not base64") from None


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))
