"""How a definition is compared: its JSON without what is a default, and its findings as code and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pawl.engines.sop import loader
from pawl.engines.sop.loader import Folder
from pawl.engines.sop.model import Procedure, Routing, Step
from pawl.engines.sop.validate import Known

CORPUS = Path(__file__).parent / "corpus"
KNOWN = Known(agents={"echo", "scribe"}, policies={"two"})

_STEP = Step(0, "").as_json()
_ROUTING = Routing().as_json()
_HEAD = Procedure("", "").as_json()


def folder(path: Path, *, known: Known = KNOWN) -> Folder:
    """One folder, loaded on its own."""
    return loader.load_folder(str(path), "supervised", known)


def shown(procedure: Procedure | None) -> Any:
    """Without defaults, but always with name, numbers and titles."""
    if procedure is None:
        return None
    head = _without(procedure.as_json(), _HEAD)
    return head | {"steps": [_step(step) for step in procedure.as_json()["steps"]]}


def noticed(found: Folder) -> list[str]:
    """``code`` or ``code:line``, with ``toml:`` in front where it is about SOP.toml."""
    return [
        ("toml:" if one.file.endswith(".toml") else "") + one.code + (f":{one.line}" if one.line else "")
        for one in found.findings
    ]


def _step(step: dict[str, Any]) -> dict[str, Any]:
    step = step | {"routing": _without(step["routing"], _ROUTING)}
    bare = _without(step, _STEP | {"routing": {}})
    return {"number": step["number"], "title": step["title"]} | bare


def _without(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
