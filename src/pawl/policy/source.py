"""The policy that the configuration gives an agent's work, and the line that each value stands in."""

from __future__ import annotations

from pawl.config import Config
from pawl.policy.model import Policy, Sourced

_KEYS = {
    "max_cost_per_day_micros": ("max_cost_per_day",), "max_output_bytes": ("max_output",),
    "cpu_ms": ("limits", "cpu"), "memory_bytes": ("limits", "memory"),
    "processes": ("limits", "processes"), "open_files": ("limits", "open_files"),
}  # fmt: skip
_LIMITS = {"cpu_ms", "memory_bytes", "processes", "open_files"}


def of(config: Config, agent: str) -> Sourced:
    """The policy of an agent's work. Raises ``agent_not_found``."""
    section = config.policy_of(agent)
    values = {
        field: getattr(section.limits if field in _LIMITS else section, field) for field in Policy._fields
    }  # fmt: skip
    return Sourced(Policy(**values).normal(), {field: _source(config, section.name, field) for field in values})


def _source(config: Config, name: str, field: str) -> str:
    key = _KEYS.get(field, (field,))
    section = config.policies[name]
    holder = section.limits if field in _LIMITS else section
    if field not in holder.model_fields_set:
        return "default"
    line = config.line_of("policies", name, *key)
    return f"[policies.{name}], line {line}" if line else f"[policies.{name}]"
