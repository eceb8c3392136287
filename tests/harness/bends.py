"""Faults that no failpoint can make, bent into one daemon of the tests: never used outside of a forked daemon.

``install`` puts the hooks in place; what they do is read from ``run/bends`` whenever the test sends SIGUSR1
(``Daemon.bend``), so that a fault begins exactly when the test wants it:

- ``{"failpoints": "writer.before_commit=error*4"}`` arms failpoints in the middle of the life of a daemon;
- ``{"unheard": {"settle": 1}}``: so many transactions of that name are committed, and their caller is told of an error;
- ``{"late": {"submit": 0.2}}``: transactions of that name are committed, and their caller hears so many seconds later;
- ``{"refused": {"end_running": 1}}``: so many transactions of that name are not done, and their caller is told so;
- ``{"hold": "publish"}``: the settlement waits before that step (``promise``, ``publish``, ``apply``, ``tell``) until
  another step, or none, is named; ``run/held`` appears meanwhile;
- ``{"blind": [4711]}``: the kernel refuses to tell about these processes;
- ``{"deaf": true}``: what the keeper says is heard only when that is over.

``install("margin=0.2")`` shortens what ``stop --cancel`` waits beyond the grace; ``install("no_lock")`` lets a second
daemon in, for the test of two recoveries at once; ``install("blind=4711")`` is blind from the start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pawl import failpoints
from pawl.control_plane.settlement import Settlement
from pawl.daemon import app
from pawl.daemon.lock import Lock
from pawl.errors import StorageError
from pawl.home import Home
from pawl.runner import kernel
from pawl.runner.launcher import _Link
from pawl.storage import ArtifactStore, Writer

STEPS = ("promise", "publish", "apply", "tell")


class _Bends:
    """What is bent now."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.unheard: dict[str, int] = {}
        self.late: dict[str, float] = {}
        self.refused: dict[str, int] = {}
        self.hold: str | None = None
        self.blind: set[int] = set()
        self.deaf = False

    def read(self, *_: object) -> None:
        with open(os.path.join(self.run, "bends")) as file:
            told: dict[str, Any] = json.load(file)
        if "failpoints" in told:
            failpoints.arm(told["failpoints"])
        self.unheard = told.get("unheard", {})
        self.late = told.get("late", {})
        self.refused = told.get("refused", {})
        self.hold = told.get("hold")
        self.blind = set(told.get("blind", ()))
        self.deaf = told.get("deaf", False)
        os.unlink(os.path.join(self.run, "bends"))

    async def held(self, step: str) -> None:
        marker = os.path.join(self.run, "held")
        while self.hold == step:
            with open(marker, "w"):
                pass
            await asyncio.sleep(0.005)
        if os.path.exists(marker):
            os.unlink(marker)


def install(what: str) -> None:
    """Put the hooks in place; ``what``: a comma-separated list, perhaps empty."""
    home = sys.argv[sys.argv.index("--home") + 1]
    bends = _Bends(os.path.join(home, "run"))
    signal.signal(signal.SIGUSR1, bends.read)
    _bend_writer(bends)
    _bend_settlement(bends)
    _bend_kernel(bends)
    _bend_failpoints(bends)
    _bend_keeper(bends)
    names = what.split(",")
    bends.blind = {int(name.removeprefix("blind=")) for name in names if name.startswith("blind=")}
    for name in names:
        if name.startswith("margin="):
            app._CANCEL_MARGIN_S = float(name.removeprefix("margin="))
    if "no_lock" in names:
        Lock.take = lambda self, owner: None  # type: ignore[method-assign]
        ArtifactStore.sweep = lambda self: 0  # type: ignore[method-assign]
        socket = os.path.join(home, "run", f"{os.getpid()}.sock")
        Home.socket = property(lambda self: socket)  # type: ignore[method-assign, assignment]


def _bend_writer(bends: _Bends) -> None:
    submit = Writer.submit

    def bent(self: Writer, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        name = function.__name__
        outer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if bends.refused.get(name, 0) > 0:
            bends.refused[name] -= 1
            outer.set_exception(StorageError(f"bent: {name} was refused"))
            return outer
        inner = submit(self, function, *arguments)
        if name in bends.late:
            later = asyncio.get_running_loop().call_later
            inner.add_done_callback(lambda done: later(bends.late[name], outer.set_result, done.result()))
            return outer
        if bends.unheard.get(name, 0) > 0:
            bends.unheard[name] -= 1
            inner.add_done_callback(
                lambda _: outer.set_exception(StorageError(f"bent: {name} was done, and not heard"))
            )
            return outer
        return inner

    Writer.submit = bent  # type: ignore[method-assign, assignment]


def _bend_settlement(bends: _Bends) -> None:
    stage, publish, apply = Settlement.stage, Settlement.publish, Settlement.apply

    async def bent_stage(self: Settlement, output: Any) -> Any:
        staged = await stage(self, output)
        await bends.held("promise")
        return staged

    async def bent_publish(self: Settlement, *staged: Any) -> None:
        await bends.held("publish")
        await publish(self, *staged)

    async def bent_apply(self: Settlement, *arguments: Any) -> Any:
        await bends.held("apply")
        ended = await apply(self, *arguments)
        await bends.held("tell")
        return ended

    Settlement.stage = bent_stage  # type: ignore[method-assign]
    Settlement.publish = bent_publish  # type: ignore[method-assign]
    Settlement.apply = bent_apply  # type: ignore[method-assign]


def _bend_kernel(bends: _Bends) -> None:
    read_stat = kernel.read_stat

    def bent(pid: int, proc: str = kernel.PROC) -> Any:
        if pid in bends.blind:
            raise PermissionError(1, "bent")
        return read_stat(pid, proc)

    kernel.read_stat = bent


def _bend_failpoints(bends: _Bends) -> None:
    """Count the passes of the minder, in the size of a file."""
    hit = failpoints.hit

    def bent(name: str) -> None:
        if name == "heartbeat.flush":
            with open(os.path.join(bends.run, "beats"), "ab") as file:
                file.write(b".")
        hit(name)

    failpoints.hit = bent


def _bend_keeper(bends: _Bends) -> None:
    received = _Link.data_received

    def bent(self: _Link, data: bytes) -> None:
        if bends.deaf:
            asyncio.get_running_loop().call_later(0.01, bent, self, data)
        else:
            received(self, data)

    _Link.data_received = bent  # type: ignore[method-assign]
