"""Who is calling: the operator, or a task of ours.

A process inside a running task's session, or descended from its worker, acts as that task. Only where session and
ancestry say nothing (it escaped both) does a task id in its environment make it that task, which is never more
than it could do before. Everything else of the same user is the operator.
"""

from __future__ import annotations

import json
import os

from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import Task
from pawl.engines.delegation.model import OPERATOR, Caller
from pawl.errors import PeerRefused
from pawl.ipc.peer import Peer
from pawl.log import logger
from pawl.runner.lineage import environment_of, lineage

log = logger("callers")


class Callers:
    """Answers for one daemon's peers."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def caller(self, peer: Peer) -> Caller:
        """The caller behind a peer, asked when it connects.

        Raises ``peer_refused`` for a process that descends from this daemon and belongs to no task that it knows: a
        program of ours that left its session, its parents and its environment must not be the operator by that.
        """
        task = self._task_of(peer.pid)
        if task is None:
            return Caller(peer.principal, OPERATOR, (), 0, None)
        return Caller(f"task:{task.id}", task.agent, self._above(task), task.depth + 1, task)

    def _above(self, task: Task) -> tuple[str, ...]:
        """The aliases above a task's own, outermost first. A sub-agent's row leaves them absent: they are its parent's,
        which lives as long as it does."""
        if task.kind == "subagent":
            parent = self._plane.supervisor.live.get(task.parent_id or "")
            return () if parent is None else self._above(parent.task)
        chain = tuple(json.loads(task.chain))
        return chain if task.creator in (OPERATOR, None) else (*chain, str(task.creator))

    def _task_of(self, pid: int) -> Task | None:
        live = self._plane.supervisor.live.values()
        if pid <= 0:
            return None
        workers = {each.worker.pid: each.task for each in live if each.worker}
        session, ancestors = lineage(pid)
        for member in (session, pid, *ancestors):
            if member in workers:
                return workers[member]
        task = self._by_environment(pid) if live else None  # also of a worker whose start we have not heard of yet
        if task is None and os.getpid() in ancestors:
            log.warning("refused a program of ours that belongs to no task", pid=pid, code=PeerRefused.code)
            raise PeerRefused(f"cannot tell which task process {pid} belongs to", pid=pid)
        return task

    def _by_environment(self, pid: int) -> Task | None:
        found = environment_of(pid)
        live = self._plane.supervisor.live.get(found.get("PAWL_TASK_ID", ""))
        return live.task if live is not None and found.get("PAWL_HOME") == self._plane.home.path else None
