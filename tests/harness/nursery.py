"""Daemons by fork: one process imports Pawl once, and every daemon of the tests is a fork of it.

What runs is the daemon's own ``main`` in a process of its own, with its own environment, log and failpoints; only the
second that an interpreter needs to import everything is paid once. The nursery is one thread, so a fork of it is
clean. ``Daemon.start(exec=True)`` takes the long way where the difference matters.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any


class Child:
    """A daemon that the nursery forked; the part of ``subprocess.Popen`` that tests need."""

    def __init__(self, pid: int, exit_pipe: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit_pipe = exit_pipe
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # it ended at once
            self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status where it has ended, negative for a signal."""
        return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises ``subprocess.TimeoutExpired``."""
        status = self._read(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Signal exactly this process; harmless where it is gone."""
        if self._pidfd is not None and self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._exit_pipe], [], [], timeout)[0]:
            self.returncode = int(os.read(self._exit_pipe, 64))
            os.close(self._exit_pipe)
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        return self.returncode


class _Nursery:
    """Our side of the process that forks."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self._answers = self._link.makefile("rb")

    def fork(self, argv: list[str], env: dict[str, str], report: int, log: int) -> Child:
        """Start a daemon. ``report`` is the descriptor that ``--report-fd`` in ``argv`` names as ``{report}``."""
        reading, writing = os.pipe()
        try:
            body = json.dumps({"argv": argv, "env": env}).encode() + b"\n"
            socket.send_fds(self._link, [body], [report, log, writing])
        finally:
            os.close(writing)
        line = self._answers.readline()
        if not line:
            raise RuntimeError("the nursery is gone")
        return Child(int(line), reading)

    def close(self) -> None:
        self._link.shutdown(socket.SHUT_RDWR)
        self._answers.close()
        self._link.close()
        self._process.wait(30)


_nursery: _Nursery | None = None


def fork(argv: list[str], env: dict[str, str], report: int, log: int) -> Child:
    """Start a daemon from the nursery of this test process."""
    global _nursery
    if _nursery is None:
        _nursery = _Nursery()
        atexit.register(_nursery.close)
    return _nursery.fork(argv, env, report, log)


# --- the process that forks -----------------------------------------------------------------------------------


def _serve(link: socket.socket) -> None:
    exits: dict[int, int] = {}
    wakeup, wake = os.pipe()
    for end in (wakeup, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([link, wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
        _collect(exits)
        if link in ready:
            data, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 8)
            if not data:
                return
            while not data.endswith(b"\n"):
                data += link.recv(1 << 20)
            report, log, exit_pipe = descriptors
            pid = os.fork()
            if pid == 0:
                for other in (link.fileno(), wakeup, wake, exit_pipe, *exits.values()):
                    os.close(other)
                _be_a_daemon(json.loads(data), report, log)
            exits[pid] = exit_pipe
            os.close(report)
            os.close(log)
            link.sendall(b"%d\n" % pid)


def _collect(exits: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = exits.pop(ended[0], None)
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipe, b"%d" % os.waitstatus_to_exitcode(ended[1]))
                os.close(pipe)


def _be_a_daemon(order: dict[str, Any], report: int, log: int) -> None:
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor, at in ((null, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, at)
        os.close(null)
        os.close(log)
        os.environ.clear()
        os.environ.update(order["env"])
        sys.argv = ["pawl.daemon", *(word.replace("{report}", str(report)) for word in order["argv"])]
        from pawl import failpoints
        from pawl.daemon.__main__ import main

        failpoints.arm(order["env"].get("PAWL_FAILPOINTS", ""))
        bends = order["env"].get("PAWL_TEST_BENDS")
        if bends is not None:
            sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
            from harness import bends as module

            module.install(bends)
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    import pawl.daemon.__main__  # noqa: F401

    _serve(socket.socket(fileno=int(sys.argv[1])))
