"""What narrower means: properties of cutting down, and an example of every rule."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pawl.config import Config, load
from pawl.errors import PolicyDisjoint, PolicyWidens
from pawl.policy import Overrides, Policy, Sourced, beyond, narrow, of, override

_SANDBOXES = ["off", "preferred", "required"]
_TOOLS = ["Read", "Write", "Bash(git log:*)", "mcp__files__open", "spawn"]
_names = st.lists(st.sampled_from(["PATH", "HOME", "LANG", "TOKEN"]), max_size=4).map(tuple)
_tools = st.lists(st.sampled_from(_TOOLS), max_size=4).map(tuple)
_limit = st.one_of(st.none(), st.integers(0, 5))
_workspaces = st.sampled_from([None, "/w", "/w/a", "/w/a/b"])  # one in the other, so that any two have something

policies = st.builds(
    Policy,
    delegation=st.sampled_from(["forbid", "allow"]),
    max_depth=st.integers(0, 5),
    max_actions_per_hour=st.integers(0, 5),
    max_cost_per_day_micros=_limit,
    env=_names,
    workspace=_workspaces,
    max_output_bytes=st.integers(1, 5),
    cpu_ms=_limit,
    memory_bytes=_limit,
    processes=_limit,
    open_files=_limit,
    allowed_tools=st.one_of(st.none(), _tools),
    denied_tools=_tools,
    always_ask=_tools,
    sandbox=st.sampled_from(_SANDBOXES),
    network=st.sampled_from(["on", "off"]),
).map(Policy.normal)

WIDEST = Policy(
    "allow", 9, 9, None, ("HOME", "PATH"), None, 9, None, None, None, None, None, (), (), "off", "on"
)  # fmt: skip


def sourced(policy: Policy) -> Sourced:
    return Sourced(policy, dict.fromkeys(Policy._fields, "somewhere"))


def cut(one: Policy, other: Policy) -> Policy:
    return narrow(sourced(one), other, "somebody").policy


@dataclasses.dataclass(frozen=True)
class Can:
    """Everything that a policy lets a task do, spelled out; the oracle that ``narrow`` is held against."""

    deeds: frozenset[tuple[str, Any]]

    @classmethod
    def of(cls, policy: Policy) -> Can:
        return cls(frozenset(_deeds(policy)))


def _deeds(policy: Policy) -> Iterator[tuple[str, Any]]:
    if policy.delegation == "allow":
        yield "delegate", None
    for name in policy.env:
        yield "see", name
    for path in ("/w", "/w/a", "/w/a/b", "/elsewhere"):
        if policy.workspace is None or (path + "/").startswith(policy.workspace + "/"):
            yield "work in", path
    for tool in [*_TOOLS, "any other"]:
        if (policy.allowed_tools is None or tool in policy.allowed_tools) and tool not in policy.denied_tools:
            yield "use", tool
            if tool not in policy.always_ask:
                yield "use unasked", tool
    if policy.sandbox == "off":
        yield "always run outside", None
    if policy.sandbox != "required":
        yield "run outside where there is no sandbox", None
    if policy.network == "on":
        yield "reach the network", None
    for field in Policy._fields:
        if field.startswith("max_") or field in ("cpu_ms", "memory_bytes", "processes", "open_files"):
            limit = getattr(policy, field)
            yield from ((field, amount) for amount in range(8) if limit is None or amount <= limit)


@given(policies, policies)
def test_what_is_narrowed_can_do_what_both_can(one: Policy, other: Policy) -> None:
    """Exactly that: nothing more than either, and nothing less than both allow."""
    assert Can.of(cut(one, other)).deeds == Can.of(one).deeds & Can.of(other).deeds


@given(policies, policies, policies)
def test_narrowing_has_no_order(one: Policy, other: Policy, third: Policy) -> None:
    """Whoever cuts down whom, in whichever order, once or twice: the same policy with the same digest."""
    assert cut(one, other).sha256 == cut(other, one).sha256
    assert cut(cut(one, other), third) == cut(one, cut(other, third))
    assert cut(one, one) == one
    assert cut(cut(one, other), other) == cut(one, other)


@given(policies, policies)
def test_beyond_names_what_is_wider(one: Policy, other: Policy) -> None:
    """It names nothing exactly where the one can do nothing that the other cannot."""
    assert (beyond(one, other) == []) == (Can.of(one).deeds <= Can.of(other).deeds)
    assert beyond(cut(one, other), one) == beyond(cut(one, other), other) == []
    assert set(beyond(one, other)) <= set(Policy._fields)


@given(policies, policies)
def test_equal_meaning_is_an_equal_digest(one: Policy, other: Policy) -> None:
    """Lists in another order, twice the same tool, a denied tool that is allowed: normal form knows none of it."""
    assert (one.sha256 == other.sha256) == (one == other)
    if one == other:
        assert Can.of(one) == Can.of(other)
    jumbled = one._replace(env=one.env[::-1] * 2, denied_tools=one.denied_tools[::-1] * 2)
    if one.allowed_tools is not None:
        jumbled = jumbled._replace(allowed_tools=one.allowed_tools[::-1] + one.denied_tools)
    assert jumbled.normal() == one


@given(policies)
def test_a_policy_survives_its_text(policy: Policy) -> None:
    """And what is no such text is refused, with a word about what is wrong with it."""
    text = policy.document
    assert Policy.parse(text) == policy
    found = json.loads(text)
    for broken in (
        "[]", text[:-1], json.dumps({**found, "more": 1}), json.dumps({k: v for k, v in found.items() if k != "env"}),
        json.dumps({**found, "max_depth": -1}), json.dumps({**found, "max_depth": True}),
        json.dumps({**found, "env": "PATH"}), json.dumps({**found, "sandbox": "maybe"}),
        json.dumps({**found, "allowed_tools": [1]}), json.dumps({**found, "cpu_ms": 0.5}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"policy|Expecting|delimiter|Unterminated|Extra"):
            Policy.parse(broken)


def test_only_the_canonical_text_is_read() -> None:
    """Whatever is read has the digest of its text: no other order, no key twice, no list that is not normal."""
    text = WIDEST.document

    assert text.startswith('{"allowed_tools":null,"always_ask":[],"cpu_ms":null,')
    for other in (
        text.replace(",", ", "), text.replace('["HOME","PATH"]', '["PATH","HOME"]'),
        text.replace('"max_depth":9', '"max_depth":1,"max_depth":9'), "[" * 100_000,
        WIDEST._replace(allowed_tools=("x",), denied_tools=("x",)).document,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="policy"):
            Policy.parse(other)


def test_what_is_denied_on_top_is_allowed_no_more() -> None:
    """The list of what is allowed loses it, as does that of what is asked about, and both say so."""
    base = WIDEST._replace(allowed_tools=("Read", "Web"), always_ask=("Web",))

    done = override(sourced(base), Overrides(deny_tools=("Web",)))

    assert (done.policy.allowed_tools, done.policy.always_ask) == (("Read",), ())
    assert done.policy == done.policy.normal()
    assert done.sources["allowed_tools"] == done.sources["always_ask"] == "somewhere, without what was taken away"


def test_what_must_be_asked_for_is_kept() -> None:
    """Also where it is not among the allowed tools: a name may be a part of another, and then nobody would be asked."""
    policy = WIDEST._replace(allowed_tools=("Bash",), always_ask=("Bash(rm:*)", "Web"), denied_tools=("Web",)).normal()

    assert policy.always_ask == ("Bash(rm:*)",)
    assert cut(policy, WIDEST._replace(allowed_tools=())).always_ask == ("Bash(rm:*)",)


_overrides = st.builds(
    Overrides,
    allow_tools=st.one_of(st.none(), _tools),
    deny_tools=_tools,
    env=st.one_of(st.none(), _names),
    max_actions=st.one_of(st.none(), st.integers(0, 8)),
)


@given(policies, _overrides)
def test_an_override_only_narrows(policy: Policy, asked: Overrides) -> None:
    """Either it is refused, or nothing more can be done than before."""
    try:
        done = override(sourced(policy), asked).policy
    except PolicyWidens:
        return
    assert Can.of(done).deeds <= Can.of(policy).deeds
    assert beyond(done, policy) == []
    if asked.allow_tools is not None:
        assert set(done.allowed_tools or ()) == set(asked.allow_tools) - set(asked.deny_tools)
    if asked.env is not None:
        assert set(done.env) == set(asked.env)


@pytest.mark.parametrize(
    ("asked", "field", "beyond_it"),
    [
        (Overrides(allow_tools=("Read", "Write")), "allowed_tools", ["Write"]),
        (Overrides(allow_tools=("Web",)), "allowed_tools", ["Web"]),
        (Overrides(env=("PATH", "TOKEN")), "env", ["TOKEN"]),
        (Overrides(max_actions=10), "max_actions_per_hour", None),
    ],
)
def test_a_widening_override_names_its_field(asked: Overrides, field: str, beyond_it: list[str] | None) -> None:
    base = WIDEST._replace(allowed_tools=("Read", "Web"), denied_tools=("Web",)).normal()

    with pytest.raises(PolicyWidens) as refused:
        override(sourced(base), asked)

    assert refused.value.details["field"] == field
    assert refused.value.details.get("beyond") == beyond_it


def test_an_empty_list_of_tools_is_none() -> None:
    """In a policy, in an override and as what two have in common."""
    none = WIDEST._replace(allowed_tools=())

    assert override(sourced(WIDEST), Overrides(allow_tools=())).policy == none
    assert cut(WIDEST._replace(allowed_tools=("a",)), WIDEST._replace(allowed_tools=("b",))) == none
    assert cut(WIDEST, none) == none


@pytest.mark.parametrize(
    ("mine", "other", "both"),
    [
        (None, None, None), ("{0}/a", None, "{0}/a"), (None, "{0}/a", "{0}/a"), ("{0}/a", "{0}", "{0}/a"),
        ("{0}", "{0}/a", "{0}/a"), ("{0}/a", "{0}/ab", "apart"), ("{0}/a", "{0}/b", "apart"),
        ("{0}/a", "{0}/link to b", "apart"), ("{0}/b", "{0}/link to b/inner", "{0}/link to b/inner"),
        ("{0}/a/../b", "{0}", "{0}/a/../b"), ("/", "{0}/a", "{0}/a"),
    ],
)  # fmt: skip
def test_of_two_workspaces_the_inner_one_is_left(
    tmp_path: Path, mine: str | None, other: str | None, both: str | None
) -> None:
    """By where they really are: links and dots lead nobody out, and alike names are not alike places."""
    for name in ("a", "ab", "b/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link to b").symlink_to(tmp_path / "b")
    one, two = (WIDEST._replace(workspace=each and each.format(tmp_path)) for each in (mine, other))

    if both == "apart":
        with pytest.raises(PolicyDisjoint) as refused:
            cut(one, two)
        assert refused.value.details["field"] == "workspace"
    else:
        assert cut(one, two).workspace == (both and both.format(tmp_path))


_FILE = """
[policies.p]
delegation = "allow"
max_cost_per_day = 2.5
allowed_tools = ["b", "a", "c"]
denied_tools = ["c"]
limits = { cpu = "90s", open_files = 7 }
[agents.a]
command = ["x"]
policy = "p"
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "config.toml"
    path.write_text(_FILE)
    return load(str(path))


def test_each_value_says_where_it_stands(config: Config) -> None:
    found = of(config, "a")

    assert found.policy.public() == {
        "delegation": "allow", "max_depth": 3, "max_actions_per_hour": 100, "max_cost_per_day": 2.5,
        "env": sorted(config.policies["p"].env), "workspace": None, "max_output_bytes": 64 * 1024**2, "cpu_s": 90.0,
        "memory_bytes": None, "processes": None, "open_files": 7, "allowed_tools": ["a", "b"], "denied_tools": ["c"],
        "always_ask": [], "sandbox": "off", "network": "on",
    }  # fmt: skip
    assert set(found.public_sources()) == set(found.policy.public())
    assert found.sources["delegation"] == "[policies.p], line 3"
    assert found.sources["max_cost_per_day_micros"] == "[policies.p], line 4"
    assert found.sources["open_files"] == "[policies.p], line 7"
    assert found.sources["memory_bytes"] == found.sources["env"] == "default"
    assert set(of(config, "echo").sources.values()) == {"default"}


@given(policies, policies)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_each_narrowed_value_says_whose_it_is(one: Policy, other: Policy) -> None:
    """Its own where it is that, the caller's where it is that, and both where it is neither's alone."""
    found = narrow(sourced(one), other, "agent x, task y")

    for field, source in found.sources.items():
        value = getattr(found.policy, field)
        if value == getattr(one, field):
            assert source == "somewhere"
        else:
            assert "agent x, task y" in source
            assert ("both" in source) == (value != getattr(other, field))
