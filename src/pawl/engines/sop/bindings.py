"""Bindings: ``{{steps.N.path}}`` and ``{{calls.K.path}}`` in the arguments of planned calls, ``{{path}}`` in prompts.

A path is keys and places in lists, joined by dots; an empty one is the whole value. What cannot be filled in is an
error in a call, where a template that is passed on would be taken at its word, and nothing in a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pawl.engines.sop.literals import Json, text_of, trim, whole

_OPEN, _CLOSE = "{{", "}}"


class Binding(NamedTuple):
    """One reference. ``fault``: why it is none, in words; ``scope``: ``steps`` or ``calls``."""

    text: str
    scope: str = ""
    number: int = 0
    path: str = ""
    fault: str | None = None


class Unfilled(ValueError):
    """A binding that cannot be filled in; its text says which and why."""


def find(args: Json) -> Iterator[Binding]:
    """Every binding in the texts of a value, in their order."""
    match args:
        case str():
            yield from (read(text) for is_binding, text in _parts(args) if is_binding)
        case list():
            for one in args:
                yield from find(one)
        case dict():
            for one in args.values():
                yield from find(one)


def read(text: str) -> Binding:
    """A binding from what stands between its braces."""
    if text.startswith(_OPEN):
        return Binding(trim(text.removeprefix(_OPEN)), fault="its {{ has no }}")
    scope, _, rest = text.partition(".")
    index, _, path = rest.partition(".")
    if scope not in ("steps", "calls"):
        return Binding(text, fault="it begins neither with steps. nor with calls.")
    number = whole(index)
    if number is None:
        return Binding(text, fault=f"{scope}. must be followed by a number")
    return Binding(text, scope, number, path)


def fill(args: Json, *, steps: Mapping[int, Json], calls: Sequence[Json]) -> Json:
    """The arguments with every binding filled in; a text that is one binding and nothing else keeps its type.

    ``steps``: outputs by number; ``calls``: the outputs of the earlier calls of this step. Raises ``Unfilled``.
    """
    match args:
        case str():
            return _filled(args, steps, calls)
        case list():
            return [fill(one, steps=steps, calls=calls) for one in args]
        case dict():
            return {key: fill(one, steps=steps, calls=calls) for key, one in args.items()}
    return args


def prompt(template: str, value: Json) -> str:
    """A gate's prompt: ``{{path}}`` looks into the piped value, what is missing is empty, ``\\n`` is a new line."""
    made = ""
    for is_binding, text in _parts(template.replace("\\n", "\n")):
        if not is_binding or text.startswith(_OPEN):
            made += text
            continue
        try:
            made += _as_text(_at(value, text))
        except LookupError:
            continue
    return made


def _filled(text: str, steps: Mapping[int, Json], calls: Sequence[Json]) -> Json:
    alone = trim(text)
    inner = alone.removeprefix(_OPEN).removesuffix(_CLOSE)
    if alone.startswith(_OPEN) and alone.endswith(_CLOSE) and len(alone) > 3 and _OPEN not in inner:
        return _value(trim(inner), steps, calls)
    return "".join(_as_text(_value(part, steps, calls)) if bound else part for bound, part in _parts(text))


def _value(text: str, steps: Mapping[int, Json], calls: Sequence[Json]) -> Json:
    binding = read(text)
    if binding.fault is not None:
        raise Unfilled(f"{{{{{binding.text}}}}}: {binding.fault}")
    there = binding.number in steps if binding.scope == "steps" else binding.number < len(calls)
    if not there:
        raise Unfilled(f"{{{{{text}}}}}: {binding.scope.removesuffix('s')} {binding.number} has no output")
    try:
        return _at(steps[binding.number] if binding.scope == "steps" else calls[binding.number], binding.path)
    except LookupError:
        raise Unfilled(f"{{{{{text}}}}}: its output has nothing there") from None


def _at(value: Json, path: str) -> Json:
    """What lies at a path. Raises ``LookupError``."""
    for key in path.split(".") if path else ():
        if isinstance(value, dict):
            value = value[key]
            continue
        index = whole(key)
        if not isinstance(value, list) or index is None:
            raise LookupError(key)
        value = value[index]
    return value


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text cut at its bindings: (whether it is one, trimmed). An unclosed one keeps its braces."""
    while True:
        before, opened, rest = text.partition(_OPEN)
        if before:
            yield False, before
        if not opened:
            return
        inner, closed, text = rest.partition(_CLOSE)
        yield True, trim(inner) if closed else _OPEN + rest
        if not closed:
            return


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else text_of(value)
