"""The calls about tasks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from pawl.control_plane import budget, store
from pawl.control_plane.budget import MICROS, cost_left
from pawl.control_plane.model import KINDS, TASK, Task, public
from pawl.control_plane.statements import Q
from pawl.engines.delegation.explain import explain
from pawl.engines.delegation.legacy import LegacyResult, find_legacy
from pawl.engines.delegation.model import Caller, Request, SpawnRequest
from pawl.errors import InsideOnly, InvalidParams, TaskNotEnded, TaskNotFound
from pawl.ids import PREFIX_CHARACTERS_MIN
from pawl.ipc import messages
from pawl.ipc.server import Call
from pawl.policy import Overrides
from pawl.storage import open_plain

if TYPE_CHECKING:
    from pawl.daemon.app import App

_CHUNK_BYTES = 1024 * 1024
_LOG_POLL_FIRST_MS = 50
_LOG_POLL_MAX_MS = 500
_CHILDREN_SHOWN = 50
_BELOW_SHOWN = 20_000  # ids, in one answer
_ANSWER_BYTES = 6 * 1024**2  # of rows in one answer; the limit of a frame is above that
_FREE_TEXTS = ("labels", "source", "usage", "progress", "leftovers", "idempotency_key", "cwd", "reason")
_MESSAGE_SHOWN = 100  # characters, in such a row
_NEWEST = 2**62


async def delegate(app: App, call: Call, params: messages.Delegate) -> dict[str, Any]:
    """Take a request; with ``wait`` answer when its last attempt has ended."""
    app.refuse_when_stopping()
    task = (await app.delegation.delegate(_request(params, params.agent), call.caller)).task
    if not params.wait:
        return show(app, task)
    call.changes_nothing_more()
    return show(app, await _last_attempt(app, call, task))


async def fan_out(app: App, call: Call, params: messages.FanOut) -> list[dict[str, Any]]:
    """The same work for several agents: all are taken, or none is."""
    app.refuse_when_stopping()
    requests = [
        _request(params, agent, at + 1 if len(params.agents) > 1 else 0) for at, agent in enumerate(params.agents)
    ]
    tasks = [done.task for done in await app.delegation.fan_out(requests, call.caller)]
    if params.wait:
        call.changes_nothing_more()
        ended = await asyncio.gather(*(_last_attempt(app, call, task) for task in tasks), return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        tasks = [each for each in ended if isinstance(each, Task)]
    return show_all(app, tasks)


async def spawn(app: App, call: Call, params: messages.Spawn) -> dict[str, Any]:
    """Start a sub-agent of the calling task."""
    app.refuse_when_stopping()
    request = SpawnRequest(
        prompt=_prompt(params),
        timeout_ms=_ms(params.timeout_s),
        overrides=Overrides(
            allow_tools=None if params.allow_tools is None else tuple(params.allow_tools),
            deny_tools=tuple(params.deny_tools),
            env=None if params.env is None else tuple(params.env),
            max_actions=params.max_actions,
        ),
        request_key=params.request_key,
        source=params.source,
    )
    return show(app, (await app.delegation.spawn(request, call.caller)).task)


async def get(app: App, call: Call, params: messages.One) -> dict[str, Any]:
    """Everything about one task. A task may look at itself."""
    found = await readable(app, call, params.id, itself=True)
    return found.public() if isinstance(found, LegacyResult) else await full(app, found)


async def why(app: App, call: Call, params: messages.One) -> dict[str, Any]:
    """Every gate that a task passed or waits at. A task may look at itself."""
    caller: Caller = call.caller
    if caller.task is not None and caller.task.id.startswith(params.id) and len(params.id) >= PREFIX_CHARACTERS_MIN:
        return await explain(app.plane, app.delegation, await app.plane.find(caller.task.id))
    return await explain(app.plane, app.delegation, await app.plane.find(params.id, caller.viewer, reading=True))


async def usage(app: App, call: Call, params: messages.Usage) -> dict[str, Any]:
    """Count what the calling task says it has used."""
    task = _itself(call.caller, "usage", "reports what the calling task has used")
    cost_micros = budget.micros(params.cost)
    await app.writer.submit(store.record_usage, task.id, params.tokens, cost_micros, params.model, params.request_key)
    own = await app.plane.find(task.id)
    left = cost_left(await budget.look(app.reader, task.id, app.clock.wall_ms()))
    sums = json.loads(own.usage or "{}")
    return {
        "task_id": task.id,
        "tokens": sums.get("tokens", 0),
        "cost": sums.get("cost", 0),
        "tree": await _tree(app, task.id),
        "left": {"cost": None if left is None else left / MICROS},
    }


async def progress(app: App, call: Call, params: messages.Progress) -> dict[str, Any]:
    """Remember how far the calling task says it is."""
    task = _itself(call.caller, "progress", "tells how far the calling task is")
    mono_ms = app.clock.monotonic_ms()
    said = await app.writer.submit(store.record_progress, task.id, params.text, params.phase, mono_ms)
    return {"task_id": task.id, "progress": said}


async def list_(app: App, call: Call, params: messages.Listing) -> list[dict[str, Any]]:
    """Tasks, newest first, behind ``before``."""
    _known(params.statuses or [], TASK.states, "status")
    _known([params.kind] if params.kind else [], KINDS, "kind")
    viewer = call.caller.viewer
    values = {
        "statuses": json.dumps(params.statuses) if params.statuses else None,
        "agent": params.agent,
        "kind": params.kind,
        "labels": json.dumps(params.labels) if params.labels else None,
        "limit": -1 if params.all else params.limit,
        "before": (await app.plane.find(params.before, viewer)).seq if params.before else _NEWEST,
    }
    if viewer is not None:
        rows = await app.reader.all(Q.list_of, values | {"viewer": viewer})
    elif params.statuses and set(params.statuses) <= {"queued", "running"}:
        rows = []
        for status in set(params.statuses):
            rows += await app.reader.all(Q.list_live, values | {"status": status})
        rows = sorted(rows, reverse=True)[: None if params.all else params.limit]
    else:
        rows = await app.reader.all(Q.list, values)
    return [show(app, Task._make(row)) for row in rows]


async def wait(app: App, call: Call, params: messages.Wait) -> dict[str, Any]:
    """Wait until all are terminal (with ``any``: one), or the time is over."""
    found: dict[str, Task | LegacyResult] = {}
    missing: list[str] = []
    for text in params.ids:
        try:
            task = await readable(app, call, text)
            found[task.id] = task
        except TaskNotFound:
            missing.append(text)
    waits = {each: asyncio.ensure_future(_ended(app, task)) for each, task in found.items()}
    await asyncio.sleep(0)  # what is over already is told whatever the time limit
    timer = (
        asyncio.ensure_future(app.timers.sleep(_ms(params.timeout_s) or 0)) if params.timeout_s is not None else None
    )
    try:
        with _lending(app, call.caller):
            await _until(list(waits.values()), timer, first=params.any)
        done = {each for each, future in waits.items() if future.done()}
        ended = [waits[each].result() for each in found if each in done]
    finally:
        for future in (*waits.values(), *([timer] if timer else [])):
            future.cancel()
    pending = [each for each in found if each not in done]
    tasks = iter(show_all(app, [each for each in ended if isinstance(each, Task)]))
    enough = bool(done) if params.any else not pending
    return {
        "status": "complete" if enough or not found else "timeout",
        "completed": [each.public() if isinstance(each, LegacyResult) else next(tasks) for each in ended],
        "pending": pending,
        "missing": missing,
        "failed": [each.id for each in ended if each.status != "completed"],
    }


async def cancel(app: App, call: Call, params: messages.Cancel) -> list[dict[str, Any]]:
    """Cancel tasks and all below them; each answer says what became of it. Ids are looked up before anything is
    cancelled."""
    tasks = [await app.plane.find(text, call.caller.viewer) for text in params.ids]
    actor = call.caller.actor
    shown = max(1, _BELOW_SHOWN // len(tasks))

    async def one(task: Task) -> tuple[Task, dict[str, Any]]:
        ended = await app.plane.cancel(task, params.reason, actor)
        living = await app.plane.living_below(task)
        outcome = "cancelled" if ended.won else f"already_{ended.task.status}"
        return ended.task, {
            "outcome": outcome,
            "ended_below": ended.below[:shown],
            "ended_below_more": len(ended.below[shown:]),
            "living_below": living[:shown],
            "living_below_more": len(living[shown:]),
        }

    done = await asyncio.gather(*(one(task) for task in tasks))
    rows = show_all(app, [task for task, _ in done])
    return [row | about for row, (_, about) in zip(rows, done, strict=True)]


async def result(app: App, call: Call, params: messages.One) -> dict[str, Any]:
    """The output of an ended task, checked against its digest before the first byte is sent."""
    task = await readable(app, call, params.id)
    if isinstance(task, LegacyResult):
        await call.send(task.output)
        return task.about()
    if not task.ended:
        raise TaskNotEnded(f"cannot show the result of {task.id}: it is {task.status}", id=task.id, status=task.status)
    if task.cleanup == "pending":
        task = await app.plane.wait(task)
    output = task.output
    if output is None and task.inline_output is not None:
        await call.send(task.inline_output)
        inline = show(app, task)["output"]
        return {"id": task.id, "status": task.status, "sha256": inline["sha256"], "size_bytes": inline["size_bytes"]}
    if output is None:
        return {"id": task.id, "status": task.status, "sha256": None, "size_bytes": 0}
    with await asyncio.to_thread(app.artifacts.open_verified, output) as file:
        await _send_file(call, file)
    return {"id": task.id, "status": task.status, "sha256": output.sha256, "size_bytes": output.size_bytes}


async def logs(app: App, call: Call, params: messages.Logs) -> dict[str, Any]:
    """What a task has written so far; with ``follow`` until it has ended."""
    task = await app.plane.find(params.id, call.caller.viewer)
    sent = 0
    delay_ms = _LOG_POLL_FIRST_MS
    if params.follow:
        with _lending(app, call.caller):
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
            pause = asyncio.ensure_future(app.timers.sleep(delay_ms))
            with _lending(app, call.caller):
                await asyncio.wait({ended, pause}, return_when="FIRST_COMPLETED")
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


def show_all(app: App, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Several tasks for one answer. What was asked for is done by then: where all of it would not fit, each row stands
    without its free texts and says so (``cut``), and the answer is no error."""
    rows = [show(app, task) for task in tasks]
    if len(rows) == 1 or len(json.dumps(rows)) <= _ANSWER_BYTES:
        return rows
    return [row | dict.fromkeys(_FREE_TEXTS) | {"error": _short(row["error"]), "cut": True} for row in rows]


def _short(error: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if error is None else {**error, "message": error["message"][:_MESSAGE_SHOWN]}


async def full(app: App, task: Task) -> dict[str, Any]:
    """A task with what other rows say of it: its next attempt and its inputs, and the beginning of its prompt."""
    retried = await app.reader.one(Q.retry_of, (task.id,))
    children = await app.reader.all(Q.children, (task.id, _CHILDREN_SHOWN))
    more = (await app.reader.one(Q.children_count, (task.id,)))[0] - len(children)
    inputs = await app.reader.all(Q.inputs, (task.seq,))
    return show(app, task) | {
        "retried_by": retried[0] if retried else None,
        "inputs": [{"name": name, "sha256": sha256, "size_bytes": size} for name, sha256, size in inputs],
        "prompt": task.prompt[:65536].decode(errors="replace"),
        "prompt_bytes": len(task.prompt),
        "children": [dict(zip(("id", "agent", "kind", "status"), row, strict=True)) for row in children],
        "children_more": more,
        "usage_tree": await _tree(app, task.id),
    }


async def readable(app: App, call: Call, text: str, *, itself: bool = False) -> Task | LegacyResult:
    """The task that a caller may read under this id, or what an older program left of one.

    ``itself``: whether a task may look itself up. Raises ``task_not_found`` and ``ambiguous_id``.
    """
    caller: Caller = call.caller
    if itself and caller.task is not None and len(text) >= PREFIX_CHARACTERS_MIN and caller.task.id.startswith(text):
        return await app.plane.find(caller.task.id)
    try:
        return await app.plane.find(text, caller.viewer, reading=True)
    except TaskNotFound:
        if await app.reader.one(Q.by_id, (text,)) is None:  # where a row exists it alone is asked
            legacy = await asyncio.to_thread(find_legacy, text, await app.delegation.workspaces(caller))
            if legacy is not None:
                return legacy
        raise


async def _ended(app: App, task: Task | LegacyResult) -> Task | LegacyResult:
    return task if isinstance(task, LegacyResult) else await app.plane.wait(task)


@contextlib.contextmanager
def _lending(app: App, caller: Caller) -> Iterator[None]:
    """While a task waits for others it does not work: what it waits for may have its slot."""
    task = caller.task
    if task is None or task.id not in app.plane.supervisor.live:
        yield
        return
    app.plane.dispatcher.lend(task)
    try:
        yield
    finally:
        app.plane.dispatcher.reclaim(task)


async def _tree(app: App, task_id: str) -> dict[str, Any]:
    """What a task and everything below it have used."""
    tasks, tokens, micros = await app.reader.one(Q.usage_of_tree, {"id": task_id})
    return {"tasks": tasks, "tokens": tokens, "cost": micros / MICROS}


def _itself(caller: Caller, command: str, does: str) -> Task:
    if caller.task is None:
        raise InsideOnly(f"cannot do that from outside a task: `pawl {command}` {does}")
    return caller.task


def _request(params: messages.Work, agent: str, place: int = 0) -> Request:
    return Request(
        agent=agent,
        prompt=_prompt(params),
        timeout_ms=_ms(params.timeout_s),
        queue_timeout_ms=_ms(params.queue_timeout_s),
        retries=params.retries,
        priority=params.priority,
        cwd=params.cwd,
        caller_cwd=params.caller_cwd,
        env=params.env,
        idempotency_key=params.idempotency_key,
        place=place,
        parent_id=params.parent,
        labels=params.labels,
        inputs=tuple(params.inputs),
        source=params.source,
    )


async def _last_attempt(app: App, call: Call, task: Task) -> Task:
    """Wait for a task, and follow its retries to the one that was the last, waiting for each."""
    with _lending(app, call.caller):
        task = await app.plane.wait(task)
        while task.retries_left and (retried := await app.reader.one(Q.retry_of, (task.id,))):
            task = await app.plane.wait(await app.plane.find(retried[0]))
    return task


async def _until(waits: list[asyncio.Future[Any]], timer: asyncio.Future[None] | None, *, first: bool) -> None:
    """Wait for all (or for the ``first``), or for the timer."""
    pending = {each for each in waits if not each.done()}
    while pending and not (timer and timer.done()) and not (first and len(pending) < len(waits)):
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


def _prompt(params: messages.Prompted) -> bytes:
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
