"""Reading the file: what counts as a file, what cannot be read, and how faults come back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pawl.config import Config, Fault, check, load
from pawl.errors import InvalidConfig


def only_fault(path: Path) -> Fault:
    (fault,) = check(path)
    with pytest.raises(InvalidConfig):
        load(path)
    return fault


def test_absent_file_means_defaults(tmp_path):
    """Without a file the defaults are in force, and there is no fault."""
    path = tmp_path / "config.toml"

    assert load(path) == Config()
    assert check(path) == []


@pytest.mark.parametrize("content", ["", "\n", "# nothing yet\n", "\ufeff"])
def test_empty_file_means_defaults(write, content):
    """A file that sets nothing gives the defaults, a byte order mark notwithstanding."""
    assert load(write(content)) == Config()


def test_text_path(write):
    """A path may be text as well as a Path."""
    path = str(write("[daemon]\nmax_concurrent = 3\n"))

    assert load(path).daemon.max_concurrent == 3
    assert load(path).path == path


def test_windows_line_ends(write):
    """Lines that end in CR LF are counted once."""
    fault = only_fault(write("[daemon]\r\n\r\nmax_concurrent = 0\r\n"))

    assert fault.line == 3


def test_not_utf8(write):
    """Bytes that are not UTF-8 are a fault with the line and the byte."""
    fault = only_fault(write(b"[daemon]\n# caf\xe9\n"))

    assert fault == Fault("", 2, "is not UTF-8 text: byte 0xe9 does not belong there", None)


def test_directory(tmp_path):
    """A directory in the file's place is a fault, not a crash."""
    assert only_fault(tmp_path) == Fault("", None, "cannot be read: it is a directory", None)


def test_named_pipe(tmp_path):
    """A named pipe is refused unopened, since opening it would wait for ever."""
    path = tmp_path / "config.toml"
    os.mkfifo(path)

    assert only_fault(path).message == "cannot be read: it is not a regular file"


def test_link_into_the_void(tmp_path):
    """A link to a file that does not exist is a fault; it does not silently mean the defaults."""
    path = tmp_path / "config.toml"
    path.symlink_to("gone.toml")

    assert only_fault(path).message == "cannot be read: it is a link to gone.toml, which does not exist"


def test_file_where_a_directory_should_be(tmp_path):
    """The system's reason is told where the path itself cannot be followed."""
    (tmp_path / "home").write_text("")

    assert only_fault(tmp_path / "home" / "config.toml").message == "cannot be read: Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable(write):
    """A file that may not be read is a fault; the defaults do not take its place."""
    path = write("")
    path.chmod(0)

    assert only_fault(path).message == "cannot be read: Permission denied"


def test_nul_in_the_path():
    """Even a path that no file can have ends as a fault."""
    assert only_fault(Path("con\0fig.toml")).message.startswith("cannot be read: ")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("[daemon]\nmax_concurrent 8\n", 2, "a key without the = that has to follow it (column 16)"),
        ("[daemon]\nmax_concurrent =\n", 2, "no value that TOML knows; text needs quotes (column 17)"),
        ("[daemon]\nkill_grace = 10s\n", 2, "something follows the end of the value (column 16)"),
        ("[daemon]\nkill_grace = s\n", 2, "no value that TOML knows; text needs quotes (column 14)"),
        ("a = 1\na = 2", 2, "this key is written twice (column 6)"),
        ("[agents.x]\n[agents.x]\n", 2, "the table agents.x is written twice (column 10)"),
        ("[agents]\nx = {a = 1}\n[agents.x]\n", 3, "the table agents.x is written twice (column 10)"),
        ("[a]\nx = {y = 1}\nx.z = 1\n", 3, None),
        ("cron = []\n[[cron]]\n", 2, "cron cannot be added to once it is written (column 7)"),
        ("a = ['x'\nb = 1\n", 2, "a list without its closing ] (column 1)"),
        ("a = {b = 1\n", 1, "a { table } without its closing } (column 11)"),
        ('a = "x\nb = 1\n', 1, "a text in quotes that does not end on its line (column 7)"),
        ("= 1\n", 1, "neither a key = value nor a [table] (column 1)"),
        ("[daemon\n", 1, "expected ']' at the end of a table declaration (column 8)"),
        ('a = """\nb', None, "a text in quotes that does not end, up to the end of the file"),
    ],
)
def test_syntax(write, content, line, message):
    """What is not TOML is told in plain words with its line, even in a last line without an end."""
    fault = only_fault(write(content))

    assert (fault.path, fault.line) == ("", line)
    assert message is None or fault.message == f"is not TOML: {message}"


@pytest.mark.parametrize("content", ["a = " + "[" * 20_000, "a = " + "{a=" * 20_000])
def test_deep_nesting(write, content):
    """A file that nests without end is a fault."""
    assert only_fault(write(content)).message == "is not usable: its lists or tables are nested too deeply"


def test_endless_number(write):
    """A number of thousands of digits, which Python refuses to read, is a fault."""
    fault = only_fault(write(f"a = {'9' * 5000}"))

    assert fault.message == "is not usable: a number in it has too many digits"


def test_message_names_file_line_key_and_the_rest(write):
    """The error's message has the file, the first fault with its line, and how many more there are."""
    path = write('[agents.coder]\ncomand = ["x"]\ntimeout = "soon"\nenabled = 1\n')

    with pytest.raises(InvalidConfig) as caught:
        load(path)

    message = f'{path}:2: agents.coder.comand: unknown key; did you mean "command"? (and 2 more faults)'
    assert caught.value.message == message
    assert caught.value.code == "config_invalid"
    assert caught.value.exit_code == 2


def test_details_hold_every_fault(write):
    """The error's details are JSON and hold what ``check`` answers."""
    path = write("[daemon]\nmax_concurrent = 0\nkill_grce = 1\n")

    with pytest.raises(InvalidConfig) as caught:
        load(path)

    details = json.loads(json.dumps(caught.value.details))
    assert details["file"] == str(path)
    assert details["faults"] == [fault.as_json() for fault in check(path)]
    assert details["faults"][1] == {
        "path": "daemon.kill_grce",
        "line": 3,
        "message": 'unknown key; did you mean "kill_grace"?',
        "nearest": "kill_grace",
    }


def test_every_fault_is_reported_in_the_order_of_the_file(write):
    """Faults of one kind hide none of another: unknown keys, wrong values, and names that lead nowhere."""
    path = write(
        """
[deamon]
[policies.p]
max_depth = "deep"
[agents.a]
policy = "q"
[agents.b]
command = ["b"]
delegates = ["c"]
[[cron]]
name = "n"
at = "2030-01-01T00:00:00Z"
prompt = "x"
[[cron]]
name = "n"
[sop]
agent = "z"
"""
    )

    assert [(fault.path, fault.line) for fault in check(path)] == [
        ("deamon", 2),
        ("policies.p.max_depth", 4),
        ("agents.a.command", 5),
        ("agents.a.policy", 6),
        ("agents.b.delegates[0]", 9),
        ("cron[0].agent", 10),
        ("cron[1]", 14),
        ("cron[1]", 14),
        ("cron[1].agent", 14),
        ("cron[1].name", 15),
        ("sop.agent", 17),
    ]


def test_lines_stay_with_the_configuration(write):
    """A configuration knows its file and the lines of its keys, for those who refer to a declared job."""
    path = write('[[cron]]\nname = "a"\nevery = "1h"\nagent = "echo"\ncommand = ["true"]\n')
    config = load(path)

    assert config.path == str(path)
    assert config.line_of("cron", 0) == 1
    assert config.line_of("cron", 0, "every") == 3
    assert config.line_of("cron", 0, "timeout") == 1
    assert config.line_of("sop") is None


def test_moving_lines_is_no_change(write):
    """Two files that say the same give equal configurations, wherever their lines are."""
    before = load(write("[daemon]\nmax_concurrent = 3\n"))
    after = load(write("\n\n# more\n[daemon]\nmax_concurrent = 3\n"))

    assert before == after
    assert before != load(write("[daemon]\nmax_concurrent = 4\n"))
