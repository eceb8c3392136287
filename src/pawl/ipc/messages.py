"""The parameters of every call, checked at the edge: unknown and malformed ones are refused before anything happens.

Times are seconds, ids may be prefixes. What each call means stands in ``docs/reference/protocol.md``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from pawl.errors import InvalidParams

Id = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z-]+$")]
Ids = Annotated[list[Id], Field(min_length=1, max_length=1000)]
Seconds = Annotated[float, Field(gt=0, le=3_155_760_000, allow_inf_nan=False)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=200)]
LabelValue = Annotated[str, StringConstraints(max_length=200)]
Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]
Word = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
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


class Delegate(Params):
    agent: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    prompt: str | None = None
    prompt_base64: str | None = None
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
    labels: Annotated[dict[Key, LabelValue], Field(max_length=50)] = Field(default_factory=dict)
    inputs: Annotated[list[Path], Field(max_length=100)] = Field(default_factory=list)
    source: Annotated[dict[str, str], Field(max_length=20)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_prompt(self) -> Delegate:
        if self.prompt is not None and self.prompt_base64 is not None:
            raise ValueError("give prompt or prompt_base64, not both")
        if any(name.startswith("PAWL_") for name in self.env):
            raise ValueError("names that begin with PAWL_ are the daemon's to set")
        return self


class One(Params):
    id: Id


class Listing(Params):
    statuses: list[str] | None = None
    agent: str | None = None
    kind: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    limit: Annotated[int, Field(ge=1, le=100_000)] = 50
    all: bool = False


class Wait(Params):
    ids: Ids
    timeout_s: Annotated[float, Field(ge=0, le=3_155_760_000, allow_inf_nan=False)] | None = None


class Cancel(Params):
    ids: Ids
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None


class Logs(Params):
    id: Id
    stream: Literal["stdout", "stderr"] = "stdout"
    follow: bool = False


class Name(Params):
    name: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class Events(Params):
    after: Annotated[int, Field(ge=0, le=2**62)] = 0
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    last: Annotated[int, Field(ge=0, le=10_000)] | None = None
    subject: Id | None = None
    follow: bool = False


def read(model: type[Params], raw: Any) -> Any:
    """Check parameters. Raises ``invalid_params`` with every fault, in words that name the parameter."""
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise InvalidParams("cannot read the parameters: they must be one JSON object")
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        faults = [
            {"parameter": ".".join(map(str, each["loc"])) or None, "message": each["msg"]}
            for each in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        first = faults[0]
        where = f"the parameter {first['parameter']}" if first["parameter"] else "the parameters"
        raise InvalidParams(f"cannot use {where}: {first['message']}", faults=faults) from None
