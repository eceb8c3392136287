"""What the kernel says of processes, in a module light enough for the keeper.

Imports nothing that a bare interpreter does not have at hand: no ``typing``, no ``dataclasses``. ``psutil`` is
imported where there is no ``/proc``, and nowhere else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

PROC = "/proc"
HAS_PROC = os.path.exists("/proc/self/stat")
DEAD_STATES = frozenset("ZXx")
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


class Stat:
    """The fields of ``/proc/PID/stat`` that Pawl reads."""

    __slots__ = ("cpu_ticks", "group", "parent", "pid", "session", "start", "state", "threads")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.state = fields[0].decode("ascii")
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.cpu_ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
        self.threads = int(fields[17])
        self.start = str(int(fields[19]))

    @property
    def dead(self) -> bool:
        """Nothing of it runs. A main thread that ended while others go on is shown as Z too, and lives."""
        return self.state in DEAD_STATES and self.threads <= 1


def parse_stat(text: bytes) -> Stat | None:
    """Read one ``stat`` line; None when it is not one.

    The second field is the program's name in parentheses, and a program may put blanks, parentheses and line
    feeds into its name: the fields that follow are counted from the last parenthesis.
    """
    opening, closing = text.find(b"("), text.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    try:
        return Stat(int(text[:opening]), text[closing + 1 :].split())
    except (ValueError, IndexError):
        return None


def read_stat(pid: int, proc: str = PROC) -> Stat | None:
    """The ``stat`` of a process; None where there is no such process. Raises OSError when it cannot be read."""
    try:
        text = read_file(f"{proc}/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):  # ESRCH: it ended between open and read
        return None
    stat = parse_stat(text)
    if stat is None:
        raise OSError(f"cannot read {proc}/{pid}/stat: unexpected content")
    return stat


def read_file(path: str) -> bytes:
    """All of a small file of ``/proc``. Plain descriptors cost a third of what a file object does."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while chunk := os.read(descriptor, 65_536):
            text += chunk
        return text
    finally:
        os.close(descriptor)


def start_of(pid: int) -> str:
    """The start of our own, not yet reaped child, as an identity writes it; empty where it cannot be had."""
    if HAS_PROC:
        descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
        return text[text.rfind(b")") + 2 :].split(None, 20)[19].decode("ascii")
    import psutil

    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


_boot_id = ""


def boot_id(proc: str = PROC) -> str:
    """This boot's id; empty where it cannot be read. The real one is read once: it does not change under us."""
    global _boot_id
    if proc != PROC:
        return _read_boot_id(proc)
    if not _boot_id:
        _boot_id = _read_boot_id(proc)
    return _boot_id


def _read_boot_id(proc: str) -> str:
    try:
        return read_file(f"{proc}/sys/kernel/random/boot_id").decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        if HAS_PROC or proc != PROC:
            return ""
    import psutil

    return f"boot-{round(psutil.boot_time())}"


def own_children() -> list[int] | None:
    """The children of this process, zombies among them; None where the kernel does not list them."""
    if not os.path.exists("/proc/thread-self/children"):
        return None
    children: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended this moment
            children += map(int, read_file(f"/proc/self/task/{thread}/children").split())
    return children


def own_thread_children() -> list[int] | None:
    """The same for a process of one thread, for a third of the cost."""
    try:
        return list(map(int, read_file("/proc/thread-self/children").split()))
    except (OSError, ValueError):
        return None


def carries(pid: int, name: bytes, value: bytes, proc: str = PROC) -> bool:
    """Whether the environment that a process was started with has this variable; False where it cannot be read."""
    return name + b"=" + value in _environment(pid, proc)


def value_of(pid: int, name: bytes, proc: str = PROC) -> bytes:
    """What a variable was when a process was started; empty where there was none, or it cannot be read."""
    prefix = name + b"="
    return next((item[len(prefix) :] for item in _environment(pid, proc) if item.startswith(prefix)), b"")


def _environment(pid: int, proc: str) -> list[bytes]:
    try:
        return read_file(f"{proc}/{pid}/environ").split(b"\0")
    except OSError:
        return []


def become_subreaper() -> bool:
    """Become the parent of all orphans below this process. False where the system has no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: bytes) -> bool:
    """Set the name that ``ps -o comm`` and ``top`` show, at most 15 bytes."""
    return _prctl(_PR_SET_NAME, ctypes.c_char_p(name))


def _prctl(option: int, argument: int | ctypes.c_char_p) -> bool:
    if not HAS_PROC:
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(option, argument, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
