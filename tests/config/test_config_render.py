"""What ``config show`` and ``config schema`` print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pawl.config import Config, load
from pawl.config.render import effective, schema
from pawl.config.section import Section


def test_effective_defaults():
    """Defaults and built-ins are shown: durations in seconds, sizes in bytes, null for what is not set."""
    shown = effective(Config())

    assert shown["daemon"] == {
        "max_concurrent": 8,
        "shutdown_grace_s": 30,
        "heartbeat_interval_s": 30,
        "heartbeat_timeout_s": 3600,
        "kill_grace_s": 10,
    }
    assert shown["agents"]["echo"]["builtin"] is True
    assert shown["agents"]["echo"]["timeout_s"] == 3600
    assert shown["policies"]["default"]["max_output_bytes"] == 64 * 1024**2
    assert shown["policies"]["default"]["limits"]["cpu_s"] is None
    assert shown["sop"]["untrusted_payload_max_bytes"] == 8192
    assert shown["cron"] == []


def test_effective_is_json(write):
    """What is shown can be written as JSON, and fractions of a second survive."""
    path = write(
        '[daemon]\nkill_grace = 1.5\n[agents.a]\ncommand = ["a"]\ndelegates = ["echo"]\n'
        '[[cron]]\nname = "c"\nevery = "15m"\nagent = "a"\nprompt = "x"\n'
    )

    shown = json.loads(json.dumps(effective(load(path))))

    assert shown["daemon"]["kill_grace_s"] == 1.5
    assert shown["agents"]["a"]["delegates"] == [{"agent": "echo", "mode": "bounded"}]
    assert (shown["cron"][0]["every"], shown["cron"][0]["catch_up_window_s"]) == ("15m", 3600)


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for inner in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from nodes(inner)


def test_schema_speaks_of_the_file():
    """The schema has the file's keys, and defaults as they are written there; there is no null."""
    tree = schema()

    json.dumps(tree)
    parts = tree["$defs"]
    assert set(tree["properties"]) == {"daemon", "agents", "policies", "cron", "sop"}
    assert parts["DaemonConfig"]["properties"]["heartbeat_timeout"]["default"] == "1h"
    assert parts["PolicyConfig"]["properties"]["max_output"]["default"] == "64MiB"
    assert parts["CronConfig"]["required"] == ["name", "agent"]
    assert all(node.get("type") != "null" for node in nodes(tree))


def test_schema_knows_every_key():
    """Each table of the schema explains the keys of its model and lets no others in; references are whole."""
    tree = schema()
    models = {model.__name__: model for model in all_sections(Section)}

    for name, part in tree["$defs"].items():
        assert list(part["properties"]) == models[name].toml_keys()
        assert part["additionalProperties"] is False
        described = [key for key, value in part["properties"].items() if "description" in value]
        assert described == models[name].toml_keys()
    for node in nodes(tree):
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in tree["$defs"]


def all_sections(base: type[Section]) -> Iterator[type[Section]]:
    for model in base.__subclasses__():
        yield model
        yield from all_sections(model)
