"""``config``: the file, checked and shown; the daemon is only asked to read it anew."""

from __future__ import annotations

import os

from pawl.cli import output
from pawl.cli.call import Call
from pawl.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check(call: Call, *, file: str | None) -> int:
    from pawl.cli.faults import every_fault

    path = file or call.home.config
    if file and not os.path.lexists(file):
        raise UsageError(f"cannot check {file}: there is no such file", path=file)
    faults = every_fault(path)
    name = _shown(path)
    call.show([fault.as_json() for fault in faults], [output.clean(fault.text(name)) for fault in faults])
    if not faults:
        call.note(f"{name}: no faults" if os.path.exists(path) else f"there is no {name}: the defaults are in force")
    return 2 if faults else 0


def show(call: Call) -> int:
    from pawl import config
    from pawl.config.render import effective

    document = effective(config.load(call.home.config))
    call.show(document, _indented(document))
    return 0


def schema(call: Call) -> int:
    from pawl.config.render import schema as describe

    document = describe()
    call.show(document, _indented(document))
    return 0


def reload(call: Call) -> int:
    answer = call.ask("config.reload")
    agents, policies = answer.get("agents"), answer.get("policies")
    lines = [
        f"in force: {answer.get('path') or 'defaults'}, {_names('agents', agents)}, {_names('policies', policies)}"
    ]
    changes = {what: names for what, names in (answer.get("cron") or {}).items() if names}
    lines += [f"cron jobs {what}: {', '.join(names)}" for what, names in changes.items()]
    call.show(answer, lines)
    return 0


def _names(what: str, names: Any) -> str:
    return f"{what} {', '.join(map(str, names))}" if isinstance(names, list) else f"{names} {what}"


def _shown(path: str) -> str:
    """The path as an editor would find it from here."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        return path
    return os.path.relpath(path, here) if path.startswith(here.rstrip("/") + "/") else path


def _indented(document: Any) -> list[str]:
    import json

    return json.dumps(document, indent=2, ensure_ascii=False).splitlines()
