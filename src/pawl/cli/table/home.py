"""The commands about the home as a whole: the tour, the first set-up, the check-up."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option

DEMO = Command(
    "demo",
    "demo:demo",
    """See what Pawl does, in a tour of less than half a minute.
    Starts a daemon in a throw-away home, gives it work, cancels some, kills the daemon with `kill -9` while
    a program works, and shows that nothing is lost. Checks everything it claims, touches nothing of yours
    and leaves nothing behind.""",
    examples=(("pawl demo", "take the tour"),),
    json='`{"ok", "steps": [{"step", "ok", "message", "took_s"}]}`',
)

INIT = Command(
    "init",
    "init:init",
    """Make a home: a commented config.toml and an example procedure.
    Nothing is overwritten: where a config.toml is already, nothing is changed (exit 5). With `--force` what
    is there is kept beside the new file.""",
    options=(
        Option("--test-clock", "A home whose clock tests may move; never for real work.", kind="flag"),
        Option("--force", "Write anew, keep what is there as a backup beside it.", kind="flag"),
    ),
    examples=(
        ("pawl init", "make ~/.pawl"),
        ("pawl init --home /tmp/try", "make one elsewhere"),
    ),
    json='`{"home", "config", "written": [path...], "kept": [path...], "backups": [path...], "test_clock"}`',
)

DOCTOR = Command(
    "doctor",
    "doctor:doctor",
    """Check the home and say what is wrong and how to mend it.
    Looks at the directory and its modes, file locks, disk space, the configuration, the database, the
    socket, the daemon and the clock. Changes nothing. Works with the daemon running or not. Exit 1 if
    anything is an error.""",
    examples=(("pawl doctor", "check the home in use"),),
    json='`{"ok", "home", "findings": [{"code", "severity": "error", "warning" or "info", "subject", "message",'
    ' "remedy"}]}`',
)

COMMANDS = (DEMO, INIT, DOCTOR)
