"""Who is calling: the operator, or a task of ours.

A process inside a running task's session, or descended from its worker, acts as that task. Only where session and
ancestry say nothing (it escaped both) does a task id in its environment make it that task, which is never more
than it could do before: the token beside the id proves that it was started there. Everything else of the same user is
the operator.
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
from pawl.runner.identity import identity_of
from pawl.runner.lineage import environment_of, lineage
from pawl.runner.tokens import VARIABLE

log = logger("callers")


class Callers:
    """Answers for one daemon's peers."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def caller(self, peer: Peer) -> Caller:
        """The caller behind a peer, asked when it connects.

        Raises ``peer_refused`` for one that descends from a keeper of this home, or says that it is part of a task, and
        is part of none that lives; and for one whose descent cannot be read to its end. A program of ours that left its
        session, its parents and its environment must not be the operator by that.
        """
        task = self._task_of(peer)
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

    def _task_of(self, peer: Peer) -> Task | None:
        """The task that a peer is part of; None for the operator. What cannot be told is refused."""
        pid = peer.pid
        if pid == 0:  # outside of our PID namespace, so not below us
            return None
        found = lineage(pid)
        environment = environment_of(pid)
        now = identity_of(pid)
        if found is None or now is None or now.start != peer.start:
            raise _refused(pid, "it ended, or where it comes from cannot be read")
        live = self._plane.supervisor.live
        workers = {each.worker.pid: each.task for each in live.values() if each.worker}
        for member in (found.session, pid, *found.ancestors):
            if member in workers:
                return workers[member]
        named = environment.get("PAWL_TASK_ID", "")
        if named and environment.get("PAWL_HOME") == self._plane.home.path:
            # it escaped both; or its worker's start has not been heard of yet
            if named in live and self._plane.tokens.proves(environment.get(VARIABLE, ""), named):
                return live[named].task
            raise _refused(pid, f"it says it is part of task {named}, which has ended or is not its own")
        if not {os.getpid(), *self._plane.keepers.pids()}.isdisjoint(found.ancestors):
            raise _refused(pid, "it was started by a task, and cannot be told which")
        return None


def _refused(pid: int, why: str) -> PeerRefused:
    log.warning("refused a program whose task is not known", pid=pid, why=why, code=PeerRefused.code)
    return PeerRefused(f"cannot tell on whose behalf process {pid} calls: {why}", pid=pid)
