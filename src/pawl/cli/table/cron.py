"""The commands about scheduled jobs."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option, Positional

NEXT = Command(
    "cron next",
    "cron:next_fires",
    """Show when a schedule fires next, in UTC and in its zone.
    WHAT is a schedule, as in a crontab (`30 2 * * 1-5`, `@daily`; with six fields the first is seconds), or
    the name of a job in config.toml. A fire that a change of the clocks moves or repeats says so. It needs no
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

COMMANDS = (NEXT,)
