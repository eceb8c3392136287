"""The whole daemon, driven from outside."""

from __future__ import annotations

from harness.fixtures import another, daemon, hands, home, ran, small_disk, stranger

__all__ = ["another", "daemon", "hands", "home", "ran", "small_disk", "stranger"]
