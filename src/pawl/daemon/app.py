"""The daemon put together: the only place that knows every room.

Start: lock, open and check the database, migrate, configuration, recover, socket, engines, ready.
Stop: no new work, wait for what runs as long as the grace allows, leave the rest to the next daemon (or end it),
close the socket, write what is waiting, unlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from pawl import __version__
from pawl.clock import clock_of
from pawl.config import Config, load
from pawl.control_plane import audit
from pawl.control_plane.engine import ControlPlane
from pawl.control_plane.model import Outcome
from pawl.control_plane.work import Roster, Settings
from pawl.daemon.callers import Callers
from pawl.daemon.lock import Lock
from pawl.daemon.notify import notify
from pawl.daemon.routes import routes
from pawl.engines.cron.engine import Scheduler
from pawl.engines.cron.jobs import Jobs
from pawl.engines.delegation.engine import KINDS, Delegation
from pawl.engines.delegation.model import Caller
from pawl.errors import InvalidConfig, Stopping, StorageError
from pawl.home import Home
from pawl.ipc.server import Server
from pawl.log import logger
from pawl.runner.identity import own_identity
from pawl.runner.sandbox import Offer
from pawl.storage import ArtifactStore, Database, Reader, Transaction, Writer
from pawl.timers import Timers
from pawl.values import rfc3339

log = logger("daemon")
_CANCEL_MARGIN_S = 10.0  # beyond the grace: for KILL, for settling, for removing
_LAUNCH_PATIENCE_S = 10.0  # a launch takes a millisecond; a queue of them on a slow machine some seconds
_DISK_FREE_BYTES_MIN = 64 * 1024**2


class App:
    """One daemon at one home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.stopped = asyncio.Event()
        self.config: Config
        self._lock = Lock(home)
        self._stopping: asyncio.Task[None] | None = None
        self._cancel_soon: asyncio.Task[None] | None = None
        self._opened: list[Callable[[], Awaitable[None]]] = []  # how to close what is open, in the order of opening
        self._bad_reload: str | None = None
        self._jobs_stale: str | None = None  # why the declared jobs are not what the file says
        self._probe: asyncio.Task[Offer] | None = None  # of what this machine offers in sandboxes

    # --- start ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, or raise and leave nothing behind."""
        self.home.prepare()
        self.clock = clock_of(self.home)
        self._lock.take(own_identity())
        try:
            await self._open()
            refused = self._read_config()
            await self.plane.recover()  # whatever the configuration is like: the rows are made true
            if refused is not None:
                await self.plane.ended_work_settled()
                raise refused
            await self.jobs.load()
            await self._reconcile()
            await self.cron.recover()
            await self._listen()
            await self.plane.serve()
            await self.cron.start()
            await self._record("started", {"version": __version__, "recovery": self.plane.recovery.report})
        except BaseException:
            await self._close()
            raise
        log.info("ready", pid=os.getpid(), home=self.home.path, recovery=self.plane.recovery.report)
        if self._lock.stale:
            log.warning("took over a stale lock file", said=self._lock.stale)

    async def _open(self) -> None:
        """Open the database and what stands on it."""
        self.timers = Timers(self.clock)
        self._opened.append(self._close_timers)
        database = Database(self.home.database)
        self.writer = Writer(database.open_writer(), database.path, self.clock)
        self.writer.start()
        self._opened.append(self.writer.close)
        self.reader = Reader(database)
        await self.reader.start()
        self._opened.append(self.reader.close)
        self.artifacts = ArtifactStore(self.home.artifacts)
        self.artifacts.start()
        self._opened.append(self.artifacts.close)
        self.plane = ControlPlane(
            home=self.home,
            writer=self.writer,
            reader=self.reader,
            artifacts=self.artifacts,
            timers=self.timers,
        )
        self._opened.append(self.plane.close)
        self.delegation = Delegation(self.plane, lambda: self.config)
        self.callers = Callers(self.plane)
        self.jobs = Jobs(self.writer, self.reader, self.timers, lambda: self.config)
        self.cron = Scheduler(self.plane, self.delegation, self.jobs)
        self._opened.append(self.cron.stop)
        self.started_at_ms = self.clock.wall_ms()

    def _read_config(self) -> InvalidConfig | None:
        """Read the configuration; what is wrong with it, if anything. Recovery needs it: caps, grace and the like."""
        try:
            self.config = load(self.home.config)
        except InvalidConfig as error:
            return error
        self._configure()
        return None

    async def _listen(self) -> None:
        hello = {"daemon": __version__, "pid": os.getpid(), "home": self.home.path}
        self._server = Server(self.home.socket, routes(self), hello, self.callers.caller, _task_of)
        await self._server.start()
        self._opened += [self._remove_moved_socket, self._server.stop]

    def _configure(self) -> None:
        daemon = self.config.daemon
        settings = Settings(
            max_concurrent=daemon.max_concurrent,
            kill_grace_ms=daemon.kill_grace_ms,
            heartbeat_interval_ms=daemon.heartbeat_interval_ms,
            heartbeat_timeout_ms=daemon.heartbeat_timeout_ms,
        )
        roster = Roster(
            {**dict.fromkeys(KINDS, self.delegation.plan), "cron": self.cron.plan},
            self.delegation.slots_of, self.delegation.max_output_of, self.cron.good_codes,
        )  # fmt: skip
        self.plane.configure(settings, roster)
        if any(policy.sandbox != "off" for policy in self.config.policies.values()):
            self._probe = asyncio.get_running_loop().create_task(self.delegation.sandbox_offer())

    # --- while it runs ----------------------------------------------------------------------------------------------

    async def reload(self) -> dict[str, list[str]]:
        """Read the configuration again; what became of the declared jobs. Raises ``config_invalid`` and keeps the old
        one."""
        try:
            self.config = await asyncio.to_thread(load, self.home.config)
        except InvalidConfig as error:
            self._bad_reload = error.message
            raise
        self._bad_reload = None
        self._configure()
        jobs = await self._reconcile()
        await self._record("reloaded", {"agents": len(self.config.agents)})
        log.info("configuration read again", agents=len(self.config.agents))
        return jobs

    async def _reconcile(self) -> dict[str, list[str]]:
        """Make the declared jobs what the file says. On a full disk they stay as they were, and a finding says so."""
        try:
            jobs = await self.jobs.reconcile()
        except StorageError as error:
            log.error("cannot store the declared jobs", code=error.code, error=error.message)
            self._jobs_stale = error.message
            return {}
        self._jobs_stale = None
        return jobs

    def refuse_when_stopping(self) -> None:
        """Raises ``daemon_stopping`` where no new work is taken any more."""
        if self._stopping is not None:
            raise Stopping("cannot take new work: the daemon is stopping")

    def patience_s(self, *, cancel: bool, wait: bool) -> float:
        """How long a stop may take at most, in seconds."""
        daemon = self.config.daemon
        patience_ms = daemon.shutdown_grace_ms if wait else 0
        return (patience_ms + daemon.kill_grace_ms) / 1000 + _CANCEL_MARGIN_S if cancel else patience_ms / 1000

    def about(self) -> dict[str, Any]:
        """What ``status`` says of the daemon."""
        return {
            "pid": self.plane.owner.pid,
            "started_at": rfc3339(self.started_at_ms),
            "version": __version__,
            "home": self.home.path,
            "socket": self.home.socket,
            "stopping": self._stopping is not None,
            "recovery": dict(self.plane.recovery.report),
        }

    def findings(self) -> list[dict[str, str]]:
        """What a person should know about, now."""
        found = []
        if self.plane.keeper_missing:
            found.append(_finding("keeper_missing", "programs cannot be started at the moment; see the log", "keeper"))
        if self._bad_reload:
            found.append(
                _finding("config_invalid", f"the old configuration is in force: {self._bad_reload}", "config.toml")
            )
        for task_id, trouble in self.plane.settlement.troubles.items():
            found.append(_finding("settlement_waits", f"a task cannot be settled yet: {trouble}", task_id))
        if self.plane.recovery.left:
            found.append(_finding("rows_unreadable", "recovery could not judge some rows; see the log", "database"))
        if self.plane.recovery.report["kept"]:
            found.append(
                _finding("rows_kept", "some running rows belong to an owner that is not proven gone", "database")
            )
        if self._jobs_stale:
            message = f"the declared jobs are not what the file says: {self._jobs_stale}; `pawl config reload`"
            found.append(_finding("cron_not_stored", message, "config.toml"))
        offer = self.delegation.offer
        for name, policy in self.config.policies.items():
            if policy.sandbox != "off" and offer is not None and not offer.works:
                word = "does not start" if policy.sandbox == "required" else "runs without"
                message = f"its work {word}, for this machine makes no sandbox: {offer.reason}"
                found.append(_finding("sandbox_missing", message, f"[policies.{name}]"))
        free = shutil.disk_usage(self.home.path).free
        if free < _DISK_FREE_BYTES_MIN:
            found.append(_finding("disk_nearly_full", f"only {free // 1024**2} MiB are free", self.home.path))
        return found

    # --- stop -------------------------------------------------------------------------------------------------------

    def begin_stop(self, *, cancel: bool, wait: bool = True) -> None:
        """Begin to stop; ``wait`` gives what runs the grace to end by itself.

        A second call with ``cancel`` ends the waiting for what runs.
        """
        if self._stopping is None:
            notify("STOPPING=1")
            self._stopping = asyncio.get_running_loop().create_task(self._stop(cancel=cancel, wait=wait))
        elif cancel:
            self._cancel_soon = asyncio.get_running_loop().create_task(self._cancel_running())

    async def _stop(self, *, cancel: bool, wait: bool) -> None:
        try:
            await self.cron.stop()
            await self.plane.stop_starting()
            await self.plane.supervisor.launches_done(_LAUNCH_PATIENCE_S)
            if cancel:
                await self._cancel_running()
            if wait:
                await self._wait_for_running()
            left = sorted(self.plane.supervisor.live)
            await self._record("stopped", {"left_running": left})
            log.info("stopped", left_running=left)
        except Exception as error:
            log.error("stopping did not go as it should", exc_info=error)
        finally:
            try:
                await self._close()
            finally:
                self.stopped.set()

    async def _wait_for_running(self) -> None:
        """Give what runs the grace to end by itself."""
        running = {live.over for live in self.plane.supervisor.live.values()}
        if running:
            grace = asyncio.ensure_future(self.timers.sleep(self.config.daemon.shutdown_grace_ms))
            while running and not grace.done():
                either: set[asyncio.Future[Any]] = {*running, grace}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                running = {each for each in running if not each.done()}
            grace.cancel()

    async def _cancel_running(self) -> None:
        """End what runs; what is queued stays queued."""
        outcome = Outcome("cancelled", error_message="the daemon was stopped with --cancel")
        lives = list(self.plane.supervisor.live.values())
        ends = (self.plane.supervisor.end(live, outcome, "daemon") for live in lives)
        for answer in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(answer, Exception):
                log.error("cannot cancel a task; it is left to the next daemon", error=str(answer))
        if lives:  # not for ever: what cannot be ended or settled is left to the next daemon
            timeout_s = self.config.daemon.kill_grace_ms / 1000 + _CANCEL_MARGIN_S
            await asyncio.wait({live.over for live in lives}, timeout=timeout_s)

    async def _close(self) -> None:
        """Let go of everything that was opened, in the order of its opening backwards."""
        try:
            while self._opened:
                try:
                    await self._opened.pop()()
                except Exception as error:  # the others are closed all the same
                    log.error("cannot close a part", exc_info=error)
        finally:
            self._lock.release()

    async def _remove_moved_socket(self) -> None:
        """The directory of a socket that had to move is ours alone, and empty by now."""
        folder = os.path.dirname(self.home.socket)
        if folder != self.home.run:
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    async def _close_timers(self) -> None:
        self.timers.close()

    async def _record(self, event: str, details: dict[str, Any]) -> None:
        """An entry of the daemon's own. On a full disk it runs all the same: it answers, and settles later."""
        try:
            await self.writer.submit(_record, event, details)
        except StorageError as error:
            log.error("cannot write to the audit log", event_name=event, code=error.code, error=error.message)


def _record(tx: Transaction, event: str, details: dict[str, Any]) -> None:
    audit.record(tx, actor="daemon", subject=("daemon", "daemon"), event=event, details=details)


def _task_of(caller: Caller) -> str | None:
    return None if caller.task is None else caller.task.id


def _finding(code: str, message: str, subject: str) -> dict[str, str]:
    return {"code": code, "message": message, "subject": subject}
