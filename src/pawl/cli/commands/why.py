"""``why``: the gates that a task passed or waits at, one by one, and the policy that it runs under."""

from __future__ import annotations

from pawl.cli.call import Call
from pawl.cli.output import clean
from pawl.cli.render import wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MARKS = {"passed": "ok", "refused": "no", "waits": "waits", "skipped": "-"}
_STEPS = ("", "GATE", "MESSAGE")
_POLICY = ("FIELD", "VALUE", "FROM")
_REFUSALS = ("WHEN", "AGENT", "CODE", "MESSAGE")
_MODES = {"bounded": "its agent's, cut down to what its caller may do", "independent": "its agent's own"}
_ABSENT = {"allowed_tools": "every tool", "workspace": "any directory"}  # what null says, where it is no limit
_UNITS_S = ((86_400, "d"), (3_600, "h"), (60, "m"))


def why(call: Call, *, task: str) -> int:
    found = call.ask("task.why", id=task)
    call.show(found, [] if call.json else _lines(call, found))
    return 0


def _lines(call: Call, found: dict[str, Any]) -> list[str]:
    screen = call.screen
    agent = clean(str(found["agent"]), one_line=True)
    lines = [f"task {found['id']}  {agent}  {screen.status(found['status'])}", "", *_steps(call, found["steps"])]
    policy = found.get("policy")
    if policy is None:
        lines += ["", "no policy is recorded with it"]
    else:
        mode = f" ({policy['mode']}: {_MODES.get(policy['mode'], 'its policy')})" if policy.get("mode") else ""
        lines += ["", *_sentence(call, f"policy {policy['sha256'][:12]}…{mode}:")]
        lines += policy_table(call, policy["values"], policy.get("sources") or {})
    if found.get("refusals"):
        rows = [(screen.when(one["at"]), one["agent"], one["code"], one["message"]) for one in found["refusals"]]
        lines += ["", "it asked for this and was refused:", *screen.table(_REFUSALS, rows, wrap=True)]
    return lines


def _steps(call: Call, steps: list[dict[str, Any]]) -> list[str]:
    """One gate a line, its message wrapped to the terminal."""
    rows = [(_MARKS.get(step["outcome"], step["outcome"]), step["gate"], step["message"]) for step in steps]
    return call.screen.table(_STEPS, rows, status=0, wrap=True)


def _sentence(call: Call, text: str) -> list[str]:
    return wrapped(text, call.screen.width) if call.screen.terminal else [text]


def policy_table(call: Call, values: dict[str, Any], sources: dict[str, str]) -> list[str]:
    """A policy: each value, and where it comes from."""
    rows = []
    for name, value in values.items():
        for field, one in _flat(name, value):
            rows.append((field, _value(field, one), sources.get(field) or sources.get(name)))
    return call.screen.table(_POLICY, rows, whole=0, wrap=True)


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    """A field, with dots for what lies deeper."""
    if not isinstance(value, dict):
        return [(name, value)]
    return [one for key, deeper in value.items() for one in _flat(f"{name}.{key}", deeper)]


def _value(field: str, value: Any) -> str:
    """A value as people read it, and nothing rounded."""
    if value is None:
        return _ABSENT.get(field, "no limit")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if field.endswith("_bytes"):
        return _size(value)
    return _duration(value) if field.endswith("_s") else f"{value:.15g}" if isinstance(value, float) else str(value)


def _size(count: int) -> str:
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def _duration(seconds: float) -> str:
    rest, parts = seconds, []
    for unit, name in _UNITS_S:
        if rest >= unit:
            parts.append(f"{int(rest // unit)}{name}")
            rest %= unit
    return "".join(parts) + (f"{round(rest, 3):g}s" if rest or not parts else "")
