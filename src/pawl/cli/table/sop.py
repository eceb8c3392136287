"""The commands about procedures."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option, Positional

_FINDING = '`{"sop", "severity": "error" or "warning", "code", "file", "line", "message"}`'

LIST = Command(
    "sop list",
    "sop:list_procedures",
    """List the procedures, and the folders that hold one that does not load.
    They are read from the directory that `[sop] dir` names (`sops` in the home), as they are now. It needs no
    daemon.""",
    examples=(("pawl sop list", "what there is"),),
    json=f'an array of `{{"name", "path", "loaded", "findings": [{_FINDING}, ...]}}`',
)
VALIDATE = Command(
    "sop validate",
    "sop:validate",
    """Check procedures: what keeps one from loading, and what in it is read otherwise than it seems to say.
    Errors keep a procedure from loading, and make the exit status 2; the others load all the same. Warnings do not.
    Without NAME all are checked. It needs no daemon, and changes no file.""",
    positionals=(
        Positional("names", "Only these, by procedure or folder.", metavar="NAME", required=False, repeat=True),
    ),
    examples=(
        ("pawl sop validate", "all of them"),
        ("pawl sop validate release --json", "one, for a program"),
    ),
    json=f"an array of {_FINDING}, also with exit status 2",
)
SHOW = Command(
    "sop show",
    "sop:show",
    """Show a procedure as it is read: what starts it, its steps, the ways between them and where a person is asked.
    With --graph only the drawing is printed: as text, for Mermaid, or as nodes and edges in JSON.""",
    positionals=(Positional("name", "The procedure's name.", metavar="NAME"),),
    options=(Option("--graph", "How to draw it.", kind="choice", choices=("text", "mermaid", "json"), metavar="FORM"),),
    examples=(
        ("pawl sop show example", "one procedure"),
        ("pawl sop show example --graph mermaid", "its drawing, for a page"),
    ),
    json=(
        '`{"name", "version", "steps": [{"number", "title", "kind", ...}], "triggers": [{"type", ...}], "graph", ...}`,'
        " with the keys of `SOP.toml`; `graph` is the drawing that --graph asks for: a text, or with `json` an object "
        '`{"start", "nodes", "edges"}`'
    ),
)

COMMANDS = (LIST, VALIDATE, SHOW)
