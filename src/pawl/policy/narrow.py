"""How a policy is cut down: to another's, and to what somebody asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pawl.errors import PolicyDisjoint, PolicyWidens
from pawl.policy.model import SANDBOXES, Policy, Sourced

_FEW = 5
_SMALLER = (
    "max_depth", "max_actions_per_hour", "max_cost_per_day_micros", "max_output_bytes", "cpu_ms", "memory_bytes",
    "processes", "open_files",
)  # fmt: skip


class Overrides(NamedTuple):
    """What may be asked for with a sub-agent. None asks for nothing; ``env`` are names to keep."""

    allow_tools: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    env: tuple[str, ...] | None = None
    max_actions: int | None = None


def narrow(own: Sourced, by: Policy, whose: str) -> Sourced:
    """``own`` cut down to ``by``: what both allow. ``whose`` names the other in the sources.

    Raises ``policy_disjoint`` where both have a workspace and neither lies in the other, by real paths.
    """
    mine = own.policy
    allowed = _tools(mine.allowed_tools, by.allowed_tools)
    smaller: dict[str, Any] = {field: _smaller(getattr(mine, field), getattr(by, field)) for field in _SMALLER}
    policy = Policy(
        delegation="allow" if mine.delegation == by.delegation == "allow" else "forbid",
        env=tuple(set(mine.env) & set(by.env)),
        workspace=_workspace(mine.workspace, by.workspace, whose),
        allowed_tools=None if allowed is None else tuple(allowed),
        denied_tools=(*mine.denied_tools, *by.denied_tools),
        always_ask=(*mine.always_ask, *by.always_ask),
        sandbox=max(mine.sandbox, by.sandbox, key=SANDBOXES.index),
        network="off" if "off" in (mine.network, by.network) else "on",
        **smaller,
    ).normal()
    return Sourced(policy, {field: _source(field, policy, own, by, whose) for field in Policy._fields})


def override(base: Sourced, asked: Overrides) -> Sourced:
    """``base`` narrowed by what was asked for. Raises ``policy_widens`` for what ``base`` does not have."""
    policy, sources = base.policy, dict(base.sources)
    if asked.allow_tools is not None:
        allowed = policy.allowed_tools
        beyond_it = [tool for tool in asked.allow_tools if allowed is not None and tool not in allowed]
        beyond_it += [tool for tool in asked.allow_tools if tool in policy.denied_tools and tool not in beyond_it]
        _refuse("allowed_tools", "allow the tools", beyond_it, allowed)
        policy = policy._replace(allowed_tools=asked.allow_tools)
        sources["allowed_tools"] = "asked for (--allow-tools)"
    if asked.deny_tools:
        policy = policy._replace(denied_tools=(*policy.denied_tools, *asked.deny_tools))
        sources["denied_tools"] = f"asked for (--deny-tools), and {sources.get('denied_tools', 'before')}"
    if asked.env is not None:
        _refuse("env", "pass the variables", [name for name in asked.env if name not in policy.env], policy.env)
        policy = policy._replace(env=asked.env)
        sources["env"] = "asked for (--env)"
    if asked.max_actions is not None:
        limit = policy.max_actions_per_hour
        if asked.max_actions > limit:
            raise PolicyWidens(
                f"cannot take max_actions_per_hour = {asked.max_actions}: the calling task has {limit}, and a "
                "sub-agent may have at most that",
                field="max_actions_per_hour", limit=limit,
            )  # fmt: skip
        policy = policy._replace(max_actions_per_hour=asked.max_actions)
        sources["max_actions_per_hour"] = "asked for (--max-actions)"
    normal = policy.normal()
    for field in ("allowed_tools", "always_ask"):  # what is denied is no longer allowed, nor asked about
        if getattr(normal, field) != getattr(policy, field):
            sources[field] = f"{sources.get(field, 'before')}, without what was taken away"
    return Sourced(normal, sources)


def beyond(inner: Policy, outer: Policy) -> list[str]:
    """The fields in which ``inner`` may do more than ``outer``; none where it is at most that."""
    wider = [
        field
        for field in _SMALLER
        if _smaller(getattr(inner, field), getattr(outer, field)) != getattr(inner, field)
    ]  # fmt: skip
    if inner.delegation == "allow" and outer.delegation != "allow":
        wider.append("delegation")
    if not set(inner.env) <= set(outer.env):
        wider.append("env")
    if outer.workspace is not None and (inner.workspace is None or not within(inner.workspace, outer.workspace)):
        wider.append("workspace")
    if outer.allowed_tools is not None and not set(inner.allowed_tools or ()) <= set(outer.allowed_tools):
        wider.append("allowed_tools")
    if outer.allowed_tools is not None and inner.allowed_tools is None:
        wider.append("allowed_tools")
    if any(_permits(inner, tool) for tool in outer.denied_tools):
        wider.append("denied_tools")
    if any(_permits(inner, tool) and tool not in inner.always_ask for tool in outer.always_ask):
        wider.append("always_ask")
    if SANDBOXES.index(inner.sandbox) < SANDBOXES.index(outer.sandbox):
        wider.append("sandbox")
    if inner.network == "on" and outer.network == "off":
        wider.append("network")
    return list(dict.fromkeys(wider))


def within(path: str, directory: str) -> bool:
    """Whether a path lies in a directory or is it, whatever links lead there now. Not where that cannot be told."""
    try:
        real, top = os.path.realpath(path), os.path.realpath(directory)
    except OSError:  # a link that cannot be read, as those of other processes in /proc
        return False
    return real == top or real.startswith(top.rstrip("/") + "/")


def few(names: Sequence[str]) -> str:
    """Names for a message: some of them, for whoever asks may send a thousand, and the message is kept."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(names[:_FEW]) + more


def _permits(policy: Policy, tool: str) -> bool:
    return tool not in policy.denied_tools and (policy.allowed_tools is None or tool in policy.allowed_tools)


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _tools(one: Iterable[str] | None, other: Iterable[str] | None) -> set[str] | None:
    if one is None:
        return None if other is None else set(other)
    return set(one) if other is None else set(one) & set(other)


def _workspace(mine: str | None, other: str | None, whose: str) -> str | None:
    if mine is None or other is None:
        return other if mine is None else mine
    if within(mine, other):
        return mine
    if within(other, mine):
        return other
    raise PolicyDisjoint(
        f"cannot work for {whose}: its workspace {other} and the target's {mine} have nothing in common; put one into "
        "the other, or take one away",
        field="workspace", workspaces=[mine, other],
    )  # fmt: skip


def _source(field: str, policy: Policy, own: Sourced, by: Policy, whose: str) -> str:
    value = getattr(policy, field)
    before = own.sources.get(field, "")
    if value == getattr(own.policy, field):
        return before
    if value == getattr(by, field):
        return f"the caller's ({whose})"
    return f"what both allow: {before or 'its own'}, and the caller's ({whose})"


def _refuse(field: str, what: str, wider: list[str], limit: tuple[str, ...] | None) -> None:
    if wider:
        have = "all but those that are denied" if limit is None else ", ".join(limit) or "none"
        raise PolicyWidens(
            f"cannot {what} {few(wider)}: the calling task has {have}, and a sub-agent may only have less",
            field=field, beyond=wider,
        )  # fmt: skip
