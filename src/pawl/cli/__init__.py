"""The command line: parse, ask the daemon, render. It decides nothing.

Owns: the table of commands, the two parsers made from it, the client of the socket protocol, the text for
people. Does not own: any state. Whatever it shows it has from the daemon, from the configuration file or
from the disk.

``table`` declares every command once. ``parse`` recognises well-formed invocations with nothing but that
table; what it does not recognise goes to ``app``, a Typer application made from the same table, which knows
how to help. So the usual call costs little more than the interpreter's own start: see ``main`` for what may
be imported there.
"""
