"""Budgets: how much a tree of tasks may ask for from inside in an hour, and may cost in a day.

Whatever a task spends counts against its own budget and, where it is bounded by its caller, against that of every
task above it, up to one that is independent or the operator's own. So a child cannot spend what its parent may not,
however many children there are. What was spent is kept in the database: a restart refills nothing.

Clock: wall, since a budget outlives the machine's restart; both spans slide.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import Any, NamedTuple

from pawl.control_plane.statements import Q
from pawl.errors import ActionsExhausted, CostExhausted
from pawl.storage import Reader, Transaction
from pawl.values import rfc3339

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MICROS = 1_000_000


def micros(cost: float) -> int:
    """An amount of money in millionths, rounded up: what is less than one of them is counted too, however often it is
    spent. By its decimal digits, for 0.1 is meant and not the number a little above it that a float is."""
    return int((Decimal(repr(cost)) * MICROS).to_integral_value(ROUND_CEILING))


class Holder(NamedTuple):
    """A task whose budget something counts against, in the order of the statement ``holders``. None: no limit.

    ``actions`` and ``cost_micros`` are what its hour and its day hold already.
    """

    task_id: str
    agent: str
    budget_id: str
    max_actions: int | None
    max_cost_micros: int | None
    actions: int
    cost_micros: int

    def refuses_action(self, amount: int) -> bool:
        """Whether so many more actions are too many."""
        return self.max_actions is not None and self.actions + amount > self.max_actions

    @property
    def refuses_cost(self) -> bool:
        """Whether it has cost all that it may."""
        return self.max_cost_micros is not None and self.cost_micros >= self.max_cost_micros


def charge(tx: Transaction, task_id: str, amount: int) -> None:
    """Count so many actions of a task, or refuse them all: ``actions_exhausted`` or ``cost_exhausted``."""
    holders = [Holder._make(row) for row in tx.execute(Q.holders, {"id": task_id, "now": tx.now_ms})]
    for holder in holders:
        if holder.refuses_action(amount) or holder.refuses_cost:
            spent = tx.execute(Q.spent, _window(holder, amount, tx.now_ms)).fetchall()
            raise _refusal(holder, amount, task_id, spent)
    _spend(tx, holders, "action", amount, task_id)


def count_cost(tx: Transaction, task_id: str, cost_micros: int) -> None:
    """Count what a task reports to have cost. It was spent already: nothing is refused."""
    if cost_micros:
        holders = [Holder._make(row) for row in tx.execute(Q.holders, {"id": task_id, "now": tx.now_ms})]
        _spend(tx, holders, "cost", cost_micros, task_id)


async def look(reader: Reader, task_id: str, now_ms: int) -> list[Holder]:
    """Whose budgets an action of a task counts against, and how full they are; nearest first."""
    return [Holder._make(row) for row in await reader.all(Q.holders, {"id": task_id, "now": now_ms})]


async def refuse(reader: Reader, holder: Holder, amount: int, task_id: str, now_ms: int) -> None:
    """Raise what ``charge`` would."""
    raise _refusal(holder, amount, task_id, await reader.all(Q.spent, _window(holder, amount, now_ms)))


def cost_left(holders: Iterable[Holder]) -> int | None:
    """What may still be spent before something is refused, in millionths; None where nothing limits it."""
    left = [each.max_cost_micros - each.cost_micros for each in holders if each.max_cost_micros is not None]
    return max(0, min(left)) if left else None


def _spend(tx: Transaction, holders: list[Holder], what: str, amount: int, task_id: str) -> None:
    span_ms = HOUR_MS if what == "action" else DAY_MS
    tx.execute(Q.forget_spent, (what, tx.now_ms - span_ms))
    for holder in holders:
        tx.execute(Q.spend, (holder.budget_id, what, tx.now_ms, amount, task_id))


def _window(holder: Holder, amount: int, now_ms: int) -> tuple[str, str, int]:
    if holder.refuses_action(amount):
        return holder.budget_id, "action", now_ms - HOUR_MS
    return holder.budget_id, "cost", now_ms - DAY_MS


def _refusal(
    holder: Holder, amount: int, task_id: str, spent: list[Any]
) -> ActionsExhausted | CostExhausted:  # fmt: skip
    whose = (
        "its budget"
        if holder.task_id == task_id
        else f"the budget of the {holder.agent} task {holder.task_id} above it"
    )
    if holder.refuses_action(amount):
        assert holder.max_actions is not None
        retry_at = rfc3339(_free_at(spent, holder.actions + amount - holder.max_actions, HOUR_MS))
        when = f"ask again at {retry_at}" if retry_at else "that is never enough for this"
        return ActionsExhausted(
            f"cannot take {_actions(amount)}: {whose}, {_actions(holder.max_actions)} an hour, has "
            f"{max(0, holder.max_actions - holder.actions)} left; {when} (a larger max_actions_per_hour holds for "
            "tasks that are started after it)",
            holder=holder.task_id, limit=holder.max_actions, used=holder.actions, asked=amount, retry_at=retry_at,
        )  # fmt: skip
    assert holder.max_cost_micros is not None
    limit, used = holder.max_cost_micros / MICROS, holder.cost_micros / MICROS
    retry_at = rfc3339(_free_at(spent, holder.cost_micros - holder.max_cost_micros + 1, DAY_MS))
    when = f"ask again at {retry_at}" if retry_at else "that is never enough for this"
    return CostExhausted(
        f"cannot start more work: {whose}, {limit:g} a day, is used up ({used:g}); {when} (a larger max_cost_per_day "
        "holds for tasks that are started after it)",
        holder=holder.task_id, limit=limit, used=used, retry_at=retry_at,
    )  # fmt: skip


def _actions(count: int) -> str:
    return f"{count} action{'' if count == 1 else 's'}"


def _free_at(spent: list[Any], wanted: int, span_ms: int) -> int | None:
    """When so much of what was spent will have left the span; None: never."""
    for at_ms, amount in spent:
        wanted -= amount
        if wanted <= 0:
            return int(at_ms) + span_ms
    return None
