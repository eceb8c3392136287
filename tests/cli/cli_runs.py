"""How a command ended, for the tests of the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = str(Path(__file__).parents[2] / "src")


class Ran(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error object on stderr."""
        assert self.err.count("\n") == 1, self.err
        return dict(json.loads(self.err)["error"])
