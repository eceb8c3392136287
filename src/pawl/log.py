"""The daemon's log: structured JSON lines on standard error, a file when it runs in the background.

At most one line for a task on its normal way (its end), so that the log costs little; what goes wrong is always
said, with its code.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import structlog


def configure(level: str = "info") -> None:
    """One JSON object a line: ``timestamp`` (UTC), ``level``, ``event``, and the fields of the call."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(_Careful()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )


def logger(room: str) -> Any:
    """The logger of a room."""
    return structlog.get_logger(room=room)


class _Careful:
    """Standard error, but a line that cannot be written (a full disk) is lost and fails nobody: what was to be logged
    matters more than the log."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
