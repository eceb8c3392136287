"""The calls about the daemon itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pawl.control_plane.statements import Q
from pawl.engines.cron.findings import findings, overview
from pawl.ipc import messages
from pawl.ipc.server import Call

if TYPE_CHECKING:
    from pawl.daemon.app import App


async def status(app: App, call: Call, params: messages.Nothing) -> dict[str, Any]:
    """The overview; for a task that of the tasks it may see."""
    viewer = call.caller.viewer
    counts = await app.reader.all(Q.counts) if viewer is None else await app.reader.all(Q.counts_of, (viewer,))
    return {
        "daemon": app.about(),
        "tasks": dict(counts),
        "cron": overview(app.cron) if viewer is None else {},
        "sop": {},
        "work": {},
        "findings": [*app.findings(), *await findings(app.cron, app.reader, app.clock.wall_ms())]
        if viewer is None
        else [],
    }


async def stop(app: App, call: Call, params: messages.Stop) -> dict[str, Any]:
    """Begin to stop; the answer comes first, the end follows."""
    counts = dict(await app.reader.all(Q.counts))
    app.begin_stop(cancel=params.cancel, wait=params.wait)
    return {
        "pid": app.plane.owner.pid,
        "running": sorted(app.plane.supervisor.live),
        "queued": counts.get("queued", 0),
        "grace_s": app.patience_s(cancel=params.cancel, wait=params.wait),
    }


async def reload(app: App, call: Call, params: messages.Nothing) -> dict[str, Any]:
    """Read the configuration again, whole or not at all."""
    jobs = await app.reload()
    return {
        "path": app.home.config,
        "agents": sorted(app.config.agents),
        "policies": sorted(app.config.policies),
        "cron": jobs,
    }
