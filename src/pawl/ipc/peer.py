"""Who is at the other end of a unix socket, as the kernel knows it."""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple


class Peer(NamedTuple):
    """The process that connected. ``pid`` is 0 where the system does not tell."""

    pid: int
    uid: int

    @property
    def principal(self) -> str:
        """The name under which it acts when it is no task."""
        return f"uid:{self.uid}"


_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2  # macOS, <sys/un.h>


def peer_of(connection: socket.socket) -> Peer:
    """The peer's PID and UID at the moment it connected. Raises OSError where the kernel does not answer."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(pid, uid)
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
        _, uid = struct.unpack_from("II", raw)
        pid = struct.unpack("i", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0]
        return Peer(pid, uid)
    raise OSError("this system does not tell who connects to a unix socket")
