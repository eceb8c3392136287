"""``result`` and ``logs``: the bytes that a task wrote."""

from __future__ import annotations

from pawl.cli import output
from pawl.cli.call import Call, Interrupted
from pawl.cli.client import Client, through_restarts
from pawl.cli.commands.tasks import why
from pawl.errors import StorageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def result(call: Call, *, task: str) -> int:
    return print_result(call, call.client(patience_s=None), task, Once())


def print_result(call: Call, client: Client, task: str, once: Once, *, noted: bool = False) -> int:
    """What a task wrote, byte for byte; 0 only if it completed. ``noted``: the caller says a word after it."""
    pieces: list[bytes] = []
    end = streamed(call, client, task, once, pieces)
    if call.json:
        output.document({**end, **_content(b"".join(pieces))})
    elif once.last not in b"\n":
        follows = noted or end["status"] != "completed"
        if call.screen.terminal or (follows and output.one_file()):
            output.note("")  # what is said next does not stick to the last line
    if not call.json and end["status"] != "completed":
        reason = why(client.call("task.get", id=end["id"]))
        output.note(f"task {end['id']} {end['status']}" + (f": {output.clean(reason)}" if reason else ""))
    return 0 if end["status"] == "completed" else 1


def streamed(
    call: Call, client: Client, task: str, once: Once, pieces: list[bytes] | None = None
) -> dict[str, Any]:  # fmt: skip
    """Print what a task wrote, or with ``--json`` keep it in ``pieces``; the end of the answer."""
    stream = client.stream("task.result", id=task)
    once.begin()
    for piece in stream:
        if call.json and pieces is not None:
            pieces.append(piece)
        once.write(piece, quiet=call.json)
    end: dict[str, Any] = stream.result
    if end.get("size_bytes") not in (None, once.shown):
        raise StorageError(
            f"cannot read the output of task {end['id']}: {once.shown} of {end['size_bytes']} bytes came"
        )
    return end


class Once:
    """Bytes that are printed once, however often the daemon has to send them from the beginning."""

    def __init__(self) -> None:
        self.shown = 0
        self.last = b""
        self._skip = 0

    def begin(self) -> None:
        """From here on the stream starts anew."""
        self._skip = self.shown

    def write(self, piece: bytes, *, quiet: bool = False) -> bytes:
        """Print what was not printed yet, unless ``quiet``; what that was."""
        skipped = min(self._skip, len(piece))
        self._skip -= skipped
        fresh = piece[skipped:]
        self.shown += len(fresh)
        self.last = fresh[-1:] or self.last
        if not quiet:
            output.raw(fresh)
        return fresh


def logs(call: Call, *, task: str, follow: bool, stderr: bool) -> int:
    channel = "stderr" if stderr else "stdout"
    if follow:
        return _follow(call, task, channel)
    stream = call.client().stream("task.logs", id=task, stream=channel)
    if not call.json:
        for piece in stream:
            output.raw(piece)
        return 0
    data = b"".join(stream)
    output.document({**stream.result, **_content(data)})
    return 0


def _follow(call: Call, task: str, channel: str) -> int:
    """Everything from the beginning to the end of the task; a new daemon starts again, so skip what was shown."""
    printer = _Printer(call, task, channel)

    def show(client: Client) -> dict[str, Any]:
        stream = client.stream("task.logs", id=task, stream=channel, follow=True)
        printer.once.begin()
        for piece in stream:
            printer.take(piece)
        end: dict[str, Any] = stream.result
        return end

    try:
        end = through_restarts(call.home, show)
    except KeyboardInterrupt:
        again = call.command(f"logs -f {task}")
        raise Interrupted(f"interrupted; the work goes on. To look again: {again}", id=task) from None
    printer.finish()
    if call.json:
        output.document(end)
    return 0


class _Printer:
    """Prints the pieces of a followed stream.

    With ``--json`` a piece is one object a line. A character whose bytes are in two pieces is kept whole.
    """

    def __init__(self, call: Call, task: str, channel: str) -> None:
        self.json = call.json
        self.about = {"id": task, "stream": channel}
        self.once = Once()
        self.rest = b""

    def take(self, piece: bytes) -> None:
        fresh = self.once.write(piece, quiet=self.json)
        if self.json:
            whole, self.rest = split_utf8(self.rest + fresh)
            self._document(whole)

    def finish(self) -> None:
        self._document(self.rest)

    def _document(self, data: bytes) -> None:
        if data:
            output.document({**self.about, **_content(data)})


def split_utf8(data: bytes) -> tuple[bytes, bytes]:
    """The data, and what may be the beginning of a character at its end (at most three bytes)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data[:-back], data[-back:]) if back < needed else (data, b"")
        if byte < 0x80:
            break
    return data, b""


def _content(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        from binascii import b2a_base64

        return {"base64": b2a_base64(data, newline=False).decode()}
