"""Identifiers: UUIDv7 text, so that ids sort by the time they were made."""

from __future__ import annotations

import uuid_utils

PREFIX_CHARACTERS_MIN = 8
ID_CHARACTERS = 36


def new_id() -> str:
    """A fresh UUIDv7 in its usual text form. Wall clock; order within a millisecond is kept."""
    return str(uuid_utils.uuid7())
