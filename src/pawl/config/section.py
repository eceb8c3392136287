"""The base of every table of the configuration file: what pydantic checks, and what it does not.

Two things pydantic leaves to be done:

* An unknown key is named together with the known key that was probably meant.
* Checks over several keys run on the raw table, beside the checks of the single keys, so that one fault never
  hides another. (A pydantic ``after`` validator runs only where everything else is right.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from pawl.config import wording

SLIP = "pawl_slip"  # the pydantic error type of a message that is ready to be read


class Slip(NamedTuple):
    """A fault of a table: the key path inside it, the words, and the known name that was probably meant."""

    path: tuple[str | int, ...]
    text: str
    nearest: str | None = None


def slip(text: str, nearest: str | None = None) -> PydanticCustomError:
    """The error to raise inside a validator: its text reaches the user as it is."""
    return PydanticCustomError(SLIP, "{text}", {"text": text, "nearest": nearest})


def toml_key(attribute: str) -> str:
    """The key in the file for an attribute: the unit at the end of its name (``timeout_ms``) is Python's."""
    return attribute.removesuffix("_ms").removesuffix("_bytes").removesuffix("_micros")


class Section(BaseModel):
    """One table of the file. Attributes name their units; in the file the value does."""

    # use_attribute_docstrings would parse every source file at each start; the schema reads them when it is asked for.
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=toml_key)

    @classmethod
    def toml_keys(cls) -> list[str]:
        """The keys that this table knows."""
        return [toml_key(name) for name in cls.model_fields]

    @classmethod
    def cross_check(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        """Faults that lie between keys. ``raw`` is the table ``as_meant``; nothing in it is checked yet."""
        yield from ()

    @model_validator(mode="wrap")
    @classmethod
    def _find_every_fault(cls, raw: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(raw, dict):
            return handler(raw)
        meant = cls.as_meant(raw)
        slips = [*cls._unknown_keys(raw), *cls.cross_check(meant)]
        if not slips:
            return handler(raw)
        details = [InitErrorDetails(type=slip(s.text, s.nearest), loc=s.path, input=None) for s in slips]
        known = set(cls.toml_keys())
        try:
            handler({key: value for key, value in raw.items() if key in known})
        except ValidationError as error:
            details += [again for again in _again(error) if not _is_missing(again, meant)]
        raise ValidationError.from_exception_data(cls.__name__, details)

    @classmethod
    def as_meant(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The table with None under each key that an unknown one probably means: that is not missing."""
        known = cls.toml_keys()
        meant = {wording.nearest(key, known): None for key in raw if key not in known}
        return {**{key: None for key in meant if key}, **raw}

    @classmethod
    def _unknown_keys(cls, raw: dict[str, Any]) -> Iterator[Slip]:
        known = cls.toml_keys()
        for key in raw:
            if key in known:
                continue
            nearest = wording.nearest(key, known)
            meant = f"did you mean {wording.quoted(nearest)}?" if nearest else ""
            hint = meant or f"known here: {', '.join(known)}"
            yield Slip((key,), f"unknown key; {hint}", nearest)


class Named(Section):
    """A table that lies under its own name, as in ``[agents.NAME]``."""

    _name: str = ""

    @property
    def name(self) -> str:
        """The name that the file gives it; set by the configuration that holds it."""
        return self._name


def _is_missing(details: InitErrorDetails, meant: dict[str, Any]) -> bool:
    return details["type"] == "missing" and len(details["loc"]) == 1 and details["loc"][0] in meant


def _again(error: ValidationError) -> list[InitErrorDetails]:
    """Errors in the form in which they can be raised once more, together with others."""
    again = []
    for found in error.errors(include_url=False):
        ctx = found.get("ctx", {})
        # pydantic makes its own errors anew from their type, but does not know ours.
        kind = slip(ctx["text"], ctx["nearest"]) if found["type"] == SLIP else found["type"]
        again.append(InitErrorDetails(type=kind, loc=found["loc"], input=found["input"], ctx=ctx))
    return again
