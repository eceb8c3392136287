"""``python -m pawl.cli.reference`` prints docs/reference/commands.md, made from the table."""

# ruff: noqa: E501 - the page has one sentence a line
from __future__ import annotations

from collections.abc import Sequence

from pawl.cli import helptext, output
from pawl.cli.table import every
from pawl.cli.table.model import EVERYWHERE, Command, Option

_HEAD = """# The commands

This page is made from the table of commands by `python -m pawl.cli.reference`.
The same words are what `pawl COMMAND --help` prints.

## For every command

Options stand before or after the command's words.
`pawl --version` (or `-V`, or the word `version`) prints the version, `pawl --help` the list of commands; the word `help` before a command's words prints its help.

{everywhere}

With `--json` there is exactly one JSON document on standard output, on one line; `-f` streams one object a line.
Errors go to standard error; with `--json` they are one object:

```json
{{"error": {{"code": "task_not_found", "message": "cannot find a task with the id 0193…", "retryable": false, "details": {{}}}}}}
```

Without `--json` there is text for people.
On a terminal tables are aligned and cut to fit, ids are their first 18 characters and moments are ages.
Into a pipe there is no head and nothing is cut, columns are separated by two spaces, `-` stands for nothing, ids are whole and moments are RFC 3339.
There is colour on a terminal only, and none where `NO_COLOR` is set.

A task's id may be shortened to as much of the id as tells it apart (8 characters at least).
Ids of the same minute share their first 8 characters: 13 or 18 are rarely too few.
Durations: `90`, `90s`, `10m`, `2h`, `7d`, `1h30m`.

| exit | meaning |
| --- | --- |
| 0 | done |
| 1 | the work asked about ended badly (failed, lost, timed out, cancelled), or an internal error |
| 2 | wrong usage, invalid input, invalid configuration or document |
| 3 | no daemon answers at this home |
| 4 | no such task, agent, job, run or work item |
| 5 | refused by state: already ended, already there, in conflict |
| 6 | refused by policy |
| 124 | the wait ran out of time; the work goes on |
| 130 | interrupted; work already accepted goes on |
| 141 | nobody reads the output any more (`pawl list \\| head`) |

A wait (`wait`, `delegate --wait`, `spawn`, `logs -f`, `events -f`) outlives a restart of the daemon: it looks for the next one for 10 seconds.

## Shapes

Keys may be added, never renamed.
Times are RFC 3339 in UTC with milliseconds, durations are seconds (`…_s`), sizes are bytes (`…_bytes`).

A task:

```json
{{"id": "0193...", "kind": "delegate", "agent": "coder", "status": "running",
 "created_at": "...", "started_at": "...", "finished_at": null, "heartbeat_at": "...", "deadline_at": null,
 "owner": {{"pid": 4711, "started": "...", "boot_id": "..."}},
 "worker": {{"pid": 4720, "started": "..."}},
 "parent_id": null, "goal_id": null, "depth": 0, "creator": "operator", "chain": [], "principal": "uid:1000",
 "attempt": 1, "retry_of": null, "idempotency_key": null, "labels": {{}},
 "exit_code": null, "error": null,
 "output": {{"sha256": "…", "size_bytes": 12, "path": "…"}},
 "mode": null, "policy_sha256": "…", "progress": null,
 "usage": null, "delivered": false, "source": {{"type": "cli"}}}}
```

`status` is `queued`, `running` or `paused`, and at the end `completed`, `failed`, `cancelled`, `lost` or `timed_out`.
`kind` is `delegate`, `subagent`, `cron`, `sop_step`, `work_item` or `goal`.
`error` is `{{"code", "message"}}` where it ended badly.
`creator` is null for a `subagent`; `mode` is `bounded` or `independent` for what a task asked for, and null for what the operator did.
`progress` is `{{"text", "phase", "at"}}` and `usage` is `{{"tokens", "cost", "models"}}` where the task has reported them.
`pawl status TASK` adds `usage_tree` (`{{"tasks", "tokens", "cost"}}`, of the task and all below it), `children` (`[{{"id", "agent", "kind", "status"}}]`, 50 at most) and `children_more` (how many there are besides).

An event: `{{"seq", "at", "actor", "subject_kind", "subject_id", "event", "from", "to", "reason", "details", "hash"}}`.

The overview: `{{"daemon": {{"pid", "started_at", "version", "home", "socket", "stopping", "recovery": {{...}}}}, "tasks": {{"running": n, ...}}, "cron": {{...}}, "sop": {{...}}, "work": {{...}}, "findings": [{{"code", "message", "subject"}}]}}`.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD.format(everywhere=_options(EVERYWHERE)), "## Commands\n"]
    parts.append("\n".join(f"- [`pawl {one.words}`](#{_anchor(one)}): {one.summary}" for one in every()) + "\n")
    for command in every():
        parts.append(_section(command))
    return "\n".join(parts)


def _anchor(command: Command) -> str:
    return "pawl-" + command.words.replace(" ", "-")


def _section(command: Command) -> str:
    parts = [f"### `pawl {command.words}`", command.summary + _after(command)]
    parts.append(f"```\n{helptext.usage(command)}\n```")
    values = [(helptext.place(one), one.help) for one in command.positionals]
    if values:
        parts.append(_rows(values))
    if command.options:
        parts.append(_options(command.options))
    parts.append("Examples:\n\n" + "\n".join(f"- `{words}`: {meaning}" for words, meaning in command.examples))
    parts.append(f"With `--json`: {command.json}.")
    return "\n\n".join(parts) + "\n"


def _after(command: Command) -> str:
    """The paragraph, one sentence a line."""
    text = " ".join(command.paragraph.split())
    return "\n" + text.replace(". ", ".\n") if text else ""


def _options(options: Sequence[Option]) -> str:
    return _rows([(helptext.name(one), helptext.note(one)) for one in options])


def _rows(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "| --- | --- |", *(f"| `{left}` | {right} |" for left, right in rows)])


if __name__ == "__main__":
    output.raw(page().encode())
