"""The Typer application: what helps when the strict parser did not recognise the words.

Made from the same table: help, usage errors, suggestions, shell completion. Loaded only then, for it costs
several times the rest of a call.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import typer
import typer.core

from pawl import __version__
from pawl.cli import complete, helptext, output
from pawl.cli.parse import Invocation
from pawl.cli.render import Screen
from pawl.cli.table import GROUPS, every
from pawl.cli.table.model import EVERYWHERE, Command, Option, Positional
from pawl.cli.values import read
from pawl.errors import InvalidValue, UsageError

Execute = Callable[[Invocation], int]

# The base of Typer's own usage errors; older versions take it from click, newer ones have it inside.
_TyperUsageError: Any = typer.BadParameter.__bases__[0]

_SUMMARY = """One daemon that owns background work and tells the truth about it.

New here? Type `pawl demo` for a tour, or `pawl daemon start` and then `pawl delegate echo "hello"`.
`pawl help COMMAND` tells all about one command."""

_EXIT = """Exit status: 0 done, 1 the work ended badly, 2 wrong usage, 3 no daemon, 4 no such thing, 5 refused by
state, 6 refused by policy, 124 the wait ran out, 130 interrupted, 141 nobody reads the output any more."""

_WIDTH_MAX = 100

# What people type who know another program, and what it is called here.
_ALIASES = {
    "run": "delegate", "exec": "delegate", "submit": "delegate", "add": "delegate", "new": "delegate",
    "tasks": "list", "jobs": "list", "ls": "list", "ps": "list",
    "kill": "cancel", "rm": "cancel", "abort": "cancel",
    "tail": "logs", "output": "result", "cat": "result", "show": "status TASK", "info": "status", "top": "status",
    "start": "daemon start", "stop": "daemon stop", "restart": "daemon restart", "install": "daemon install",
    "agents": "agent list", "reload": "config reload", "check": "config check", "history": "events",
    "audit": "events", "setup": "init", "explain": "why TASK",
}  # fmt: skip


def run_words(words: Sequence[str], execute: Execute) -> int:
    """Parse with Typer and run; the exit status. Raises ``usage`` for words that are wrong."""
    group = typer.main.get_command(build(execute))
    try:
        status = group.main(args=_plain(words), prog_name="pawl", standalone_mode=False)
    except _TyperUsageError as error:
        raise _usage(error, words) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return status if isinstance(status, int) else 0


def _plain(words: Sequence[str]) -> list[str]:
    """``pawl help COMMAND`` and ``pawl version`` as the options that they stand for."""
    at = 0
    while at < len(words) and words[at].partition("=")[0] in {"--json", "--home"}:
        at += 2 if words[at] == "--home" else 1
    before, word, rest = list(words[:at]), words[at : at + 1], list(words[at + 1 :])
    if word == ["version"]:
        return [*before, "--version", *rest]
    if word == ["help"]:
        return [*before, *([] if rest[:1] in (["help"], ["version"]) else rest), "--help"]
    return list(words)


def build(execute: Execute) -> typer.Typer:
    """The application, from the table."""
    app = _group(help=f"{_SUMMARY}\n\n{_EXIT}", add_completion=True, invoke_without_command=True)
    app.callback()(_root())
    groups = {name: _group(help=text) for name, text in GROUPS.items()}
    for group in groups.values():
        group.callback()(_callback())
    added = set()
    for command in every():
        first, _, second = command.words.partition(" ")
        if first not in added and first in groups:
            app.add_typer(groups[first], name=first)
        added.add(first)
        parent = groups[first] if second else app
        declare = parent.command(second or first, cls=_described(command), short_help=command.summary)
        declare(_function(command, execute))
    return app


def _group(**options: Any) -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"], "terminal_width": min(Screen().width, _WIDTH_MAX)}
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=settings, **options)


def _root() -> Callable[..., None]:
    """The callback of ``pawl`` itself: ``--version``, and help where there is no command."""

    def root(ctx: typer.Context, version: bool = False, **_: Any) -> None:
        if version:
            output.document({"version": __version__}) if ctx.params["json"] else output.line(f"pawl {__version__}")
            raise typer.Exit(0)
        if ctx.invoked_subcommand is None:
            if ctx.params["json"]:
                raise UsageError("Missing command.", command="pawl", help="pawl --help")
            output.line(ctx.get_help())

    version = inspect.Parameter(
        "version",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=bool,
        default=typer.Option(False, "--version", "-V", help="Print the version.", show_default=False),
    )
    return _signed(root, [_context(), *_everywhere(), version])


def _callback() -> Callable[..., None]:
    def callback(ctx: typer.Context, **_: Any) -> None:
        """Takes what every command takes; ``_function`` looks it up in the contexts."""

    return _signed(callback, [_context(), *_everywhere()])


def _function(command: Command, execute: Execute) -> Callable[..., None]:
    """What Typer calls for a command."""

    def function(ctx: typer.Context, **raw: Any) -> None:
        values = _values(ctx, command, raw)
        invocation = Invocation(command, values, json=_json(ctx), home=_home(ctx))
        raise typer.Exit(execute(invocation))

    parameters = [_context()]
    parameters += [_positional(positional) for positional in command.positionals]
    parameters += [_option(option) for option in (*command.options, *EVERYWHERE)]
    return _signed(function, parameters)


def _values(ctx: typer.Context, command: Command, raw: dict[str, Any]) -> dict[str, Any]:
    """The values as the strict parser reads them, by the same functions; Typer itself only hands words through."""
    values: dict[str, Any] = {}
    items: list[Option | Positional] = [*command.positionals, *command.options]
    for item in items:
        word = raw[item.name]
        if item.kind == "flag":
            values[item.name] = bool(word)
        elif item.repeat:
            values[item.name] = [_read(ctx, item, one) for one in word or []]
        else:
            values[item.name] = None if word is None else _read(ctx, item, word)
    return values


def _read(ctx: typer.Context, item: Option | Positional, word: str) -> Any:
    hint = item.flags[0] if isinstance(item, Option) else item.metavar
    try:
        if isinstance(item, Positional):
            return read(item.kind, word)
        return read(item.kind, word, item.choices, least=item.least, most=item.most)
    except InvalidValue as error:
        raise typer.BadParameter(error.message, ctx=ctx, param_hint=hint) from error


def _json(ctx: typer.Context) -> bool:
    return any(context.params.get("json") for context in _contexts(ctx))


def _home(ctx: typer.Context) -> str | None:
    """The ``--home`` that stands furthest to the right."""
    for context in _contexts(ctx):
        word = context.params.get("home")
        if word is not None:
            return str(_read(ctx, EVERYWHERE[1], word))
    return None


def _contexts(ctx: Any) -> list[Any]:
    contexts = []
    while ctx is not None:
        contexts.append(ctx)
        ctx = ctx.parent
    return contexts


# --- from the table's words to Typer's ------------------------------------------------------------------------


def _signed(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what Typer reads
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return function


def _context() -> inspect.Parameter:
    return inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


def _everywhere() -> list[inspect.Parameter]:
    return [_option(option) for option in EVERYWHERE]


def _positional(positional: Positional) -> inspect.Parameter:
    details: dict[str, Any] = {"help": positional.help, "metavar": positional.metavar, "show_default": False}
    default = typer.Argument(... if positional.required else None, **details, **_completion(positional.complete))
    return _parameter(positional.name, list[str] if positional.repeat else str, default)


def _option(option: Option) -> inspect.Parameter:
    details: dict[str, Any] = {"help": option.help, "show_default": False}
    if option.kind == "flag":
        return _parameter(option.name, bool, typer.Option(False, *option.flags, **details))
    completion = _completion(option.complete, option.choices)
    default = typer.Option(None, *option.flags, metavar=option.metavar, **details, **completion)
    return _parameter(option.name, list[str] if option.repeat else str, default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _completion(what: str, choices: Sequence[str] = ()) -> dict[str, Any]:
    function = complete.completer(what, choices)
    return {} if function is None else {"autocompletion": function}


def _described(command: Command) -> type[typer.core.TyperCommand]:
    """Typer's command with our own help text: its looks change from version to version."""

    class Described(typer.core.TyperCommand):
        def get_help(self, ctx: Any) -> str:
            return helptext.full(command, Screen().width)

        def get_usage(self, ctx: Any) -> str:
            return f"Usage: {helptext.usage(command)}"

    return Described


# --- usage errors ---------------------------------------------------------------------------------------------


def _usage(error: Any, words: Sequence[str]) -> UsageError:
    """Typer's complaint as ours: what is wrong, how it is called rightly, where there is more."""
    ctx = getattr(error, "ctx", None)
    message = error.format_message().strip()
    path = ctx.command_path if ctx is not None else "pawl"
    meant = _meant(path, message)
    if meant:
        message = f"{message.partition(' Did you mean')[0]} Did you mean `pawl {meant}`?"
    extra = _extra(path, message)
    if "--json" in words:
        return UsageError(" ".join([message, *extra]), command=path, help=f"{path} --help")
    usage = [ctx.get_usage().strip()] if ctx is not None else []
    return UsageError("\n".join([message, *extra, *usage, f"Try `{path} --help`."]))


def _meant(path: str, message: str) -> str | None:
    """The command that an unknown word probably means."""
    unknown = re.match(r"No such command '([^']*)'", message)
    return _ALIASES.get(unknown[1]) if unknown and path == "pawl" else None


def _extra(path: str, message: str) -> list[str]:
    if message.startswith("Missing command"):
        under = [command.words for command in every() if f"pawl {command.words}".startswith(f"{path} ")]
        return [f"Its commands: {', '.join(words.split()[-1] for words in under)}."] if path != "pawl" else []
    if "unexpected extra argument" not in message:
        return []
    return [command.extra for command in every() if f"pawl {command.words}" == path and command.extra]
