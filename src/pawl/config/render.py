"""The configuration for reading: what is in force, and the JSON Schema of the file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from pawl.config.fields import MICROS, duration_toml, size_toml
from pawl.config.model import AgentConfig, Config
from pawl.config.section import Section, toml_key

_DEFAULT_TEXT: dict[str, Callable[[int], str]] = {"duration": duration_toml, "size": size_toml}


def effective(config: Config) -> dict[str, Any]:
    """What is in force, ready for JSON: the file's keys, durations in seconds (``timeout_s``), sizes in bytes
    (``max_output_bytes``), defaults and built-ins included, null for what is not set."""
    return _section(config)


def _section(section: Section) -> dict[str, Any]:
    rendered: dict[str, Any] = {}
    for attribute in type(section).model_fields:
        value = getattr(section, attribute)
        if attribute.endswith("_ms"):
            rendered[f"{toml_key(attribute)}_s"] = None if value is None else _seconds(value)
        elif attribute.endswith("_micros"):
            rendered[toml_key(attribute)] = None if value is None else value / MICROS
        else:
            rendered[attribute] = _value(value)
    if isinstance(section, AgentConfig):
        rendered["builtin"] = section.builtin
    return rendered


def _value(value: object) -> Any:
    match value:
        case Section():
            return _section(value)
        case dict():
            return {key: _value(entry) for key, entry in value.items()}
        case tuple():
            return [_value(entry) for entry in value]
    return value


def _seconds(ms: int) -> int | float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the file, for editors and other checkers.

    It is a little wider than ``check``: what lies between keys (names that must exist, one timeout longer
    than another) and the limits of durations and sizes are beyond it.
    """
    tree = _for_toml(Config.model_json_schema(by_alias=True))
    parts = {Config.__name__: tree, **tree["$defs"]}
    for model in _sections(Section):
        for key, text in _explained(model).items():
            if model.__name__ in parts:
                parts[model.__name__]["properties"][key]["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **tree,
        "title": "Pawl configuration",
        "description": "The file config.toml in a home of Pawl.",
    }


def _sections(base: type[Section]) -> Iterator[type[Section]]:
    for model in base.__subclasses__():
        yield model
        yield from _sections(model)


def _explained(model: type[Section]) -> dict[str, str]:
    """What each key of a table means: the text below its attribute in the source, which Python itself drops."""
    try:
        definition = ast.parse(inspect.getsource(model)).body[0]
    except OSError:  # installed without its source: the schema holds without its explanations
        return {}
    statements = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        toml_key(attribute.target.id): " ".join(below.value.value.split())
        for attribute, below in pairwise(statements)
        if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _for_toml(node: Any) -> Any:
    """What pydantic says of Python, said of the file: no null, units in the value, and no other names."""
    if isinstance(node, list):
        return [_for_toml(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    node = _without_null({key: _for_toml(entry) for key, entry in node.items()})
    if "default" in node and node["default"] in (None, []):
        del node["default"]
    text = _DEFAULT_TEXT.get(node.get("x-kind", ""))
    if text and "default" in node:
        node["default"] = text(node["default"])
    if "patternProperties" in node:
        node.setdefault("additionalProperties", False)
    return node


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key that is not set is left out."""
    if {"type": "null"} not in node.get("anyOf", []):
        return node
    variants = [entry for entry in node["anyOf"] if entry != {"type": "null"}]
    if len(variants) > 1:
        return {**node, "anyOf": variants}
    return {**variants[0], **{key: value for key, value in node.items() if key != "anyOf"}}
