"""Who may talk to the daemon: its owner and root, as the kernel says it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipc.serving import Serving
from ipc.wire import code, request
from pawl.ipc import server
from pawl.ipc.peer import Peer, peer_of
from pawl.runner.identity import own_identity


def test_the_kernel_names_this_very_process() -> None:
    """Both ends of a pair are ours."""
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == Peer(os.getpid(), os.geteuid(), own_identity().start)


def test_one_that_connected_and_ended_has_no_start(tmp_path: Path) -> None:
    """Its PID may be anybody's next: whoever took the number is not the one who connected."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
        listening.bind(path)
        listening.listen()
        child = os.fork()
        if not child:
            calling.connect(path)
            os._exit(0)
        os.waitpid(child, 0)
        accepted, _ = listening.accept()
        with accepted:
            peer = peer_of(accepted)

    assert (peer.pid, peer.start) in ((child, ""), (0, ""))


def test_a_high_uid_is_not_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uids have 32 bits without a sign; the owner of one over two thousand millions is still the owner."""

    class HighUid:
        def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:
            if not size:
                raise OSError(errno.ENOPROTOOPT, "an old kernel")
            return (7).to_bytes(4, "little") + (4_000_000_000).to_bytes(4, "little") * 2

    if not hasattr(socket, "SO_PEERCRED"):
        pytest.skip("this system has no SO_PEERCRED")

    assert peer_of(HighUid())[:2] == (7, 4_000_000_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("uid", [0, os.geteuid()])
def test_root_and_the_owner_are_answered(
    uid: int, serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has a reason to call."""
    monkeypatch.setattr(server, "peer_of", lambda _: Peer(1, uid))

    async def scene() -> None:
        client = await serving.connect()
        client.ask("echo", 5)

        answer = await client.read()

        assert answer is not None
        assert answer["result"] == 5

    run(scene())


def _refused(serving: Serving, run: Callable[..., Any]) -> str:
    """What a client is told that nothing else is answered to."""

    async def scene() -> str:
        client = await serving.connect(greet=False)
        client.send(request("hello", 1, protocol=1) + request("wait", 2))

        answers = await client.rest()

        assert len(answers) == 1
        assert serving.begun == 0
        await serving.until(lambda: not serving.server.connections, "the connection stays")
        return code(answers[0])

    return str(run(scene()))


def test_another_user_is_refused(serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer says so, nothing is done, and the connection is closed."""
    monkeypatch.setattr(server, "peer_of", lambda _: Peer(1, os.geteuid() + 12345))

    assert _refused(serving, run) == "peer_refused"


def test_a_peer_that_cannot_be_told_is_refused(
    serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel does not answer, nobody is let in."""

    def silent(_: socket.socket) -> Peer:
        raise OSError("not told")

    monkeypatch.setattr(server, "peer_of", silent)

    assert _refused(serving, run) == "peer_refused"


def test_a_caller_that_cannot_be_identified_may_do_nothing(
    serving: Serving, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault while looking up a caller leaves no connection without one."""

    def broken(_: Peer) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(serving.server, "identify", broken)

    async def scene() -> None:
        reader, _ = await asyncio.open_unix_connection(serving.server.path)
        lines = (await reader.read()).splitlines()

        assert len(lines) == 1
        assert b'"code":"internal"' in lines[0]

    run(scene())


def test_the_socket_is_private(serving: Serving) -> None:
    """Nobody but its owner can even connect."""
    assert os.stat(serving.server.path).st_mode & 0o777 == 0o600
