"""IPC: JSON-RPC 2.0 over the unix socket, one document a line (``docs/reference/protocol.md``).

Owns: the socket, frames, the handshake, the identity of the peer, the shapes of requests, back-pressure.
Does not own: what a call does; ``daemon.routes`` says that.
Authoritative for: who is calling, as the kernel tells it.
Invariants: a hostile, slow or silent client costs a bounded amount of memory and nobody else's time; a request that
was accepted is answered unless its client went away; nothing a client says of itself is believed.
Clock: the event loop's, for stalled peers only.
"""
