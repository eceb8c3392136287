"""Start one worker, in the keeper: look the program up, claim, open its files, spawn.

The spawn is a ``posix_spawn``, which the C library does by vfork: a ``preexec_fn`` would make it a fork, and that
costs a factor of four to twenty. So everything that has to differ in the child is done by attributes of the
spawn (session, signals, descriptors), in the keeper itself just before (the working directory: there is one thread
here, and nobody looks), or by a shell in between (limits).

Light enough for the keeper. The steps are in this order because what can be found wrong without a trace is looked
at first, the claim is made before anything exists, and the mark is filled before anything else is done.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from pawl.runner import kernel, launch_mark, limits

_OUTPUT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_NOT_EXECUTABLE = {errno.EACCES, errno.ENOEXEC, errno.EISDIR}


class Refused(Exception):
    """The launch did not happen; the spool is as it was."""

    def __init__(self, code: str, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.number = number


class Order:
    """One launch, as it came over the link."""

    __slots__ = ("argv", "cwd", "env", "limits", "spool", "stdin", "task", "wrapper")

    def __init__(self, fields: dict[str, object]) -> None:
        self.task: str = fields["task"]  # type: ignore[assignment]
        self.argv: list[str] = fields["argv"]  # type: ignore[assignment]
        self.env: dict[str, str] = fields["env"]  # type: ignore[assignment]
        self.cwd: str = fields["cwd"]  # type: ignore[assignment]
        self.spool: str = fields["spool"]  # type: ignore[assignment]
        self.stdin: str | None = fields["stdin"]  # type: ignore[assignment]
        self.limits: dict[str, int] | None = fields["limits"]  # type: ignore[assignment]
        self.wrapper: list[str] = fields.get("wrapper", [])  # type: ignore[assignment]


def spawn(order: Order, keeper: tuple[int, str, str]) -> tuple[int, str, bool]:
    """Start the worker: its PID, its start, and whether the mark could be filled. Raises ``Refused``."""
    _enter(order.cwd)
    try:
        program = _find(order.argv[0], order.env.get("PATH", os.defpath))
        if order.wrapper:
            order.argv = [*order.wrapper, program, *order.argv[1:]]
            program = _find(order.wrapper[0], os.defpath)
        mark = _claim(order, keeper)
        try:
            pid = _start(order, program)
            start = _start_of(pid)
            return pid, start, _fill(mark, (pid, start, keeper[2]))
        except Refused:
            launch_mark.unclaim(order.spool)
            raise
        finally:
            os.close(mark)
    finally:
        os.chdir("/")  # the keeper may outlive everything: it keeps no directory busy


def _start_of(pid: int) -> str:
    """The start of the child that runs now. It must not fail: from here on "refused" would be a lie.

    Without a start the identity is one that can be watched and never proven: unclear, so its row is kept.
    """
    try:
        return kernel.start_of(pid)
    except (OSError, IndexError, ValueError):
        return ""


def _fill(mark: int, worker: tuple[int, str, str]) -> bool:
    try:
        launch_mark.fill(mark, worker)
    except OSError:
        return False
    return True


def fill_mark(spool: str, worker: tuple[int, str, str]) -> bool:
    """Try again to name the worker in the mark; False where it still cannot be written."""
    try:
        launch_mark.fill_later(spool, worker)
    except FileNotFoundError:
        return True  # the spool was removed under us: there is nothing left to tell
    except OSError:
        return False
    return True


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except FileNotFoundError as error:
        raise Refused("cwd_missing", f"cannot enter {cwd}: {error.strerror}", error.errno) from None
    except NotADirectoryError as error:
        raise Refused("cwd_not_directory", f"cannot enter {cwd}: {error.strerror}", error.errno) from None
    except OSError as error:
        raise Refused("launch_failed", f"cannot enter {cwd}: {error.strerror}", error.errno) from None


def _find(program: str, path: str) -> str:
    """The file to execute, as ``execvp`` would find it in this PATH, seen from the worker's own directory."""
    candidates = [program] if "/" in program else [f"{part or '.'}/{program}" for part in path.split(":")]
    for candidate in candidates:
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate) and program:
            return candidate
    for candidate in candidates if program else []:
        if os.path.lexists(candidate):
            number = errno.EISDIR if os.path.isdir(candidate) else errno.EACCES
            raise Refused("program_not_executable", f"cannot run {candidate}: {os.strerror(number)}", number)
    where = "" if "/" in program else f" (PATH is {path})"
    reason = os.strerror(errno.ENOENT)
    raise Refused("program_not_found", f"cannot run {program}: {reason}{where}", errno.ENOENT)


def _claim(order: Order, keeper: tuple[int, str, str]) -> int:
    try:
        return launch_mark.claim(order.spool, keeper)
    except (FileExistsError, FileNotFoundError) as error:
        why = "its spool is marked already" if error.errno == errno.EEXIST else "its spool is gone"
        raise Refused("spool_barred", f"cannot launch task {order.task}: {why}", error.errno) from None
    except OSError as error:
        raise Refused("launch_failed", f"cannot mark {order.spool}: {error.strerror}", error.errno) from None


def _start(order: Order, program: str) -> int:
    """Open the worker's three files and start it. Takes back what it made when it fails."""
    made: list[str] = []
    opened: list[int] = []
    try:
        opened.append(_open(order.stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for name in ("/stdout", "/stderr"):
            opened.append(_open(order.spool + name, _OUTPUT))
            made.append(order.spool + name)
        return _start_with(order, program, opened)
    except Refused:
        for path in made:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise Refused("launch_failed", f"cannot open {path}: {error.strerror}", error.errno) from None


def _start_with(order: Order, program: str, descriptors: list[int]) -> int:
    try:
        if order.limits:
            return _limited(order, order.limits, program, descriptors)
        return posix_spawn(program, order.argv, order.env, descriptors)
    except OSError as error:
        raise _refusal(program, error) from None
    except (ValueError, TypeError) as error:  # a zero byte in an argument, an "=" in a variable's name
        raise Refused("launch_failed", f"cannot run {program}: {error}") from None


def _limited(order: Order, wanted: dict[str, int], program: str, descriptors: list[int]) -> int:
    if why := limits.fault(wanted):
        raise Refused("limits_refused", why)
    reading, writing = os.pipe()
    try:
        argv = limits.shell_argv(wanted, program, order.argv)
        pid = posix_spawn(limits.SHELL, argv, order.env, [*descriptors, writing])
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    if why := limits.refusal(reading):
        os.waitpid(pid, 0)
        raise Refused("limits_refused", f"cannot set the limits {wanted}: {why}")
    return pid


def _refusal(program: str, error: OSError) -> Refused:
    if error.errno == errno.ENOENT:  # the file is there: it was just looked up
        why = f"{error.strerror}: its interpreter (the #! line, or the loader) is missing"
        return Refused("program_not_executable", f"cannot run {program}: {why}", error.errno)
    code = "program_not_executable" if error.errno in _NOT_EXECUTABLE else "launch_failed"
    return Refused(code, f"cannot run {program}: {error.strerror}", error.errno)


def posix_spawn(program: str, argv: list[str], env: dict[str, str], descriptors: list[int]) -> int:
    """Spawn with exactly these descriptors as 0, 1, 2..., in a session of its own, all signals at their defaults.

    Everything else that the keeper has open is close-on-exec. Its descriptors 0 to 2 are in use, so none of those
    given here is one of them, and no ``dup2`` overwrites the source of a later one.
    """
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, at) for at, descriptor in enumerate(descriptors)]
    try:
        return os.posix_spawn(program, argv, env, file_actions=actions, setsid=True, setsigmask=[], setsigdef=_SIGNALS)
    except NotImplementedError:
        return _popen(program, argv, env, descriptors)


def _popen(program: str, argv: list[str], env: dict[str, str], descriptors: list[int]) -> int:
    """The same where the C library cannot spawn into a new session. Slower, and just as right."""
    import subprocess

    stdin, stdout, stderr, *more = descriptors
    process = subprocess.Popen(
        argv, executable=program, env=env, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=more,
        start_new_session=True,
    )  # fmt: skip
    process.returncode = 0  # the keeper reaps it: the Popen object must never wait for this PID
    return process.pid
