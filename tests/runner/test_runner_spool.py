"""A task's spool: its directory, the mark that says whether it was launched, and the exit record."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pawl.runner import launch_mark, reap
from pawl.runner.identity import ProcessIdentity
from pawl.runner.spool import ExitRecord, MarkState, RecordRead, Spool, WorkerMark, parse_record

BOOT = "11111111-2222-3333-4444-555555555555"
KEEPER = ProcessIdentity(10, "100", BOOT)
WORKER = ProcessIdentity(4711, "1000", BOOT)
RECORD = ExitRecord("task-1", 4711, "1000", 0, None, 12, 0, 1_700_000_000_000, 0.25, 4096)


@pytest.fixture
def spool(root: str) -> Spool:
    spool = Spool(f"{root}/task-1")
    spool.create()
    return spool


def write_record(spool: Spool, record: ExitRecord) -> None:
    reap.write_record(spool.path, record._asdict())


def test_a_spool_is_private(root: str) -> None:
    """Only the owner may look into a spool, whatever the umask; the prompt is there to the byte."""
    spool = Spool(f"{root}/task-1")

    spool.create(b"caf\xe9\n")

    assert os.stat(spool.path).st_mode & 0o777 == 0o700
    assert os.stat(spool.prompt).st_mode & 0o777 == 0o600
    assert Path(spool.prompt).read_bytes() == b"caf\xe9\n"
    assert os.path.isdir(spool.files)


def test_making_and_removing_twice_is_harmless(root: str) -> None:
    """``create`` and ``remove`` may be repeated by a recovery that does not know how far the last one came."""
    spool = Spool(f"{root}/task-1")

    spool.create(b"a")
    spool.create(b"b")
    assert Path(spool.prompt).read_bytes() == b"b"
    spool.remove()
    spool.remove()

    assert not os.path.exists(spool.path)


# --- the mark -------------------------------------------------------------------------------------------------


def test_the_mark_follows_the_launch(spool: Spool) -> None:
    """No mark, a claim, the worker's name."""
    assert spool.worker() == WorkerMark(MarkState.ABSENT)

    launch_mark.claim(spool.path, KEEPER)
    assert spool.worker() == WorkerMark(MarkState.CLAIMED, None, KEEPER)

    launch_mark.fill_later(spool.path, WORKER)
    assert spool.worker() == WorkerMark(MarkState.LAUNCHED, WORKER, KEEPER)


def test_a_bar_keeps_a_keeper_out(spool: Spool) -> None:
    """Once barred, a claim fails; barring twice is the same."""
    assert spool.bar().state is MarkState.BARRED

    with pytest.raises(FileExistsError):
        launch_mark.claim(spool.path, KEEPER)
    assert spool.bar().state is MarkState.BARRED
    assert spool.worker().state is MarkState.BARRED
    assert sorted(os.listdir(spool.path)) == ["files", "worker"]


def test_a_claim_keeps_the_bar_out(spool: Spool) -> None:
    """Recovery is told what the keeper left."""
    launch_mark.claim(spool.path, KEEPER)
    assert spool.bar() == WorkerMark(MarkState.CLAIMED, None, KEEPER)

    launch_mark.fill_later(spool.path, WORKER)
    assert spool.bar() == WorkerMark(MarkState.LAUNCHED, WORKER, KEEPER)


def test_a_spool_that_is_gone_is_barred(root: str) -> None:
    """No keeper can make its mark in a directory that is not there."""
    spool = Spool(f"{root}/never-made")

    assert spool.bar().state is MarkState.BARRED
    with pytest.raises(FileNotFoundError):
        launch_mark.claim(spool.path, KEEPER)


@pytest.mark.parametrize(
    "text", ["", "x", "barre", "barred", "claimed 1 2", "claimed x y z\n", "\n\n", "claimed 1 2 3 4\n"]
)
def test_a_mark_nobody_can_read_is_never_a_proof_of_absence(spool: Spool, text: str) -> None:
    """Empty or odd marks are neither ABSENT nor BARRED."""
    Path(spool.path, "worker").write_text(text)

    assert spool.worker() == WorkerMark(MarkState.UNREADABLE)
    assert spool.bar() == WorkerMark(MarkState.UNREADABLE)


@given(cut=st.integers(0, 200))
@settings(deadline=None)
def test_a_mark_cut_anywhere_never_names_another_worker(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever of the mark reached the disk, it names the right worker or none."""
    spool = Spool(str(tmp_path_factory.mktemp("spool")))
    launch_mark.claim(spool.path, KEEPER)
    launch_mark.fill_later(spool.path, WORKER)
    path = Path(spool.path, "worker")
    whole = path.read_bytes()

    path.write_bytes(whole[:cut])
    mark = spool.worker()

    assert mark.worker in (None, WORKER)
    assert mark.state in (MarkState.UNREADABLE, MarkState.CLAIMED, MarkState.LAUNCHED)
    if cut < len(whole):
        launch_mark.fill_later(spool.path, WORKER)  # tried again after a full disk
        assert spool.worker().worker in (None, WORKER)


# --- the exit record ------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(spool: Spool) -> None:
    """All fields, and nothing left beside it."""
    write_record(spool, RECORD)

    assert spool.exit_record(WORKER) == RecordRead(RECORD)
    assert sorted(os.listdir(spool.path)) == ["exit", "files"]


def test_no_record_is_missing(spool: Spool) -> None:
    assert spool.exit_record(WORKER) == RecordRead(None, "missing")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RECORD._replace(task="task-2"), "wrong_task"),
        (RECORD._replace(pid=4712), "wrong_worker"),
        (RECORD._replace(start="1001"), "wrong_worker"),
    ],
)
def test_a_record_of_somebody_else_is_none(spool: Spool, record: ExitRecord, reason: str) -> None:
    """A record must be of this task and of this very worker."""
    write_record(spool, record)

    assert spool.exit_record(WORKER) == RecordRead(None, reason)


def test_the_mark_names_the_worker_where_the_caller_does_not(spool: Spool) -> None:
    """Without a worker to compare with, the one in the mark counts; without a mark, no record does."""
    write_record(spool, RECORD)
    assert spool.exit_record() == RecordRead(None, "wrong_worker")

    launch_mark.claim(spool.path, KEEPER)
    launch_mark.fill_later(spool.path, WORKER)

    assert spool.exit_record() == RecordRead(RECORD)


@pytest.mark.parametrize(
    "change",
    [
        {"code": None},
        {"code": None, "signal": 0},
        {"signal": 9},
        {"code": "0"},
        {"code": True},
        {"code": 0.0},
        {"code": 256},
        {"code": -1},
        {"pid": "4711"},
        {"start": 1000},
        {"task": None},
        {"ended_at_ms": None},
        {"stdout_bytes": -1},
        {"stderr_bytes": "0"},
        {"cpu_s": "1"},
        {"cpu_s": -0.5},
        {"cpu_s": float("nan")},
        {"max_rss_bytes": 1.5},
        {"more": 1},
    ],
)
def test_a_record_with_other_types_is_none(change: dict[str, object]) -> None:
    """Anything but the expected types and fields is a reason, never a success."""
    text = json.dumps({**RECORD._asdict(), **change}).encode() + b"\n"

    assert parse_record(text) == RecordRead(None, "wrong_types")


def test_a_record_without_a_field_is_none() -> None:
    for name in ExitRecord._fields:
        fields = RECORD._asdict()
        del fields[name]

        assert parse_record(json.dumps(fields).encode() + b"\n") == RecordRead(None, "wrong_types")


@given(cut=st.integers(0, 400))
def test_a_torn_record_is_none(cut: int) -> None:
    """A record cut at any byte is no record."""
    text = json.dumps(RECORD._asdict()).encode() + b"\n"

    assert parse_record(text[: min(cut, len(text) - 1)]).record is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_a_reason(text: bytes) -> None:
    """Reading never raises."""
    read = parse_record(text)

    assert (read.record is None) == bool(read.reason)


@given(at=st.integers(0, 150), byte=st.integers(0, 255))
def test_an_altered_record_never_shows_another_worker_as_this_one(at: int, byte: int) -> None:
    """One byte changed: it is the same worker's, or it is refused; code and signal never both or neither."""
    text = bytearray(json.dumps(RECORD._asdict()).encode() + b"\n")
    text[at % len(text)] = byte

    record, _ = parse_record(bytes(text))

    assert record is None or (record.code is None) != (record.signal is None)


def test_an_empty_record_file_is_torn(spool: Spool) -> None:
    """What a power cut leaves of a renamed file that was not synced."""
    Path(spool.path, "exit").write_bytes(b"")

    assert spool.exit_record(WORKER) == RecordRead(None, "torn")
    Path(spool.path, "exit").write_bytes(b"\0" * 200)
    assert spool.exit_record(WORKER).record is None


def test_a_record_for_a_spool_that_is_gone_is_dropped(root: str) -> None:
    """A cancelled task's spool may be removed before its keeper looks: no reason to fail."""
    reap.write_record(f"{root}/gone", RECORD._asdict())

    assert not os.path.exists(f"{root}/gone")
