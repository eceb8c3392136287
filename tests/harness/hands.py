"""The hands of a daemon's clock, for homes with a test clock; and what scheduled jobs look like from outside."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.daemon import Daemon, until

OPEN = ("claimed", "running")


class Hands:
    """Moves the clock of a home, as ``pawl init --test-clock`` makes one. A daemon notices within a second.

    Instants are RFC 3339 text, as jobs and fires show them.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._passed_s = 0.0
        self._set_s = 0.0
        Path(daemon.home.test_clock).touch(0o600)

    @property
    def now(self) -> datetime:
        """The wall clock, as the daemon will read it."""
        return datetime.now(UTC) + timedelta(seconds=self._passed_s + self._set_s)

    def set(self, instant: str) -> None:
        """Somebody sets the wall clock, either way."""
        self._set_s += (datetime.fromisoformat(instant) - self.now).total_seconds()
        _write(self.daemon.home.wall_offset, self._set_s)

    def wait(self, seconds: float) -> None:
        """Time passes, on both clocks; none does where it has passed already."""
        self._passed_s += max(0.0, seconds)
        _write(self.daemon.home.clock_offset, self._passed_s)

    def wait_until(self, instant: str) -> None:
        """Time passes until then."""
        self.wait((datetime.fromisoformat(instant) - self.now).total_seconds())


def _write(path: str, seconds: float) -> None:
    fresh = Path(path + ".new")
    fresh.write_text(repr(seconds))
    fresh.rename(path)


def cron(name: str, *, agent: str = "sh", **keys: Any) -> str:
    """The text of one ``[[cron]]``; a prompt of nothing where no work is given."""
    if "command" not in keys:
        keys.setdefault("prompt", "true")
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": name, "agent": agent, **keys}.items()]
    return "\n".join(["[[cron]]", *lines, ""])


def show(daemon: Daemon, name: str) -> dict[str, Any]:
    """One job, as ``cron show`` tells it."""
    job: dict[str, Any] = daemon.call("cron.show", name=name)
    return job


def runs(daemon: Daemon, name: str | None = None, **params: Any) -> list[dict[str, Any]]:
    """Fires on record, oldest first."""
    params = {"limit": 500} | ({} if name is None else {"name": name}) | params
    fires: list[dict[str, Any]] = daemon.call("cron.runs", **params)
    return fires[::-1]


def ended(daemon: Daemon, name: str, count: int = 1, *, timeout_s: float = 20) -> list[dict[str, Any]]:
    """Wait until so many fires of a job have ended and none is open."""
    found: list[dict[str, Any]] = until(
        lambda: _ended(runs(daemon, name), count), f"{name} has not ended {count} times", timeout_s
    )
    return found


def _ended(fires: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return fires if len(fires) >= count and not any(fire["status"] in OPEN for fire in fires) else []


def ran(fires: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have or had a task."""
    return [fire for fire in fires if fire["task_id"] is not None]


def moves_on(daemon: Daemon, name: str, past: str) -> dict[str, Any]:
    """Wait until the next fire of a job lies later than this: the daemon has looked at all that was due before."""
    job: dict[str, Any] = until(
        lambda: (job := show(daemon, name))["next_at"] and job["next_at"] > past and job,
        f"the next fire of {name} does not come to lie after {past}",
    )
    return job


def findings(daemon: Daemon, subject: str) -> dict[str, str]:
    """The findings about one job: message by code."""
    found = daemon.call("daemon.status")["findings"]
    return {each["code"]: each["message"] for each in found if each["subject"] == subject}
