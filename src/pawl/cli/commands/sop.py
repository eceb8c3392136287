"""``sop list``, ``sop validate`` and ``sop show``: pure, by the reader that the daemon uses. They ask no daemon."""

from __future__ import annotations

import os
from zoneinfo import ZoneInfo

from pawl.cli.call import Call
from pawl.cli.output import clean
from pawl.cli.render import counted
from pawl.config import load as load_config
from pawl.engines.cron.schedule import Cron
from pawl.engines.sop import gates
from pawl.engines.sop import graph as drawings
from pawl.engines.sop.loader import Folder, Library, load
from pawl.engines.sop.model import Procedure
from pawl.engines.sop.validate import Known
from pawl.errors import InvalidValue, SopInvalid, SopNotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pawl.engines.sop.findings import Finding

_HEADS = ("NAME", "VERSION", "MODE", "STEPS", "STARTED BY", "FINDINGS")


def list_procedures(call: Call) -> int:
    library, directory = _library(call)
    rows = [_row(folder) for folder in library.folders]
    lines = call.screen.table(_HEADS, rows, whole=0, wrap=True) if rows else []
    call.show([folder.as_json() for folder in library.folders], lines)
    if not rows:
        call.note(_nothing(directory))
    return 0


def validate(call: Call, *, names: list[str]) -> int:
    library, directory = _library(call)
    found = library.findings if not names else [one for name in names for one in _findings(library, name, directory)]
    findings = list(dict.fromkeys(found))
    call.show([finding.as_json() for finding in findings], [_line(finding) for finding in findings])
    errors = [finding for finding in findings if finding.severity == "error"]
    if not findings:
        checked = len(names) or len(library.folders)
        call.note(f"{counted(checked, 'procedure')}: no findings" if checked else _nothing(directory))
    return 2 if errors else 0


def show(call: Call, *, name: str, graph: str | None) -> int:
    procedure = _procedure(call, name)
    drawing = _drawing(procedure, graph or "text")
    if call.json:
        call.show({**procedure.as_json(), "graph": drawing}, [])
    elif graph is not None:
        call.show(None, _text(drawing))
    else:
        call.show(None, [*call.screen.facts(_facts(procedure)), "", *_text(drawing)])
    return 0


def _library(call: Call) -> tuple[Library, str]:
    """The procedures, judged with what the configuration knows; and the directory that they are in."""
    config = load_config(call.home.config)
    directory = os.path.join(call.home.path, config.sop.dir)
    known = Known(frozenset(config.agents), frozenset(config.sop.approval.policies), _schedule_fault)
    return load(directory, default_mode=config.sop.default_execution_mode, known=known), directory


def _schedule_fault(text: str) -> str | None:
    try:
        Cron(text, ZoneInfo("UTC"))
    except InvalidValue as error:
        return error.message
    return None


def _procedure(call: Call, name: str) -> Procedure:
    library, directory = _library(call)
    folder = library.named(name)
    if folder is None:
        raise _unknown(library, name, directory)
    if folder.procedure is None:
        errors = [finding for finding in folder.findings if finding.severity == "error"]
        raise SopInvalid(
            f"cannot load the procedure {name!r}: {errors[0].message}; "
            f"{call.command(f'sop validate {name}')} tells all",
            name=name, findings=[finding.as_json() for finding in folder.findings],
        )  # fmt: skip
    return folder.procedure


def _findings(library: Library, name: str, directory: str) -> list[Finding]:
    """Those of every folder that is or holds what the name says."""
    folders = [one for one in library.folders if name in (one.name, os.path.basename(one.path))]
    stray = [finding for finding in library.stray if finding.sop == name]
    if not folders and not stray:
        raise _unknown(library, name, directory)
    return [*(finding for folder in folders for finding in folder.findings), *stray]


def _unknown(library: Library, name: str, directory: str) -> SopNotFound:
    names = sorted({folder.name for folder in library.folders})
    there = ", ".join(names[:10]) or "none"
    return SopNotFound(
        f"cannot find a procedure named {name!r} in {directory} (there is {there})", name=name, known=names
    )


def _nothing(directory: str) -> str:
    return f"there are no procedures in {directory}"


def _row(folder: Folder) -> list[str | None]:
    found = folder.procedure
    errors = sum(finding.severity == "error" for finding in folder.findings)
    warnings = len(folder.findings) - errors
    counts = [*([counted(errors, "error")] if errors else []), *([counted(warnings, "warning")] if warnings else [])]
    if found is None:
        return [folder.name, None, "does not load", None, None, ", ".join(counts)]
    types = dict.fromkeys(trigger.type for trigger in found.triggers)
    return [
        folder.name, found.version, found.execution_mode, str(len(found.steps)), ", ".join(types) or None,
        ", ".join(counts) or None,
    ]  # fmt: skip


def _line(finding: Finding) -> str:
    """In the form that editors jump to."""
    place = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
    return clean(f"{place}: {finding.severity}: {finding.message} [{finding.code}]", one_line=True)


def _drawing(procedure: Procedure, form: str) -> Any:
    return {"text": drawings.text, "mermaid": drawings.mermaid, "json": drawings.document}[form](procedure)


def _text(drawing: Any) -> list[str]:
    import json

    words = drawing if isinstance(drawing, str) else json.dumps(drawing, indent=2, ensure_ascii=False)
    return clean(words).split("\n")


def _facts(procedure: Procedure) -> list[tuple[str, str | None]]:
    asked = [step for step in procedure.steps if gates.before(procedure, step)]
    facts = [
        ("name", procedure.name),
        ("about", procedure.description),
        ("version", procedure.version),
        ("priority", procedure.priority),
        ("mode", procedure.execution_mode),
        ("agent", procedure.agent),
        ("at once", str(procedure.max_concurrent)),
        ("when busy", procedure.admission_policy),
        ("cooldown", f"{procedure.cooldown_secs}s" if procedure.cooldown_secs else None),
        ("pending approvals", str(procedure.max_pending_approvals) if procedure.max_pending_approvals else None),
        ("a person is asked at", ", ".join(f"step {step.number}" for step in asked) or "no step"),
    ]
    return [(name, clean(value, one_line=True) if value else None) for name, value in facts]
