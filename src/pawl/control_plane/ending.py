"""The end of a worker: what its exit record proves, and how its last process is ended."""

from __future__ import annotations

import os
import signal as signals
import stat

from pawl.control_plane.model import CleanUp, Outcome
from pawl.control_plane.settlement import Output
from pawl.control_plane.work import ONLY_ZERO
from pawl.runner import tree
from pawl.runner.identity import ProcessIdentity
from pawl.runner.spool import ExitRecord, Spool
from pawl.timers import Timers

# Signals that come from outside: whoever sent one of them while no daemon watched may have ended the machine, the
# session or the service with it, so the end proves nothing about the work.
_FROM_OUTSIDE = {signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT}


def judge(
    record: ExitRecord | None,
    spool: Spool,
    max_output_bytes: int,
    *,
    unwatched: bool = False,
    good: frozenset[int] = ONLY_ZERO,
) -> tuple[Outcome, Output]:
    """What the end of a worker means. No record, or one that the files contradict, is never success.

    ``unwatched``: it ended while no daemon was there. ``good``: exit codes that say that it ended well.
    """
    output = so_far(record, spool, max_output_bytes)
    if record is None:
        return _no_record(unwatched), output
    if unwatched and record.signal in _FROM_OUTSIDE:
        return _lost(record.signal), output
    fault = _altered(record, spool)
    if fault is not None:
        return Outcome("failed", record.code, record.signal, "output_altered", fault), output
    if output.truncated:
        outcome = output_limit(max_output_bytes, f"{written(record, spool)} bytes in all")
        return outcome._replace(exit_code=record.code, signal=record.signal), output
    if record.signal is not None:
        name = signals.Signals(record.signal).name if record.signal in set(signals.Signals) else str(record.signal)
        message = f"the program was ended by signal {record.signal} ({name})"
        return Outcome("failed", record.code, record.signal, "signalled", message), output
    if record.code not in good:
        message = f"the program ended with exit code {record.code}"
        return Outcome("failed", record.code, None, "exit_code", message), output
    return Outcome("completed", record.code), output


def so_far(record: ExitRecord | None, spool: Spool, max_output_bytes: int) -> Output:
    """What it wrote: up to the sizes of its exit record, else up to now; at most the cap of each stream."""
    stdout = _bytes(record.stdout_bytes if record else None, spool.stdout)
    stderr = _bytes(record.stderr_bytes if record else None, spool.stderr)
    return Output(
        stdout=spool.stdout,
        stderr=spool.stderr,
        stdout_bytes=min(stdout, max_output_bytes),
        stderr_bytes=min(stderr, max_output_bytes),
        truncated=max(stdout, stderr) > max_output_bytes,
    )


def written(record: ExitRecord | None, spool: Spool) -> int:
    """How many bytes it wrote to both streams, whatever of them is kept."""
    stdout = _bytes(record.stdout_bytes if record else None, spool.stdout)
    return stdout + _bytes(record.stderr_bytes if record else None, spool.stderr)


def output_limit(max_output_bytes: int, wrote: str) -> Outcome:
    """The outcome of a task that wrote more than it may. ``wrote``: how much that was, in words."""
    message = (
        f"it wrote more than {max_output_bytes} bytes to one stream: {wrote}; the first {max_output_bytes} are kept"
    )
    return Outcome("failed", error_code="output_limit", error_message=message)


async def end_processes(
    task_id: str, worker: ProcessIdentity | None, spool: Spool, grace_s: float, timers: Timers
) -> CleanUp:
    """End every process of a task: TERM, the grace, KILL. The report names what could not be ended."""
    ended = await tree.end_tree(worker, task_id, grace_s, lambda seconds: timers.sleep(round(seconds * 1000)))
    return CleanUp({"terminated": ended.term_sent, "killed": ended.kill_sent, "left": ended.left})


def _no_record(unwatched: bool) -> Outcome:
    if unwatched:
        return _lost(None)
    message = "the program ended and left no exit record, so how it ended is not known"
    return Outcome("failed", error_code="exit_unknown", error_message=message)


def _lost(signal: int | None) -> Outcome:
    how = "it is gone" if signal is None else f"it was ended by signal {signal} from outside"
    message = f"found at a restart: {how} while no daemon was watching, so what it had done is not known"
    return Outcome("lost", error_code="lost", error_message=message)


def _altered(record: ExitRecord, spool: Spool) -> str | None:
    """Whether a stream is shorter than it was at the exit, or gone."""
    for name, path, size in (
        ("standard output", spool.stdout, record.stdout_bytes),
        ("standard error", spool.stderr, record.stderr_bytes),
    ):
        found = _plain_size(path)
        if size is None or found is None:
            return f"the file of its {name} was removed or replaced while it ran"
        if found < size:
            return f"its {name} had {size} bytes when it ended and has {found} now"
    return None


def _plain_size(path: str) -> int | None:
    """The size of a plain file; None where there is none, or something else in its place."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _bytes(recorded: int | None, path: str) -> int:
    if recorded is not None:
        return recorded
    return _plain_size(path) or 0
