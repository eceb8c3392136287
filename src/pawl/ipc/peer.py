"""Who is at the other end of a unix socket, as the kernel knows it."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
from typing import NamedTuple

from pawl.runner.identity import identity_of


class Peer(NamedTuple):
    """The process that connected."""

    pid: int  # 0 where it is outside of our PID namespace
    uid: int
    start: str = ""  # as in a ``ProcessIdentity``; empty where it had ended before we could look

    @property
    def principal(self) -> str:
        """The name under which it acts when it is no task."""
        return f"uid:{self.uid}"


_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2  # macOS, <sys/un.h>
_SO_PEERPIDFD = 77  # Linux 6.5, <asm-generic/socket.h>


def peer_of(connection: socket.socket) -> Peer:
    """The peer's PID and UID at the moment it connected. Raises OSError where the kernel does not answer."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(pid, uid, _start_of(connection, pid))
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
        _, uid = struct.unpack_from("II", raw)
        pid = struct.unpack("i", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0]
        return Peer(pid, uid, _start_now(pid))
    raise OSError("this system does not tell who connects to a unix socket")


def _start_of(connection: socket.socket, pid: int) -> str:
    """When the peer started. The kernel's handle of it tells whether the PID is still the peer's: one that connects and
    ends could otherwise pass for whoever has its number next."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return _start_now(pid) if error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP) else ""
    try:
        start = _start_now(pid)
        ended = select.poll()  # select itself takes no descriptor beyond 1023
        ended.register(pidfd, select.POLLIN)
        return "" if ended.poll(0) else start
    finally:
        os.close(pidfd)


def _start_now(pid: int) -> str:
    found = identity_of(pid) if pid > 0 else None
    return found.start if found is not None else ""
