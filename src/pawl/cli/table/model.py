"""What the table is made of: commands, their positionals and their options.

On the command line's fast path: plain classes, no imports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# How the words of a value are read (``values.read`` does it) and how help calls them.
KINDS = {
    "text": "TEXT",
    "integer": "N",
    "amount": "X",
    "names": "A,B",
    "duration": "D",
    "size": "SIZE",
    "path": "PATH",
    "pair": "K=V",
    "choice": "CHOICE",
    "flag": "",
}


class Positional:
    """A value that is known by its place.

    ``repeat``: one or more of them, as a list; only the last positional of a command may.
    ``complete``: what the shell offers: ``task``, ``agent``, ``agents`` (with commas), ``path`` or nothing.
    """

    __slots__ = ("complete", "help", "kind", "metavar", "name", "repeat", "required")

    def __init__(
        self, name: str, help: str, *, kind: str = "text", required: bool = True, repeat: bool = False,
        complete: str = "", metavar: str = "",
    ) -> None:  # fmt: skip
        self.name = name
        self.help = help
        self.kind = kind
        self.required = required
        self.repeat = repeat
        self.complete = complete
        self.metavar = metavar or name.upper()


class Option:
    """A value that is known by its flag.

    ``repeat``: may be given several times; the value is the list of all (empty when absent).
    Otherwise the last one counts; absent is ``None``, for a flag ``False``.
    ``least``, ``most``: the range of a number, or of a duration in milliseconds.
    """

    __slots__ = ("choices", "complete", "flags", "help", "kind", "least", "metavar", "most", "name", "repeat")

    def __init__(
        self, flags: str, help: str, *, kind: str = "text", repeat: bool = False, choices: Sequence[str] = (),
        complete: str = "", metavar: str = "", name: str = "", least: int | None = None, most: int | None = None,
    ) -> None:  # fmt: skip
        self.flags = flags.split()
        self.help = help
        self.kind = kind
        self.repeat = repeat
        self.choices = choices
        self.least = least
        self.most = most
        self.complete = complete
        self.metavar = metavar or KINDS[kind]
        self.name = name or self.flags[0].lstrip("-").replace("-", "_")


class Command:
    """One command: what it is called, what it takes, what it says of itself and what runs it.

    ``words``: how it is called, like ``daemon start``.
    ``run``: the function as text, ``module:function`` below ``pawl.cli.commands``; loaded when it is called.
    ``help``: its first line is the summary, the rest a paragraph that a newcomer can act on.
    ``examples``: (what to type, what it does).
    ``json``: what ``--json`` prints.
    ``extra``: what to say when there are more words than places for them.
    """

    __slots__ = ("examples", "extra", "help", "json", "options", "positionals", "run", "words")

    def __init__(
        self, words: str, run: str, help: str, *, examples: Sequence[tuple[str, str]], json: str,
        positionals: Sequence[Positional] = (), options: Sequence[Option] = (), extra: str = "",
    ) -> None:  # fmt: skip
        self.words = words
        self.run = run
        self.help = help
        self.examples = examples
        self.json = json
        self.positionals = positionals
        self.options = options
        self.extra = extra

    @property
    def summary(self) -> str:
        return self.help.split("\n", 1)[0]

    @property
    def paragraph(self) -> str:
        return self.help.partition("\n")[2].strip()


# Every command takes these two, before or after its words.
JSON = Option("--json", "Print one JSON document instead of text; errors too, on stderr.", kind="flag")
HOME = Option("--home", "The home to use instead of $PAWL_HOME or ~/.pawl.", kind="path", metavar="DIR")
EVERYWHERE = (JSON, HOME)
