"""Pages whose console blocks are run: what a page shows is what the commands print.

A page that begins a console block with ``$ export PAWL_HOME=`` is one of them. All its console blocks are run in
their order, in one shell on a terminal of 100 columns, as somebody does who follows the page. What differs from run
to run (ids, PIDs, times, digests, sizes) is masked before the comparison.

``python tests/docs/transcript.py docs/tutorial.md`` runs a page and puts what was printed into it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = 100
_PLACE = re.compile(r"/tmp/(pawl-[a-z]{3})\b")  # where a page plays; 13 characters, as a temporary directory has
_READY = "\x02ready\x02"
_PATIENCE_S = 60.0
_MASKS = (
    (r"\x07", ""),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}(-[0-9a-f]{4}-[0-9a-f]{12})?", "ID"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"\b[0-9a-f]{32}\b", "TOKEN"),
    (r"\b[0-9a-f]{12}…", "DIGEST…"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "MOMENT"),
    (r"\b(uid:|pid |pid\": )\d+", r"\1N"),
    (r"\b\d+(\.\d+)?(ms|s|m\d+s|m|h\d+m|h|d\d+h|d)\b", "TIME"),
    (r"\b\d+(\.\d+)? (B|KiB|MiB|GiB|TiB)\b", "SIZE"),
    (r"version \d\S*", "version V"),
    (r"(?m)^info +sandbox: .*$", "info sandbox: AS IT IS"),  # what a machine has
    (r"[ \t]+", " "),
)


class Step(NamedTuple):
    """A command of a page and what the page shows of its output."""

    command: str
    shown: str


def runnable(pages: Path = DOCS) -> list[Path]:
    """The pages that are run."""
    found = [page for page in sorted(pages.rglob("*.md")) if "\n$ export PAWL_HOME=" in page.read_text()]
    assert found, "no page is run any more"
    return found


def blocks(text: str) -> list[str]:
    """The console blocks of a page, without their fences."""
    return re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def steps(block: str) -> Iterator[Step]:
    """The commands of a block; a here-document belongs to its command."""
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        assert line.startswith("$ "), f"no command: {line!r}"
        command = [line[2:]]
        word = re.search(r"<<\s*'?(\w+)'?", line)
        if word:
            end = lines.index(word[1])
            command += lines[: end + 1]
            del lines[: end + 1]
        output = []
        while lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        yield Step("\n".join(command), "\n".join(output))


def masked(text: str) -> list[str]:
    """The lines of an output as they are compared."""
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return [line.strip() for line in text.strip().splitlines()]


def play(text: str) -> Iterator[tuple[Step, str]]:
    """Run a page: each step with what it printed. What the page starts it must also stop."""
    place = _PLACE.search(text)
    assert place, "the page plays nowhere: it needs a place like /tmp/pawl-try"
    real = tempfile.mkdtemp(prefix="", dir="/tmp")
    shell = Shell(real)
    try:
        for block in blocks(text):
            for step in steps(block):
                printed = shell.run(step.command.replace(place[0], real))
                yield step, printed.replace(os.path.basename(real), place[1])
    finally:
        shell.run("pawl daemon stop --cancel")
        shell.close()
        shutil.rmtree(real, ignore_errors=True)


class Shell:
    """A shell on a terminal of its own, which finds the ``pawl`` beside this interpreter."""

    def __init__(self, home: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            bin_ = os.path.dirname(sys.executable)
            environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
            environment |= {"PATH": f"{bin_}:/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8"}
            environment |= {"TERM": "dumb", "PS1": _READY, "PS2": "", "HISTFILE": "/dev/null"}
            os.chdir("/tmp")
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("4H", 50, COLUMNS, 0, 0))
        modes = termios.tcgetattr(self._fd)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSANOW, modes)
        self._read()

    def run(self, command: str) -> str:
        """What a command prints, on both its streams, as a terminal shows it."""
        os.write(self._fd, command.encode() + b"\n")
        printed = self._read()
        if command.startswith("kill -9 "):  # a reader needs longer to type than the kernel to end a process
            os.write(self._fd, b"pid=$_; while kill -0 $pid 2>/dev/null; do :; done\n")
            self._read()
        return printed.replace("\r\n", "\n").rstrip("\n")

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)

    def _read(self) -> str:
        text = ""
        until = time.monotonic() + _PATIENCE_S
        while not text.endswith(_READY):
            if not select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"no answer within {_PATIENCE_S:g} s: {text[-500:]}")
            text += os.read(self._fd, 65536).decode(errors="replace")
        return text.removesuffix(_READY)


def refreshed(text: str) -> str:
    """The page with what its commands print now."""
    played = iter(list(play(text)))
    for block in blocks(text):
        fresh = ""
        for _ in steps(block):
            step, printed = next(played)
            fresh += f"$ {step.command}\n" + (f"{printed}\n" if printed else "")
        text = text.replace(f"```console\n{block}```", f"```console\n{fresh}```", 1)
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(refreshed(page.read_text()))
