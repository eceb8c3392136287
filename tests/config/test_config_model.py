"""What a good file means: defaults, built-ins, units, names."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pawl.config import Config, check, load
from pawl.config.agents import DEFAULT_ENV
from pawl.config.fields import duration_toml, size_toml
from pawl.errors import AgentNotFound
from pawl.values import duration_ms, size_bytes

WHOLE = """
[daemon]
max_concurrent = 2
shutdown_grace = 5
kill_grace = "1500ms"

[agents.coder]
command = ["coder", "--print"]
prompt = "file"
policy = "workspace"
max_concurrent = 2
timeout = "1h30m"
delegates = ["echo", { agent = "coder", mode = "independent" }]
capabilities = ["code.write@1", "docs.write@2.1", "a-b.c@1.0.0-rc.1"]

[policies.workspace]
delegation = "allow"
env = ["PATH"]
max_output = "1GiB"
limits = { cpu = "1h", memory = "4GiB", processes = 256, open_files = 1024 }

[[cron]]
name = "nightly"
schedule = "30 2 * * *"
timezone = "Europe/Paris"
agent = "coder"
prompt = "Summarise."

[[cron]]
name = "sync"
every = 90
agent = "echo"
command = ["rsync", "a", "b"]

[sop.approval.groups.release]
members = ["user:deploy", "agent:release-bot"]

[sop.approval.policies.prod]
required_group = "release"
quorum = 2
"""


def test_defaults():
    """Without a file these values are in force."""
    config = Config()

    daemon = config.daemon
    assert (daemon.max_concurrent, daemon.shutdown_grace_ms, daemon.kill_grace_ms) == (8, 30_000, 10_000)
    assert (daemon.heartbeat_interval_ms, daemon.heartbeat_timeout_ms) == (30_000, 3_600_000)
    policy = config.policies["default"]
    assert (policy.delegation, policy.max_depth, policy.max_actions_per_hour) == ("forbid", 3, 100)
    assert (policy.env, policy.workspace, policy.max_output_bytes) == (DEFAULT_ENV, None, 64 * 1024**2)
    assert set(policy.limits.model_dump().values()) == {None}
    assert (config.cron, config.sop.dir, config.sop.approval_timeout_ms) == ((), "sops", 300_000)


def test_whole_file(write):
    """Every table arrives with units in the names of its attributes."""
    config = load(write(WHOLE))

    assert (config.daemon.shutdown_grace_ms, config.daemon.kill_grace_ms) == (5_000, 1_500)
    coder = config.agent("coder")
    assert (coder.name, coder.command, coder.builtin) == ("coder", ("coder", "--print"), False)
    assert coder.timeout_ms == 5_400_000
    assert [(d.agent, d.mode) for d in coder.delegates] == [("echo", "bounded"), ("coder", "independent")]
    policy = config.policy_of(coder)
    assert (policy.name, policy.max_output_bytes) == ("workspace", 1024**3)
    assert (policy.limits.cpu_ms, policy.limits.memory_bytes) == (3_600_000, 4 * 1024**3)
    nightly, sync = config.cron
    assert (nightly.schedule, nightly.every, nightly.at) == ("30 2 * * *", None, None)
    assert (nightly.catch_up, nightly.catch_up_window_ms, nightly.catch_up_max) == ("once", 3_600_000, 100)
    assert (nightly.overlap, nightly.jitter_ms, nightly.retries) == ("skip", 0, 0)
    assert (sync.every, sync.command, sync.agent) == ("90", ("rsync", "a", "b"), "echo")
    assert config.sop.approval.groups["release"].members == ("user:deploy", "agent:release-bot")
    assert config.sop.approval.policies["prod"].quorum == 2


def test_echo_is_built_in():
    """The agent ``echo`` is always there, without a command, under the built-in policy."""
    echo = Config().agent("echo")

    assert (echo.name, echo.builtin, echo.command) == ("echo", True, ())
    assert Config().policy_of(echo).name == "default"


def test_echo_may_be_adjusted(write):
    """A table for ``echo`` without a command adjusts the built-in agent."""
    echo = load(write('[agents.echo]\ntimeout = "5m"\n')).agent("echo")

    assert (echo.builtin, echo.timeout_ms) == (True, 300_000)


def test_echo_may_be_replaced(write):
    """With a command, ``echo`` is an agent like any other."""
    echo = load(write('[agents.echo]\ncommand = ["/bin/echo"]\n')).agent("echo")

    assert (echo.builtin, echo.command) == (False, ("/bin/echo",))


def test_default_policy_may_be_replaced(write):
    """A table for ``default`` takes the place of the built-in policy."""
    config = load(write('[policies.default]\nenv = ["PATH"]\n'))

    assert config.policy_of("echo").env == ("PATH",)


def test_unknown_agent_names_the_nearest():
    """Asking for an agent that is not there names those that are like it, or else those that there are."""
    config = Config.model_validate({"agents": {"coder": {"command": ["c"]}, "codex": {"command": ["c"]}}})

    with pytest.raises(AgentNotFound) as near:
        config.agent("codr")
    with pytest.raises(AgentNotFound) as far:
        config.policy_of("???")

    assert near.value.message == 'cannot find the agent "codr": did you mean "coder" or "codex"?'
    assert near.value.details == {
        "agent": "codr",
        "nearest": ["coder", "codex"],
        "known": ["coder", "codex", "echo"],
    }
    assert far.value.message == 'cannot find the agent "???": there are "coder", "codex" and "echo"'


def test_unsound_configuration_cannot_be_made():
    """Checks between keys hold for configurations made in Python too, not only for files."""
    with pytest.raises(ValidationError):
        Config.model_validate({"agents": {"a": {"command": ["a"], "policy": "gone"}}})


def test_configuration_cannot_be_changed():
    """A configuration is a value: nothing can be assigned to it."""
    with pytest.raises(ValidationError):
        Config().daemon.max_concurrent = 9  # type: ignore[misc]


@pytest.mark.parametrize(
    "entry",
    [
        'schedule = "every full moon"\nagent = "coder"\nprompt = "x"',
        'schedule = "0 9 * * *"\nagent = "nobody"\nprompt = "x"',
        'schedule = "0 9 * * *"\ntimezone = "Mars/Olympus"\nagent = "coder"\ncommand = ["true"]',
        'every = "a while"\nagent = "coder"\ncommand = ["true"]',
        'at = "tomorrow"\nagent = "coder"\ncommand = ["true"]',
    ],
)
def test_job_that_cannot_run_is_well_formed(write, entry):
    """An unreadable schedule, an unknown agent or zone is for the scheduler to report: the file is good."""
    path = write(f'[agents.coder]\ncommand = ["c"]\n[[cron]]\nname = "job"\n{entry}\n')

    assert check(path) == []


def test_toml_date_is_a_schedule(write):
    """TOML's own date and time may stand for ``at``; it is kept as text."""
    path = write('[[cron]]\nname = "x"\nat = 2026-12-24T18:00:00+01:00\nagent = "echo"\ncommand = ["true"]\n')

    assert load(path).cron[0].at == "2026-12-24T18:00:00+01:00"


def test_home_is_expanded(write, monkeypatch):
    """``~`` stands for the home directory in paths."""
    monkeypatch.setenv("HOME", "/home/somebody")

    config = load(write('[policies.p]\nworkspace = "~/src"\n[sop]\ndir = "~/sops"\n'))

    assert config.policies["p"].workspace == "/home/somebody/src"
    assert config.sop.dir == "/home/somebody/sops"


def test_quorum_is_at_least_one(write):
    """A quorum of 0 never means that no vote is needed."""
    config = load(write("[sop.approval.policies.p]\nquorum = 0\n"))

    assert config.sop.approval.policies["p"].quorum == 1


def test_blank_group_is_none(write):
    """A blank ``required_group`` is the same as none."""
    config = load(write('[sop.approval.policies.p]\nrequired_group = " "\n'))

    assert config.sop.approval.policies["p"].required_group is None


def test_group_that_does_not_exist_is_no_fault(write):
    """A policy may name a group that is not there: its gates stay closed, and the file is good."""
    assert check(write('[sop.approval.policies.p]\nrequired_group = "gone"\n')) == []


@pytest.mark.parametrize("name", ["a", "9", "A.b-c_d", "x" * 64])
def test_good_names(write, name):
    """Names are 1 to 64 letters, digits, ``_ . -``, with a letter or digit first."""
    assert load(write(f'[agents."{name}"]\ncommand = ["c"]\n')).agent(name).name == name


def test_units_are_written_as_they_are_read():
    """A duration or size written for the file is the shortest plain form, and reads back as itself."""
    durations, sizes = [0, 1, 1_500, 30_000, 90_000, 3_600_000, 172_800_000], [0, 1, 1_000, 8 * 1024, 3 * 1024**3]

    assert [duration_toml(ms) for ms in durations] == ["0s", "1ms", "1500ms", "30s", "90s", "1h", "2d"]
    assert [size_toml(count) for count in sizes] == ["0", "1", "1000", "8KiB", "3GiB"]
    assert [duration_ms(duration_toml(ms)) for ms in durations] == durations
    assert [size_bytes(size_toml(count)) for count in sizes] == sizes


@pytest.mark.parametrize("sandbox", ["preferred", "required"])
@pytest.mark.parametrize(
    "workspace",
    ["/", "//", "/usr/..", "/run", "/run/", "/run/user", "/run/user/1000", "/proc", "/proc/self/cwd",
     "/proc/1/root/srv", "/sys", "/sys/fs", "/dev", "/dev/shm", "/dev/pts"],
)  # fmt: skip
def test_no_workspace_defeats_the_sandbox(write, sandbox, workspace):
    """What a sandbox hides or makes anew is no workspace in one."""
    path = write(f'[policies.p]\nsandbox = "{sandbox}"\nworkspace = "{workspace}"\n')

    (fault,) = check(path)

    assert (fault.path, fault.line) == ("policies.p.workspace", 3)


@pytest.mark.parametrize("workspace", ["/srv/work", "/run/user/1000/work", "/dev/shm/work", "/tmp/work", "/runs"])
def test_other_workspaces_are_fine_in_a_sandbox(write, workspace):
    """Also below the places that a sandbox hides."""
    assert check(write(f'[policies.p]\nsandbox = "required"\nworkspace = "{workspace}"\n')) == []


@pytest.mark.parametrize("workspace", ["/", "/run"])
def test_without_a_sandbox_any_workspace_is_fine(write, workspace):
    """There is nothing to defeat."""
    assert check(write(f'[policies.p]\nworkspace = "{workspace}"\n')) == []


def test_a_link_to_such_a_workspace_is_none_either(write, tmp_path):
    """It is looked at for where it leads."""
    (tmp_path / "link").symlink_to("/")

    (fault,) = check(write(f'[policies.p]\nsandbox = "required"\nworkspace = "{tmp_path}/link"\n'))

    assert fault.path == "policies.p.workspace"
