"""Several who want the same row at the same moment: exactly one gets it, and the others know who did."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ledger import CANCELLED, COMPLETED, FAILED, HERE, OUTPUT, OWNERS, Ledger, new_task, open_unsynced

from pawl.control_plane import store
from pawl.control_plane.model import Task
from pawl.home import Home
from pawl.ids import new_id
from pawl.storage import Database, Reader, Writer

ROUNDS = 500


def test_two_closers_on_two_connections(home: Home) -> None:
    """500 rounds: one connection settles a running row as completed while another fails it. One wins each round,
    the other is told the row that won, and the row stays as the winner left it."""
    ledgers = [Ledger(open_unsynced(home.database)) for _ in range(2)]
    tasks = [ledgers[0].promised(COMPLETED).id for _ in range(ROUNDS)]
    together = threading.Barrier(2)
    closers: list[Callable[[str], store.Ended]] = [
        lambda task_id: ledgers[0](store.settle, task_id, HERE, "completed", OUTPUT),
        lambda task_id: ledgers[1](store.end_running, task_id, HERE, FAILED, False, "x"),
    ]

    def close(closer: Callable[[str], store.Ended]) -> list[store.Ended]:
        answers = []
        for task_id in tasks:
            together.wait(10)
            answers.append(closer(task_id))
        return answers

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(close, closers))

    for task_id, settled, failed in zip(tasks, *answers, strict=True):
        row = ledgers[0].task(task_id)
        assert settled.won != failed.won
        assert settled.task == failed.task == row
        assert row.status == ("completed" if settled.won else "failed")
        assert ledgers[0].changes(task_id) == [(None, "running"), ("running", row.status)]
    assert ledgers[0].intents() == {}
    assert ledgers[0].audit_fault() is None
    for ledger in ledgers:
        ledger.connection.close()


def test_two_closers_of_one_daemon(writer: Writer, run: Callable[..., Any], home: Home) -> None:
    """500 rounds through the one writer: settlement and cancel are submitted together, in either order, so that both
    are in one batch. One wins each round, and both answers name it."""

    async def round_(number: int) -> None:
        task_id = new_id()
        await writer.submit(store.submit, new_task(id=task_id), HERE, 0)
        await writer.submit(store.promise, task_id, HERE, COMPLETED, OUTPUT, None, False, False)
        calls = [
            (store.settle, task_id, HERE, "completed", OUTPUT),
            (store.end_running, task_id, HERE, CANCELLED, True, "x"),
        ]
        if number % 2:
            calls.reverse()
        first, second = await asyncio.gather(*(writer.submit(*call) for call in calls))  # type: ignore[arg-type]
        assert first.won != second.won
        assert first.task == second.task
        row = Task._make(await reader.one("SELECT * FROM task WHERE id = ?", (task_id,)))
        assert row == first.task

    async def body() -> None:
        await reader.start()
        for start in range(0, ROUNDS, 50):
            await asyncio.gather(*(round_(start + number) for number in range(50)))
        counts = dict(await reader.all("SELECT status, count(*) FROM task GROUP BY status"))
        assert sum(counts.values()) == ROUNDS
        await reader.close()

    reader = Reader(Database(home.database))
    run(body())


def test_ten_claimers_of_one_task(home: Home) -> None:
    """200 rounds: ten connections claim at the same moment, and one task is queued. One gets it, nine get nothing."""
    ledgers = [Ledger(open_unsynced(home.database)) for _ in range(10)]
    rounds = 200
    claimed: list[list[str]] = [[] for _ in range(rounds)]
    queued: list[str] = []
    together = threading.Barrier(10, action=lambda: queued.append(ledgers[0].queued().id))

    def claim(number: int) -> None:
        for round_ in range(rounds):
            together.wait(10)
            owner = OWNERS[number % len(OWNERS)]
            claimed[round_] += [task.id for task in ledgers[number](store.claim, owner, 0, 5, {"writer": 5})]

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(claim, range(10)))

    assert claimed == [[task_id] for task_id in queued]
    assert ledgers[0].counted() == {"running": rounds}
    assert ledgers[0].audit_fault() is None
    for ledger in ledgers:
        ledger.connection.close()


def test_ten_recoverers_of_one_row(home: Home) -> None:
    """A dead owner's rows are taken over once each, however many daemons try."""
    ledgers = [Ledger(open_unsynced(home.database)) for _ in range(4)]
    tasks = [ledgers[0].running().id for _ in range(100)]
    together = threading.Barrier(4)

    def take(number: int) -> list[bool]:
        owner = OWNERS[1]._replace(pid=1000 + number)
        taken = []
        for task_id in tasks:
            together.wait(10)
            taken.append(ledgers[number](store.take_over, task_id, HERE, owner, None, 0) is not None)
        return taken

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(take, range(4)))

    assert [sum(each) for each in zip(*answers, strict=True)] == [1] * len(tasks)
    for ledger in ledgers:
        ledger.connection.close()
