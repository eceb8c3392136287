"""What becomes of a job whose instant has come: which of its fires run, which are recorded as missed, and when next.

Pure: a job, its schedule and the time go in, records come out. All instants are milliseconds of the wall clock.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from pawl.config.cron import CronConfig
from pawl.engines.cron.model import NewFire, jitter_ms
from pawl.engines.cron.schedule import Schedule
from pawl.values import duration_text, rfc3339

LATE_MS = 60_000  # a fire that starts later than this after its instant was missed, or is caught up
SINGLE_MAX = 1_000  # of a longer gap one record tells


class Due(NamedTuple):
    """What a look at a job came to, oldest first. ``runs`` may wait for each other; ``records`` are final."""

    records: list[NewFire]
    runs: list[NewFire]
    next_at_ms: int | None


class OnRecord(NamedTuple):
    """The instants of a job that are on record already, and never fire again: after the clock was set back there are
    some to come. ``spans`` are first and last of a record for many, or of what has left the history."""

    single: frozenset[int] = frozenset()
    spans: tuple[tuple[int, int], ...] = ()

    def has(self, at_ms: int) -> bool:
        """Whether this instant is on record."""
        return at_ms in self.single or any(first <= at_ms <= last for first, last in self.spans)


NOTHING = OnRecord()


def next_free(plan: Schedule, after_ms: int, on_record: OnRecord = NOTHING) -> int | None:
    """The first instant strictly later than this one that is not on record."""
    fire = plan.after(after_ms)
    while fire is not None and on_record.has(fire.at_ms):
        ends = [last for first, last in on_record.spans if first <= fire.at_ms <= last]
        fire = plan.after(max([fire.at_ms, *ends]))
    return None if fire is None else fire.at_ms


def look(
    config: CronConfig,
    plan: Schedule,
    next_at_ms: int,
    now_ms: int,
    *,
    since_ms: int | None = None,
    on_record: OnRecord = NOTHING,
) -> Due:
    """What is due of a job whose next fire was to be ``next_at_ms``, by ``now_ms``.

    ``since_ms``: when this daemon began, at its first look; what was due before it began was missed, however shortly.
    """
    now_ms -= jitter_ms(config)
    prompt_ms = now_ms - LATE_MS
    if since_ms is not None and config.catch_up == "skip":
        prompt_ms = max(prompt_ms, since_ms)
    keep = SINGLE_MAX + config.catch_up_max + LATE_MS // 1000 + 1  # so that what runs is always among them
    newest: deque[int] = deque(maxlen=keep)
    head = _head(config, plan, next_at_ms, now_ms) if on_record == NOTHING else None
    stretches: list[_Stretch] = [] if head is None else [head]
    together = head is not None
    for at_ms in plan.between(next_at_ms if head is None else head.last + 1, now_ms):
        if on_record.has(at_ms):
            together = False
            continue
        if together:
            stretches[-1].grow(at_ms)
        else:
            stretches.append(_Stretch(at_ms))
            together = True
        newest.append(at_ms)
    late = [at_ms for at_ms in newest if at_ms < prompt_ms]
    prompt = [at_ms for at_ms in newest if at_ms >= prompt_ms]
    caught, why = _caught_up(config, late, bool(prompt), now_ms)
    missed = [at_ms for at_ms in late if at_ms not in caught]
    records = _missed(missed, why, stretches, len(caught) + len(prompt))
    runs = [NewFire(at_ms, "catch_up", "claimed") for at_ms in late if at_ms in caught]
    runs += [NewFire(at_ms, "schedule", "claimed") for at_ms in prompt]
    return Due(records, runs, next_free(plan, now_ms, on_record))


def _head(config: CronConfig, plan: Schedule, next_at_ms: int, now_ms: int) -> _Stretch | None:
    """What of a gap is older than anything that runs, where it is so much that one record tells of it: counted, for
    years of seconds take minutes to look at."""
    until_ms = now_ms - max(config.catch_up_window_ms, LATE_MS) - 1
    count = plan.count(next_at_ms, until_ms) if next_at_ms <= until_ms else 0
    if count <= SINGLE_MAX:
        return None
    head = _Stretch(next(iter(plan.between(next_at_ms, until_ms))))
    head.last, head.count = last_before(plan, next_at_ms, until_ms) or head.first, count
    return head


def last_before(plan: Schedule, first_ms: int, until_ms: int) -> int | None:
    """The last instant from one to another, both included; None where there is none. Looked for from the end."""
    span_ms = LATE_MS
    while True:
        from_ms = max(first_ms, until_ms - span_ms)
        last = max(plan.between(from_ms, until_ms), default=None)
        if last is not None or from_ms == first_ms:
            return last
        span_ms *= 8


class _Stretch:
    """Instants that follow one another with none between them that is on record: one record may tell of all."""

    __slots__ = ("count", "first", "last")

    def __init__(self, at_ms: int) -> None:
        self.first = self.last = at_ms
        self.count = 1

    def grow(self, at_ms: int) -> None:
        self.last = at_ms
        self.count += 1


def _caught_up(config: CronConfig, late: list[int], prompt: bool, now_ms: int) -> tuple[frozenset[int], str]:
    """Which late fires run all the same, and why the others do not."""
    if config.catch_up == "skip":
        return frozenset(), "nobody was there at the time, and catch_up is skip"
    window = [at_ms for at_ms in late if now_ms - at_ms <= config.catch_up_window_ms]
    if not window:
        span = duration_text(config.catch_up_window_ms)
        return frozenset(), f"nobody was there at the time, and it is longer ago than catch_up_window ({span})"
    if config.catch_up == "once":
        if prompt:
            return frozenset(), "nobody was there at the time; the fire after it ran in its place"
        return frozenset(
            window[-1:]
        ), f"nobody was there at the time; the fire of {rfc3339(window[-1])} ran in its place"
    most = window[-config.catch_up_max :]
    return frozenset(most), "nobody was there at the time, and catch_up_window and catch_up_max leave it out"


def _missed(missed: list[int], why: str, stretches: list[_Stretch], run: int) -> list[NewFire]:
    """Records of missed fires: one each, or of a long gap one for each stretch. ``missed``: the newest, a thousand at
    least where there are so many. ``run``: how many at the end of the stretches do run."""
    count = sum(each.count for each in stretches) - run
    if count <= SINGLE_MAX:
        return [NewFire(at_ms, "schedule", "missed", why) for at_ms in missed]
    last = missed[-1] if missed else stretches[0].last
    records = []
    for each in stretches:
        if each.first > last:
            break
        if each.last > last:  # its end runs, or all stretches behind it do
            each.count = count
            each.last = last
        count -= each.count
        many = (each.count, each.last) if each.count > 1 else (1, None)
        records.append(NewFire(each.first, "schedule", "missed", why, *many))
    return records
