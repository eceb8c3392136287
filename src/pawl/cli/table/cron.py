"""The commands about scheduled jobs."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option, Positional

NEXT = Command(
    "cron next",
    "cron:next_fires",
    """Show when a schedule fires next, in UTC and in its zone.
    WHAT is a schedule, as in a crontab (`30 2 * * 1-5`, `@daily`; with six fields the first is seconds), or
    the name of a job, declared or added. A fire that a change of the clocks moves or repeats says so. It needs no
    daemon.""",
    positionals=(Positional("what", "A schedule in quotes, or a job's name.", metavar="WHAT"),),
    options=(
        Option(
            "--timezone", "Read it in this zone, like Europe/Paris; without it the job's, or the host's.", metavar="Z"
        ),
        Option("--after", "Fires after this instant (RFC 3339); without it from now on.", metavar="T"),
        Option("--count", "So many.", kind="integer", least=1, most=1000),
    ),
    examples=(
        ('pawl cron next "30 2 * * *" --timezone Europe/Paris', "the next five nights"),
        ("pawl cron next nightly --count 3", "of a job in config.toml"),
    ),
    json='an array of `{"at", "local", "note"}`; `note` is null, `"shifted: ..."` or `"repeated: ..."`',
    extra='a schedule is written in quotes: pawl cron next "30 2 * * *"',
)

_NAME = Positional("name", "The job's name.", metavar="JOB", complete="job")
_JOB = (
    Option("--schedule", "When it fires, as in a crontab, in quotes.", metavar="EXPR"),
    Option("--every", "Fire again after this span, like 15m.", metavar="D"),
    Option("--at", "Fire once, at this instant: 2026-12-24T18:00 in the job's zone, or with an offset.", metavar="T"),
    Option("--timezone", "The zone its schedule is read in, like Europe/Paris; without it the host's.", metavar="Z"),
    Option("--agent", "The agent that does it, and whose policy holds for it.", metavar="A", complete="agent"),
    Option("--prompt", "What the agent is asked.", metavar="TEXT"),
    Option(
        "--catch-up", "Fires that nobody was there for: record them, run one for all, or run each.",
        kind="choice", choices=("skip", "once", "all"), metavar="M",
    ),
    Option("--catch-up-window", "How far back they are caught up (1h).", kind="text", metavar="D"),
    Option("--catch-up-max", "How many `all` catches up at most (100).", kind="integer", least=1, metavar="N"),
    Option(
        "--overlap", "While the last run goes on: skip, queue, replace it, or allow both.",
        kind="choice", choices=("skip", "queue", "replace", "allow"), metavar="M",
    ),
    Option("--jitter", "Start up to this much later, always the same for this job.", metavar="D"),
    Option("--timeout", "End a run that takes longer.", metavar="D"),
    Option("--retries", "Try a run that ended badly so many times more.", kind="integer", least=0, most=100),
    Option("--expected-duration", "Report a run that takes longer than this.", metavar="D"),
    Option("--delete-after-run", "Remove the job once it has run well.", kind="flag"),
)  # fmt: skip
_ARGV = Positional(
    "argv", "A program to run in place of the agent's, under its policy; after --.", required=False, repeat=True,
    metavar="-- ARGV",
)  # fmt: skip
_SHOWN = (
    '`{"name", "origin": "config" or "runtime", "line", "agent", "schedule", "timezone", "enabled", "next_at", '
    '"last": fire or null, "disabled_reason", ...}`, with the other keys of `[[cron]]`'
)
_FIRE = (
    '`{"job", "nominal_at", "status", "reason", "task_id", "trigger": "schedule", "catch_up" or "manual", '
    '"started_at", "finished_at", "exit_code", "count", "until_at", "output", ...}`'
)

LIST = Command(
    "cron list",
    "cron_jobs:list_jobs",
    """List the jobs: when each fires next, and how its last fire went.
    Declared jobs stand in config.toml, the others were added with `pawl cron add`.""",
    examples=(("pawl cron list", "what runs when"),),
    json=f"an array of {_SHOWN}",
)
SHOW = Command(
    "cron show",
    "cron_jobs:show",
    """Show everything about a job.
    Its schedule and rules, whether it fires and if not why, its next fire and its last ones.""",
    positionals=(_NAME,),
    examples=(("pawl cron show nightly", "one job"),),
    json=_SHOWN,
)
ADD = Command(
    "cron add",
    "cron_jobs:add",
    """Add a job: an agent's prompt, or a program, at set times.
    It fires from now on, in the zone it names. The same command again changes nothing; another job of the name is
    refused without --replace. A job that belongs to the machine's set-up is better declared in config.toml.""",
    positionals=(Positional("name", "What to call it.", metavar="NAME"), _ARGV),
    options=(*_JOB, Option("--replace", "Put it in the place of a job of this name.", kind="flag")),
    examples=(
        (
            'pawl cron add nightly --schedule "30 2 * * *" --agent coder --prompt "Summarise the failures."',
            "each night",
        ),
        (
            "pawl cron add sync --every 15m --agent coder -- rsync -a /src/ /backup/",
            "a program, each quarter of an hour",
        ),
        ("pawl cron add once --at 2026-12-24T18:00 --agent coder --prompt Hello --delete-after-run", "once"),
    ),
    json=_SHOWN,
    extra="a program is written after --",
)
UPDATE = Command(
    "cron update",
    "cron_jobs:update",
    """Change a job that was added.
    What is not given stays. The next fire moves only where the schedule or its zone changes.""",
    positionals=(_NAME, _ARGV),
    options=_JOB,
    examples=(('pawl cron update nightly --schedule "0 3 * * *"', "half an hour later"),),
    json=_SHOWN,
)
REMOVE = Command(
    "cron remove",
    "cron_jobs:remove",
    """Remove a job that was added.
    What runs of it runs on, and its history stays. A declared job is removed from config.toml instead.""",
    positionals=(_NAME,),
    examples=(("pawl cron remove nightly", "no more of it"),),
    json=f"the job as it was: {_SHOWN}",
)
ENABLE = Command(
    "cron enable",
    "cron_jobs:enable",
    """Let a job fire, from now on.
    What was due while it was disabled stays undone.""",
    positionals=(_NAME,),
    examples=(("pawl cron enable nightly", "again"),),
    json=_SHOWN,
)
DISABLE = Command(
    "cron disable",
    "cron_jobs:disable",
    """Let a job fire no more, until it is enabled.
    Holds for declared jobs too, across restarts. A run that goes on is not touched.""",
    positionals=(_NAME,),
    examples=(("pawl cron disable nightly", "not while I am away"),),
    json=_SHOWN,
)
RUN = Command(
    "cron run",
    "cron_jobs:run",
    """Fire a job now, beside its schedule.
    By its own overlap rule: where that is skip and a run goes on, exit 5. It waits for nothing; `pawl wait` with the
    task's id does.""",
    positionals=(_NAME,),
    examples=(("pawl cron run nightly", "try it"),),
    json=_FIRE,
)
RUNS = Command(
    "cron runs",
    "cron_jobs:runs",
    """Show the fires on record, newest first: what ran, what was skipped or missed, and why.
    Each fire has one record, whether it ran or not.""",
    positionals=(Positional("name", "Of this job only.", metavar="JOB", required=False, complete="job"),),
    options=(Option("--limit", "At most so many (50).", kind="integer", least=1, most=500),),
    examples=(("pawl cron runs nightly --limit 7", "the last week"),),
    json=f"an array of {_FIRE}",
)

COMMANDS = (LIST, SHOW, ADD, UPDATE, REMOVE, ENABLE, DISABLE, RUN, RUNS, NEXT)
