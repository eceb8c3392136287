"""Schemas of a step's input and output: the four keywords ``type``, ``required``, ``properties`` and ``items``.

A subset of JSON Schema that means what the format's authors were promised: other keywords say nothing, ``integer`` is
a number written as one (``1.0`` is none), and a schema that cannot be read is one that nothing fits. A library for
JSON Schema would see all three otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from pawl.engines.sop.literals import Json

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def faults(schema: Json, path: str = "$") -> Iterator[str]:
    """What makes this a schema that nothing fits; nothing where it is a good one."""
    if not isinstance(schema, dict):
        yield f"{path} is of type {_kind(schema)} and must be an object"
        return
    kind, required, properties = schema.get("type"), schema.get("required"), schema.get("properties")
    if "type" in schema and (not isinstance(kind, str) or kind not in TYPES):
        yield f"{path}.type is none of {', '.join(TYPES)}"
    if "required" in schema and not _is_names(required):
        yield f"{path}.required must be a list of names"
    if "properties" in schema and not isinstance(properties, dict):
        yield f"{path}.properties must be an object"
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield from faults(inner, f"{path}.properties.{name}")
    if "items" in schema:
        yield from faults(schema["items"], f"{path}.items")


def misfit(schema: Json, value: Json) -> str | None:
    """Why a value does not fit, in words; None where it does."""
    return next(faults(schema), None) or next(_misfits(schema, value, "$"), None)


def _misfits(schema: Json, value: Json, path: str) -> Iterator[str]:
    expected = _expected(schema)
    if expected is not None and not _is(expected, value):
        yield f"{path} is of type {_kind(value)} and must be of type {expected}"
        return
    if expected == "object":
        yield from (f"{path} has no {name}" for name in schema.get("required", ()) if name not in value)
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _misfits(inner, value[name], f"{path}.{name}")
    if expected == "array" and "items" in schema:
        for index, one in enumerate(value):
            yield from _misfits(schema["items"], one, f"{path}.{index}")


def _expected(schema: Json) -> str | None:
    """The type that is asked for, or that the other keywords speak of."""
    if "type" in schema:
        return str(schema["type"])
    if schema.get("properties") or schema.get("required"):
        return "object"
    return "array" if "items" in schema else None


def _is(expected: str, value: Json) -> bool:
    kind = _kind(value)
    return kind == expected or (expected == "number" and kind == "integer")


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _is_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
