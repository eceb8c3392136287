"""Whether a person is asked before a step, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pawl.engines.sop.model import Procedure, Step


@dataclass(frozen=True, slots=True)
class Asked:
    """A person is asked. ``kind``: ``checkpoint`` or ``approval``; ``reasons``: every rule that wants it."""

    kind: str
    reasons: tuple[str, ...]


def before(procedure: Procedure, step: Step) -> Asked | None:
    """The gate before a step; None where nobody is asked.

    A checkpoint asks in every mode (docs/decisions/0020-a-checkpoint-always-asks.md). A deterministic procedure has no
    gates but its checkpoints, whatever else is written. A step's mode can add a gate and never take one away.
    """
    if step.kind == "checkpoint":
        return Asked("checkpoint", ("checkpoint",))
    if procedure.execution_mode == "deterministic":
        return None
    reasons = [
        *(["confirmation"] if step.requires_confirmation else []),
        *(["mode"] if _wants(procedure.execution_mode, procedure, step) else []),
        *(["step mode"] if step.mode is not None and _wants(step.mode, procedure, step) else []),
    ]
    return Asked("approval", tuple(reasons)) if reasons else None


def _wants(mode: str, procedure: Procedure, step: Step) -> bool:
    match mode:
        case "step_by_step":
            return True
        case "supervised":
            return step.number == 1
        case "priority_based":
            return step.number == 1 or procedure.priority in ("high", "critical")
    return False
