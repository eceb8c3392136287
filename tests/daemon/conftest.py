"""The whole daemon, driven from outside."""

from __future__ import annotations

from harness.fixtures import daemon, home, ran, small_disk, stranger

__all__ = ["daemon", "home", "ran", "small_disk", "stranger"]
