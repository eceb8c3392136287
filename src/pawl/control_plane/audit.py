"""The audit log: who did what to which thing, from what to what, and why.

An entry is written in the transaction of the change it tells of. The table refuses updates and deletions, and each
entry's hash covers the one before it, so that an altered, missing or reordered entry shows.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from pawl.control_plane.statements import Q
from pawl.storage import Reader, Transaction
from pawl.values import rfc3339

TOPIC = "events"
_GENESIS = "0" * 64


class Event(NamedTuple):
    """A row of ``event``, in the order of its columns."""

    seq: int
    at_ms: int
    actor: str
    subject_kind: str
    subject_id: str
    event: str
    from_status: str | None
    to_status: str | None
    reason: str | None
    details: str | None
    hash: str

    def public(self) -> dict[str, Any]:
        """The event as the contract shows it."""
        return {
            "seq": self.seq,
            "at": rfc3339(self.at_ms),
            "actor": self.actor,
            "subject_kind": self.subject_kind,
            "subject_id": self.subject_id,
            "event": self.event,
            "from": self.from_status,
            "to": self.to_status,
            "reason": self.reason,
            "details": json.loads(self.details) if self.details else None,
            "hash": self.hash,
        }


def record(
    tx: Transaction,
    *,
    actor: str,
    subject: tuple[str, str],
    event: str,
    change: tuple[str | None, str | None] = (None, None),
    reason: str | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Append one entry in the transaction of the change itself. ``change`` is from and to."""
    last = tx.memo.get(TOPIC) or tx.one(Q.last_event) or (0, _GENESIS)
    seq, before = last[0] + 1, last[1]
    text = json.dumps(details, separators=(",", ":"), sort_keys=True) if details else None
    entry = (seq, tx.now_ms, actor, *subject, event, *change, reason, text)
    digest = entry_hash(before, entry)
    tx.execute(Q.insert_event, (*entry, digest))
    tx.memo[TOPIC] = (seq, digest)
    tx.mark(TOPIC)


def entry_hash(before: str, entry: tuple[Any, ...]) -> str:
    """SHA-256 over the hash before and the entry's ten fields, as compact JSON."""
    body = json.dumps([before, *entry], separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()


async def read(reader: Reader, *, after: int, limit: int, subject: str | None) -> list[Event]:
    """Entries behind ``after``, oldest first, all or those of one subject."""
    if subject is None:
        rows = await reader.all(Q.events_after, (after, limit))
    else:
        rows = await reader.all(Q.events_of, (subject, after, limit))
    return [Event._make(row) for row in rows]


async def newest(reader: Reader, *, count: int, subject: str | None) -> list[Event]:
    """The last entries, oldest first, of all or of one subject."""
    if subject is None:
        rows = await reader.all(Q.last_events, (count,))
    else:
        rows = await reader.all(Q.last_events_of, (subject, count))
    return [Event._make(row) for row in reversed(rows)]


async def position(reader: Reader) -> int:
    """The number of the last entry; 0 where there is none."""
    row = await reader.one(Q.last_event)
    return row[0] if row else 0


async def first_fault(reader: Reader) -> tuple[int, str] | None:
    """The first entry that is altered, missing or out of order, and what is wrong with it; None where all is well."""
    before, expected = _GENESIS, 1
    while rows := await read(reader, after=expected - 1, limit=5000, subject=None):
        for row in rows:
            if row.seq != expected:
                return expected, "it is missing"
            if row.hash != entry_hash(before, tuple(row[:-1])):
                return row.seq, "it was altered"
            before, expected = row.hash, expected + 1
    return None
