"""A process is named by PID, start and boot; the three answers to whether it lives."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keeping import await_zombie

from pawl.runner import identity, kernel
from pawl.runner.identity import Liveness, ProcessIdentity, identity_of, own_identity, probe

Start = Callable[..., "subprocess.Popen[bytes]"]
BOOT = "11111111-2222-3333-4444-555555555555"
needs_proc = pytest.mark.skipif(not kernel.HAS_PROC, reason="reads /proc")


class LyingProc:
    """A ``/proc`` that says what the test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = str(path)
        (path / "sys/kernel/random").mkdir(parents=True)
        self.boot(BOOT)

    def boot(self, boot_id: str) -> None:
        (self.path / "sys/kernel/random/boot_id").write_text(boot_id + "\n")

    def process(self, pid: int, start: int, *, state: str = "S", name: str = "worker", threads: int = 1) -> None:
        (self.path / str(pid)).mkdir(exist_ok=True)
        (self.path / str(pid) / "stat").write_bytes(stat_line(pid, start, state=state, name=name, threads=threads))


def stat_line(pid: int, start: int, *, state: str = "S", name: str = "worker", threads: int = 1) -> bytes:
    fields = [state, "1", "7", "8", *["0"] * 13, str(threads), "0", str(start), *["0"] * 30]
    return f"{pid} ({name}) {' '.join(fields)}\n".encode("utf-8", "surrogateescape")


@pytest.fixture
def proc(tmp_path: Path) -> LyingProc:
    return LyingProc(tmp_path / "proc")


def test_a_living_process_is_alive(process: Start) -> None:
    """A running process has an identity, and by it it lives."""
    child = process("sleep", "77801")

    found = identity_of(child.pid)

    assert found is not None
    assert found.pid == child.pid
    assert found.start
    assert found.boot_id
    assert probe(found) is Liveness.ALIVE


def test_this_process_names_itself() -> None:
    """The own identity is that of this PID."""
    assert own_identity() == identity_of(os.getpid())


@needs_proc
def test_a_zombie_is_gone(process: Start) -> None:
    """A process that has ended and is not reaped is GONE, and has no identity to be taken."""
    child = process("sleep", "77802")
    found = identity_of(child.pid)
    assert found is not None

    child.kill()
    await_zombie(child.pid)

    assert os.path.exists(f"/proc/{child.pid}")
    assert probe(found) is Liveness.GONE
    assert identity_of(child.pid) is None


def test_a_reaped_process_is_gone(process: Start) -> None:
    """Nobody has the PID: GONE."""
    child = process("true")
    found = ProcessIdentity(child.pid, "1", own_identity().boot_id)

    child.wait()

    assert probe(found) is Liveness.GONE


def test_another_boot_is_gone() -> None:
    """B-063: a PID of an earlier boot names nobody, even where its number and start are taken."""
    now = own_identity()

    assert probe(now._replace(boot_id=BOOT)) is Liveness.GONE


def test_a_reused_pid_is_gone(proc: LyingProc) -> None:
    """B-063: the PID lives with another start, so the process that was meant is gone."""
    worker = ProcessIdentity(4711, "1000", BOOT)
    proc.process(4711, 1000)
    assert probe(worker, proc=proc.root) is Liveness.ALIVE

    proc.process(4711, 1001)

    assert probe(worker, proc=proc.root) is Liveness.GONE


def test_a_live_stranger_under_the_recorded_number_is_not_taken_for_the_owner(process: Start) -> None:
    """B-063: an unrelated process that has the number of a dead owner does not stand for it."""
    stranger = process("sleep", "77803")
    found = identity_of(stranger.pid)
    assert found is not None

    recorded = found._replace(start="12")

    assert probe(recorded) is Liveness.GONE
    assert stranger.poll() is None


@pytest.mark.parametrize(
    ("state", "threads", "expected"),
    [("Z", 1, Liveness.GONE), ("X", 1, Liveness.GONE), ("D", 1, Liveness.ALIVE), ("T", 1, Liveness.ALIVE)],
)
def test_the_state_decides(proc: LyingProc, state: str, threads: int, expected: Liveness) -> None:
    """Dead states are GONE; a process that hangs or is stopped lives."""
    proc.process(4711, 1000, state=state, threads=threads)

    assert probe(ProcessIdentity(4711, "1000", BOOT), proc=proc.root) is expected


def test_a_main_thread_that_ended_first_leaves_a_living_process(proc: LyingProc) -> None:
    """The kernel shows Z for a process whose main thread ended while others run: it lives."""
    proc.process(4711, 1000, state="Z", threads=3)

    assert probe(ProcessIdentity(4711, "1000", BOOT), proc=proc.root) is Liveness.ALIVE


@needs_proc
def test_a_real_process_whose_main_thread_ended_lives(process: Start) -> None:
    """The same with a real process."""
    script = (
        "import ctypes, threading, time\n"
        "def go():\n print('on', flush=True); time.sleep(600)\n"
        "threading.Thread(target=go).start()\n"
        "ctypes.CDLL(None).pthread_exit(0)\n"
    )
    child = process("python3", "-c", script, "77804", stdout=subprocess.PIPE)
    assert child.stdout is not None
    found = identity_of(child.pid)
    assert child.stdout.readline() == b"on\n"

    deadline = threading.Event()
    while kernel.read_stat(child.pid).state != "Z" and not deadline.wait(0.005):  # type: ignore[union-attr]
        pass

    assert found is not None
    assert probe(found) is Liveness.ALIVE


def test_b066_what_cannot_be_read_is_unclear(proc: LyingProc) -> None:
    """B-066: if the start time cannot be read, nothing is proven."""
    worker = ProcessIdentity(4711, "1000", BOOT)
    (proc.path / "4711").mkdir()
    (proc.path / "4711/stat").mkdir()  # reading it fails with EISDIR, also for root

    assert probe(worker, proc=proc.root) is Liveness.UNCLEAR
    assert identity_of(4711, proc=proc.root) is None


@pytest.mark.parametrize("text", [b"", b"4711", b"4711 (sh", b"4711 (sh) S 1 2", b"4711 (sh) S a b c" + b" x" * 40])
def test_b066_a_line_that_is_no_stat_is_unclear(proc: LyingProc, text: bytes) -> None:
    """B-066: an unexpected line steals nothing."""
    proc.process(4711, 1000)
    (proc.path / "4711/stat").write_bytes(text)

    assert probe(ProcessIdentity(4711, "1000", BOOT), proc=proc.root) is Liveness.UNCLEAR


def test_b066_an_empty_start_is_unclear(proc: LyingProc) -> None:
    """B-066: an identity that was recorded without a start fits whoever has the PID, so it proves nothing."""
    proc.process(4711, 1000)

    assert probe(ProcessIdentity(4711, "", BOOT), proc=proc.root) is Liveness.UNCLEAR
    assert probe(ProcessIdentity(4712, "", BOOT), proc=proc.root) is Liveness.GONE


def test_b066_an_unknown_boot_is_unclear(proc: LyingProc) -> None:
    """Start ticks of two boots do coincide: without the boot, the same ticks prove nothing, others do."""
    proc.process(4711, 1000)

    assert probe(ProcessIdentity(4711, "1000", ""), proc=proc.root) is Liveness.UNCLEAR
    assert probe(ProcessIdentity(4711, "999", ""), proc=proc.root) is Liveness.GONE


@needs_proc
def test_a_process_that_proc_hides_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ``hidepid`` a living process of another user is not in ``/proc``: the kernel still knows it."""
    init = ProcessIdentity(1, "1", own_identity().boot_id)

    monkeypatch.setattr(kernel, "read_stat", lambda pid, proc="/proc": None)

    assert probe(init) is Liveness.UNCLEAR


@given(name=st.binary(max_size=15).filter(lambda name: b"\0" not in name), start=st.integers(0, 2**63))
def test_a_program_may_call_itself_anything(name: bytes, start: int) -> None:
    """Blanks, parentheses and line feeds in the program's name do not shift the fields."""
    line = stat_line(4711, start, name=name.decode("utf-8", "surrogateescape"))

    stat = kernel.parse_stat(line)

    assert stat is not None
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session) == (4711, "S", 1, 7, 8)
    assert stat.start == str(start)


@needs_proc
def test_a_real_process_with_a_hostile_name(process: Start) -> None:
    """The same with a real process that names itself like the end of a stat line."""
    script = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (\\n) Z'); print('on', flush=True); input()"
    child = process("python3", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    found = identity_of(child.pid)
    assert child.stdout.readline() == b"on\n"

    assert found is not None
    assert probe(found) is Liveness.ALIVE


@given(st.binary(max_size=200))
def test_reading_any_bytes_never_raises(text: bytes) -> None:
    """Whatever ``stat`` says, it is a stat or it is not."""
    assert kernel.parse_stat(text) is None or text.count(b")") >= 1


@pytest.mark.parametrize(
    ("recorded", "found", "expected"),
    [
        ("1700000000.25", 1700000000.25, Liveness.ALIVE),
        ("1700000000.25", 1700000000.9, Liveness.UNCLEAR),
        ("1700000000.25", 1700000001.5, Liveness.GONE),
        ("nonsense", 1700000001.5, Liveness.UNCLEAR),
        ("", 1700000001.5, Liveness.UNCLEAR),
    ],
)
def test_starts_read_off_the_wall_clock(recorded: str, found: float, expected: Liveness) -> None:
    """Where there are no ticks, the same second is ambiguous and keeps the row."""
    assert identity._compare_starts(recorded, found) is expected


def test_psutil_gives_the_same_three_answers(process: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``/proc`` the slower way: alive, then a zombie, then gone."""
    monkeypatch.setattr(kernel, "HAS_PROC", False)
    child = process("sleep", "77805")
    found = identity_of(child.pid)
    assert found is not None
    assert probe(found) is Liveness.ALIVE

    child.kill()
    await_zombie(child.pid)

    assert probe(found) is Liveness.GONE
    child.wait()
    assert probe(found) is Liveness.GONE
