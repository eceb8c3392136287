"""The words for what is wrong: each kind of fault, with its key, its line and what was probably meant."""

# ruff: noqa: E501  -- one case a line: a message is then easy to read and to search for

from __future__ import annotations

import pytest

from pawl.config import Fault, check
from pawl.config.wording import dotted, found, listed, quoted

A = '[agents.a]\ncommand = ["a"]\n'
P = "[policies.p]\n"
D = "[daemon]\n"
C = '[[cron]]\nname = "c"\nat = "2030-01-01T00:00:00Z"\ncommand = ["c"]\nagent = "a"\n'
DURATION = "such as 90, 90s, 10m, 2h, 7d or 1h30m"
AGENT_KEYS = "description, command, prompt, model, policy, enabled, worker, max_concurrent, timeout, delegates"

CASES = [
    # unknown keys
    ("deamon = 1\n", ("deamon", 1, 'unknown key; did you mean "daemon"?', "daemon")),
    ("[agent.x]\n", ("agent", 1, 'unknown key; did you mean "agents"?', "agents")),
    (
        A + "max-concurrent = 1\n",
        ("agents.a.max-concurrent", 3, 'unknown key; did you mean "max_concurrent"?', "max_concurrent"),
    ),
    (A + "Timeout = 1\n", ("agents.a.Timeout", 3, 'unknown key; did you mean "timeout"?', "timeout")),
    (
        A + '"q q" = 1\n',
        ('agents.a."q q"', 3, f"unknown key; known here: {AGENT_KEYS}, delegate_same_policy, accepts_env, capabilities", None),
    ),
    (D + '"[key]" = 1\n', ('daemon."[key]"', 2, None, None)),
    # tools, cost, sandbox, reserved names, placeholders
    (
        A + '[policies.p]\nallowed_tools = ["Read "]\n',
        ("policies.p.allowed_tools[0]", 4, '"Read " has spaces around it, so it would name no tool', None),
    ),
    (
        A + '[policies.p]\ndenied_tools = ["a,b"]\n',
        (
            "policies.p.denied_tools[0]", 4,
            '"a,b" is not the name of a tool: up to 200 letters, digits, spaces and _ . : * ( ) / @ + -, '
            "and a letter, digit or _ first", None,
        ),
    ),
    (
        A + '[policies.p]\nalways_ask = ["x", "x"]\n',
        ("policies.p.always_ask", 4, '"x" stands in this list twice; name each tool once', None),
    ),
    (
        A + '[policies.p]\nmax_cost_per_day = "5"\n',
        ("policies.p.max_cost_per_day", 4, 'found "5", expected an amount such as 5 or 2.50', None),
    ),
    (
        A + "[policies.p]\nmax_cost_per_day = -1\n",
        ("policies.p.max_cost_per_day", 4, "-1 is no amount between 0 and 1000000000", None),
    ),
    (
        A + '[policies.p]\nnetwork = "off"\n',
        ("policies.p.network", 4, '"off" needs a sandbox: set sandbox = "required" (or "preferred") beside it', None),
    ),
    (
        A + '[policies.p]\nsandbox = "required"\nworkspace = "/"\n',
        (
            "policies.p.workspace", 5,
            '"/" as the workspace leaves a sandbox nothing to hold back; name a directory for the work', None,
        ),
    ),
    (
        '[agents.operator]\ncommand = ["x"]\n',
        ("agents.operator", 1, '"operator" is taken: it stands for the person or for Pawl itself in records', None),
    ),
    (
        '[agents.a]\ncommand = ["x", "{allowed_tools}"]\n',
        (
            "agents.a.command", 2,
            'asks for {allowed_tools}, and the policy "default" allows every tool; set allowed_tools there', None,
        ),
    ),
    (
        '[agents.a]\ncommand = ["x", "{model}"]\n',
        ("agents.a.command", 2, 'asks for {model}, and this agent has none; set model = "NAME"', None),
    ),
    # a placeholder whose policy or model is misspelt has that one fault
    (
        '[agents.a]\ncommand = ["{allowed_tools}"]\npolicy = 1979-05-27\n',
        ("agents.a.policy", 3, "found a date or time, expected text in quotes", None),
    ),
    (
        '[agents.a]\ncommand = ["{allowed_tools}"]\npolicy = "wrok"\n[policies.work]\nallowed_tools = []\n',
        ("agents.a.policy", 3, 'there is no policy "wrok"; did you mean "work"?', "work"),
    ),
    (
        '[agents.a]\ncommand = ["{allowed_tools}"]\npolcy = "p"\n[policies.p]\nallowed_tools = []\n',
        ("agents.a.polcy", 3, 'unknown key; did you mean "policy"?', "policy"),
    ),
    (
        '[agents.a]\ncommand = ["{allowed_tools}"]\npolicy = "p"\n[policies.p]\nallowd_tools = []\n',
        ("policies.p.allowd_tools", 5, 'unknown key; did you mean "allowed_tools"?', "allowed_tools"),
    ),
    (
        '[agents.a]\ncommand = ["{model}"]\nmodl = "m"\n',
        ("agents.a.modl", 3, 'unknown key; did you mean "model"?', "model"),
    ),
    (
        '[agents.a]\ncommand = ["{model}"]\nmodel = ""\n',
        ("agents.a.command", 2, 'asks for {model}, and this agent has none; set model = "NAME"', None),
    ),
    # wrong types
    ("daemon = 1\n", ("daemon", 1, "found 1, expected a table", None)),
    ('[agents]\na = "x"\n', ("agents.a", 2, 'found "x", expected a table', None)),
    ("[[agents.a]]\n", ("agents.a", 1, "found a list, expected one table: write [agents.a] in single brackets", None)),
    (
        "[cron]\n",
        ("cron", 1, "found a single table, expected a list of jobs: write [[cron]] in two brackets above each", None),
    ),
    ("cron = 7\n", ("cron", 1, "found 7, expected a list in square brackets", None)),
    (D + 'max_concurrent = "8"\n', ("daemon.max_concurrent", 2, 'found "8", expected a whole number without quotes', None)),
    (D + "max_concurrent = true\n", ("daemon.max_concurrent", 2, "found true, expected a whole number without quotes", None)),
    (D + "max_concurrent = 1.5\n", ("daemon.max_concurrent", 2, "found 1.5, expected a whole number without quotes", None)),
    (A + 'enabled = "yes"\n', ("agents.a.enabled", 3, 'found "yes", expected true or false without quotes', None)),
    (A + "model = 1979-05-27\n", ("agents.a.model", 3, "found a date or time, expected text in quotes", None)),
    (A + "model = []\n", ("agents.a.model", 3, "found an empty list, expected text in quotes", None)),
    (P + "env = 1\n", ("policies.p.env", 2, "found 1, expected a list in square brackets", None)),
    (P + "limits = [1]\n", ("policies.p.limits", 2, None, None)),
    (
        A + "delegates = [5]\n",
        (
            "agents.a.delegates[0]", 3,
            'found 5, expected the name of an agent or { agent = "NAME", mode = "bounded" }', None,
        ),
    ),
    # ranges
    (D + "max_concurrent = 0\n", ("daemon.max_concurrent", 2, "0 is too small; it must be at least 1", None)),
    (D + "max_concurrent = 10001\n", ("daemon.max_concurrent", 2, "10001 is too large; it must be at most 10000", None)),
    (
        D + f"max_concurrent = 0x{'f' * 9000}\n",
        ("daemon.max_concurrent", 2, "a huge number is too large; it must be at most 10000", None),
    ),
    (P + "max_depth = -1\n", ("policies.p.max_depth", 2, "-1 is too small; it must be at least 0", None)),
    # durations and sizes
    (D + 'kill_grace = "ten"\n', ("daemon.kill_grace", 2, "cannot read the duration 'ten': write it like 90, 90s, 10m, 2h, 7d or 1h30m", None)),
    (D + f"kill_grace = '{'x' * 90}'\n", ("daemon.kill_grace", 2, None, None)),
    (D + "kill_grace = true\n", ("daemon.kill_grace", 2, f"found true, expected a duration {DURATION}", None)),
    (D + "kill_grace = -1\n", ("daemon.kill_grace", 2, "-1 is not a duration: it is less than 0", None)),
    (D + "kill_grace = inf\n", ("daemon.kill_grace", 2, None, None)),
    (D + f"kill_grace = 0x{'f' * 900}\n", ("daemon.kill_grace", 2, "a huge number is too large for a duration", None)),
    (D + 'kill_grace = "200000d"\n', ("daemon.kill_grace", 2, "cannot use the duration '200000d': it is longer than a hundred years", None)),
    (A + "timeout = 0\n", ("agents.a.timeout", 3, "0 is too short; it must be at least 1ms", None)),
    (D + 'heartbeat_interval = "2m"\n', ("daemon.heartbeat_interval", 2, '"2m" is too long; it must be at most 1m', None)),
    (D + "heartbeat_interval = 0\n", ("daemon.heartbeat_interval", 2, "0 is too short; it must be at least 1ms", None)),
    (
        D + 'heartbeat_timeout = "30s"\n',
        ("daemon.heartbeat_timeout", 2, '"30s" is too short; it must be longer than heartbeat_interval', None),
    ),
    (P + 'max_output = "much"\n', ("policies.p.max_output", 2, "cannot read the size 'much': write it like 512, 64KiB, 64MiB or 1GiB", None)),
    (P + 'max_output = "9999999TiB"\n', ("policies.p.max_output", 2, '"9999999TiB" is too large', None)),
    (P + "max_output = 0\n", ("policies.p.max_output", 2, "0 is too small; it must be at least 1", None)),
    (P + 'limits.cpu = "10ms"\n', ("policies.p.limits.cpu", 2, '"10ms" is too short; it must be at least 1s', None)),
    # commands
    (
        "[agents.a]\ncommand = \"claude -p 'two words'\"\n",
        (
            "agents.a.command", 2,
            "found the text \"claude -p 'two words'\", expected a list with one entry for each argument: "
            '["claude", "-p", "two words"]', None,
        ),
    ),
    ('[agents.a]\ncommand = "it\'s"\n', ("agents.a.command", 2, None, None)),
    ("[agents.a]\ncommand = []\n", ("agents.a.command", 2, "the list is empty; it needs at least one entry", None)),
    ('[agents.a]\ncommand = ["a",\n  ""]\n', ("agents.a.command[1]", 3, "the text is empty; every entry of a command must be non-empty text", None)),
    ('[agents.a]\ncommand = ["a\\u0000"]\n', ("agents.a.command[0]", 2, '"a\\u0000" holds a NUL byte, which no program can be given', None)),
    ("[agents.a]\ncommand = [1]\n", ("agents.a.command[0]", 2, "found 1, expected text in quotes", None)),
    ("\n[agents.a]\nmodel = 'm'\n", ("agents.a.command", 2, 'is missing; write it like command = ["program", "argument"]', None)),
    ("[agents.a]\ncomand = ['a']\n", ("agents.a.comand", 2, 'unknown key; did you mean "command"?', "command")),
    # names
    ('[agents."-a"]\ncommand = ["a"]\n', ('agents.-a', 1, '"-a" is not a name: 1 to 64 letters, digits, _ . or -, and a letter or digit first', None)),
    (f"[policies.{'p' * 65}]\n", (f"policies.{'p' * 65}", 1, None, None)),
    ('[agents."[key]"]\ncommand = ["a"]\n', ('agents."[key]"', 1, None, None)),
    ('[agents."a\\n"]\ncommand = ["a"]\n', ('agents."a\\n"', 1, None, None)),
    (A + 'policy = "defualt"\n', ("agents.a.policy", 3, 'there is no policy "defualt"; did you mean "default"?', "default")),
    (A + 'policy = "zzz"\n', ("agents.a.policy", 3, 'there is no policy "zzz"; there is "default"', None)),
    (A + 'delegates = ["a",\n"ecco"]\n', ("agents.a.delegates[1]", 4, 'there is no agent "ecco"; did you mean "echo"?', "echo")),
    (
        A + 'delegates = [\n{ agent = "tester" },\n]\n',
        ("agents.a.delegates[0].agent", 4, 'there is no agent "tester"; there is "a" and "echo"', None),
    ),
    (A + 'delegates = ["a", "a"]\n', ("agents.a.delegates[1]", 3, '"a" stands in this list already; name each agent once', None)),
    (A + 'delegates = [{ mode = "bounded" }]\n', ("agents.a.delegates[0].agent", 3, "is missing; it has no default", None)),
    (A + 'delegates = [{ agnt = "a" }]\n', ("agents.a.delegates[0].agnt", 3, 'unknown key; did you mean "agent"?', "agent")),
    ('[sop]\nagent = "ech"\n', ("sop.agent", 2, 'there is no agent "ech"; did you mean "echo"?', "echo")),
    # choices and other texts
    (A + 'prompt = "sdtin"\n', ("agents.a.prompt", 3, '"sdtin" is not one of "stdin", "argument" or "file"; did you mean "stdin"?', "stdin")),
    (A + "prompt = 1\n", ("agents.a.prompt", 3, '1 is not one of "stdin", "argument" or "file"', None)),
    (A + 'capabilities = ["Code"]\n', ("agents.a.capabilities[0]", 3, '"Code" is not a capability: write it like "code.write@1", lower-case id and version', None)),
    (P + 'env = ["A=B"]\n', ("policies.p.env[0]", 2, '"A=B" sets a value; only the names of variables that are passed on stand here', None)),
    (P + 'env = ["1"]\n', ("policies.p.env[0]", 2, '"1" is not the name of an environment variable: letters, digits and _ only', None)),
    (P + 'workspace = "src"\n', ("policies.p.workspace", 2, '"src" is not an absolute path: begin it with / or with ~/', None)),
    ('[sop]\ndir = ""\n', ("sop.dir", 2, "the text is empty; leave it out instead", None)),
    # jobs
    (C + C, ("cron[1].name", 7, '"c" is the name of cron[0] already; every job needs its own', None)),
    (C + 'every = "1h"\n', ("cron[0].at", 3, 'stands beside "every"; only one of "schedule", "every" and "at" may say when the job fires', None)),
    (C + 'prompt = "x"\n', ("cron[0].command", 4, 'stands beside "prompt"; only one of "prompt" and "command" may say what the job does', None)),
    ('[[cron]]\nname = "c"\nagent = "a"\ncommand = ["c"]\n', ("cron[0]", 1, '"schedule", "every" or "at" is missing: one of them says when the job fires', None)),
    ('[[cron]]\nname = "c"\nevery = 5\nagent = "a"\n', ("cron[0]", 1, '"prompt" or "command" is missing: one of them says what the job does', None)),
    ('[[cron]]\nname = "c"\nevery = 5\nprompt = "x"\n', ("cron[0].agent", 1, "is missing; it has no default", None)),
    ('[[cron]]\nname = "c"\nevery = 5\ncommand = ["c"]\n', ("cron[0].agent", 1, "is missing; it has no default", None)),
    ('[[cron]]\nevery = 5\nagent = "a"\ncommand = ["c"]\n', ("cron[0].name", 1, "is missing; it has no default", None)),
    ('[[cron]]\nname = "c"\nscedule = "x"\nagent = "a"\ncommand = ["c"]\n', ("cron[0].scedule", 3, 'unknown key; did you mean "schedule"?', "schedule")),
    (C + "schedul = 'x'\n", ("cron[0].schedul", 6, 'unknown key; did you mean "schedule"?', "schedule")),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), CASES, ids=[case[1][0][:40] for case in CASES])
def test_message(write, content, expected):
    """One slip is one fault, at its own line, in words that say what was found and what is expected."""
    path, line, message, nearest = expected

    (fault,) = check(write(content))

    assert fault == Fault(path, line, message or fault.message, nearest)
    assert "cannot be used here" not in fault.message


def test_long_values_are_cut(write):
    """A message repeats a long value in part only."""
    (fault,) = check(write(D + f"kill_grace = '{'x' * 100_000}'\n"))

    assert len(fault.message) < 200


def test_fault_as_text():
    """A fault reads ``file:line: key: message``; what is not known is left out."""
    assert Fault("daemon.x", 3, "unknown key").text("config.toml") == "config.toml:3: daemon.x: unknown key"
    assert Fault("", None, "cannot be read").text("config.toml") == "config.toml: cannot be read"


def test_words():
    """Values, key paths and lists of names as messages show them."""
    assert dotted(["agents", "a b", "command", 0]) == 'agents."a b".command[0]'
    assert [found(value) for value in (True, 7, "x", [1], [], {}, None)] == [
        "true", "7", '"x"', "a list", "an empty list", "a table", "this value",
    ]  # fmt: skip
    assert listed(["a"]) == '"a"'
    assert listed(["a", "b", "c"], last="and") == '"a", "b" and "c"'
    assert quoted("é\n") == '"é\\n"'
