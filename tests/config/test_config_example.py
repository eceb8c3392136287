"""The example file: complete, true about the defaults, and good whether or not its lines are taken in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from known_keys import KEYS

from pawl.config import Config, check, load
from pawl.config.agents import PolicyConfig
from pawl.config.cron import CronConfig
from pawl.config.sop import ApprovalPolicyConfig

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
EXAMPLE_LINE = re.compile(r"^# (?=\[|[a-z_]+ = )", re.MULTILINE)


@pytest.fixture
def taken_in(write) -> Path:
    """The example with every ``# key = value`` and every ``# [table]`` taken in."""
    return write(EXAMPLE_LINE.sub("", EXAMPLE.read_text()))


def test_as_it_stands_it_changes_nothing():
    """The example loads, and says what an absent file says."""
    assert load(EXAMPLE) == Config()


def test_taken_in_it_loads(taken_in):
    """With every example line taken in, the file has no fault."""
    assert check(taken_in) == []


def test_it_shows_the_defaults(taken_in):
    """A key that has a default is shown with it; the others say that they have none."""
    config, defaults = load(taken_in), Config()

    assert config.daemon == defaults.daemon
    shown = {"prompt", "policy", "enabled", "worker", "timeout_ms"}
    assert config.agent("coder").model_dump(include=shown) == defaults.agent("echo").model_dump(include=shown)
    without = {"workspace", "limits", "max_cost_per_day_micros", "allowed_tools"}
    policy = config.policies["workspace"].model_dump(exclude=without)
    assert policy == PolicyConfig().model_dump(exclude=without)
    assert config.sop.model_dump(exclude={"agent", "approval"}) == defaults.sop.model_dump(
        exclude={"agent", "approval"}
    )
    bare = {"name": "nightly", "every": "1h", "agent": "coder", "command": ["true"]}
    own = {"schedule", "every", "timezone", "agent", "prompt", "command", "timeout_ms", "precondition"}
    own |= {"expected_duration_ms"}
    assert config.cron[0].model_dump(exclude=own) == CronConfig.model_validate(bare).model_dump(exclude=own)
    gate = {"required_group", "request_notice", "escalation_notice"}
    approval = config.sop.approval.policies["prod"]
    assert approval.model_dump(exclude=gate) == ApprovalPolicyConfig().model_dump(exclude=gate)


def test_it_has_every_key():
    """Every key there is stands in the example, in a line to take in or, beside its rival, in a comment."""
    text = EXAMPLE.read_text()

    missing = {key for path, key in KEYS if path and not re.search(rf"\b{key} = |[\[.]{key}\b", text)}

    assert missing == set()


def test_prose_is_never_taken_for_a_line(taken_in):
    """Taking the examples in leaves the explanations comments."""
    lines = [line for line in taken_in.read_text().splitlines() if line and not line.startswith("#")]

    assert all(re.match(r"\[|[a-z_]+ = ", line) for line in lines)
    assert len(lines) > 60
