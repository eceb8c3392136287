"""What a procedure that loads says otherwise than it seems to: everything here is a warning.

The readers remark on what they drop while they read; here the procedure is looked at as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from pawl.config.wording import nearest, quoted
from pawl.engines.sop import bindings, gates, graph, schemas
from pawl.engines.sop.capability import CAPABILITIES
from pawl.engines.sop.conditions import OPERATORS, is_blank, parse
from pawl.engines.sop.findings import MANIFEST, Remark
from pawl.engines.sop.literals import number, trim
from pawl.engines.sop.model import TRIGGERS, Goto, Procedure, Step

LineOf = Callable[[int, str], int | None]


class Known(NamedTuple):
    """What the rest of the installation knows; None where nobody is to be asked.

    ``schedule_fault``: why a schedule cannot be read, or None. Cron's own reader is handed in.
    """

    agents: Collection[str] | None = None
    policies: Collection[str] | None = None
    schedule_fault: Callable[[str], str | None] | None = None


class Source(NamedTuple):
    """Where things stand: the file of the steps, and the lines of a step's keys and of the manifest's."""

    steps_file: str
    step_line: LineOf
    manifest_line: Callable[..., int | None]

    def step(self, code: str, place: int, key: str, message: str) -> Remark:
        """A remark on a key of a step; on the step itself where the key is not written."""
        line = self.step_line(place, key) if key else None
        return Remark(code, message, line or self.step_line(place, ""), self.steps_file)

    def manifest(self, code: str, path: tuple[str | int, ...], message: str) -> Remark:
        return Remark(code, message, self.manifest_line(*path), MANIFEST)


def remarks(procedure: Procedure, source: Source, known: Known) -> Iterator[Remark]:
    """Everything that is worth a word, file by file."""
    yield from _head(procedure, source, known)
    yield from _triggers(procedure, source, known)
    yield from _numbers(procedure, source)
    reached = graph.reachable(procedure)
    for place, step in enumerate(procedure.steps):
        said = [
            *_title(step),
            *_targets(procedure, step),
            *_ports(step),
            *_dependencies(procedure, step, reached),
            *_conditions(procedure, step),
            *_schemas(step),
            *_capability(step),
            *_unused(procedure, step),
            *_bindings(procedure, step),
            *_names(step, known),
        ]
        if step.number not in reached:
            said.append(("unreachable_step", "", f"no way leads to step {step.number}"))
        yield from (source.step(code, place, key, message) for code, key, message in said)


Said = Iterator[tuple[str, str, str]]  # code, key, message


def _head(procedure: Procedure, source: Source, known: Known) -> Iterator[Remark]:
    if not trim(procedure.name):
        yield source.manifest("empty_name", ("sop", "name"), "the name is empty")
    elif procedure.name in (".", "..") or {"/", "\\", "\0"} & set(procedure.name):
        words = f"the name {quoted(procedure.name)} is not a plain file name, so no folder can be called by it"
        yield source.manifest("name_not_plain", ("sop", "name"), words)
    if not trim(procedure.description):
        yield source.manifest("empty_description", ("sop", "description"), "the description is empty")
    if procedure.max_concurrent == 0:
        yield source.manifest("admits_nothing", ("sop", "max_concurrent"), "max_concurrent = 0 admits no run")
    if procedure.agent is not None:
        yield from (source.manifest(code, ("sop", "agent"), words) for code, words in _agent(procedure.agent, known))


def _triggers(procedure: Procedure, source: Source, known: Known) -> Iterator[Remark]:
    if not procedure.triggers:
        words = 'nothing starts it; with [[triggers]] type = "manual" it can be started by hand'
        yield source.manifest("no_triggers", ("sop",), words)
    for index, trigger in enumerate(procedure.triggers):
        if not TRIGGERS[trigger.type].fed:
            words = f"nothing in Pawl makes {trigger.type} events: this trigger never starts a run"
            yield source.manifest("trigger_not_fed", ("triggers", index), words)
        for code, words in _condition(trigger.condition):
            yield source.manifest(code, ("triggers", index, "condition"), words)
        if trigger.type == "cron" and known.schedule_fault is not None:
            fault = known.schedule_fault(trigger.values["expression"])
            if fault is not None:
                yield source.manifest("bad_schedule", ("triggers", index, "expression"), fault)


def _numbers(procedure: Procedure, source: Source) -> Iterator[Remark]:
    if not procedure.steps:
        words = "it has no steps and cannot start: in SOP.md they are numbered lines below a heading ## Steps"
        yield Remark("no_steps", words, None, source.steps_file)
    seen: set[int] = set()
    for place, step in enumerate(procedure.steps):
        if step.number in seen:
            words = f"another step has the number {step.number} too, and the first is meant by it"
            yield source.step("duplicate_number", place, "number", words)
        elif step.number != place + 1:
            words = f"has the number {step.number} and stands in place {place + 1}: number them 1, 2, 3 and so on"
            yield source.step("number_gap", place, "number", words)
        seen.add(step.number)


def _title(step: Step) -> Said:
    if not trim(step.title):
        yield "empty_title", "title", f"step {step.number} has no title"


def _targets(procedure: Procedure, step: Step) -> Said:
    failure = step.on_failure.step if isinstance(step.on_failure, Goto) else None
    targets = [
        ("routing.next", step.routing.next),
        ("on_failure", failure),
        *(("routing.switch", port.goto) for port in step.routing.switch),
        *(("routing.depends_on", needed) for needed in step.routing.depends_on),
    ]
    for key, target in targets:
        if target is not None and procedure.step(target) is None:
            yield "dangling_target", key, f"step {step.number} refers to step {target}, which is not there"
    below = step.number + 1
    goes_on = any(edge.to == below and edge.kind in ("next", "bypass") for edge in graph.ways_out(procedure, step))
    if goes_on and procedure.step(below) is None and step.routing.next != below:
        yield "dangling_target", "", f"step {step.number} goes on with step {below}, which is not there"


def _ports(step: Step) -> Said:
    caught: str | None = None
    for port in step.routing.switch:
        if port.goto is None:
            words = f"the port {quoted(port.name)} leads nowhere: taking it fails the run"
            yield "switch_port_without_target", "routing.switch", words
        if caught is not None:
            words = f"the port {quoted(port.name)} is never taken: {quoted(caught)} before it catches all"
            yield "switch_port_shadowed", "routing.switch", words
        elif is_blank(port.when):
            caught = port.name


def _dependencies(procedure: Procedure, step: Step, reached: set[int]) -> Said:
    for needed in step.routing.depends_on:
        if needed == step.number:
            yield "impossible_dependency", "routing.depends_on", f"step {needed} waits for itself"
        elif procedure.step(needed) is not None and needed not in reached:
            words = f"step {step.number} waits for step {needed}, to which no way leads"
            yield "impossible_dependency", "routing.depends_on", words


def _conditions(procedure: Procedure, step: Step) -> Said:
    guards = [("routing.when", step.routing.when), *(("routing.switch", port.when) for port in step.routing.switch)]
    for key, guard in guards:
        found = list(_condition(guard))
        yield from ((code, key, words) for code, words in found)
        parts = parse(guard or "")
        if parts is None or any(code == "condition_never_true" for code, _ in found):
            continue
        numbers = {str(one.number) for one in procedure.steps}
        if parts.path is None or len(parts.path) < 2 or parts.path[0] != "steps" or parts.path[1] not in numbers:
            words = f"{quoted(guard or '')} never holds: a step's guard looks at outputs, as $.steps.N.key of a step N"
            yield "condition_never_true", key, words


def _condition(condition: str | None) -> Iterator[tuple[str, str]]:
    """What is wrong with any condition, wherever it stands."""
    if condition is None or is_blank(condition):
        return
    parts = parse(condition)
    if parts is None or (parts.path is None and number(parts.value) is None):
        form = "$.path OP value, or OP number, with one of " + " ".join(OPERATORS)
        yield "condition_never_true", f"{quoted(condition)} never holds: write it like {form}"
        return
    rest = condition.replace(parts.operator, " ", 1)
    more = [symbol for symbol in OPERATORS if symbol in rest]
    if more:
        words = (
            f"{quoted(condition)} is cut at its first {parts.operator}; the other {more[0]} is part of what is compared"
        )
        yield "condition_ambiguous", words


def _schemas(step: Step) -> Said:
    for key, schema in (("input", step.input), ("output", step.output)):
        fault = next(schemas.faults(schema.value), None) if schema else None
        if fault is not None and schema is not None:
            prose = isinstance(schema.value, str)
            hint = f"; a bullet that begins with {key}: is a schema, not text" if prose else ""
            yield "bad_schema", f"schema.{key}", f"nothing fits this schema: {fault}{hint}"


def _capability(step: Step) -> Said:
    if step.kind == "capability" and not CAPABILITIES.get(step.capability or "", True):
        words = f"Pawl has no {step.capability}: the step fails whenever it is come to"
        yield "capability_unavailable", "capability", words


def _unused(procedure: Procedure, step: Step) -> Said:
    routing, asked = step.routing, gates.before(procedure, step)
    guarded = not is_blank(routing.when)
    unused = [
        ("capability", step.capability is not None and step.kind != "capability", "counts only with kind: capability"),
        ("with", step.with_ is not None and step.kind != "capability", "counts only with kind: capability"),
        ("edit", step.edit is not None and step.kind != "checkpoint", "counts only with kind: checkpoint"),
        ("policy", step.policy is not None and asked is None, "has no effect: nobody is asked before this step"),
        ("gate_prompt", step.gate_prompt is not None and asked is None, "has no effect: nobody is asked"),
        (
            "requires_confirmation",
            step.requires_confirmation and procedure.execution_mode == "deterministic",
            "has no effect in a deterministic procedure: only checkpoints ask there",
        ),
        (
            "mode",
            step.mode is not None and procedure.execution_mode == "deterministic",
            "has no effect in a deterministic procedure: only checkpoints ask there",
        ),
        ("routing.next", routing.next is not None and bool(routing.switch), "has no effect beside a switch"),
        (
            "routing.terminal",
            routing.terminal and not guarded and (bool(routing.switch) or routing.next is not None),
            "has no effect beside next or switch without a guard",
        ),
        (
            "routing.when",
            guarded and not routing.switch and routing.next is None,
            "has no effect without next or switch: the guard is of the way out, not of the step",
        ),
    ]
    for key, is_unused, words in unused:
        if is_unused:
            yield "unused_key", key, f"{key.rpartition('.')[2]} of step {step.number} {words}"


def _bindings(procedure: Procedure, step: Step) -> Said:
    numbers = {one.number for one in procedure.steps}
    for index, call in enumerate(step.calls):
        for binding in bindings.find(call.args):
            fault = _binding_fault(binding, step, index, numbers)
            if fault is not None:
                yield "bad_binding", "calls", f"{{{{{binding.text}}}}} of call {index}: {fault}"


def _binding_fault(binding: bindings.Binding, step: Step, index: int, numbers: set[int]) -> str | None:
    if binding.fault is not None:
        return binding.fault
    if binding.scope == "calls":
        return None if binding.number < index else f"call {binding.number} is not made before call {index}"
    if binding.number not in numbers:
        return f"there is no step {binding.number}"
    return None if binding.number < step.number else f"step {binding.number} does not come before step {step.number}"


def _names(step: Step, known: Known) -> Said:
    if step.agent is not None:
        yield from ((code, "agent", words) for code, words in _agent(step.agent, known))
    if step.policy is not None and known.policies is not None and step.policy not in known.policies:
        near = _near(step.policy, known.policies)
        words = f"there is no approval policy {quoted(step.policy)}, so the gate stays closed{near}"
        yield "unknown_policy", "policy", words


def _agent(name: str, known: Known) -> Iterator[tuple[str, str]]:
    if known.agents is not None and name not in known.agents:
        yield "unknown_agent", f"there is no agent {quoted(name)}{_near(name, known.agents)}"


def _near(name: str, names: Iterable[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean {quoted(near)}?" if near else ""
