"""``doctor``: what is wrong with a home, and how to mend it. Changes nothing; needs no daemon."""

from __future__ import annotations

import os

from pawl.cli import checks
from pawl.cli.call import Call
from pawl.cli.checks import Finding
from pawl.cli.output import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pawl.home import Home

    Check = Callable[[Home], Iterator[Finding]]

_SEVERITY = len("warning")
_CHECKS: tuple[Check, ...] = (
    checks.home,
    checks.modes,
    checks.locks,
    checks.disk,
    checks.sandboxes,
    checks.clock,
    checks.config,
    checks.database,
    checks.socket,
    checks.daemon,
)


def doctor(call: Call) -> int:
    findings = examine(call.home)
    ok = not any(finding.severity == "error" for finding in findings)
    document = {"ok": ok, "home": call.home.path, "findings": [finding.as_json() for finding in findings]}
    call.show(document, _lines(call, findings, ok))
    return 0 if ok else 1


def examine(home: Home) -> list[Finding]:
    """Every finding about a home. A check that fails itself is a finding too: the others are made all the same."""
    if not os.path.isdir(home.path):
        return list(checks.home(home))
    findings: list[Finding] = []
    for check in _CHECKS:
        try:
            findings += check(home)
        except Exception as error:
            findings.append(
                Finding(
                    "check_failed",
                    "warning",
                    check.__name__,
                    f"could not be checked: {type(error).__name__}: {error}",
                    "",
                )
            )
    return findings


def _lines(call: Call, findings: list[Finding], ok: bool) -> list[str]:
    lines = []
    for finding in findings:
        word = call.screen.status(finding.severity) + " " * (_SEVERITY - len(finding.severity))
        lines.append(f"{word}  {clean(finding.subject)}: {clean(finding.message)}")
        if finding.remedy:
            lines.append(f"{' ' * _SEVERITY}  > {clean(finding.remedy)}")
    wrong = sum(finding.severity == "error" for finding in findings)
    verdict = "All is well." if ok else "1 thing is wrong." if wrong == 1 else f"{wrong} things are wrong."
    return [*lines, "", f"{call.home.path}: {verdict}"]
