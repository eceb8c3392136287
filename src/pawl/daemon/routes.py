"""All that the daemon can do, on one page: method, parameters, handler."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pawl.daemon.handlers import agent, daemon, event, task
from pawl.ipc import messages
from pawl.ipc.server import Route

if TYPE_CHECKING:
    from pawl.daemon.app import App

_TABLE = {
    "daemon.status": Route(messages.Nothing, daemon.status),
    "daemon.stop": Route(messages.Stop, daemon.stop),
    "config.reload": Route(messages.Nothing, daemon.reload),
    "task.delegate": Route(messages.Delegate, task.delegate),
    "task.get": Route(messages.One, task.get),
    "task.list": Route(messages.Listing, task.list_),
    "task.wait": Route(messages.Wait, task.wait, waits=True),
    "task.cancel": Route(messages.Cancel, task.cancel),
    "task.result": Route(messages.One, task.result, waits=True),
    "task.logs": Route(messages.Logs, task.logs, waits=True),
    "agent.list": Route(messages.Nothing, agent.list_),
    "agent.show": Route(messages.Name, agent.show),
    "event.list": Route(messages.Events, event.list_, waits=True),
    "event.verify": Route(messages.Nothing, event.verify, waits=True),
}


def routes(app: App) -> dict[str, Route]:
    """The table, bound to one daemon."""
    return {name: route._replace(handler=partial(route.handler, app)) for name, route in _TABLE.items()}
