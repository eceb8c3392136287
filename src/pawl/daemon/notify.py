"""A word to systemd, where it started us (``Type=notify``): a datagram to the socket it names."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send ``READY=1``, ``STOPPING=1`` and the like. Does nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        with contextlib.suppress(OSError):  # systemd judges by its own timeout; we run all the same
            channel.sendto(state.encode(), address)
