"""Reading the configuration again, whole or not at all."""

from __future__ import annotations

import json
import signal

import pytest

from harness.client import Refused
from harness.daemon import CONFIG, Daemon, NotStarted, until
from harness.fixtures import Ran, gate

_MORE = CONFIG + '\n[agents.more]\ncommand = ["cat"]\n'
_BAD = {
    "not TOML": "[agents",
    "unknown key": _MORE + "\n[daemon2]\nx = 1\n",
    "wrong type": _MORE.replace("max_concurrent = 32", 'max_concurrent = "many"'),
    "agent without a command": CONFIG + "\n[agents.more]\n",
    "policy that is not there": _MORE + 'policy = "nowhere"\n',
    "bytes": "\udcff",
}


def _agents(daemon: Daemon) -> set[str]:
    return {agent["name"] for agent in daemon.call("agent.list")}


@pytest.mark.parametrize("how", ["call", "signal"])
def test_a_good_configuration_is_taken(daemon: Daemon, how: str) -> None:
    """New agents are there, and what runs runs on."""
    daemon.start()
    task_id = daemon.delegate("sh", "sleep 0.5; echo hello")["id"]
    daemon.configure(_MORE)

    if how == "call":
        assert "more" in daemon.call("config.reload")["agents"]
    else:
        daemon.signal(signal.SIGHUP)
        until(lambda: "more" in _agents(daemon), "it is not read")

    assert daemon.result(daemon.delegate("more", "hello", wait=True)["id"]) == b"hello"
    assert daemon.wait_one(task_id)["status"] == "completed"


@pytest.mark.parametrize("fault", _BAD)
@pytest.mark.parametrize("how", ["call", "signal"])
def test_a_bad_configuration_changes_nothing(daemon: Daemon, fault: str, how: str) -> None:
    """Not a part of it is taken; the old one stays in force and a finding says why; a good one clears it."""
    daemon.start()
    with open(daemon.home.config, "wb") as file:
        file.write(_BAD[fault].encode("utf-8", "surrogateescape"))

    if how == "call":
        with pytest.raises(Refused) as refused:
            daemon.call("config.reload")
        assert (refused.value.code, refused.value.exit) == ("config_invalid", 2)
        assert refused.value.details["faults"]
    else:
        daemon.signal(signal.SIGHUP)
    finding = until(
        lambda: [each for each in daemon.call("daemon.status")["findings"] if each["code"] == "config_invalid"],
        "no word",
    )

    assert "old configuration is in force" in finding[0]["message"]
    assert "more" not in _agents(daemon)
    assert daemon.delegate("sh", "echo hello", wait=True)["status"] == "completed"
    daemon.configure(CONFIG)
    daemon.call("config.reload")
    assert not [each for each in daemon.call("daemon.status")["findings"] if each["code"] == "config_invalid"]


@pytest.mark.parametrize("fault", _BAD)
def test_a_bad_configuration_refuses_the_start(daemon: Daemon, fault: str) -> None:
    """Exit 2 with every fault, and no daemon; the rows of a crash are made true all the same."""
    daemon.start("settle.after_publish=kill")
    with pytest.raises(ConnectionError):
        daemon.delegate("sh", "echo hello", wait=True)
    daemon.died()
    with open(daemon.home.config, "wb") as file:
        file.write(_BAD[fault].encode("utf-8", "surrogateescape"))

    with pytest.raises(NotStarted) as refused:
        daemon.start()
    shown = daemon.pawl("daemon", "start", "--json") if fault == "unknown key" else None

    assert (refused.value.code, refused.value.error["exit"]) == ("config_invalid", 2)
    assert refused.value.error["details"]["faults"]
    if shown is not None:
        assert shown.returncode == 2
        assert json.loads(shown.stderr)["error"]["code"] == "config_invalid"
    daemon.configure(CONFIG)
    daemon.start()
    (task,) = daemon.call("task.list")
    assert task["status"] == "completed"


def test_more_slots_are_used_at_once(daemon: Daemon) -> None:
    """What waited starts when the new limit allows it."""
    daemon.start()
    first = daemon.delegate("one", "exec sleep 600")["id"]
    second = daemon.delegate("one", "echo hello")["id"]
    assert daemon.get(second)["status"] == "queued"
    daemon.configure(CONFIG.replace("max_concurrent = 1\n", "max_concurrent = 2\n"))

    daemon.call("config.reload")

    assert daemon.wait_one(second)["status"] == "completed"
    daemon.cancel(first)


def test_fewer_slots_end_nothing(daemon: Daemon, ran: Ran) -> None:
    """What runs beyond a new, lower limit runs on; nothing new starts until there is room."""
    daemon.start()
    running = [daemon.delegate("sh", gate(), env=ran.env)["id"] for _ in range(3)]
    daemon.configure(CONFIG.replace("max_concurrent = 32", "max_concurrent = 1"))
    daemon.call("config.reload")
    waiting = daemon.delegate("sh", "echo hello")

    assert waiting["status"] == "queued"
    ran.go()
    assert {task["status"] for task in daemon.wait(*running, waiting["id"])} == {"completed"}
