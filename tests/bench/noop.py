"""Durable no-op tasks, from request to settled output, beside huey with fsync, DBOS on SQLite and raw SQLite.

Ours: the agent ``echo`` over the socket; each task is stored, claimed, its output hashed, written, synced and
renamed into the artifact store between two further commits, with its audit entries. huey keeps a result in the
database and no owner; it drains a backlog, which is its best. The raw line is one thread that inserts, claims and
closes rows, a hundred to a transaction, with synchronous=FULL.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import tempfile
import time
from contextlib import suppress

from load import callers
from measure import Report, percentile

from harness.daemon import Daemon
from pawl.home import Home

_CONFIG = "[daemon]\nmax_concurrent = 200\n"
HUEY = "huey, fsync, drain"
DBOS = "DBOS on SQLite (WAL), one caller"


def run(report: Report, folder: str) -> None:
    raw(report, folder)
    with suppress(ImportError):
        huey(report, folder)
    with suppress(ImportError):
        dbos(report, folder)
    ours(report, folder)
    for at_once in (10, 100):
        report.ratio(f"pawl echo, {at_once} callers", HUEY, "2" if at_once == 100 else "")
        report.ratio(f"pawl echo, {at_once} callers", DBOS, "15" if at_once == 100 else "")
    report.ratio("pawl echo, 100 callers", "settlement floor, 100 at once", "0.5")
    report.ratio("pawl echo, 100 callers", "raw SQLite, 100 a transaction")


def ours(report: Report, folder: str) -> None:
    daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)), _CONFIG)
    daemon.start()
    try:
        for at_once, tasks in ((1, 200), (10, 1000), (100, 3000)):
            rate, latencies = callers(daemon.home.socket, tasks, at_once, agent="echo")
            report.add(f"pawl echo, {at_once} callers", rate, "tasks/s")
            report.add(f"pawl echo, {at_once} callers, p50", percentile(latencies, 0.5) * 1000, "ms")
            report.add(f"pawl echo, {at_once} callers, p99", percentile(latencies, 0.99) * 1000, "ms")
    finally:
        daemon.close()


def raw(report: Report, folder: str, rows: int = 3000) -> None:
    """The two limits: grouped rows, and grouped settlements of 1 KiB files."""
    path = os.path.join(tempfile.mkdtemp(dir=folder), "raw.db")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, status TEXT, body TEXT, owner TEXT) STRICT")
    start = time.perf_counter()
    for at in range(0, rows, 100):
        for sql in (
            "INSERT INTO t VALUES (?, 'queued', 'x', NULL)",
            "UPDATE t SET status = 'running', owner = 'me' WHERE id = ? AND status = 'queued'",
            "UPDATE t SET status = 'done' WHERE id = ? AND status = 'running' AND owner = 'me'",
        ):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql, [(each,) for each in range(at, at + 100)])
            connection.execute("COMMIT")
    report.add("raw SQLite, 100 a transaction", rows / (time.perf_counter() - start), "lives/s")
    report.add("settlement floor, 100 at once", _settlements(connection, os.path.dirname(path)), "settlements/s")
    connection.close()


def _settlements(connection: sqlite3.Connection, folder: str, count: int = 600) -> float:
    """Intent, file, sync, rename, directory sync, final row: groups of a hundred share all but the files' syncs."""
    from concurrent.futures import ThreadPoolExecutor

    connection.execute("CREATE TABLE intent (id INTEGER PRIMARY KEY, digest TEXT) STRICT")

    def write(number: int) -> None:
        descriptor = os.open(os.path.join(folder, f"tmp{number}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, b"x" * 1024)
        os.fsync(descriptor)
        os.close(descriptor)

    start = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        for at in range(0, count, 100):
            numbers = range(at, at + 100)
            list(pool.map(write, numbers))
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO intent VALUES (?, 'd')", [(each,) for each in numbers])
            connection.execute("COMMIT")
            for each in numbers:
                os.rename(os.path.join(folder, f"tmp{each}"), os.path.join(folder, f"f{each}"))
            directory = os.open(folder, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("UPDATE t SET body = 'd' WHERE id = ?", [(each,) for each in numbers])
            connection.executemany("DELETE FROM intent WHERE id = ?", [(each,) for each in numbers])
            connection.execute("COMMIT")
    return count / (time.perf_counter() - start)


def huey(report: Report, folder: str, jobs: int = 1000) -> None:
    """One worker thread drains a backlog of no-op jobs; fsync on."""
    import huey as package

    queue = package.SqliteHuey("bench", filename=os.path.join(tempfile.mkdtemp(dir=folder), "huey.db"), fsync=True)

    @queue.task()  # type: ignore[misc]
    def noop() -> int:
        return 1

    for _ in range(jobs):
        noop()
    start = time.perf_counter()
    while (task := queue.dequeue()) is not None:
        queue.execute(task)
    report.add(HUEY, jobs / (time.perf_counter() - start), "jobs/s")


def dbos(report: Report, folder: str) -> None:
    """One caller, one workflow after another, in a process of its own: it keeps global state."""
    import dbos as package

    _ = package
    parent, child = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_dbos, args=(tempfile.mkdtemp(dir=folder), child))
    process.start()
    if parent.poll(120):
        report.add(DBOS, parent.recv(), "workflows/s")
    process.join(30)


def _dbos(folder: str, channel: object, workflows: int = 150) -> None:
    import logging

    import sqlalchemy
    from dbos import DBOS as Dbos

    logging.disable(logging.CRITICAL)
    path = os.path.join(folder, "dbos.db")
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    sqlalchemy.event.listen(engine, "connect", _wal)
    Dbos(config={"name": "bench", "system_database_url": f"sqlite:///{path}", "system_database_engine": engine})

    @Dbos.workflow()
    def noop() -> int:
        return 1

    Dbos.launch()
    noop()
    start = time.perf_counter()
    for _ in range(workflows):
        noop()
    channel.send(workflows / (time.perf_counter() - start))  # type: ignore[attr-defined]
    Dbos.destroy()


def _wal(connection: sqlite3.Connection, _: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
