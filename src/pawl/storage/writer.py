"""The one writer: a thread that owns the only writing connection and commits what is waiting together.

Each logical transaction is a plain function over a ``Transaction``; its caller hears back after the commit is on
the disk. A batch is what came in while the last one was being written: nothing waits on purpose.

A function may run more than once: when one of a batch fails, the batch is rolled back and its functions run again
one by one, each in a transaction of its own, so that the failing one fails alone and a batch of sound ones pays
for no savepoints. So a function must have no effect but on the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pawl import failpoints
from pawl.clock import Clock
from pawl.errors import StorageError
from pawl.storage.faults import from_sqlite, is_bug, is_locked

Result = TypeVar("Result")

_BATCH_MAX = 1024
_WAL_PAGES_MAX = 1800  # about 7 MiB: a log that outgrew this is cut back when the writer is idle


class Transaction:
    """What a transaction's function may do. ``now_ms`` is the only clock in it (wall).

    ``memo`` is for what was read or written in this very transaction: it is gone with it, also when it is rolled back.
    """

    __slots__ = ("_connection", "marks", "memo", "now_ms")

    def __init__(self, connection: sqlite3.Connection, now_ms: int) -> None:
        self._connection = connection
        self.now_ms = now_ms
        self.marks: dict[str, list[Any]] = {}
        self.memo: dict[str, Any] = {}

    def execute(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self._connection.execute(sql, parameters)

    def one(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> Any:
        """The first row, or None. The statement runs to its end, as RETURNING needs."""
        rows = self._connection.execute(sql, parameters).fetchall()
        return rows[0] if rows else None

    def mark(self, topic: str, *items: Any) -> None:
        """Tell the listeners of a topic, after the commit, that something changed: these, where there are any."""
        self.marks.setdefault(topic, []).extend(items)


class _Call(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any] | None


class Writer:
    """Submit transactions from the event loop. ``start`` and ``close`` are called there too."""

    def __init__(self, connection: sqlite3.Connection, path: str, clock: Clock) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._listeners: dict[str, list[Callable[[list[Any]], None]]] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Start the thread; answers go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def listen(self, topic: str, call: Callable[[list[Any]], None]) -> Callable[[], None]:
        """Call on the loop, with what was marked, after each commit that marked the topic. Returns what ends that."""
        listeners = self._listeners.setdefault(topic, [])
        listeners.append(call)
        return lambda: listeners.remove(call) if call in listeners else None

    def submit(self, function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Run ``function(transaction, *arguments)``; the future resolves when its commit is durable."""
        if self._closed:
            raise StorageError("cannot write: the database is closed")
        future: asyncio.Future[Result] = self._loop.create_future()
        self._queue.put(_Call(function, arguments, future))
        return future

    @property
    def log_is_long(self) -> bool:
        """Whether the write-ahead log outgrew its limit, since a reader held a snapshot. Any later write cuts it."""
        return self._log_pages() > _WAL_PAGES_MAX

    async def close(self) -> None:
        """Write what is waiting, end the thread, close the connection. Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)
        self._connection.close()

    # --- the writer's thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        open_ = True
        while open_:
            batch: list[_Call] = []
            item = self._queue.get()
            while True:
                if item is None:
                    open_ = False
                    break
                batch.append(item)
                if len(batch) >= _BATCH_MAX:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._commit(batch)
                if self._queue.empty():
                    self._keep_log_short()

    def _commit(self, batch: list[_Call]) -> None:
        try:
            answers, marks = self._together(batch)
        except Exception:
            self._roll_back()
            answers, marks = self._one_by_one(batch)
        try:
            failpoints.hit("writer.after_commit")
        except Exception as error:  # it is durable, and its callers do not hear so
            answers = [(call, error, False) for call, _, _ in answers]
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody is left to hear
            self._loop.call_soon_threadsafe(self._deliver, answers, marks)

    def _together(self, batch: list[_Call]) -> tuple[list[tuple[_Call, Any, bool]], dict[str, list[Any]]]:
        self._connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(self._connection, self._clock.wall_ms())
        answers = [(call, call.function(transaction, *call.arguments), True) for call in batch]
        failpoints.hit("writer.before_commit")
        self._connection.execute("COMMIT")
        return answers, transaction.marks

    def _one_by_one(self, batch: list[_Call]) -> tuple[list[tuple[_Call, Any, bool]], dict[str, list[Any]]]:
        answers: list[tuple[_Call, Any, bool]] = []
        marks: dict[str, list[Any]] = {}
        for call in batch:
            try:
                done, seen = self._together([call])
                answers += done
                for topic, items in seen.items():
                    marks.setdefault(topic, []).extend(items)
            except sqlite3.Error as error:
                self._roll_back()
                fault = self._fault(error)
                if is_locked(error):  # by another program: the others would wait as long, one behind the other
                    return answers + [(each, fault, False) for each in batch[len(answers) :]], marks
                answers.append((call, fault, False))
            except Exception as error:
                self._roll_back()
                answers.append((call, error, False))
        return answers, marks

    def _fault(self, error: sqlite3.Error) -> Exception:
        if is_bug(error):
            return error
        fault = from_sqlite(error, self._path)
        fault.__cause__ = error
        return fault

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite rolls some errors back by itself
                self._connection.execute("ROLLBACK")

    def _keep_log_short(self) -> None:
        """Cut back a write-ahead log that a long reader let grow. Only when nothing waits: it costs an append later."""
        if self._log_pages() > _WAL_PAGES_MAX:
            self._connection.execute("PRAGMA busy_timeout = 0")
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.execute("PRAGMA busy_timeout = 5000")

    def _log_pages(self) -> int:
        try:
            return os.stat(self._path + "-wal").st_size // 4096
        except OSError:
            return 0

    # --- back on the loop -----------------------------------------------------------------------------------

    def _deliver(self, answers: list[tuple[_Call, Any, bool]], marks: dict[str, list[Any]]) -> None:
        for call, answer, sound in answers:
            if call.future is None or call.future.done():
                continue
            if sound:
                call.future.set_result(answer)
            else:
                call.future.set_exception(answer)
        for topic, items in marks.items():
            for listener in tuple(self._listeners.get(topic, ())):
                listener(items)
