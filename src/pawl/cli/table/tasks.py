"""The commands about tasks: start work, look at it, wait for it, end it."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option, Positional

STATUSES = ("queued", "running", "paused", "completed", "failed", "cancelled", "lost", "timed_out")
KINDS = ("delegate", "subagent", "cron", "sop_step", "work_item", "goal")

_ID = "A task's id, or as much of the id as tells it apart (8 characters at least)."
_TASK = Positional("task", _ID, complete="task")
_TASKS = Positional("tasks", _ID, complete="task", repeat=True, metavar="TASK")
_JSON_BYTES = '`{"id", "status", "sha256", "size_bytes", "text"}`; `"base64"` in place of `text` where it is not UTF-8'

DELEGATE = Command(
    "delegate",
    "delegate:delegate",
    """Give work to an agent in the background and print the task's id.
    The task is stored before it starts and goes on whatever happens to this terminal. AGENT is one of
    `pawl agent list`. PROMPT is what the agent reads; `-` or nothing reads it from standard input. With
    `--parallel` the agents stand there and PROMPT is the only word; with `--wait` each output then follows a line
    like `==> coder 0193f2a1-7c3b-7abc completed <==`.""",
    positionals=(
        Positional("agent", "The agent that does the work; not with `--parallel`.", complete="agent", required=False),
        Positional("prompt", "What to do, as one word in quotes; `-` or absent: standard input.", required=False),
    ),
    options=(
        Option("--wait", "Wait for the end, print the output; exit 0 only if it (or all) completed.", kind="flag"),
        Option(
            "--parallel", "The same work for each of these agents: all of it is taken, or none.",
            kind="names", complete="agents",
        ),
        Option("--timeout", "End the work after this long.", kind="duration", least=1),
        Option("--queue-timeout", "Give up if it has not started after this long.", kind="duration", least=1),
        Option("--retries", "Try again this often when it fails.", kind="integer", least=0, most=100),
        Option("--priority", "Larger runs first; 0 is usual.", kind="integer", least=-1_000_000, most=1_000_000),
        Option("--cwd", "The directory to work in.", kind="path", metavar="DIR", complete="path"),
        Option("--env", "Set a variable for the work.", kind="pair", repeat=True),
        Option("--idempotency-key", "The same key starts the same work only once.", metavar="K"),
        Option(
            "--parent", "Make it a child of this task; inside a task only of that one.",
            complete="task", metavar="TASK",
        ),
        Option("--label", "Mark it, to find it again with `pawl list --label`.", kind="pair", repeat=True),
        Option(
            "--input", "Copy this file into the task's directory, PAWL_TASK_DIR.",
            kind="path", repeat=True, metavar="FILE", complete="path",
        ),
    ),
    examples=(
        ('pawl delegate echo "hello"', "start it and print its id"),
        ("pawl delegate coder --timeout 20m < prompt.md", "read the prompt from a file"),
        ('pawl delegate coder --wait "Fix the failing test" > answer.txt', "wait and keep what it printed"),
        ('pawl delegate --parallel coder,tester --wait "What is wrong here?"', "ask two, see both answers"),
    ),
    json="the task; with `--wait` the task when it has ended; with `--parallel` an array of these in"
    " the order of the agents",
    extra='a prompt of several words is written in quotes: pawl delegate AGENT "all of it"',
)  # fmt: skip

STATUS = Command(
    "status",
    "status:status",
    """Show how the daemon is doing, or everything about one task.
    Without TASK: the daemon, how many tasks are in which status, what the last start had to mend and what
    needs your attention. With TASK: its times, its error and what to do about it, how far it says it is, what it
    has used, its worker, the tasks that it started and its events.""",
    positionals=(Positional("task", _ID, required=False, complete="task"),),
    examples=(
        ("pawl status", "the overview"),
        ("pawl status 0193f2a1-b2c3", "one task"),
    ),
    json="the overview, or the task",
)

LIST = Command(
    "list",
    "tasks:list_tasks",
    """List tasks, newest first.
    Shows the newest 50; filters narrow it, `--limit` and `--all` widen it. Into a pipe: one line a task,
    whole ids, columns separated by two spaces (id, status, agent, kind, created, took, note; `-` for
    nothing).""",
    options=(
        Option(
            "--status",
            "Only tasks of this status.",
            kind="choice",
            repeat=True,
            choices=STATUSES,
            metavar="S",
        ),
        Option("--agent", "Only tasks of this agent.", complete="agent", metavar="A"),
        Option("--kind", "Only tasks of this kind.", kind="choice", choices=KINDS, metavar="K"),
        Option("--label", "Only tasks with this label.", kind="pair", repeat=True),
        Option("--limit", "At most so many.", kind="integer", least=1, most=100_000),
        Option("--all", "All there are.", kind="flag"),
    ),
    examples=(
        ("pawl list --status running --status queued", "what is going on"),
        ("pawl list --label ticket=42 --json", "for a script"),
    ),
    json="an array of tasks",
)

RESULT = Command(
    "result",
    "result:result",
    """Print what a task wrote to its standard output, byte for byte.
    Exit 0 if the task completed, 1 if it ended otherwise (what it wrote is printed all the same), 5 if it
    has not ended yet. `pawl logs` shows what is there so far.""",
    positionals=(_TASK,),
    examples=(("pawl result 0193f2a1-b2c3 > answer.txt", "keep it in a file"),),
    json=_JSON_BYTES,
)

LOGS = Command(
    "logs",
    "result:logs",
    """Print what a task has written so far.
    With `-f` it goes on printing until the task ends; a task that is still queued is waited for.""",
    positionals=(_TASK,),
    options=(
        Option("--follow -f", "Go on until the task has ended.", kind="flag"),
        Option("--stderr", "Its standard error instead of its standard output.", kind="flag"),
    ),
    examples=(
        ("pawl logs -f 0193f2a1-b2c3", "watch it work"),
        ("pawl logs --stderr 0193f2a1-b2c3", "why did it fail?"),
    ),
    json='`{"id", "status", "stream", "size_bytes", "text" or "base64"}`;'
    ' with `-f` a line `{"id", "stream", "text" or "base64"}` a piece, and that object without text last',
)

WAIT = Command(
    "wait",
    "wait:wait",
    """Wait until tasks have ended.
    Exit 0 only if every one completed, 1 if any ended badly, 124 if `--timeout` ran out first (the work
    goes on), 4 if there is no such task. With `--any` one that has ended is enough: exit 0 if one that has ended
    completed, 1 if none did.""",
    positionals=(_TASKS,),
    options=(
        Option("--timeout", "Wait at most so long.", kind="duration"),
        Option("--all", "Until all have ended, as without it.", kind="flag"),
        Option("--any", "Until one has ended.", kind="flag"),
    ),
    examples=(
        ("pawl wait 0193f2a1-b2c3 && pawl result 0193f2a1-b2c3", "print the result when it is there"),
        ("pawl wait $A $B --timeout 10m", "several, ten minutes at most"),
        ("pawl wait --any $A $B", "the first that ends"),
    ),
    json='the task; for several `{"status": "complete" or "timeout", "completed": [task...], "pending": [id...],'
    ' "missing": [id...], "failed": [id...]}`, where `failed` are those of `completed` that ended badly',
)

CANCEL = Command(
    "cancel",
    "tasks:cancel",
    """End tasks and everything they started, the tasks below them too.
    Answers when their processes are gone, and names those that could not be ended. Exit 0 if they are
    cancelled now (or were already), 5 if one had ended otherwise before, 4 if there is no such task.""",
    positionals=(_TASKS,),
    options=(Option("--reason", "Why; kept with the task."),),
    examples=(
        ("pawl cancel 0193f2a1-b2c3", "end one"),
        ('pawl cancel $A $B --reason "wrong branch"', "several, and say why"),
    ),
    json='the task with `"outcome": "cancelled"`, `"already_cancelled"` or `"already_<status>"`; an array for several;'
    ' `"ended_below": [id...]`: tasks below it that this ended too, `"living_below": [id...]`: those that still live,'
    ' with `"ended_below_more"` and `"living_below_more"`: how many have no id there',
)

WHY = Command(
    "why",
    "why:why",
    """Show every gate that a task passed or waits at, one by one.
    What was looked at before it was taken, what it waits for now (`ok`, `no`, `waits`; `-`: not looked at), the
    policy that it works under with where each value comes from, and what it asked for itself and was refused.""",
    positionals=(_TASK,),
    examples=(("pawl why 0193f2a1-b2c3", "why does it wait, and what may it do?"),),
    json='`{"id", "kind": "task", "agent", "status", "steps": [{"gate", "outcome": "passed", "refused", "waits" or'
    ' "skipped", "message"}...], "policy": {"sha256", "mode", "values", "sources"} or null, "refusals": [{"at",'
    ' "agent", "code", "message", "steps"}...]}`',
)

COMMANDS = (DELEGATE, STATUS, LIST, RESULT, LOGS, WAIT, CANCEL, WHY)
