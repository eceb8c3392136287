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
    # an error is no reason to stop: systemd judges by its own timeout, and we run all the same
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
