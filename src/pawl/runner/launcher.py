"""The daemon's side of its keeper: orders go out, identities and exits come back."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pawl.errors import PawlError
from pawl.runner import kernel
from pawl.runner.identity import ProcessIdentity
from pawl.runner.spool import ExitRecord

_START_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 2.0
# Full or busy now, and perhaps not later.
_PASSING = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ETXTBSY, errno.ENOSPC, errno.EDQUOT}
_BOOT = "import sys; sys.path += sys.argv[1].split(sys.argv[2]); from pawl.runner.keeper import main; main()"
# All that the keeper inherits: where its interpreter finds its libraries, and how both of us spell file names.
_KEPT_VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "LC_ALL", "LC_CTYPE", "LANG",
)  # fmt: skip


class LaunchRefused(PawlError):
    """The program could not be started. Nothing ran; ``details.errno`` has the system's error number, if any.

    Codes: ``program_not_found``, ``program_not_executable``, ``cwd_missing``, ``cwd_not_directory``,
    ``limits_refused``, ``sandbox_failed``, ``spool_barred`` (recovery has given this task up, or it was launched
    before) and ``launch_failed`` (any other reason of the system's; ``retryable`` is set where waiting may help).
    Except for ``spool_barred`` the spool is left as it was: the same order may be given again.
    """

    code = "launch_failed"

    def __init__(self, code: str, message: str, *, number: int | None = None) -> None:
        super().__init__(message, errno=number)
        self.code = code
        self.retryable = code == "launch_failed" and number in _PASSING


class KeeperLost(PawlError):
    """The keeper ended while a launch was under way: it may or may not have happened. ``Spool.bar`` tells."""

    code = "keeper_lost"
    retryable = True


class Limits(NamedTuple):
    """Resource limits of one worker and, one by one, of the processes it starts. None: no limit set."""

    cpu_s: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None


class LaunchOrder(NamedTuple):
    """All that a launch needs."""

    task_id: str
    argv: Sequence[str]  # argv[0] is looked up in the PATH of ``env``
    env: Mapping[str, str]  # the whole environment; it must hold PAWL_TASK_ID
    cwd: str
    spool: str  # path of a spool that was created
    stdin: str | None = None  # a file; None is /dev/null
    limits: Limits | None = None
    wrapper: Sequence[str] = ()  # what ``sandbox.wrapper`` made, put before the program once that is found outside


class Keeper:
    """One keeper process and the link to it. For a new process make a new object.

    ``on_exit(task_id, record, leftovers)`` is called on the event loop once for every worker this keeper
    launched, after its exit record is on disk and its PID is free; ``leftovers`` says that processes of the task
    seem to live on. Whoever awaits ``launch`` directly has its answer before.
    ``on_lost()`` is called once when the keeper ends without ``close``: ``living`` names the workers it left.
    ``home`` stands in its command line, for ``keepers.Keepers``; ``kill_grace_ms`` is what strays get (``keeper``).
    """

    def __init__(
        self,
        *,
        on_exit: Callable[[str, ExitRecord, bool], None],
        on_lost: Callable[[], None],
        home: str = "",
        kill_grace_ms: int = 10_000,
        log: str | None = None,
    ) -> None:
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._words = [str(kill_grace_ms), home]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._link: _Link | None = None
        self._closing = False
        self._identity: ProcessIdentity | None = None
        self._living: dict[str, ProcessIdentity] = {}
        self._answers: deque[tuple[str, asyncio.Future[ProcessIdentity]]] = deque()

    @property
    def identity(self) -> ProcessIdentity | None:
        """The keeper process; None before ``start``."""
        return self._identity

    @property
    def living(self) -> Mapping[str, ProcessIdentity]:
        """Workers launched here whose exit has not been reported, by task id. Stays readable after the loss."""
        return MappingProxyType(self._living)

    async def start(self) -> None:
        """Start the process and wait until it answers. Raises ``keeper_lost`` when it does not."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            self._process = _start_process(theirs, self._log, self._words)
        except OSError as error:
            ours.close()
            raise KeeperLost(f"cannot start the keeper: {error.strerror}") from error
        finally:
            theirs.close()
        ready: asyncio.Future[ProcessIdentity] = loop.create_future()
        self._answers.append(("", ready))
        ours.setblocking(False)
        _, self._link = await loop.create_connection(lambda: _Link(self._hear, self._end_of_link), sock=ours)
        try:
            self._identity = await asyncio.wait_for(ready, _START_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self.close()
            raise KeeperLost(f"cannot start the keeper: no answer within {_START_TIMEOUT_S:.0f} s") from None

    async def launch(self, order: LaunchOrder) -> ProcessIdentity:
        """Start a worker. Raises ``LaunchRefused`` or ``KeeperLost``.

        Cancelling the await does not take the order back: its exit is reported all the same.
        """
        if self._link is None or self._link.ended or self._closing:
            raise KeeperLost(f"cannot launch task {order.task_id}: the keeper is gone")
        answer: asyncio.Future[ProcessIdentity] = asyncio.get_running_loop().create_future()
        self._link.send(_order_line(order))
        self._answers.append((order.task_id, answer))
        return await answer

    async def close(self) -> None:
        """Let go of the keeper. It goes on until its last worker has ended, and writes their records.

        Twice is harmless.
        """
        self._closing = True
        if self._link is not None:
            await self._link.close()
        if self._process is not None and not self._living:
            await _wait(self._process, _CLOSE_TIMEOUT_S)

    def _hear(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "exited":
                self._living.pop(message["task"], None)
                # Not at once: whoever awaits the answer to this very launch shall have it first.
                asyncio.get_running_loop().call_soon(
                    self._on_exit, message["task"], ExitRecord(**message["record"]), message["leftovers"]
                )
            case "launched" | "ready":
                task_id, answer = self._answers.popleft()
                worker = ProcessIdentity(message["pid"], message["start"], message["boot_id"])
                if task_id:
                    self._living[task_id] = worker
                if not answer.done():
                    answer.set_result(worker)
            case "refused":
                _, answer = self._answers.popleft()
                if not answer.done():
                    answer.set_exception(LaunchRefused(message["code"], message["message"], number=message["errno"]))

    def _end_of_link(self) -> None:
        for task_id, answer in self._answers:
            if not answer.done():
                what = f"launching task {task_id}" if task_id else "starting"
                answer.set_exception(KeeperLost(f"the keeper ended while {what}"))
        self._answers.clear()
        loop = asyncio.get_running_loop()
        if not self._closing and self._identity is not None:
            loop.call_soon(self._on_lost)
        if self._process is not None:
            _reap_later(loop, self._process, 0.01)


class _Link(asyncio.Protocol):
    """JSON lines over the socket. What is sent within one turn of the loop goes out in one write."""

    def __init__(self, hear: Callable[[dict[str, Any]], None], at_end: Callable[[], None]) -> None:
        self._hear = hear
        self._at_end = at_end
        self._outbox: list[bytes] = []
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def ended(self) -> bool:
        return self.closed.done()

    def send(self, line: bytes) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(line)

    async def close(self) -> None:
        self._flush()
        if self._transport is None:
            return
        self._transport.close()
        await asyncio.wait({self.closed}, timeout=_CLOSE_TIMEOUT_S)
        self._transport.abort()  # a keeper that does not read: what was sent to it is lost, and it is told so

    def _flush(self) -> None:
        if self._outbox and self._transport is not None:
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        self._at_end()


def _start_process(link: socket.socket, log: str | None, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a bare interpreter that finds this very package, installed or editable, after its own library."""
    roots = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    if not kernel.HAS_PROC:
        import psutil

        roots.append(os.path.dirname(os.path.dirname(os.path.abspath(psutil.__file__))))
    utf8 = f"utf8={sys.flags.utf8_mode}"
    command = [sys.executable, "-I", "-S", "-X", utf8, "-c", _BOOT, os.pathsep.join(roots), os.pathsep, *words]
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    errors = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command, env=environment, stdin=link.fileno(), stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(errors)


def _order_line(order: LaunchOrder) -> bytes:
    limits = {name: value for name, value in (order.limits or Limits())._asdict().items() if value is not None}
    fields = {
        "op": "launch",
        "task": order.task_id,
        "argv": list(order.argv),
        "env": dict(order.env),
        "cwd": order.cwd,
        "spool": order.spool,
        "stdin": order.stdin,
        "limits": limits or None,
        "wrapper": list(order.wrapper),
    }
    return json.dumps(fields).encode("ascii") + b"\n"


def _reap_later(loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], delay_s: float) -> None:
    """Reap the keeper when it has ended: soon after its link, or after its last worker."""
    if process.poll() is None:
        loop.call_later(delay_s, _reap_later, loop, process, min(delay_s * 2, 5.0))


async def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while process.poll() is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)


def become_subreaper() -> bool:
    """Make this process the new parent of workers whose keeper dies, so that their exit status is not lost.

    Call once at the daemon's start, before any keeper. False where the system has no such thing (macOS).
    Whoever calls it must also call ``exits.reap_strays`` now and then.
    """
    return kernel.become_subreaper()
