"""The commands about the configuration file."""

from __future__ import annotations

from pawl.cli.table.model import Command, Positional

CHECK = Command(
    "config check",
    "config:check",
    """Check a configuration file, every fault with its line.
    Jobs that could not run are among them: a schedule that cannot be read, an unknown zone or agent. Needs no daemon.
    Exit 2 if there is a fault. Without FILE: the config.toml of the home.""",
    positionals=(Positional("file", "The file to check.", kind="path", required=False, complete="path"),),
    examples=(
        ("pawl config check", "before a restart"),
        ("pawl config check draft.toml", "a file that is not in use yet"),
    ),
    json="an array of faults, empty when there is none; with exit 2 too",
)

SHOW = Command(
    "config show",
    "config:show",
    """Show what the configuration file comes to, defaults included.
    Reads the file, not the daemon: a running daemon has it after `pawl config reload`.""",
    examples=(("pawl config show", "all of it"),),
    json="the configuration as one object",
)

SCHEMA = Command(
    "config schema",
    "config:schema",
    """Print the JSON Schema of the configuration file, for editors.""",
    examples=(("pawl config schema > pawl.schema.json", "give it to your editor"),),
    json="the schema",
)

RELOAD = Command(
    "config reload",
    "config:reload",
    """Let the running daemon read its configuration anew.
    A file with faults is refused (exit 2) and the daemon keeps what it has. Work that runs keeps the policy
    it started under.""",
    examples=(("pawl config reload", "after an edit"),),
    json='`{"agents", "policies", "path"}`: what is in force now',
)

COMMANDS = (CHECK, SHOW, SCHEMA, RELOAD)
