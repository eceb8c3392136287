"""The parameters of every call, checked at the edge: unknown and malformed ones are refused before anything happens.

Times are seconds, ids may be prefixes. What is kept in a row and shown in lists is bounded by what it takes in an
answer, so that a list of rows fits into one whatever was put into them. What each call means stands in
``docs/reference/protocol.md``.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from pawl.errors import InvalidParams


def _answered(most: int) -> AfterValidator:
    """Bounds a value by the bytes that it has as JSON, as it stands in answers."""

    def check(value: Any) -> Any:
        if len(json.dumps(value)) > most:
            raise ValueError(f"it may take at most {most} bytes, counted as JSON")
        return value

    return AfterValidator(check)


Id = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z-]+$")]
Ids = Annotated[list[Id], Field(min_length=1, max_length=1000)]
Seconds = Annotated[float, Field(gt=0, le=3_155_760_000, allow_inf_nan=False)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]
LabelValue = Annotated[str, StringConstraints(max_length=200)]
Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$"), _answered(8192)]
Note = Annotated[str, StringConstraints(max_length=4096), _answered(4096)]
Word = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
Agent = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=64)]
TOOL = r"^[A-Za-z0-9_][A-Za-z0-9_.:*()/@+ -]*$"
Tool = Annotated[str, StringConstraints(max_length=200, pattern=TOOL)]
Tools = Annotated[list[Tool], Field(max_length=1000)]
ShortName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Labels = Annotated[dict[Key, LabelValue], Field(max_length=50), _answered(4096)]
Source = Annotated[dict[Key, Note], Field(max_length=20), _answered(2048)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


class Params(BaseModel):
    """The base of all: nothing unknown, nothing of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(Params):
    """A call without parameters."""


class Hello(Params):
    protocol: int
    client: Annotated[str, StringConstraints(max_length=200)] = ""


class Stop(Params):
    cancel: bool = False
    wait: bool = True


class Prompted(Params):
    """What takes a prompt: as text, or in base64 where it is not UTF-8."""

    prompt: str | None = None
    prompt_base64: str | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt is not None and self.prompt_base64 is not None:
            raise ValueError("give prompt or prompt_base64, not both")
        return self


class Work(Prompted):
    """What every request to delegate has, whomever it is for."""

    wait: bool = False
    timeout_s: Seconds | None = None
    queue_timeout_s: Seconds | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    cwd: Path | None = None
    caller_cwd: Path | None = None
    env: Annotated[dict[EnvName, Word], Field(max_length=500)] = Field(default_factory=dict)
    idempotency_key: Key | None = None
    parent: Id | None = None
    labels: Labels = Field(default_factory=dict)
    inputs: Annotated[list[Path], Field(max_length=100)] = Field(default_factory=list)
    source: Source = Field(default_factory=dict)

    @model_validator(mode="after")
    def _free_names(self) -> Self:
        if any(name.startswith("PAWL_") for name in self.env):
            raise ValueError("names that begin with PAWL_ are the daemon's to set")
        return self


class Delegate(Work):
    agent: Agent


class FanOut(Work):
    """The same work for several agents: all are taken or none is."""

    agents: Annotated[list[Agent], Field(min_length=1, max_length=128)]


class Spawn(Prompted):
    """A sub-agent of the calling task. Every override may only narrow what that task may do.

    ``request_key``: the same key from the same task is the same sub-agent, so that asking again is safe.
    """

    timeout_s: Seconds | None = None
    allow_tools: Tools | None = None
    deny_tools: Tools = Field(default_factory=list)
    env: Annotated[list[EnvName], Field(max_length=500)] | None = None
    max_actions: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    request_key: Key | None = None
    source: Source = Field(default_factory=dict)


class Usage(Params):
    """What the calling task has used since it last said so. ``cost`` is in the currency that the policies use.

    ``request_key``: the same key from the same task counts once.
    """

    tokens: Annotated[int, Field(ge=0, le=10**15)] = 0
    cost: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    model: ShortName | None = None
    request_key: Key | None = None


class Progress(Params):
    text: Annotated[str, StringConstraints(min_length=1, max_length=4096), _answered(4096)]
    phase: ShortName | None = None


class One(Params):
    id: Id


class Listing(Params):
    """``before``: only tasks that are older than this one, so that long lists can be asked for page by page."""

    statuses: Annotated[list[Key], Field(max_length=50)] | None = None
    agent: Key | None = None
    kind: Key | None = None
    labels: Annotated[dict[Key, LabelValue], Field(max_length=50)] = Field(default_factory=dict)
    limit: Annotated[int, Field(ge=1, le=100_000)] = 50
    all: bool = False
    before: Id | None = None


class Wait(Params):
    ids: Ids
    timeout_s: Annotated[float, Field(ge=0, le=3_155_760_000, allow_inf_nan=False)] | None = None
    any: bool = False


class Cancel(Params):
    ids: Ids
    reason: Annotated[str, StringConstraints(max_length=1000), _answered(4096)] | None = None


class Logs(Params):
    id: Id
    stream: Literal["stdout", "stderr"] = "stdout"
    follow: bool = False


class Name(Params):
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class CronAdd(Params):
    """A job. ``job`` has the keys of ``[[cron]]`` in the configuration file but the name, and is checked like that."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    job: Annotated[dict[Key, Any], Field(max_length=50)]
    replace: bool = False


class CronUpdate(Params):
    """What of a job is to be another; ``job`` as in ``CronAdd``."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    job: Annotated[dict[Key, Any], Field(max_length=50)]


class CronRuns(Params):
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50


class Events(Params):
    after: Annotated[int, Field(ge=0, le=2**62)] = 0
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    last: Annotated[int, Field(ge=0, le=10_000)] | None = None
    subject: Id | None = None
    follow: bool = False


_ENTRIES_MAX = 1000  # of a list or object in the parameters; no parameter takes more
_FAULTS_MAX = 20  # that are named
_NAME_MAX = 100  # characters of a parameter's name that a message repeats
_WORDS = {
    "missing": "it is required",
    "extra_forbidden": "there is no such parameter",
    "string_type": "it must be text",
    "string_unicode": "it holds half of a surrogate pair",
    "string_too_short": "it must have at least {min_length} character(s)",
    "string_too_long": "it may have at most {max_length} characters",
    "bool_type": "it must be true or false",
    "int_type": "it must be a whole number",
    "int_parsing_size": "the number is too large",
    "float_type": "it must be a number",
    "finite_number": "it must be a finite number",
    "greater_than": "it must be over {gt:g}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it may be at most {le}",
    "list_type": "it must be an array",
    "dict_type": "it must be an object",
    "too_short": "it must have at least {min_length} entry",
    "too_long": "it may have at most {max_length} entries",
    "literal_error": "it must be {expected}",
}
_PATTERNS = {
    r"^[0-9A-Za-z-]+$": "an id has letters, digits and hyphens only",
    TOOL: "the name of a tool has letters, digits, spaces and any of _ . : * ( ) / @ + - and begins with none of these",
    r"^/[^\x00]*$": "it must be an absolute path without zero bytes",
    r"^[^\x00]*$": "it may hold no zero bytes",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of a variable has letters, digits and underscores only",
}


def read(model: type[Params], raw: Any) -> Any:
    """Check parameters. Raises ``invalid_params`` with the first faults, in words that name the parameter."""
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise InvalidParams("cannot read the parameters: they must be one JSON object")
    _refuse_crowds(raw)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        faults = [{"parameter": _name(each["loc"]), "message": _wording(each)} for each in found[:_FAULTS_MAX]]
        first = faults[0]
        where = f"the parameter {first['parameter']}" if first["parameter"] else "the parameters"
        raise InvalidParams(f"cannot use {where}: {first['message']}", faults=faults) from None


def _refuse_crowds(raw: dict[str, Any]) -> None:
    """Refuse what has more entries than any parameter takes: a fault for each of a million would take a minute."""
    if len(raw) > _ENTRIES_MAX:
        raise InvalidParams(f"cannot read the parameters: there are {len(raw)} of them")
    for name, value in raw.items():
        if isinstance(value, dict | list) and len(value) > _ENTRIES_MAX:
            shown = _name((name,))
            message = f"it may have at most {_ENTRIES_MAX} entries"
            faults = [{"parameter": shown, "message": message}]
            raise InvalidParams(f"cannot use the parameter {shown}: {message}", faults=faults)


def _name(place: tuple[int | str, ...]) -> str | None:
    """The way to a parameter, ``env.PATH``. A key that is at fault itself comes with a word of pydantic's behind it."""
    return ".".join(str(part) for part in place if part != "[key]")[:_NAME_MAX] or None


def _wording(fault: Any) -> str:
    context = fault.get("ctx", {})
    kind = fault["type"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return _PATTERNS[context["pattern"]]
    words = _WORDS.get(kind)
    return words.format(**context) if words else str(fault["msg"])
