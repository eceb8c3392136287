"""What a command's function is given besides its own values, and how an interruption is told.

On the command line's fast path.
"""

from __future__ import annotations

from pawl.cli import output
from pawl.cli.client import Client, home_option
from pawl.cli.render import Screen
from pawl.errors import PawlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pawl.home import Home

QUICK_S = 30.0  # what only asks is answered within this; a daemon that needs longer is stuck


class Interrupted(PawlError):
    """Ctrl-C was pressed. What the daemon had accepted goes on."""

    code = "interrupted"
    exit_code = 130
    retryable = True


class Call:
    """One run of a command: at which home, and for people or for programs."""

    def __init__(self, home: Home, *, json: bool) -> None:
        self.home = home
        self.json = json
        self.screen = Screen()

    def client(self, *, patience_s: float | None = QUICK_S) -> Client:
        return Client(self.home, patience_s=patience_s)

    def ask(self, method: str, **params: Any) -> Any:
        """One quick question."""
        return self.client().call(method, **params)

    def show(self, value: Any, lines: list[str]) -> None:
        """The document with ``--json``, the lines without."""
        if self.json:
            output.document(value)
        else:
            output.lines(lines)

    def note(self, text: str) -> None:
        """A word beside the output, on stderr; programs are not told."""
        if not self.json:
            output.note(text)

    def command(self, words: str) -> str:
        """A command to type next, with the home where it has to be said."""
        return f"pawl {words}{home_option(self.home)}"


def given(**values: Any) -> dict[str, Any]:
    """Those that were given: the rest is for the daemon's own defaults. A given 0 is given."""
    return {name: value for name, value in values.items() if value not in (None, [], {}) and value is not False}
