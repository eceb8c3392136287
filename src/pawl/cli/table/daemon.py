"""The commands about the daemon's own life."""

from __future__ import annotations

from pawl.cli.table.model import Command, Option

_CANCEL = Option("--cancel", "End what runs first; what is queued stays queued.", kind="flag")
_JSON_READY = 'the daemon: `{"pid", "started_at", "version", "home", "socket", "stopping", "recovery"}`'

RUN = Command(
    "daemon run",
    "daemon:run",
    """Run the daemon in the foreground.
    For a service manager, a container or a look at its log. Ctrl-C stops it; work that runs goes on and is
    taken over by the next daemon.""",
    examples=(("pawl daemon run", "until Ctrl-C"),),
    json="nothing of its own: the daemon writes its log to standard error",
)

START = Command(
    "daemon start",
    "daemon:start",
    """Start the daemon in the background.
    Answers when it is ready to take work. Its log goes to logs/daemon.log in the home. Exit 5 if one runs
    already.""",
    examples=(("pawl daemon start", "and then: pawl status"),),
    json=_JSON_READY,
)

STOP = Command(
    "daemon stop",
    "daemon:stop",
    """Stop the daemon; answers when it is gone.
    Work that runs goes on without it, and the next daemon takes it over with everything it has printed
    meanwhile. `--cancel` ends it instead; what is queued stays queued in either case. Exit 3 if none runs.""",
    options=(_CANCEL,),
    examples=(
        ("pawl daemon stop", "leave the work running"),
        ("pawl daemon stop --cancel", "end the work too"),
    ),
    json='`{"pid", "cancelled": true or false, "running": [id...], "left": [id...], "queued": n}`: what ran when it was'
    " asked to stop, what runs on without it, and how many tasks wait for the next daemon",
)

RESTART = Command(
    "daemon restart",
    "daemon:restart",
    """Stop the daemon and start it again, for instance after an upgrade.
    Running work goes on meanwhile and is taken over; nothing is waited for. A configuration file with faults is
    told first (exit 2), and the daemon runs on with what it has. Starts one too where none runs.""",
    examples=(("pawl daemon restart", "after an upgrade"),),
    json=_JSON_READY + "; `stopped_pid` besides",
)

STATUS = Command(
    "daemon status",
    "daemon:status",
    """Say whether a daemon runs at this home.
    Exit 0 if it answers, 3 if none does. `pawl status` shows the work.""",
    examples=(("pawl daemon status", "who is it, since when"),),
    json=_JSON_READY + "; `uptime_s` besides",
)

INSTALL = Command(
    "daemon install",
    "daemon:install",
    """Write a systemd user unit, so that the daemon starts when you log in.
    Writes systemd/user/pawl.service below $XDG_CONFIG_HOME or ~/.config and says what to type next. Enables
    nothing by itself.""",
    options=(Option("--print", "Print the unit and write nothing.", kind="flag", name="only_print"),),
    examples=(
        ("pawl daemon install", "write it"),
        ("pawl daemon install --print", "look at it first"),
    ),
    json='`{"path", "unit", "written", "next": [command...]}`',
)

COMMANDS = (RUN, START, STOP, RESTART, STATUS, INSTALL)
