"""The calls about the audit log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pawl.control_plane import audit
from pawl.daemon.handlers.task import readable
from pawl.errors import OperatorOnly
from pawl.ids import ID_CHARACTERS
from pawl.ipc import messages
from pawl.ipc.server import Call

if TYPE_CHECKING:
    from pawl.daemon.app import App

_PAGE = 1000


async def list_(app: App, call: Call, params: messages.Events) -> Any:
    """Entries behind ``after``, or the ``last`` so many, oldest first; with ``follow`` those to come too.

    A task may read those of a task that it may see, or of itself.
    """
    viewer = call.caller.viewer
    if viewer is not None and params.subject is None:
        raise OperatorOnly(
            "cannot read the whole audit log from inside a task: name one task, like `pawl events --task TASK`"
        )
    by_prefix = params.subject != "daemon" and len(params.subject or "") < ID_CHARACTERS
    if params.subject is not None and (viewer is not None or by_prefix):
        task = await readable(app, call, params.subject, itself=True)
        params = params.model_copy(update={"subject": task.id})
    if params.last is not None:
        found = await audit.newest(app.reader, count=params.last, subject=params.subject)
        if not params.follow:
            return [event.public() for event in found]
        for event in found:
            await call.send_item(event.public())
        params = params.model_copy(update={"after": found[-1].seq if found else await audit.position(app.reader)})
    if not params.follow:
        found = await audit.read(app.reader, after=params.after, limit=params.limit, subject=params.subject)
        return [event.public() for event in found]
    return await _follow(app, call, params)


async def verify(app: App, call: Call, params: messages.Nothing) -> dict[str, Any]:
    """Whether the hash chain holds, and where it breaks first."""
    fault = await audit.first_fault(app.reader)
    if fault is None:
        return {"intact": True, "first_fault": None}
    return {"intact": False, "first_fault": {"seq": fault[0], "message": fault[1]}}


async def _follow(app: App, call: Call, params: messages.Events) -> None:
    news = asyncio.Event()
    stop = app.writer.listen(audit.TOPIC, lambda _: news.set())
    after = params.after
    try:
        while True:
            news.clear()
            found = await audit.read(app.reader, after=after, limit=_PAGE, subject=params.subject)
            for event in found:
                await call.send_item(event.public())
                after = event.seq
            if len(found) < _PAGE:
                await news.wait()
    finally:
        stop()
