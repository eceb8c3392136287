"""Jobs of a home with a test clock: how time passes for them, and what their fires came to."""

from __future__ import annotations

import collections
import time
from pathlib import Path
from typing import Any

from crashing import QUICK

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran
from pawl.control_plane.model import Task
from pawl.engines.cron.model import OPEN, Fire

HOUR_S = 3_600


def job(name: str, ran: Ran, shell: str = ":", **keys: Any) -> str:
    """A ``[[cron]]`` entry, every hour unless it says otherwise. Its program writes its task's id, then goes on with
    ``shell``."""
    if not {"schedule", "every", "at"} & keys.keys():
        keys["every"] = "1h"
    said = {"name": name, "agent": "sh", "prompt": program(ran, shell), **keys}
    return "[[cron]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in said.items())


def program(ran: Ran, shell: str = ":") -> str:
    """Shell words that write the id of their task to the file of ``ran`` and go on."""
    return f"OUT={ran.path}; echo $PAWL_TASK_ID >> $OUT; {shell}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return str(value) if isinstance(value, int) else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def configure(daemon: Daemon, *jobs: str, slots: int = 32) -> None:
    """Declare jobs at a home with a test clock."""
    Path(daemon.home.test_clock).touch()
    daemon.configure(QUICK.replace("max_concurrent = 32", f"max_concurrent = {slots}") + "\n".join(jobs))


def pass_time(daemon: Daemon, seconds: float) -> None:
    """Let so many seconds pass at once, for a daemon that runs and for one that is to come."""
    path = Path(daemon.home.clock_offset)
    before = float(path.read_text()) if path.exists() else 0.0
    fresh = path.with_suffix(".new")
    fresh.write_text(str(before + seconds))
    fresh.rename(path)


def now_ms(daemon: Daemon) -> int:
    """What the wall clock of a home shows."""
    path = Path(daemon.home.clock_offset)
    return round(time.time() * 1000 + (float(path.read_text()) * 1000 if path.exists() else 0))


def fires(daemon: Daemon, name: str | None = None) -> list[Fire]:
    """The fires on record, oldest first."""
    found = [Fire._make(row) for row in rows.query(daemon.home, "SELECT * FROM cron_fire ORDER BY nominal_at_ms, seq")]
    return [fire for fire in found if name in (None, fire.job)]


def chain(daemon: Daemon, fire: Fire) -> list[Task]:
    """The attempts of a fire, the last first."""
    by_id = {task.id: task for task in rows.tasks(daemon.home)}
    found = []
    at = fire.task_id
    while at is not None:
        found.append(by_id[at])
        at = by_id[at].retry_of
    return found


def over(daemon: Daemon, count: int, name: str | None = None, timeout_s: float = 30) -> list[Fire]:
    """Wait until so many fires are on record and all of them have ended, and no process of them is left."""

    def ended() -> bool:
        found = fires(daemon, name)
        return (
            len(found) >= count
            and all(fire.status not in OPEN for fire in found)
            and all(task.ended and task.cleanup != "pending" for task in rows.tasks(daemon.home))
        )

    until(ended, f"{count} fires have not ended", timeout_s)
    return fires(daemon, name)


def ran_once(daemon: Daemon, ran: Ran) -> None:
    """No task was started twice, no fire has attempts that it may not have, and each instant is on record once."""
    twice = [task_id for task_id, times in collections.Counter(ran.lines).items() if times > 1]
    assert not twice, f"started twice: {twice}"
    instants = collections.Counter((fire.job, fire.manual, fire.nominal_at_ms) for fire in fires(daemon))
    assert set(instants.values()) <= {1}
    known = {task.id for fire in fires(daemon) for task in chain(daemon, fire)}
    known |= {fire.check_id for fire in fires(daemon) if fire.check_id}
    assert set(ran.lines) <= known, "work ran that no fire knows"
