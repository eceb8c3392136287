"""What leaves the command: bytes and documents on stdout, notes and errors on stderr.

Writes to the file descriptors themselves: nothing is left in a buffer that could fail when the interpreter
ends, and an error (a closed pipe, a full disk) shows where it happens. On the command line's fast path.
"""

from __future__ import annotations

import os
import sys

from pawl.cli.jsontext import dumps, dumps_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pawl.errors import PawlError

_STDOUT, _STDERR = 1, 2


def raw(data: bytes, fd: int = _STDOUT) -> None:
    """Exactly these bytes."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody made the terminal or pipe non-blocking; it is shared with us
            _wait_writable(fd)


def line(text: str = "") -> None:
    """A line for people on stdout."""
    raw(_encode(text + "\n"))


def lines(texts: list[str]) -> None:
    """Several lines at once."""
    if texts:
        raw(_encode("\n".join(texts) + "\n"))


def document(value: Any) -> None:
    """One JSON document on stdout, on one line, in UTF-8 whatever the locale says."""
    raw(_utf8(value))


def note(text: str) -> None:
    """A line for people on stderr. That nobody can read it is no reason to fail."""
    try:  # noqa: SIM105 - contextlib is not on the fast path
        raw(_encode(text + "\n"), _STDERR)
    except OSError:
        pass


def error(error: PawlError, *, json: bool) -> None:
    """An error, as the contract wants it: one object with ``--json``, a line for people without."""
    if not json:
        note(f"pawl: {clean(error.message)}")
        return
    try:  # noqa: SIM105
        raw(_utf8({"error": error.as_json()}), _STDERR)
    except OSError:
        pass


def one_file() -> bool:
    """Whether stdout and stderr are the same file, as after ``2>&1``."""
    try:
        out, err = os.fstat(_STDOUT), os.fstat(_STDERR)
    except OSError:
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def clean(text: str, *, one_line: bool = False) -> str:
    """Text of others, made harmless for a terminal: control characters are shown and not obeyed."""
    if text.isprintable():
        return text
    keep = "" if one_line else "\n\t"
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def open_standard_files() -> None:
    """Put /dev/null where the caller closed stdin, stdout or stderr, lest a socket take their number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _utf8(value: Any) -> bytes:
    try:
        return (dumps(value) + "\n").encode()
    except UnicodeEncodeError:  # a path that is no text: JSON can spell its lone surrogates, UTF-8 cannot
        return (dumps_ascii(value) + "\n").encode()


def _encode(text: str) -> bytes:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        return text.encode(encoding, "surrogateescape")
    except UnicodeEncodeError:
        return text.encode(encoding, "replace")


def _wait_writable(fd: int) -> None:
    import select

    select.select([], [fd], [])
