"""How jobs and fires are written: each function is one logical transaction.

The fires of a job are claimed together with the storing of its next one, by compare-and-set on the next one before.
"""

from __future__ import annotations

from typing import Any

from pawl.control_plane import audit
from pawl.control_plane.store import DAEMON, Submitted
from pawl.engines.cron.model import OPEN, Fire, Job, NewFire
from pawl.errors import RefusedByState
from pawl.runner.identity import ProcessIdentity
from pawl.storage import Transaction, load_queries
from pawl.values import rfc3339

Q = load_queries("pawl.engines.cron")
KEPT = 1_000  # fires of a job, and as many started by hand
KEPT_MS = 90 * 86_400_000
_KEPT_ANYWAY = 50  # however old


def put_job(tx: Transaction, job: Job | None, values: dict[str, Any], actor: str, event: str) -> Job:
    """Store a new job, or what is new of one; ``values`` has every column but the two that never change."""
    if job is None:
        row = tx.one(
            Q.insert_job,
            (
                values["name"], values["origin"], values["definition"], values["disabled_reason"], values["finished"],
                values["first_seen_ms"], values["next_at_ms"],
            ),
        )  # fmt: skip
    else:
        row = tx.one(Q.update_job, values | {"seq": job.seq})
        if row is None:
            raise RefusedByState(f"cannot change the job {job.name}: it was removed this moment", name=job.name)
    stored = Job._make(row)
    if not stored.wanted or (stored.disabled_reason and not stored.finished):
        tx.execute(Q.close_waiting, ("the job was disabled before it started", tx.now_ms, stored.name))
    audit.record(
        tx, actor=actor, subject=("cron_job", stored.name), event=event, reason=stored.disabled_reason,
        details={"origin": stored.origin},
    )  # fmt: skip
    return stored


def remove_job(tx: Transaction, job: Job, actor: str, reason: str) -> None:
    """Remove a job, and the fires of it that wait. What is on record stays until it is old."""
    tx.execute(Q.close_waiting, ("the job was removed before it started", tx.now_ms, job.name))
    tx.execute(Q.delete_job, (job.seq,))
    audit.record(tx, actor=actor, subject=("cron_job", job.name), event="removed", reason=reason)


def tell(tx: Transaction, name: str, event: str, reason: str) -> None:
    """Tell the audit log what the database did to a job by itself."""
    audit.record(tx, actor=DAEMON, subject=("cron_job", name), event=event, reason=reason)


def forget_old(tx: Transaction) -> None:
    """Delete the fires of jobs that are gone, once they are old."""
    tx.execute(Q.forget_old, (tx.now_ms - KEPT_MS,))


def take(
    tx: Transaction, job: Job, fires: list[NewFire], next_at_ms: int | None, over: str, owner: ProcessIdentity
) -> tuple[Job, list[Fire]] | None:
    """Record what is due and store the next fire, or that there is none and why it is ``over``.

    None: somebody moved the job meanwhile, and nothing was written. An instant that is on record already is left.
    """
    row = tx.one(Q.advance, {"seq": job.seq, "due": job.next_at_ms, "next": next_at_ms, "over": over})
    if row is None:
        return None
    recorded = [_claim(tx, job.name, fire, owner) for fire in fires]
    _prune(tx, job.name, 0)
    return Job._make(row), [fire for fire in recorded if fire is not None]


def take_by_hand(tx: Transaction, job: Job, fire: NewFire, owner: ProcessIdentity) -> Fire:
    """Record a fire that somebody asked for. Of two in one millisecond the second has the next one."""
    newest = tx.one(Q.newest_manual, (job.name,))[0]
    if newest is not None and newest >= fire.nominal_at_ms:
        fire = fire._replace(nominal_at_ms=newest + 1)
    stored = _claim(tx, job.name, fire, owner)
    assert stored is not None
    _prune(tx, job.name, 1)
    return stored


def take_back(tx: Transaction, name: str, now_ms: int, cuts: list[tuple[int, int, int]]) -> None:
    """Take back that fires were missed which are still to come, since the clock was set back. ``cuts``: of records for
    many the row, how many of them were missed all the same, and the last of those."""
    gone = tx.execute(Q.take_back, (name, now_ms)).fetchall()
    cut = [tx.one(Q.cut_span, {"seq": seq, "fires": fires, "until": until}) for seq, fires, until in cuts]
    if gone or any(cut):
        audit.record(
            tx, actor=DAEMON, subject=("cron_job", name), event="missed_taken_back",
            reason="the clock was set back, and they are still to come", details={"records": len(gone) + len(cut)},
        )  # fmt: skip


def adopt(tx: Transaction, fire: Fire, owner: ProcessIdentity, late: bool) -> Fire | None:
    """Make the open fire of a dead daemon ours; where it has no task yet and is ``late``, as one that is caught up.
    None: it has ended, or somebody was quicker."""
    values = _owner(owner) | {
        "seq": fire.seq, "late": int(late),
        "old_pid": fire.owner_pid, "old_start": fire.owner_start, "old_boot": fire.owner_boot,
    }  # fmt: skip
    row = tx.one(Q.adopt, values)
    return None if row is None else Fire._make(row)


def link(tx: Transaction, stored: list[Submitted], fire: Fire, owner: ProcessIdentity, *, check: bool) -> None:
    """Give a claimed fire its task, in the transaction that stores the task.

    Raises ``refused_by_state`` where it is not claimed by us any more: then the task is not stored either.
    """
    task = stored[0].task
    values = _owner(owner) | {"seq": fire.seq, "task": task.id}
    row = tx.one(Q.link_check, values) if check else tx.one(Q.link, values | {"started": task.started_at_ms})
    if row is None:
        raise RefusedByState(f"cannot start a fire of {fire.job}: it is not claimed any more", job=fire.job)


def close(tx: Transaction, fire: Fire, status: str, reason: str, exit_code: int | None = None) -> Fire:
    """End a claimed fire that has no task. The row as it is then."""
    values = {"seq": fire.seq, "status": status, "reason": reason, "now": tx.now_ms, "exit_code": exit_code}
    tx.execute(Q.close, values)
    return _as_it_is(tx, fire)


def settle_from_task(tx: Transaction, fire: Fire) -> Fire:
    """End a fire as its task ended, where the trigger left it open for an attempt that never came."""
    tx.execute(Q.settle_from_task, (fire.seq,))
    return _as_it_is(tx, fire)


def _as_it_is(tx: Transaction, fire: Fire) -> Fire:
    """The row now; as it was last seen where it has left the history meanwhile."""
    row = tx.one(Q.fire, (fire.seq,))
    return fire if row is None else Fire._make(row)


def _claim(tx: Transaction, name: str, fire: NewFire, owner: ProcessIdentity) -> Fire | None:
    """Record a fire; one that replaces those before it ends what waits among them in the same transaction."""
    if fire.waits == "replace" and fire.status in OPEN:
        tx.execute(Q.close_waiting, (replaced_by(fire.nominal_at_ms), tx.now_ms, name))
    return _insert(tx, name, fire, owner)


def replaced_by(nominal_at_ms: int) -> str:
    """Why a fire did not run, or not to its end."""
    return f"replaced by the fire of {rfc3339(nominal_at_ms)}"


def _insert(tx: Transaction, name: str, fire: NewFire, owner: ProcessIdentity) -> Fire | None:
    values = {
        "job": name, "nominal": fire.nominal_at_ms, "manual": int(fire.trigger == "manual"), "trigger": fire.trigger,
        "status": fire.status, "reason": fire.reason, "fires": fire.fires, "until": fire.until_at_ms, "now": tx.now_ms,
        "waits": fire.waits,
        "finished": None if fire.status in OPEN else tx.now_ms,
    }  # fmt: skip
    row = tx.one(Q.insert_fire, values | _owner(owner))
    return None if row is None else Fire._make(row)


def _prune(tx: Transaction, name: str, manual: int) -> None:
    """Forget what is too many or too old. What is forgotten counts as recorded all the same.

    What lies ahead of a clock that was set back is kept, whatever its number: those instants must not fire again.
    """
    bounds = []
    for kept, oldest in ((KEPT, None), (_KEPT_ANYWAY, tx.now_ms - KEPT_MS)):
        row = tx.one(Q.oldest_kept, (name, manual, tx.now_ms, kept - 1))
        if row is not None:
            bounds.append(row[0] if oldest is None else min(row[0], oldest))
    if bounds:
        gone = tx.execute(Q.forget_fires, (name, manual, max(bounds), tx.now_ms)).fetchall()
        if gone and not manual:
            stretch = {"job": name, "first": min(row[0] for row in gone), "last": max(row[1] for row in gone)}
            if tx.execute(Q.extend_forgotten, stretch).rowcount == 0:
                tx.execute(Q.insert_forgotten, stretch)


def _owner(owner: ProcessIdentity) -> dict[str, Any]:
    return {"pid": owner.pid, "start": owner.start, "boot": owner.boot_id}
