"""``python -m pawl.reference`` writes docs/reference/states.md, errors.md and configuration.md.

Owns: the words that no code has: what a status means, what to do about the error of a task, what a kind of value is
called. Everything else is read off the code: the state machine's table, the tree of errors, the configuration's
models. A test holds the committed pages equal, and these words complete.
Clock: none.
"""

# ruff: noqa: E501 - the pages have one sentence a line
from __future__ import annotations

import ast
import inspect
import os
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic_core import PydanticUndefined

from pawl import errors
from pawl.cli.call import Interrupted
from pawl.config import fields
from pawl.config.agents import AgentConfig, Delegate, DelegateConfig, LimitsConfig, PolicyConfig
from pawl.config.cron import CronConfig
from pawl.config.fields import Duration, Size, duration_toml, size_toml
from pawl.config.model import DaemonConfig
from pawl.config.section import Section, toml_key
from pawl.config.sop import ApprovalConfig, ApprovalPolicyConfig, GroupConfig, SopConfig
from pawl.control_plane.model import TASK, TERMINAL
from pawl.control_plane.store import RETRIED
from pawl.engines.cron.model import FIRE

_MADE = "This page is made from the code by `python -m pawl.reference`."

# --- the states of a task ---------------------------------------------------------------------------------------------

STATUSES = {
    "queued": "It is stored and waits for a free slot.",
    "running": "A daemon owns it, and its program runs or is about to.",
    "paused": "It waits for something outside and has no program; only goals do that, and this version has none.",
    "completed": "Its program ended with exit code 0, and all its output is stored.",
    "failed": "It ended badly or could not be started; `error` says why.",
    "cancelled": "Somebody cancelled it; what it had done by then stays done.",
    "timed_out": "It ran longer than it may and was ended; what it had done by then is not known.",
    "lost": "Nobody can prove how it ended: the daemon died, and the program was gone too or never began.",
}

_STATES = """# The states of a task

{made}
A task's status lives in its row and nowhere else, and only the table below can change it: the database itself refuses every other change.

```mermaid
{diagram}```

## The statuses

| status | ended | what it means |
| --- | --- | --- |
{statuses}

An ended task has left its last status for good: it is never opened again.
A new attempt (`--retries`) is a new task, whose `retry_of` names the one before; `pawl status --json` shows the other direction as `retried_by`.
Tried again is what ended as {retried}.

## The transitions

{transitions}
## Beside the status

`cleanup` is `null`, `"pending"` or `"done"`.
`pending` means that the task has ended and processes of it may still live: they are being ended, across crashes of the daemon too.
`done` means that none is left, or that `leftovers.left` names the PIDs that could not be ended.
`pawl cancel`, `pawl wait` and `pawl delegate --wait` answer after that.

`error` is there for {with_error}; its codes are on the page of [errors](errors.md#why-a-task-ended).
How an end comes to be written, and why the table is as it is, stands in [how it stays true](../explanation/truth.md).

## Fires

A fire, one due moment of a cron job, has states of its own.
From the moment that it has a task it follows that, in the same transaction.

```mermaid
{fires}```

{fire_transitions}"""


def states() -> str:
    """The page about the states of a task."""
    rows = [f"| `{name}` | {'yes' if name in TERMINAL else ''} | {text} |" for name, text in STATUSES.items()]
    return _STATES.format(
        made=_MADE,
        diagram=TASK.mermaid(),
        statuses="\n".join(rows),
        transitions=TASK.markdown(),
        retried=_listed(RETRIED),
        with_error=_listed({ending.status for ending in TASK_ERRORS.values()}),
        fires=FIRE.mermaid(),
        fire_transitions=FIRE.markdown(),
    )


# --- errors -----------------------------------------------------------------------------------------------------------


class Ending(NamedTuple):
    """Why a task ended badly: its status, what happened, what to do."""

    status: str
    happened: str
    remedy: str


TASK_ERRORS = {
    "exit_code": Ending(
        "failed", "The program ended with another exit code than 0.",
        "`pawl logs --stderr TASK` shows what it said; mend that and delegate it again.",
    ),
    "signalled": Ending(
        "failed", "A signal ended the program while the daemon watched: it crashed, it hit a limit of its policy, the system ran out of memory, or somebody ended it.",
        "Look at its standard error and at the system's log; the message names the signal.",
    ),
    "timeout": Ending(
        "timed_out", "The task ran longer than its timeout and was ended.",
        "Delegate it again with a longer `--timeout`, or give the agent a longer `timeout`; what it had done by then is not known.",
    ),
    "queue_timeout": Ending(
        "failed", "No slot became free within `--queue-timeout`. Nothing ran.",
        "Wait longer, or raise `max_concurrent` of the agent or the daemon.",
    ),
    "output_limit": Ending(
        "failed", "It wrote more than its policy's `max_output` to one stream and was ended; the first `max_output` bytes are kept.",
        "Raise `max_output`, or let the program write large things to files.",
    ),
    "output_altered": Ending(
        "failed", "A file of its output was removed, or was shorter when it was stored than when the program ended.",
        "Find out what changes files in `data/spool` of the home; nothing but Pawl should.",
    ),
    "exit_unknown": Ending(
        "failed", "The program is gone and left no exit record, so how it ended is not known.",
        "Look at what it did, then delegate it again; the daemon's log says what became of the keeper.",
    ),
    "lost": Ending(
        "lost", "The daemon died, and the program was gone without a record, had never begun, or was ended by a signal from outside while no daemon watched.",
        "Look at what it did, then delegate it again; with `--retries` that happens by itself.",
    ),
    "settlement_failed": Ending(
        "failed", "A daemon died while it stored the output, and what was to be stored is missing or does not match its digest.",
        "Delegate it again; the work may have been done.",
    ),
    "heartbeat_timeout": Ending(
        "timed_out", "Its owner could not be proven gone and gave no sign of life for longer than `heartbeat_timeout`.",
        "Look whether another daemon hangs (`pawl doctor`), then delegate it again.",
    ),
    "program_not_found": Ending(
        "failed", "The agent's command names a program that is not there, or not in the PATH of the task. Nothing ran.",
        "Write its whole path into `command`, or start the daemon with the right PATH and let the policy's `env` pass it.",
    ),
    "program_not_executable": Ending(
        "failed", "The program is there and cannot be run: no execute permission, a directory, or the interpreter in its first line is missing. Nothing ran.",
        "`chmod +x` it, or mend its first line.",
    ),
    "cwd_missing": Ending(
        "failed", "The working directory does not exist. Nothing ran.",
        "Make it, or give another `--cwd` or another `workspace` in the policy.",
    ),
    "cwd_not_directory": Ending(
        "failed", "The working directory is not a directory. Nothing ran.",
        "Give another `--cwd` or another `workspace` in the policy.",
    ),
    "sandbox_failed": Ending(
        "failed", "The sandbox of the policy could not be made, and the work does not run without. Nothing ran.",
        "The message has bwrap's own words; mostly the workspace is missing. `pawl doctor` tries it.",
    ),
    "limits_refused": Ending(
        "failed", "The system refused the limits of the policy, and no program runs without them. Nothing ran.",
        "Lower `limits` in the policy: they may not exceed what the daemon itself is held to.",
    ),
    "launch_failed": Ending(
        "failed", "The system refused to start the program for another reason: too many processes, no memory, a full disk. Nothing ran.",
        "The message has the system's reason; delegate it again when that has passed.",
    ),
    "spool_barred": Ending(
        "failed", "The task's spool was taken already, so starting the program might have been a second time. Nothing ran.",
        "Look whether two daemons share the home; please report it if not.",
    ),
    "keeper_lost": Ending(
        "failed", "The process that starts programs died before it had started this one. Nothing ran.",
        "Delegate it again: a new keeper is there already.",
    ),
    "agent_not_found": Ending(
        "failed", "The agent was taken out of the configuration while the task was queued. Nothing ran.",
        "Put it back, `pawl config reload`, and delegate it again.",
    ),
    "prompt_not_an_argument": Ending(
        "failed", "The agent gets its prompt as an argument, and this prompt holds a zero byte. Nothing ran.",
        'Give the agent `prompt = "stdin"` or `prompt = "file"`.',
    ),
    "kind_unknown": Ending(
        "failed", "This daemon cannot do tasks of this kind; a newer one may have queued it. Nothing ran.",
        "Run the version that queued it.",
    ),
    "driver_died": Ending(
        "failed", "A bug in Pawl; the processes of the task were ended.",
        "The daemon's log has the traceback; please report it.",
    ),
}  # fmt: skip

_GROUPS: dict[type[errors.PawlError], str] = {
    errors.UsageError: "wrong usage, or invalid input, configuration or document",
    errors.DaemonUnreachable: "no daemon",
    errors.NotFound: "no such thing",
    errors.RefusedByState: "refused by state",
    errors.RefusedByPolicy: "refused by policy",
    errors.WaitTimeout: "the wait ran out",
    Interrupted: "interrupted",
    errors.StorageError: "the disk or the database said no",
    errors.InternalError: "a bug",
}

_ERRORS = """# Errors

{made}
There are two kinds: a command that is refused says so at once, and a task that ends badly keeps the reason in its row.
Codes are stable; messages are for people and may change.

With `--json` an error is one object on standard error:

```json
{{"error": {{"code": "task_not_found", "message": "...", "retryable": false, "details": {{}}}}}}
```

`retryable` says whether the same command may succeed later without a change.
On the socket the same four things stand in `error.data` ([protocol](protocol.md#errors)).
All exit statuses are on the page of [commands](commands.md#for-every-command).

## Why a command was refused

{groups}
## Why a task ended

`error.code` of a task that is `failed`, `timed_out` or `lost` ([states](states.md)).
A task that is `cancelled` has no error: `reason` says why it was cancelled, and its events say by whom.

| code | status | what happened | what to do |
| --- | --- | --- | --- |
{endings}
"""


def error_classes() -> list[type[errors.PawlError]]:
    """Every error that a command can end with, in the order of the tree. Not ``RemoteError``, which bears any code."""
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.PawlError)]
    return [one for one in (*found, Interrupted) if one not in (errors.PawlError, errors.RemoteError)]


def error_page() -> str:
    """The page about errors."""
    groups = [_group(base, title) for base, title in _GROUPS.items()]
    endings = [
        f"| `{code}` | `{ending.status}` | {ending.happened} | {ending.remedy} |"
        for code, ending in TASK_ERRORS.items()
    ]
    return _ERRORS.format(made=_MADE, groups="\n".join(groups), endings="\n".join(endings))


def _group(base: type[errors.PawlError], title: str) -> str:
    rows = [
        f"| `{one.code}` | {'yes' if one.retryable else ''} | {_plain(one.__doc__)} |"
        for one in error_classes()
        if issubclass(one, base)
    ]
    head = "| code | retryable | what happened, what to do |\n| --- | --- | --- |"
    return f"### Exit {base.exit_code}: {title}\n\n{head}\n" + "\n".join(rows) + "\n"


# --- the configuration ------------------------------------------------------------------------------------------------

# How each kind of value is called; a hint is compared as a whole.
_KINDS: list[tuple[Any, str]] = [
    (fields.Flag, "`true` or `false`"),
    (fields.Name, "name"),
    (fields.EnvName, "name of a variable"),
    (fields.Capability, "capability"),
    (fields.Tool, "name of a tool"),
    (fields.Cost, "amount"),
    (fields.Directory, "directory"),
    (fields.HomePath, "path"),
    (fields.Command, "command"),
    (fields.ScheduleText, "text"),
    (fields.FilledText, "text"),
    (fields.Text, "text"),
    (Delegate, "name or `{ agent, mode }`"),
    (str, "text"),
    (int, "whole number"),
]

# Keys that are read and checked, and that nothing in this version acts on. A test looks for code that does.
NOT_YET = {
    (AgentConfig, "worker"),
    (AgentConfig, "capabilities"),
}
_NOT_YET = "Not acted on yet."
_NOT_YET_SECTION = "This section is checked, and this version does not act on it."


class _Part(NamedTuple):
    """A table of the file: its heading, its model, and whether this version acts on it."""

    heading: str
    model: type[Section]
    acted_on: bool = True


_PARTS = (
    _Part("## `[daemon]`", DaemonConfig),
    _Part("## `[agents.NAME]`", AgentConfig),
    _Part("### An entry of `delegates`", DelegateConfig),
    _Part("## `[policies.NAME]`", PolicyConfig),
    _Part("### `limits`", LimitsConfig),
    _Part("## `[[cron]]`", CronConfig, acted_on=False),
    _Part("## `[sop]`", SopConfig, acted_on=False),
    _Part("### `[sop.approval.groups.NAME]`", GroupConfig, acted_on=False),
    _Part("### `[sop.approval.policies.NAME]`", ApprovalPolicyConfig, acted_on=False),
)

_CONFIGURATION = """# Configuration

{made}
The file is `config.toml` in the home; without it the defaults are in force.
`pawl init` writes one with everything commented out, and `config.example.toml` in the source has every key with an explanation.

```toml
[daemon]
max_concurrent = 4

[agents.tester]
description = "Runs the tests of a project."
command = ["make", "test"]
policy = "project"
timeout = "20m"

[policies.project]
workspace = "~/src/project"
max_output = "16MiB"
limits = {{ memory = "4GiB", processes = 256 }}
```

| command | what it does |
| --- | --- |
| `pawl config check` | every fault of the file, with its line; exit 2 where there is one |
| `pawl config show` | what the file comes to, defaults included |
| `pawl config schema` | the JSON Schema of the file, for editors |
| `pawl config reload` | tells the running daemon to read the file again |

- An unknown key is a fault, which names the nearest known one.
- A daemon does not start with a bad file; a running one keeps what it has.
- A reload counts for tasks that start after it; what runs keeps the command, the environment and the limits that it started with.
- The agent `echo` and the policy `default` are always there; a table of that name replaces what is built in.

## Kinds of values

| kind | how it is written |
| --- | --- |
| duration | seconds as a number, or text: `90`, `"90s"`, `"10m"`, `"2h"`, `"7d"`, `"1h30m"`, `"250ms"` |
| size | bytes as a number, or text: `512`, `"64KiB"`, `"64MiB"`, `"1GiB"`, `"10MB"` |
| command | a list of text, one entry for the program and one for each argument; no shell reads it |
| name | 1 to 64 letters, digits, `_`, `.` or `-`, and a letter or digit first |
| directory | an absolute path, or one that begins with `~/` |
| path | as a directory; a relative one hangs off the home |
| capability | `id@version`, lower case, as in `"code.write@1"` |

{parts}"""


def configuration() -> str:
    """The page about the configuration file."""
    return _CONFIGURATION.format(made=_MADE, parts="\n".join(_part(part) for part in _PARTS))


def documented(model: type[Section]) -> dict[str, str]:
    """The meaning of each attribute of a table: the text that stands below it in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        match one, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = _plain(text)
    return found


def _part(part: _Part) -> str:
    lines = [part.heading, "", _plain(part.model.__doc__).replace(". ", ".\n")]
    if not part.acted_on:
        lines.append(_NOT_YET_SECTION)
    lines += ["", "| key | kind | default | meaning |", "| --- | --- | --- | --- |", *_keys(part.model)]
    return "\n".join(lines) + "\n"


def _keys(model: type[Section]) -> Iterator[str]:
    hints = typing.get_type_hints(model, include_extras=True)
    meanings = documented(model)
    for attribute, field in model.model_fields.items():
        if field.annotation is ApprovalConfig:
            continue  # its tables stand as parts of their own
        meaning = meanings[attribute]
        if (model, attribute) in NOT_YET:
            meaning += f" {_NOT_YET}"
        default = _default(attribute, field.get_default(call_default_factory=True))
        yield f"| `{toml_key(attribute)}` | {kind(hints[attribute])} | {default} | {meaning} |"


def kind(hint: Any) -> str:
    """What kind of value a key takes. Raises ValueError for a kind that has no words yet."""
    for known, words in _KINDS:
        if hint == known:
            return words
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(one) for one in arguments if one is not type(None))
    if origin is Literal:
        return ", ".join(f'`"{one}"`' for one in arguments)
    if origin is tuple:
        return f"list of {kind(arguments[0])}"
    if isinstance(hint, type) and issubclass(hint, Section):
        return "table, see below"
    raise ValueError(f"no words for the kind of value {hint!r}")


def _annotated(base: Any, marks: tuple[Any, ...]) -> str:
    for mark in marks:
        if isinstance(mark, Duration):
            return "duration" + _span(mark.least_ms, mark.most_ms, duration_toml)
        if isinstance(mark, Size):
            return "size"
    rules = [rule for mark in marks for rule in getattr(mark, "metadata", ())]
    least = next((rule.ge for rule in rules if hasattr(rule, "ge")), None)
    most = next((rule.le for rule in rules if hasattr(rule, "le")), None)
    if least is None or most is None:
        return kind(base)
    return f"{kind(base)}, {least} or more" if most >= _ENDLESS else f"{kind(base)}, {least} to {most}"


_ENDLESS = 1_000_000_000  # a limit as high as this keeps out slips of the finger and is not worth a word


def _span(least: int, most: int | None, show: Callable[[int], str]) -> str:
    low = f"at least {show(least)}" if least > 1 else ""
    high = f"at most {show(most)}" if most is not None else ""
    both = ", ".join(filter(None, (low, high)))
    return f", {both}" if both else ""


def _default(attribute: str, value: Any) -> str:
    if value is PydanticUndefined:
        return "**required**"
    if value is None or value == "" or value == () or isinstance(value, Section):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int):
        text = duration_toml(value) if attribute.endswith("_ms") else size_toml(value)
        return f'`"{text}"`' if attribute.endswith(("_ms", "_bytes")) else f"`{value}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`'


# --- words ------------------------------------------------------------------------------------------------------------


def _plain(text: str | None) -> str:
    """A docstring as one line of Markdown."""
    return " ".join((text or "").replace("``", "`").split())


def _listed(statuses: Collection[str]) -> str:
    """Statuses in a sentence, in the order of the table."""
    names = [one for one in TASK.states if one in statuses]
    return ", ".join(f"`{one}`" for one in names[:-1]) + f" or `{names[-1]}`"


PAGES: dict[str, Callable[[], str]] = {"states.md": states, "errors.md": error_page, "configuration.md": configuration}


def main(directory: str) -> None:
    """Write every page into a directory."""
    for name, page in PAGES.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            file.write(page())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.path.join("docs", "reference"))
