"""The spool of one task: what its worker reads and writes, and the proof of how it began and ended.

    data/spool/<task>/
        prompt           the worker's standard input
        stdout, stderr   what it writes, straight from the process
        worker           the mark: who launched what (``launch_mark``)
        exit             the exit record: one JSON line, renamed into place by the keeper (``reap``)
        files/           the task's own directory, PAWL_TASK_DIR

Neither mark nor record is synced: they speak of processes of this boot only, and a boot that ended with the power
is proof enough that its workers are gone. What a power cut tears is read as torn.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from enum import Enum
from typing import NamedTuple

from pawl.runner import launch_mark, small_file
from pawl.runner.identity import ProcessIdentity


class MarkState(Enum):
    """What the ``worker`` mark of a spool says."""

    ABSENT = "absent"  # nobody has launched this task, and a keeper still may
    CLAIMED = "claimed"  # a keeper was about to launch it: it may or may not have
    LAUNCHED = "launched"  # it was launched, and its worker is known
    BARRED = "barred"  # never launched, and never will be
    UNREADABLE = "unreadable"  # a mark, and none of these: treat it as CLAIMED by a keeper nobody knows


class WorkerMark(NamedTuple):
    """The mark, read. ``worker`` is there when LAUNCHED, ``keeper`` when CLAIMED or LAUNCHED."""

    state: MarkState
    worker: ProcessIdentity | None = None
    keeper: ProcessIdentity | None = None


class ExitRecord(NamedTuple):
    """How a worker ended. Exactly one of ``code`` and ``signal`` is there."""

    task: str
    pid: int
    start: str
    code: int | None
    signal: int | None
    stdout_bytes: int | None  # size of the file at the exit; None: the file was gone
    stderr_bytes: int | None
    ended_at_ms: int  # wall clock
    cpu_s: float | None  # user and system, with all children it waited for; None where the system does not say
    max_rss_bytes: int | None  # of the largest process; never below the keeper's own, which Linux counts in


class RecordRead(NamedTuple):
    """An attempt to read an exit record: a record and no reason, or a reason and no record.

    Reasons: ``missing`` (there is none, and none will come), ``pending`` (the keeper lives and has yet to write it:
    keep the row, ask again), ``torn``, ``wrong_types``, ``wrong_task``, ``wrong_worker``, ``unreadable``.
    """

    record: ExitRecord | None
    reason: str = ""


class Spool:
    """The directory ``data/spool/<task>/``. Making the object touches nothing; its last part is the task id."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Spool({self.path!r})"

    @property
    def task_id(self) -> str:
        return os.path.basename(self.path)

    @property
    def prompt(self) -> str:
        """The worker's standard input."""
        return f"{self.path}/prompt"

    @property
    def stdout(self) -> str:
        return f"{self.path}/stdout"

    @property
    def stderr(self) -> str:
        return f"{self.path}/stderr"

    @property
    def files(self) -> str:
        """The task's own directory, ``PAWL_TASK_DIR``."""
        return f"{self.path}/files"

    def create(self, prompt: bytes | None = None) -> None:
        """Make the directory (0700), ``files/`` in it, and ``prompt`` where there is one. Harmless twice.

        Raises OSError as it comes (ENOSPC, EROFS): the caller's storage words fit better than ours.
        """
        for path in (self.path, self.files):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        if prompt is not None:
            descriptor = os.open(self.prompt, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                written = 0
                while written < len(prompt):
                    written += os.write(descriptor, memoryview(prompt)[written:])
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """Delete the directory and all in it. Harmless where it is gone already."""
        if os.path.lexists(self.path) and not os.path.isdir(self.path):  # a worker put something in its place
            os.unlink(self.path)
            return
        for _ in range(3):  # a keeper may be renaming an exit record into it this very moment
            shutil.rmtree(self.path, ignore_errors=True)
            if not os.path.lexists(self.path):
                return
            _open_up(self.path)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)

    def worker(self) -> WorkerMark:
        """What the mark says."""
        try:
            lines = launch_mark.read(self.path)
        except FileNotFoundError:
            return WorkerMark(MarkState.ABSENT)
        except OSError:
            return WorkerMark(MarkState.UNREADABLE)
        return _parse_mark(lines)

    def bar(self) -> WorkerMark:
        """Make sure that no keeper ever launches this task, unless one has claimed it already.

        BARRED: it never was launched and never will be (also when it was barred before, and when the directory is
        gone: no keeper can put its own mark there either). Otherwise what a keeper left.
        Raises OSError when the mark cannot be written (disk full): nothing is proven then.
        """
        while True:
            try:
                launch_mark.bar(self.path)
            except FileExistsError:
                mark = self.worker()
                if mark.state is not MarkState.ABSENT:
                    return mark
                # A keeper took its claim back between the two looks, because the launch was refused.
            except FileNotFoundError:
                return WorkerMark(MarkState.BARRED)
            else:
                return WorkerMark(MarkState.BARRED)

    def exit_record(self, worker: ProcessIdentity | None = None) -> RecordRead:
        """The exit record, checked against this task and ``worker`` (by default the one the mark names)."""
        try:
            text = small_file.read(f"{self.path}/exit")
        except FileNotFoundError:
            return RecordRead(None, "missing")
        except OSError:
            return RecordRead(None, "unreadable")
        record, reason = parse_record(text)
        if record is None:
            return RecordRead(None, reason)
        if record.task != self.task_id:
            return RecordRead(None, "wrong_task")
        worker = worker or self.worker().worker
        if worker is None or (record.pid, record.start) != (worker.pid, worker.start):
            return RecordRead(None, "wrong_worker")
        return RecordRead(record)


def _parse_mark(lines: list[str]) -> WorkerMark:
    if lines == ["barred"]:
        return WorkerMark(MarkState.BARRED)
    keeper = _named("claimed", lines[0]) if lines else None
    if keeper is None:
        return WorkerMark(MarkState.UNREADABLE)
    worker = _named("launched", lines[-1])
    if worker is None or worker.boot_id != keeper.boot_id:  # not there yet, or cut short by a full disk
        return WorkerMark(MarkState.CLAIMED, None, keeper)
    return WorkerMark(MarkState.LAUNCHED, worker, keeper)


def _named(verb: str, line: str) -> ProcessIdentity | None:
    match line.split(" "):
        case [first, pid, start, boot] if first == verb and pid.isdecimal() and start and boot:
            return ProcessIdentity(int(pid), start, boot)
    return None


def parse_record(text: bytes) -> RecordRead:
    """Read the text of an exit record. Strict: what is not exactly one is a reason, never a record."""
    if not text.endswith(b"\n") or text.count(b"\n") != 1:
        return RecordRead(None, "torn")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return RecordRead(None, "torn")
    if not isinstance(found, dict) or set(found) != set(ExitRecord._fields) or not _well_typed(found):
        return RecordRead(None, "wrong_types")
    return RecordRead(ExitRecord(**found))


def _well_typed(found: dict[str, object]) -> bool:
    code, signal = found["code"], found["signal"]
    exited = _is_count(code, 255) and signal is None
    killed = _is_count(signal, 127) and signal != 0 and code is None
    return (
        (exited or killed)
        and isinstance(found["task"], str)
        and isinstance(found["start"], str)
        and all(_is_count(found[name]) for name in ("pid", "ended_at_ms"))
        and all(found[name] is None or _is_count(found[name]) for name in _OPTIONAL_COUNTS)
        and (found["cpu_s"] is None or _is_duration(found["cpu_s"]))
    )


_OPTIONAL_COUNTS = ("stdout_bytes", "stderr_bytes", "max_rss_bytes")


def _is_count(value: object, most: int = 2**63 - 1) -> bool:
    return type(value) is int and 0 <= value <= most  # not isinstance: True is no count


def _is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]


def _open_up(path: str) -> None:
    """Let directories be emptied that a worker made read-only, as some build caches are."""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)
