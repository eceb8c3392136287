"""Statements live in ``queries.sql`` beside their store, each under a line ``-- name: claim``."""

from __future__ import annotations

from importlib import resources
from types import SimpleNamespace


def load_queries(package: str, file: str = "queries.sql") -> SimpleNamespace:
    """Read the named statements of a room, as attributes. The text is constant, so SQLite prepares each once."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    statements: dict[str, str] = {}
    for block in text.split("-- name: ")[1:]:
        name, _, body = block.partition("\n")
        if name.strip() in statements:
            raise ValueError(f"{package}/{file} has two statements named {name.strip()}")
        statements[name.strip()] = body.strip().rstrip(";")
    return SimpleNamespace(**statements)
