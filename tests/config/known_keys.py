"""Every key of the configuration file, read off the models."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from pawl.config import Config
from pawl.config.section import Section, toml_key


def keys_of(model: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every key of the file, with the tables that lead to it; NAME stands for a name, 0 for a place in a list."""
    for attribute, field in model.model_fields.items():
        key = toml_key(attribute)
        yield path, key
        for inner, way in sections_in(field.annotation):
            yield from keys_of(inner, (*path, key, *way))


def sections_in(kind: Any) -> Iterator[tuple[type[Section], tuple[str, ...]]]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        yield from sections_in(arguments[0])
    elif origin is dict:
        yield from ((inner, ("NAME", *way)) for inner, way in sections_in(arguments[1]))
    elif origin is tuple:
        yield from ((inner, ("0", *way)) for inner, way in sections_in(arguments[0]))
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from sections_in(argument)
    elif isinstance(kind, type) and issubclass(kind, Section):
        yield kind, ()


KEYS = sorted(set(keys_of(Config)))
