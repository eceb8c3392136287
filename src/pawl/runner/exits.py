"""The end of workers that are no children of our keeper: adopted ones, and those whose keeper died."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection

from pawl.runner import kernel, reap
from pawl.runner.identity import Liveness, ProcessIdentity, probe
from pawl.runner.spool import ExitRecord, RecordRead, Spool


class Exits:
    """Waits for processes by identity. Needs a running event loop; ``close`` ends every wait with CancelledError."""

    def __init__(self, *, probe_every_s: float = 0.5) -> None:
        self._probe_every_s = probe_every_s
        self._waits: set[asyncio.Future[None]] = set()

    async def wait(self, identity: ProcessIdentity) -> None:
        """Return when this process is GONE (a zombie counts). Returns at once when it is already."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.add(gone)
        try:
            while not gone.done() and probe(identity) is not Liveness.GONE:
                pidfd = _open_pidfd(identity)
                if pidfd is not None:
                    await _readable(pidfd, gone)
                elif probe(identity) is not Liveness.GONE:
                    await asyncio.wait({gone}, timeout=self._probe_every_s)
            if gone.done():
                await gone  # closed: raises CancelledError
        finally:
            self._waits.discard(gone)

    async def settled_record(self, spool: Spool, identity: ProcessIdentity, *, timeout_s: float = 2.0) -> RecordRead:
        """The exit record of a worker that is gone, waiting shortly for a keeper that is about to write it.

        Where the worker became our own child, its status is collected here, and the record written before the
        child is reaped. ``pending`` means that its keeper lives, holds it as a zombie and has not written yet
        (a full disk): ask again later.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        delay_s = 0.002
        while True:
            awaited = _record_may_come(spool, identity)  # before the look: what is written in between is seen
            read = spool.exit_record(identity)
            if read.record is not None or read.reason != "missing":
                return read
            if not awaited:
                return RecordRead(None, "missing")
            with contextlib.suppress(OSError):  # the disk is full: it stays a zombie, and is asked for again
                if (record := _collect(spool, identity)) is not None:
                    return RecordRead(record)
            if loop.time() >= deadline:
                return RecordRead(None, "pending")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 0.1)

    def close(self) -> None:
        """Stop all waits. Twice is harmless."""
        for gone in self._waits:
            gone.cancel()


async def _readable(pidfd: int, gone: asyncio.Future[None]) -> None:
    """Wait until the process behind the descriptor has ended. Closes it."""
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, _resolve, gone)
    try:
        await gone
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _resolve(gone: asyncio.Future[None]) -> None:
    if not gone.done():
        gone.set_result(None)


def _open_pidfd(identity: ProcessIdentity) -> int | None:
    """A descriptor that becomes readable when this process ends; None where there is none, or it is unclear.

    The identity is probed after the opening: a descriptor names whoever had the PID then, and a process that
    has it now with the old start has had it all along.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        pidfd: int = os.pidfd_open(identity.pid)
    except OSError:  # none left (EMFILE), an old kernel (ENOSYS), or it ended just now
        return None
    if probe(identity) is Liveness.ALIVE:
        return pidfd
    os.close(pidfd)
    return None


def _record_may_come(spool: Spool, identity: ProcessIdentity) -> bool:
    """Whether somebody is still there to write the record: the record comes before the zombie goes."""
    standing = probe(identity)
    if standing is not Liveness.GONE:
        return True
    if identity.boot_id != kernel.boot_id():
        return False
    if not kernel.HAS_PROC:
        keeper = spool.worker().keeper
        return keeper is not None and probe(keeper) is not Liveness.GONE
    try:
        stat = kernel.read_stat(identity.pid)
    except OSError:
        return True
    if stat is None or stat.start != identity.start:
        return False  # reaped
    if stat.parent == os.getpid():
        return True  # ours to reap
    keeper = spool.worker().keeper
    return keeper is None or probe(keeper) is not Liveness.GONE


def _collect(spool: Spool, identity: ProcessIdentity) -> ExitRecord | None:
    """Where the zombie is our own child: put its record in place and reap it. Raises OSError (disk full)."""
    try:
        stat = kernel.read_stat(identity.pid) if kernel.HAS_PROC else None
        if stat is None or stat.start != identity.start or stat.parent != os.getpid():
            return None
        end = reap.next_end(identity.pid)
    except ChildProcessError:
        return None
    if end is None:
        return None
    record = reap.record_of(end, spool.task_id, identity.start, spool.path)
    reap.write_record(spool.path, record)
    end.reap()
    return ExitRecord(**record)  # type: ignore[arg-type]


def reap_strays(keep: Collection[int]) -> int:
    """Reap zombies that became our children when a keeper died, except for the PIDs in ``keep``; how many.

    ``keep``: workers of running tasks (``settled_record`` collects those) and keepers. Children that share our
    session were started by this process itself and are left to whoever did.
    """
    reaped = 0
    own_session = os.getsid(0)
    for pid in kernel.own_children() or []:
        with contextlib.suppress(OSError):
            stat = kernel.read_stat(pid)
            if pid not in keep and stat is not None and stat.dead and stat.session != own_session:
                reaped += os.waitpid(pid, os.WNOHANG)[0] == pid
    return reaped
