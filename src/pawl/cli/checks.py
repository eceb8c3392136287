"""The checks of ``pawl doctor``: each looks at one side of a home and yields what it finds."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from pawl.cli.client import Client, check_owner, home_option
from pawl.cli.jsontext import loads
from pawl.errors import DaemonUnreachable, PawlError
from pawl.home import Home
from pawl.storage.database import newest_version
from pawl.values import size_text

_DISK_LOW_BYTES = 1024**3
_DISK_OUT_BYTES = 64 * 1024**2
_YEAR_MIN = 2024
_PATIENCE_S = 5.0
_ROWS_SHOWN = 5
_OUTPUTS_LOOKED_AT = 1000  # the newest; `pawl result` looks at each one again


class Finding(NamedTuple):
    """One thing that was found. ``severity``: error (mend it), warning (look at it) or info (it is well)."""

    code: str
    severity: str
    subject: str
    message: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return self._asdict()


def home(home: Home) -> Iterator[Finding]:
    """It exists, is a directory and is ours."""
    try:
        found = os.stat(home.path)
    except FileNotFoundError:
        yield Finding(
            "home_missing", "error", home.path, "there is no home here",
            f"make one with `pawl init{home_option(home)}`, or name another with --home",
        )  # fmt: skip
        return
    except OSError as error:
        yield Finding("home_unreadable", "error", home.path, f"cannot be looked at: {error.strerror}")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("home_not_directory", "error", home.path, "it is not a directory", "use another --home")
    elif found.st_uid != os.geteuid():
        yield Finding(
            "home_owner", "error", home.path, f"it belongs to uid {found.st_uid}, and you are uid {os.geteuid()}",
            "run this as its owner, or use a home of your own",
        )  # fmt: skip
    else:
        yield Finding("home", "info", home.path, "it is there and yours")


def modes(home: Home) -> Iterator[Finding]:
    """Nothing in it can be read or written by others."""
    wide = 0
    for path in _private(home):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            continue
        wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        if stat.S_IMODE(found.st_mode) & 0o077 and not stat.S_ISLNK(found.st_mode):
            wide += 1
            yield Finding(
                "mode_too_wide", "error", path, f"others may use it (mode {stat.S_IMODE(found.st_mode):04o})",
                f"chmod {wanted:o} {path}",
            )  # fmt: skip
    if not wide:
        yield Finding("modes", "info", "modes", "nothing in it is open to others")


def _private(home: Home) -> list[str]:
    files = [home.database, f"{home.database}-wal", f"{home.database}-shm", home.log, home.socket]
    directories = [
        home.path,
        home.data,
        home.artifacts,
        home.spool,
        home.run,
        home.logs,
        os.path.dirname(home.socket),
    ]
    return [*directories, *files]


def locks(home: Home) -> Iterator[Finding]:
    """A lock that is held cannot be taken again: tried, for some network file systems only pretend."""
    where = home.run if os.path.isdir(home.run) else home.path
    fd, path = tempfile.mkstemp(prefix=".lock-check-", dir=where)
    try:
        again = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            works = not _locks(again)
        except OSError as error:
            works, why = False, error.strerror or str(error)
        else:
            why = "a lock that was held was given a second time"
        finally:
            os.close(again)
    finally:
        os.close(fd)
        os.unlink(path)
    if works:
        yield Finding("locks", "info", "file locks", "they work here")
    else:
        yield Finding(
            "locks_broken", "error", "file locks", f"they do not work on this file system: {why}",
            "use a home on a local disk: two daemons at once would damage the database",
        )  # fmt: skip


def _locks(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sandboxes(home: Home) -> Iterator[Finding]:
    """What this machine offers to policies that want a sandbox."""
    from pawl.runner.sandbox import available

    offer = available()
    if offer.works:
        yield Finding("sandbox", "info", "sandbox", f"{offer.reason}: policies may ask for it")
        return
    wanted = _policies_with_sandbox(home)
    who = f"; {', '.join(wanted)} asks for one" if wanted else "; no policy asks for one"
    mend = 'install bubblewrap (the package "bubblewrap")'
    if offer.program is not None:
        mend = "let users make namespaces (see the system's AppArmor and sysctl settings for user namespaces)"
    yield Finding(
        "sandbox_missing", "warning" if wanted else "info", "sandbox", f"{offer.reason}{who}",
        f'{mend}, or set sandbox = "off"' if wanted else "",
    )  # fmt: skip


def _policies_with_sandbox(home: Home) -> list[str]:
    from pawl.config import load

    try:
        policies = load(home.config).policies
    except PawlError:
        return []  # what is wrong with it is another check's finding
    return [f"[policies.{name}]" for name, policy in sorted(policies.items()) if policy.sandbox != "off"]


def disk(home: Home) -> Iterator[Finding]:
    """There is room for what running work writes."""
    found = os.statvfs(home.path)
    free = found.f_bavail * found.f_frsize
    text = f"{size_text(free)} are free"
    remedy = "free some space; `pawl daemon start` refuses new work where there is none"
    if free < _DISK_OUT_BYTES:
        yield Finding("disk_full", "error", "disk", text, remedy)
    elif free < _DISK_LOW_BYTES:
        yield Finding("disk_low", "warning", "disk", text, "free some space before it runs out")
    else:
        yield Finding("disk", "info", "disk", text)
    if found.f_files and not found.f_favail:
        yield Finding(
            "inodes_out",
            "error",
            "disk",
            "no more files can be made (no inodes are free)",
            "remove some files",
        )


def clock(home: Home) -> Iterator[Finding]:
    """The wall clock is set at all."""
    year = time.gmtime().tm_year
    if year < _YEAR_MIN:
        yield Finding("clock_wrong", "error", "clock", f"it says that this is the year {year}", "set it")
    else:
        yield Finding("clock", "info", "clock", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    if os.path.exists(home.test_clock):
        yield Finding(
            "clock_test", "warning", "clock", "tests may move the clock of this home",
            f"remove {home.test_clock} and restart the daemon if real work runs here",
        )  # fmt: skip


def config(home: Home) -> Iterator[Finding]:
    """The configuration file has no faults, and its jobs can run."""
    from pawl import config as configuration
    from pawl.cli.faults import every_fault

    form = bool(configuration.check(home.config))
    faults = every_fault(home.config)
    for fault in faults:
        yield Finding(
            "config_invalid" if form else "cron_job_disabled", "error" if form else "warning",
            home.config, fault.text(os.path.basename(home.config)), "mend that line, then `pawl config check`",
        )  # fmt: skip
    if not faults:
        there = os.path.exists(home.config)
        yield Finding("config", "info", home.config, "no faults" if there else "there is none: defaults are in force")


def database(home: Home) -> Iterator[Finding]:
    """SQLite finds the file whole. Opened read-only; a running daemon is not disturbed."""
    if not os.path.exists(home.database):
        yield Finding("database", "info", home.database, "there is none yet: the daemon makes it")
        return
    try:
        connection = sqlite3.connect(f"file:{quote(home.database)}?mode=ro", uri=True, timeout=_PATIENCE_S)
        try:
            yield from _judged(home, connection)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        yield Finding(
            "database_damaged", "error", home.database, f"SQLite cannot read it: {error}",
            "stop the daemon, move the file aside or restore a backup; it was left as it is",
        )  # fmt: skip


def _judged(home: Home, connection: sqlite3.Connection) -> Iterator[Finding]:
    complaints = _complaints(connection)
    if complaints:
        yield Finding(
            "database_damaged", "error", home.database, "; ".join(complaints),
            "stop the daemon, move the file aside or restore a backup; it was left as it is",
        )  # fmt: skip
        return
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > newest_version():
        yield Finding(
            "database_newer", "error", home.database,
            f"it has schema version {version}, this Pawl knows {newest_version()}: the daemon will not start with it",
            "use the newer Pawl; the file was left as it is",
        )  # fmt: skip
        return
    size = os.stat(home.database).st_size
    yield Finding("database", "info", home.database, f"whole, {size_text(size)}, schema version {version}")
    yield from rows(home, connection)


def _complaints(connection: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong. The quick check of some versions (3.40) sees NULLs in tables WITHOUT ROWID where there
    are none, so what it complains of is looked at again by the thorough one."""
    for check in ("quick_check", "integrity_check"):
        found = [str(row[0]) for row in connection.execute(f"PRAGMA {check}({_ROWS_SHOWN})")]
        if found == ["ok"]:
            return []
    return found


def rows(home: Home, connection: sqlite3.Connection) -> Iterator[Finding]:
    """What the rows themselves tell, as far as it can be read off them without their daemon."""
    stale = connection.execute(
        "SELECT count(*) FROM settlement_intent i JOIN task t ON t.id = i.task_id WHERE t.finished_at_ms IS NOT NULL"
    ).fetchone()[0]
    if stale:
        yield Finding(
            "intents_stale", "warning", home.database, f"{stale} settlement intents stand beside tasks that have ended",
            "start the daemon: its recovery removes them",
        )  # fmt: skip
    pending = connection.execute("SELECT count(*) FROM task WHERE cleanup = 'pending'").fetchone()[0]
    if pending:
        yield Finding(
            "cleanup_pending", "warning", home.database, f"{pending} ended tasks may have living processes",
            "start the daemon: it ends them and says so",
        )  # fmt: skip
    newest = connection.execute(
        "SELECT id, output_sha256, output_bytes FROM task WHERE output_sha256 IS NOT NULL ORDER BY seq DESC LIMIT ?",
        (_OUTPUTS_LOOKED_AT,),
    )
    for task_id, digest, size in newest:
        path = os.path.join(home.artifacts, digest)
        found = os.stat(path).st_size if os.path.exists(path) else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes of {size}"
            yield Finding(
                "output_altered", "error", path, f"the output of task {task_id} {what}",
                "restore the file from a backup; `pawl result` refuses it until then",
            )  # fmt: skip


def socket(home: Home) -> Iterator[Finding]:
    """The socket's path can be used, and nobody else put one there."""
    try:
        path = home.socket
        check_owner(home, path)
    except DaemonUnreachable:
        yield Finding("socket", "info", home.socket, "there is no socket: no daemon runs")
    except PawlError as error:
        yield Finding(error.code, "error", "socket", error.message, "use a home of your own, with a shorter path")
    else:
        moved = "" if os.path.dirname(path) == home.run else " (moved, because the home's path is long)"
        yield Finding("socket", "info", path, f"it is yours{moved}")


def daemon(home: Home) -> Iterator[Finding]:
    """It answers, or there is none; a lock that is held by a daemon that does not answer is neither."""
    client = Client(home, patience_s=_PATIENCE_S)
    try:
        answer = client.call("daemon.status")
    except DaemonUnreachable as error:
        yield _silent(home, error)
        return
    except PawlError as error:
        yield Finding(error.code, "error", "daemon", error.message, f"pawl daemon restart{home_option(home)}")
        return
    finally:
        client.close()
    found = answer["daemon"]
    yield Finding("daemon", "info", "daemon", f"pid {found['pid']} answers, version {found['version']}")
    for one in answer.get("findings") or ():
        yield Finding(str(one["code"]), "warning", str(one.get("subject") or "daemon"), str(one["message"]))


def _silent(home: Home, error: DaemonUnreachable) -> Finding:
    holder = lock_holder(home)
    if holder is None:
        return Finding(
            "daemon_down",
            "info",
            "daemon",
            "none runs",
            f"start one with `pawl daemon start{home_option(home)}`",
        )
    return Finding(
        "daemon_silent", "error", "daemon",
        f"pid {holder or 'unknown'} holds the home and does not answer: {error.message}",
        f"wait a little, look at {home.log}; if it stays so, end that process and start a new daemon: work is kept",
    )  # fmt: skip


def lock_holder(home: Home) -> int | None:
    """The pid written in a lock that is held (0 where none is readable), or None where nobody holds it.

    A shared lock is tried, for an instant: a daemon that starts at that very moment would have to try again.
    """
    try:
        fd = os.open(home.lock, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return _pid_in(os.read(fd, 4096))
    finally:
        os.close(fd)


def _pid_in(text: bytes) -> int:
    try:
        return int(loads(text.decode())["pid"])
    except (ValueError, KeyError, TypeError):
        return 0
