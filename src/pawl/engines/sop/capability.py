"""The capabilities that a step may name, as far as loading asks: which there are, and which of them Pawl runs."""

from __future__ import annotations

from collections.abc import Iterator

from pawl.engines.sop import schemas
from pawl.engines.sop.model import Step

# Whether Pawl runs it. The others have an id so that procedures written elsewhere load; their steps fail.
CAPABILITIES = {
    "noop": True,
    "wait": True,
    "json.validate": True,
    "llm.generate": True,
    "shell.exec": True,
    "http.request": True,
    "file.read": True,
    "file.write": True,
    "pawl.delegate": True,
    "approval.wait": False,
    "forge.comment": False,
    "git.diff": False,
    "git.status": False,
    "notify.channel": False,
}
# What its author must have written: nothing of it may come from a payload, or a payload would give the orders.
GENERATE_INPUT = {
    "type": "object",
    "required": ["instruction"],
    "properties": {
        "instruction": {"type": "string"},
        "system": {"type": "string"},
        "output_key": {"type": "string"},
        "echo": {"type": "array", "items": {"type": "string"}},
    },
}


def faults(step: Step) -> Iterator[tuple[str, str]]:
    """What keeps a step of kind ``capability`` from loading: code and words."""
    if step.kind != "capability":
        return
    if step.capability is None:
        yield "capability_missing", f"step {step.number} is of kind capability and names none"
    elif step.capability not in CAPABILITIES:
        yield "capability_unknown", f"step {step.number}: there is no capability {step.capability!r}"
    elif step.capability == "llm.generate":
        why = schemas.misfit(GENERATE_INPUT, step.with_.value) if step.with_ else "it is missing"
        if why is not None:
            yield (
                "capability_without_config",
                f'step {step.number}: llm.generate needs a "with" like {{"instruction": "..."}}: {why}',
            )
