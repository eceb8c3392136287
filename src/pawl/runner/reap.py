"""The end of one child: learn its status, put the record in place, and only then let its PID go.

In this order, because a zombie is the proof that its record is still to come: recovery waits while there is one,
and stops waiting when there is none.

Light enough for the keeper. The daemon uses it too, for workers that became its children when their keeper died.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import struct
import sys
import time

from pawl.runner import kernel, small_file

_WAITID_CALL = {"x86_64": 247, "aarch64": 95, "riscv64": 95, "loongarch64": 95, "ppc64le": 272, "s390x": 281}
_P_ALL, _P_PID, _CLD_EXITED = 0, 1, 1
_HOW = getattr(os, "WEXITED", 4) | os.WNOHANG | getattr(os, "WNOWAIT", 0x1000000)
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class End:
    """How a child ended, and what it used."""

    __slots__ = ("code", "cpu_s", "max_rss_bytes", "pid", "reaped", "signal")

    def __init__(self, pid: int, code: int | None, signal: int | None, *, reaped: bool = False) -> None:
        self.pid = pid
        self.code = code
        self.signal = signal
        self.cpu_s: float | None = None
        self.max_rss_bytes: int | None = None
        self.reaped = reaped  # where the system could not tell without

    def reap(self) -> None:
        """Let the PID go."""
        if not self.reaped:
            os.waitpid(self.pid, 0)
            self.reaped = True


_os_waitid = getattr(os, "waitid", None)


def next_end(pid: int = 0) -> End | None:
    """A child that has ended and is not reaped yet, any or this one; None where there is none.

    Raises ChildProcessError where there is no such child.
    """
    if _waitid_number:
        return _raw_waitid(pid)
    if _os_waitid is not None:
        return _waitid(pid)
    return _wait4(pid)


def _machine_waitid() -> int:
    known = sys.platform.startswith("linux") and ctypes.sizeof(ctypes.c_void_p) == 8
    return _WAITID_CALL.get(os.uname().machine, 0) if known else 0


_waitid_number = _machine_waitid()
_libc = ctypes.CDLL(None, use_errno=True) if _waitid_number else None
_info = ctypes.create_string_buffer(128)  # siginfo_t; used by one thread: the keeper's only one, the daemon's loop
_usage = ctypes.create_string_buffer(144)  # struct rusage


def _raw_waitid(pid: int) -> End | None:
    """The system call itself: unlike the C library's function, it tells the resources used without reaping."""
    ctypes.memset(_info, 0, 128)
    kind = _P_PID if pid else _P_ALL
    assert _libc is not None
    while _libc.syscall(_waitid_number, kind, pid, _info, _HOW, _usage) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    code, ended, _, status = struct.unpack_from("=i4xiIi", _info, 8)
    if not ended:
        return None
    end = _end(ended, code, status)
    user_s, user_us, system_s, system_us, max_rss = struct.unpack_from("=5q", _usage)
    end.cpu_s = round(user_s + system_s + (user_us + system_us) / 1e6, 6)
    end.max_rss_bytes = max_rss * _RSS_UNIT
    return end


def _waitid(pid: int) -> End | None:
    """Where the number of the system call is not known: the time from the zombie's own line, the memory unknown."""
    assert _os_waitid is not None
    found = _os_waitid(_P_PID if pid else _P_ALL, pid, _HOW)
    if found is None:
        return None
    end = _end(found.si_pid, found.si_code, found.si_status)
    if kernel.HAS_PROC:
        stat = kernel.read_stat(end.pid)
        end.cpu_s = stat.cpu_ticks / os.sysconf("SC_CLK_TCK") if stat is not None else None
    return end


def _wait4(pid: int) -> End | None:
    """Where the system has no ``waitid`` (macOS before Python 3.13): reaps, so the record comes an instant after."""
    ended, status, usage = os.wait4(pid or -1, os.WNOHANG)
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    end = End(ended, code if code >= 0 else None, -code if code < 0 else None, reaped=True)
    end.cpu_s = round(usage.ru_utime + usage.ru_stime, 6)
    end.max_rss_bytes = usage.ru_maxrss * _RSS_UNIT
    return end


def _end(pid: int, code: int, status: int) -> End:
    return End(pid, status, None) if code == _CLD_EXITED else End(pid, None, status)


def record_of(end: End, task: str, start: str, spool: str) -> dict[str, object]:
    """The exit record, as ``spool.ExitRecord`` has it."""
    return {
        "task": task,
        "pid": end.pid,
        "start": start,
        "code": end.code,
        "signal": end.signal,
        "stdout_bytes": _size(spool + "/stdout"),
        "stderr_bytes": _size(spool + "/stderr"),
        "ended_at_ms": time.time_ns() // 1_000_000,
        "cpu_s": end.cpu_s,
        "max_rss_bytes": end.max_rss_bytes,
    }


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def write_record(spool: str, record: dict[str, object]) -> None:
    """Put the record in place. A spool that is gone needs none. Raises OSError: then there is no record."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        small_file.write(spool + "/exit", json.dumps(record).encode() + b"\n")
