"""Every fault of a configuration file: of its form, and else of the jobs that it declares."""

from __future__ import annotations

from pawl import config
from pawl.config import Fault


def every_fault(path: str) -> list[Fault]:
    """What is wrong with a file: its form, or else what of its jobs cannot run."""
    found = config.check(path)
    if found or not (loaded := config.load(path)).cron:
        return found
    from pawl.engines.cron import soundness  # knows calendars and zones: only where there are jobs

    return soundness.faults(loaded)
