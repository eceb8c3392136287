"""Settlement: how the end of a piece of work becomes true, once.

1. stage: the exact bytes, their digest and length, under a temporary name, synced;
2. promise: the intent, where the row is still running and ours;
3. publish: the bytes get their name, the directory is synced;
4. settle: status, output, error and finish time where row, owner and intent are unchanged; the intent goes.

A storage error at any step is tried again with a capped backoff: before (2) nothing is published, after (2) the
promise makes recovery finish it. A row that somebody else ended meanwhile is left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from pawl import failpoints
from pawl.control_plane import store
from pawl.control_plane.model import Intent, Outcome, Task
from pawl.control_plane.statements import Q
from pawl.control_plane.store import Ended
from pawl.errors import StorageError
from pawl.log import logger
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Artifact, ArtifactStore, Reader, Staged, Writer
from pawl.timers import Timers

Answer = TypeVar("Answer")

log = logger("settlement")
_BACKOFF_FIRST_MS = 100
_BACKOFF_MAX_MS = 5_000


class Output(NamedTuple):
    """The bytes of an ended piece of work: what it printed, or the files it printed to and how much of them counts."""

    data: bytes | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False


class Settlement:
    """Settles tasks of one owner. Authoritative for nothing: the row is."""

    def __init__(
        self, writer: Writer, reader: Reader, artifacts: ArtifactStore, timers: Timers, owner: ProcessIdentity
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._artifacts = artifacts
        self._timers = timers
        self._owner = owner
        self.troubles: dict[str, str] = {}

    async def settle(self, task: Task, outcome: Outcome, output: Output, *, leftovers: bool = False) -> Ended:
        """Take a running task of ours to its outcome. Returns who won: a cancel may have been quicker."""
        stdout, stderr = await self.insist(task.id, lambda: self.stage(output))
        promised = False
        try:
            failpoints.hit("settle.before_intent")
            promised = await self.insist(
                task.id,
                lambda: self._writer.submit(
                    store.promise, task.id, self._owner, outcome, stdout.artifact, stderr and stderr.artifact,
                    output.truncated, leftovers,
                ),
            )  # fmt: skip
        finally:
            if not promised:
                self._artifacts.discard(stdout, stderr)
        if not promised:
            return Ended(False, await self.row(task.id))
        failpoints.hit("settle.after_intent")
        await self.insist(task.id, lambda: self.publish(stdout, stderr))
        failpoints.hit("settle.after_publish")
        ended = await self.apply(task.id, self._owner, outcome.status, stdout.artifact)
        failpoints.hit("settle.after_commit")
        return ended

    async def apply(self, task_id: str, owner: ProcessIdentity, status: str, output: Artifact) -> Ended:
        """The last step by itself, for a promise whose bytes are published: ours, or a dead owner's."""
        ended = await self.insist(task_id, lambda: self._writer.submit(store.settle, task_id, owner, status, output))
        if not ended.won and (ended.task.status, ended.task.output) == (status, output):
            # an earlier try had committed, and its answer was lost
            return Ended(True, ended.task, await self.insist(task_id, lambda: self.retry_of(task_id)))
        return ended

    async def stage(self, output: Output) -> tuple[Staged, Staged | None]:
        """Write and sync the bytes under temporary names."""
        if output.data is not None:
            return await self._artifacts.stage(output.data), None
        assert output.stdout is not None
        assert output.stderr is not None
        stdout, stderr = await asyncio.gather(
            self._artifacts.stage_file(output.stdout, output.stdout_bytes),
            self._artifacts.stage_file(output.stderr, output.stderr_bytes),
            return_exceptions=True,
        )
        if isinstance(stdout, Staged) and isinstance(stderr, Staged):
            return stdout, stderr
        # one failed: the other must not stay on a disk that may be full
        self._artifacts.discard(*(each for each in (stdout, stderr) if isinstance(each, Staged)))
        raise next(each for each in (stdout, stderr) if isinstance(each, BaseException))

    async def publish(self, stdout: Staged, stderr: Staged | None) -> None:
        """Give staged bytes their names, durably."""
        if stderr is None:
            await self._artifacts.publish(stdout)
        else:
            await asyncio.gather(self._artifacts.publish(stdout), self._artifacts.publish(stderr))

    async def restore(self, intent: Intent, stdout: str, stderr: str) -> bool:
        """Make sure that the bytes of a dead owner's promise are there, from the files it was made from if need be.

        Only bytes that match the promised digest count.
        """
        for artifact, path in zip(intent.artifacts, (stdout, stderr), strict=False):
            if await asyncio.to_thread(self._artifacts.holds, artifact):
                continue
            staged = await self._artifacts.stage_file(path, artifact.size_bytes)
            if staged.artifact != artifact:
                self._artifacts.discard(staged, None)
                return False
            await self._artifacts.publish(staged)
        return True

    async def intent(self, task_id: str) -> Intent | None:
        """The promise beside a row, where it is sound as it stands."""
        row = await self._reader.one(Q.intent, (task_id,))
        found = None if row is None else Intent._make(row)
        return found if found is None or found.fault() is None else None

    async def retry_of(self, task_id: str) -> Task | None:
        """The attempt that follows a task, where there is one."""
        row = await self._reader.one(Q.retry_of, (task_id,))
        return None if row is None else await self.row(row[0])

    async def row(self, task_id: str) -> Task:
        """The row as it is now."""
        return Task._make(await self._reader.one(Q.by_id, (task_id,)))

    async def insist(
        self, task_id: str, step: Callable[[], Awaitable[Answer]], unless: Callable[[], bool] = lambda: False
    ) -> Answer:
        """Do a step, again and again while the storage refuses it; a finding says so meanwhile.

        Raises what no waiting mends (``retryable`` is false), and any error once ``unless`` says that it is in vain.
        """
        delay_ms = _BACKOFF_FIRST_MS
        while True:
            try:
                answer = await step()
            except StorageError as error:
                if not error.retryable or unless():
                    self.troubles.pop(task_id, None)
                    raise
                if task_id not in self.troubles:
                    log.warning("cannot settle yet", task=task_id, code=error.code, error=error.message)
                self.troubles[task_id] = error.message
                await self._timers.sleep(delay_ms)
                delay_ms = min(delay_ms * 2, _BACKOFF_MAX_MS)
            else:
                self.troubles.pop(task_id, None)
                return answer
