"""The commands for programs that run inside a task: they speak of the task that calls them."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option, Positional

SPAWN = Command(
    "spawn",
    "delegate:spawn",
    """Run the calling task's own agent once more, wait for it and print its output.
    For programs inside a task; anywhere else it is refused (exit 6). The sub-agent may do at most what its parent
    may, and the options only take away from that; it counts against its parent's budget, and ends with it. It
    spawns none itself. PROMPT is what it reads; `-` or nothing reads it from standard input. Exit 0 only if it
    completed.""",
    positionals=(
        Positional("prompt", "What to do, as one word in quotes; `-` or absent: standard input.", required=False),
    ),
    options=(
        Option("--timeout", "End it after this long.", kind="duration", least=1),
        Option("--allow-tools", 'Only these of its parent\'s tools; "" is no tool at all.', kind="names"),
        Option("--deny-tools", "All of its parent's tools but these.", kind="names"),
        Option("--env", 'Pass only these of its parent\'s variables; "" is none.', kind="names", metavar="K,..."),
        Option("--max-actions", "So many actions an hour at most.", kind="integer", least=0, most=1_000_000_000),
    ),
    examples=(
        ('pawl spawn "Summarise src/main.c"', "one more run of the same agent, and its answer"),
        ('pawl spawn --allow-tools Read --timeout 5m "Look for the cause"', "one that may only read"),
    ),
    json="the task when it has ended",
    extra='a prompt of several words is written in quotes: pawl spawn "all of it"',
)

USAGE = Command(
    "usage",
    "inside:usage",
    """Report what the calling task has used of a language model since it last said so.
    For programs inside a task; anywhere else it is refused (exit 6). Give `--tokens`, `--cost` or both. The sums
    stand in `pawl status` of the task, its own and those of its tree, and the cost counts against
    `max_cost_per_day` of its policy. Prints the sums so far.""",
    options=(
        Option("--tokens", "How many tokens.", kind="integer", least=0, most=10**15),
        Option("--cost", "What they cost, in the currency of your policies.", kind="amount", most=10**9),
        Option("--model", "Which model."),
    ),
    examples=(("pawl usage --tokens 1200 --cost 0.03 --model large", "after each call of a model"),),
    json='`{"task_id", "tokens", "cost", "tree": {"tasks", "tokens", "cost"}, "left": {"cost": number or null}}`',
)

PROGRESS = Command(
    "progress",
    "inside:progress",
    """Say how far the calling task is.
    For programs inside a task; anywhere else it is refused (exit 6). The last word stands in `pawl status` of the
    task. Prints nothing.""",
    positionals=(Positional("text", "How far it is, in a few words.", metavar="TEXT"),),
    options=(Option("--phase", "Which part of the work it is in.", metavar="P"),),
    examples=(('pawl progress --phase tests "12 of 40 pass"', "leave a word for whoever looks"),),
    json='`{"task_id", "progress": {"text", "phase", "at"}}`',
    extra='words are written in quotes: pawl progress "all of it"',
)

COMMANDS = (SPAWN, USAGE, PROGRESS)
