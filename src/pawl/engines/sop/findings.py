"""Findings: what keeps a procedure from loading, and what in it means something else than it seems to."""

from __future__ import annotations

from typing import NamedTuple

MANIFEST = "SOP.toml"
STEPS = "SOP.md"

# Every code, with what it means. A procedure with an error does not load.
ERRORS = {
    "unreadable_file": "the file cannot be read, or is not UTF-8 text",
    "not_toml": "`SOP.toml` is not TOML",
    "missing_key": "a key that must be there is not",
    "bad_value": "a value of `SOP.toml` is of the wrong type, or none of those that are known",
    "capability_missing": "a step of kind `capability` names none",
    "capability_unknown": "no capability has this id",
    "capability_without_config": "`llm.generate` has no `with` that fits: an object with an `instruction`",
}
WARNINGS = {
    "no_manifest": "a folder has `SOP.md` and no `SOP.toml`, and is ignored",
    "unknown_key": "a key of `SOP.toml` that nothing reads",
    "unknown_bullet": "a bullet that looks like a key and is none: it is text of the step",
    "unreadable_value": "a value that cannot be read and is dropped, or read as something else",
    "repeated_key": "a key that is written twice in one step: the last one counts",
    "bad_json": "a value that begins like JSON and is none: it is plain text",
    "bad_call": "a planned call that is not JSON with a `tool`: it is dropped",
    "bad_schema": "a schema that nothing fits",
    "list_splits_step": "a numbered line that seems to belong to the step above, and begins a new one",
    "written_number": "a step's written number is not its position, which is what counts",
    "switch_guard_split": "a guard with `>` in it, which a `switch` line cannot hold",
    "switch_port_unnamed": "a part of a `switch` without a name: it is dropped",
    "switch_port_without_target": "a port that leads nowhere: taking it fails the run",
    "switch_port_shadowed": "a port behind one that catches all: it is never taken",
    "empty_name": "the name is empty",
    "name_not_plain": "the name is not a plain file name",
    "duplicate_name": "another folder has a procedure of this name, and that one is used",
    "empty_description": "the description is empty",
    "no_triggers": "nothing starts it, not even by hand",
    "no_steps": "it has no steps and cannot start",
    "steps_replaced": "the steps of `SOP.toml` are not used, because there is a `SOP.md`",
    "admits_nothing": "`max_concurrent = 0` admits no run",
    "trigger_not_fed": "a trigger of a type whose events nothing in Pawl makes",
    "bad_schedule": "a cron trigger whose schedule cannot be read: it never fires",
    "duplicate_number": "two steps have one number: the first is meant by it",
    "number_gap": "the numbers of the steps are not 1, 2, 3 and so on",
    "empty_title": "a step without a title",
    "dangling_target": "a step that is referred to is not there",
    "impossible_dependency": "a step waits for one that cannot have completed by then",
    "unreachable_step": "no way leads to this step",
    "condition_never_true": "a condition that is never true",
    "condition_ambiguous": "a condition with several operators, of which only one counts",
    "capability_unavailable": "a capability that loads and that Pawl cannot run: its step fails",
    "unused_key": "a key that has no effect where it stands",
    "bad_binding": "a `{{binding}}` that can never be filled in",
    "unknown_agent": "no agent of the configuration has this name",
    "unknown_policy": "no approval policy of the configuration has this name: the gate stays closed",
}


class Remark(NamedTuple):
    """A finding as the reader of one file makes it."""

    code: str
    message: str
    line: int | None
    file: str

    @property
    def severity(self) -> str:
        return "error" if self.code in ERRORS else "warning"


class Finding(NamedTuple):
    """A remark about a procedure: ``file`` is its whole path; ``line`` counts from 1, None where no line says it."""

    sop: str
    severity: str
    code: str
    file: str
    line: int | None
    message: str

    def as_json(self) -> dict[str, object]:
        return self._asdict()
