"""Reads beside the writer: a read-only connection on a thread of its own, so that no query holds up the loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import aiosqlite

from pawl.storage.database import Database
from pawl.storage.faults import from_sqlite, is_bug


class Reader:
    """Each query sees everything committed before it, and holds no snapshot afterwards."""

    def __init__(self, database: Database) -> None:
        self._path = database.path
        self._uri = database.reader_uri()
        self._connection: aiosqlite.Connection | None = None

    async def start(self) -> None:
        """Open the connection."""
        try:
            self._connection = await aiosqlite.connect(self._uri, uri=True, isolation_level=None)
        except sqlite3.Error as error:
            raise from_sqlite(error, self._path) from error

    async def close(self) -> None:
        """Close the connection. Twice is harmless."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def all(self, sql: str, parameters: Iterable[Any] = ()) -> list[Any]:
        """Every row of a query, as tuples."""
        assert self._connection is not None, "start the reader first"
        try:
            return list(await self._connection.execute_fetchall(sql, parameters))
        except sqlite3.Error as error:
            if is_bug(error):
                raise
            raise from_sqlite(error, self._path) from error

    async def one(self, sql: str, parameters: Iterable[Any] = ()) -> Any:
        """The first row, or None."""
        rows = await self.all(sql, parameters)
        return rows[0] if rows else None
