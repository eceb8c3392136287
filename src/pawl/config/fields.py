"""The kinds of values that keys of the configuration file take, each with the words for what does not fit."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, Strict, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from pawl.config.section import slip
from pawl.config.wording import found, quoted
from pawl.errors import InvalidValue
from pawl.values import duration_ms, size_bytes

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
KIB, MIB, GIB = 1024, 1024**2, 1024**3

MICROS = 1_000_000
_COST_MAX = 1_000_000_000
_SIZE_MAX = 2**53 - 1  # the largest integer that every JSON reader keeps exact
_COMMAND_SHOWN_MAX = 120  # characters of a command that a message repeats as a list
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_TOOL = r"[A-Za-z0-9_][A-Za-z0-9_.:*()/@+ -]{0,199}"
_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_CAPABILITY = r"[a-z0-9]+(?:[.-][a-z0-9]+)+@[0-9]+(?:\.[0-9]+(?:\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?)?)?"
_NUMBER_OR_TEXT = [{"type": "string"}, {"type": "number", "minimum": 0}]


def duration_toml(ms: int) -> str:
    """A duration as one would write it in the file: ``30s``, ``1h``, ``1500ms``."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms" if ms else "0s"


def size_toml(count: int) -> str:
    """A size as one would write it in the file: ``64MiB``, ``8KiB``, ``1000``."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


@dataclass(frozen=True)
class Duration:
    """Marks an ``..._ms`` attribute: text such as ``1h30m`` or a number of seconds becomes milliseconds."""

    least_ms: int = 1
    most_ms: int | None = None

    def read(self, value: object) -> int:
        ms = _read(value, duration_ms, kind="duration", examples="90, 90s, 10m, 2h, 7d or 1h30m")
        if ms < self.least_ms:
            raise slip(f"{found(value)} is too short; it must be at least {duration_toml(self.least_ms)}")
        if self.most_ms is not None and ms > self.most_ms:
            raise slip(f"{found(value)} is too long; it must be at most {duration_toml(self.most_ms)}")
        return ms

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": _NUMBER_OR_TEXT, "x-kind": "duration"}


@dataclass(frozen=True)
class Size:
    """Marks a ``..._bytes`` attribute: text such as ``64MiB`` or a number of bytes becomes whole bytes."""

    least: int = 1

    def read(self, value: object) -> int:
        count = _read(value, size_bytes, kind="size", examples="512, 64KiB, 64MiB or 1GiB")
        if count < self.least:
            raise slip(f"{found(value)} is too small; it must be at least {size_toml(self.least)}")
        if count > _SIZE_MAX:
            raise slip(f"{found(value)} is too large")
        return count

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {"anyOf": _NUMBER_OR_TEXT, "x-kind": "size"}


def _read(value: object, reader: Callable[[str], int], *, kind: str, examples: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise slip(f"found {found(value)}, expected a {kind} such as {examples}")
    if not isinstance(value, str) and value < 0:
        raise slip(f"{found(value)} is not a {kind}: it is less than 0")
    try:
        # Six decimals: enough for milliseconds, and never the 1e-05 that the readers do not know.
        return reader(value if isinstance(value, str) else f"{value:f}")
    except OverflowError:
        raise slip(f"{found(value)} is too large for a {kind}") from None
    except InvalidValue as error:
        shown = error.message if len(str(value)) <= 40 else f"{found(value)} is not a {kind}: write it like {examples}"
        raise slip(shown) from None


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # TOML cannot say it, JSON can
        raise slip("the text holds half of a surrogate pair, which no program can be given") from None
    if "\0" in value:
        raise slip(f"{quoted(value)} holds a NUL byte, which no program can be given")
    return value


def _filled(value: str) -> str:
    if not value:
        raise slip("the text is empty; leave it out instead")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(_NAME, value):
        raise slip(f"{quoted(value)} is not a name: 1 to 64 letters, digits, _ . or -, and a letter or digit first")
    return value


def _env_name(value: str) -> str:
    if "=" in value:
        raise slip(f"{quoted(value)} sets a value; only the names of variables that are passed on stand here")
    if not re.fullmatch(_ENV_NAME, value):
        raise slip(f"{quoted(value)} is not the name of an environment variable: letters, digits and _ only")
    return value


def _cost(value: object) -> int:
    """An amount of money, in millionths."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise slip(f"found {found(value)}, expected an amount such as 5 or 2.50")
    if not 0 <= value <= _COST_MAX:  # not a number compares with nothing
        raise slip(f"{found(value)} is no amount between 0 and {_COST_MAX}")
    return round(value * MICROS)


def _tool(value: str) -> str:
    if value != value.strip():
        raise slip(f"{quoted(value)} has spaces around it, so it would name no tool")
    if not re.fullmatch(_TOOL, value):
        raise slip(
            f"{quoted(value)} is not the name of a tool: up to 200 letters, digits, spaces and _ . : * ( ) / @ + -, "
            "and a letter, digit or _ first"
        )
    return value


def _tools(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if value.count(name) > 1:
            raise slip(f"{quoted(name)} stands in this list twice; name each tool once")
    return value


def _capability(value: str) -> str:
    if not re.fullmatch(_CAPABILITY, value):
        raise slip(f'{quoted(value)} is not a capability: write it like "code.write@1", lower-case id and version')
    return value


def _argument(value: str) -> str:
    if not value:
        raise slip("the text is empty; every entry of a command must be non-empty text")
    return _text(value)


def _command(value: object) -> object:
    """A command written as one text would need a shell to take it apart; show how it looks as a list."""
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    if not words or len(value) > _COMMAND_SHOWN_MAX:
        words = ["program", "argument"]
    form = json.dumps(words, ensure_ascii=False)
    raise slip(f"found the text {quoted(value)}, expected a list with one entry for each argument: {form}")


def _not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    # Not min_length: pydantic counts only the entries that are right, and would call ["a\0"] empty as well.
    if not value:
        raise slip("the list is empty; it needs at least one entry")
    return value


def _directory(value: str) -> str:
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        raise slip(f"{quoted(value)} is not an absolute path: begin it with / or with ~/")
    return path


def _schedule(value: object) -> object:
    """A number (of seconds) and TOML's own date are fine ways to write a schedule: keep them as text."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return found(value)
    return value


Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, le=1_000_000_000)]
CountFrom1 = Annotated[int, Strict(), Field(ge=1, le=1_000_000_000)]
Slots = Annotated[int, Strict(), Field(ge=1, le=10_000)]
Text = Annotated[str, AfterValidator(_text)]
FilledText = Annotated[str, AfterValidator(_filled), AfterValidator(_text), Field(json_schema_extra={"minLength": 1})]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$"})]
EnvName = Annotated[str, AfterValidator(_env_name), WithJsonSchema({"type": "string", "pattern": f"^{_ENV_NAME}$"})]
Tool = Annotated[str, AfterValidator(_tool), WithJsonSchema({"type": "string", "pattern": f"^{_TOOL}$"})]
Tools = Annotated[tuple[Tool, ...], AfterValidator(_tools)]
Cost = Annotated[int, BeforeValidator(_cost), WithJsonSchema({"type": "number", "minimum": 0, "maximum": _COST_MAX})]
Capability = Annotated[
    str, AfterValidator(_capability), WithJsonSchema({"type": "string", "pattern": f"^{_CAPABILITY}$"})
]
Directory = Annotated[str, AfterValidator(_text), AfterValidator(_directory)]
HomePath = Annotated[FilledText, AfterValidator(os.path.expanduser)]
Argument = Annotated[str, AfterValidator(_argument), Field(json_schema_extra={"minLength": 1})]
Command = Annotated[
    tuple[Argument, ...],
    BeforeValidator(_command),
    AfterValidator(_not_empty),
    Field(json_schema_extra={"minItems": 1}),
]
ScheduleText = Annotated[Text, BeforeValidator(_schedule), WithJsonSchema({"anyOf": _NUMBER_OR_TEXT})]
