"""All that the daemon can do, on one page: method, parameters, handler."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any

from pawl.control_plane.model import TERMINAL
from pawl.control_plane.statements import Q
from pawl.daemon.handlers import agent, cron, daemon, event, task
from pawl.errors import CallerEnded, OperatorOnly
from pawl.ipc import messages
from pawl.ipc.server import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pawl.daemon.app import App
    from pawl.ipc.server import Call


def operator(handler: Callable[..., Awaitable[Any]], what: str) -> Callable[..., Awaitable[Any]]:
    """What no program inside a task may do."""

    @wraps(handler)
    async def only(app: App, call: Call, params: Any) -> Any:
        if call.caller.task is not None:
            raise OperatorOnly(f"cannot {what} from inside a task: that is the operator's to do")
        return await handler(app, call, params)

    return only


_TABLE = {
    "daemon.status": Route(messages.Nothing, daemon.status),
    "daemon.stop": Route(messages.Stop, operator(daemon.stop, "stop the daemon")),
    "config.reload": Route(messages.Nothing, operator(daemon.reload, "read the configuration again")),
    "task.delegate": Route(messages.Delegate, task.delegate),
    "task.fan_out": Route(messages.FanOut, task.fan_out),
    "task.spawn": Route(messages.Spawn, task.spawn),
    "task.get": Route(messages.One, task.get),
    "task.why": Route(messages.One, task.why),
    "task.list": Route(messages.Listing, task.list_),
    "task.wait": Route(messages.Wait, task.wait, waits=True),
    "task.cancel": Route(messages.Cancel, task.cancel),
    "task.result": Route(messages.One, task.result, waits=True),
    "task.logs": Route(messages.Logs, task.logs, waits=True),
    "task.usage": Route(messages.Usage, task.usage),
    "task.progress": Route(messages.Progress, task.progress),
    "agent.list": Route(messages.Nothing, agent.list_),
    "agent.show": Route(messages.Name, agent.show),
    "cron.list": Route(messages.Nothing, operator(cron.list_, "look at the cron jobs")),
    "cron.show": Route(messages.Name, operator(cron.show, "look at a cron job")),
    "cron.add": Route(messages.CronAdd, operator(cron.add, "add a cron job")),
    "cron.update": Route(messages.CronUpdate, operator(cron.update, "change a cron job")),
    "cron.remove": Route(messages.Name, operator(cron.remove, "remove a cron job")),
    "cron.enable": Route(messages.Name, operator(cron.enable, "enable a cron job")),
    "cron.disable": Route(messages.Name, operator(cron.disable, "disable a cron job")),
    "cron.run": Route(messages.Name, operator(cron.run, "run a cron job")),
    "cron.runs": Route(messages.CronRuns, operator(cron.runs, "look at the fires of cron jobs")),
    "event.list": Route(messages.Events, event.list_, waits=True),
    "event.verify": Route(messages.Nothing, operator(event.verify, "verify the audit log"), waits=True),
}


_TO_THE_LAST = {"task.usage"}  # what a program spends while its task is being ended was spent all the same


def routes(app: App) -> dict[str, Route]:
    """The table, bound to one daemon."""
    return {name: route._replace(handler=_while_it_runs(app, name, route)) for name, route in _TABLE.items()}


def _while_it_runs(app: App, name: str, route: Route) -> Callable[..., Awaitable[Any]]:
    """What a task asks for is answered as long as it runs. Who calls was asked when the connection was made, and a
    connection can be kept, or handed to others, for longer than that. Raises ``caller_ended``."""

    async def guarded(call: Call, params: Any) -> Any:
        caller = call.caller.task
        if caller is None:
            return await route.handler(app, call, params)
        live = app.plane.supervisor.live.get(caller.id)
        (status,) = await app.reader.one(Q.status_of, (caller.id,))
        if live is None or (status in TERMINAL and name not in _TO_THE_LAST):
            raise _ended(caller.id)
        if not route.waits:
            return await route.handler(app, call, params)
        work = asyncio.ensure_future(route.handler(app, call, params))
        try:
            await asyncio.wait({work, live.over}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
        finally:
            work.cancel()
        raise _ended(caller.id)

    return guarded


def _ended(task_id: str) -> CallerEnded:
    return CallerEnded(f"cannot do that for task {task_id}: it has ended and asks for nothing any more", id=task_id)
