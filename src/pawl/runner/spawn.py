"""Start one worker, in the keeper: look the program up, claim, open its files, spawn.

The spawn is a ``posix_spawn``, which the C library does by vfork: a ``preexec_fn`` would make it a fork, and that
costs a factor of four to twenty. So everything that has to differ in the child is done by attributes of the
spawn (session, signals, descriptors), in the keeper itself just before (the working directory: there is one thread
here, and nobody looks), or by a shell in between (limits), and by another one inside a sandbox.

Light enough for the keeper. The steps are in this order because what can be found wrong without a trace is looked
at first, the claim is made before anything exists, and the mark is filled before anything else is done.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import stat
import time

from pawl.runner import kernel, launch_mark, limits

_OUTPUT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_NOT_EXECUTABLE = {errno.EACCES, errno.ENOEXEC, errno.EISDIR}
_SANDBOX_S = 10.0  # it takes some milliseconds; a file system that hangs must not hang the keeper
_INSIDE, _UNSEEN = b"inside\n", b"unseen\n"
# The options by which bwrap mounts what a descriptor has open, by those that do the same with a path.
HELD = {"--bind": "--bind-fd", "--ro-bind": "--ro-bind-fd"}
_ABOVE = (
    64  # above any number that a child's descriptors are put at: none of those overwrites one that is still to come
)
# Of the task's own variables a sandbox's maker sees those by which its processes are found, and no other: what the
# loader or a shell reads (LD_PRELOAD) would run outside.
_TOLD_OUTSIDE = ("PAWL_TASK_ID", "PAWL_HOME")


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
        if order.wrapper and not os.access(order.wrapper[0], os.X_OK):
            why = f"{order.wrapper[0]} is not there or cannot be run"
            raise Refused("sandbox_failed", f"cannot make the sandbox: {why}")
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
        if order.wrapper:
            return _sandboxed(order, program, descriptors)
        return _limited(order, program, order.argv, order.env, descriptors)
    except OSError as error:
        raise _refusal(program, error) from None
    except (ValueError, TypeError) as error:  # a zero byte in an argument, an "=" in a variable's name
        raise Refused("launch_failed", f"cannot run {program}: {error}") from None


def _limited(order: Order, program: str, argv: list[str], env: dict[str, str], descriptors: list[int]) -> int:
    """Start a program under the limits of the order, if it has any."""
    wanted = order.limits
    if not wanted:
        return posix_spawn(program, argv, env, descriptors)
    if why := limits.fault(wanted):
        raise Refused("limits_refused", why)
    reading, writing = os.pipe()
    try:
        # 3 is the shell's; what stood there comes after
        given = [*descriptors[:3], writing, *descriptors[3:]]
        pid = posix_spawn(limits.SHELL, limits.shell_argv(wanted, program, argv), env, given)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    if why := limits.refusal(reading):
        os.waitpid(pid, 0)
        raise Refused("limits_refused", f"cannot set the limits {wanted}: {why}")
    return pid


# --- in a sandbox -------------------------------------------------------------------------------------------------


def _sandboxed(order: Order, program: str, descriptors: list[int]) -> int:
    """Start the maker of the sandbox with a shell in it, which says that it is inside and becomes the program.

    Fails closed: without that word the program has not run, and the launch is refused.
    """
    at = 4 if order.limits else 3  # after the pipe of the shell that sets the limits
    variables = _variables(order.env)
    reading, writing = os.pipe()
    held: list[int] = []
    try:
        words = _holding(order.wrapper[1:], held, at + 2)
        inside = [limits.SHELL, "-c", _script(at), order.argv[0], program, *order.argv[1:]]
        argv = [order.wrapper[0], "--args", str(at + 1), *words, *inside]
        env = {name: order.env[name] for name in _TOLD_OUTSIDE if name in order.env}
        pid = _limited(order, order.wrapper[0], argv, env, [*descriptors, writing, variables, *held])
    except BaseException:
        os.close(reading)
        raise
    finally:
        for descriptor in (writing, variables, *held):
            os.close(descriptor)
    try:
        said = _await_word(reading)
        if said is None:
            _kill_group(pid)
            said = _await_word(reading, 1.0)  # what came at the last moment has run
    finally:
        os.close(reading)
    if said != _INSIDE:
        raise _sandbox_failed(order, program, pid, said)
    return pid


def _holding(words: list[str], held: list[int], at: int) -> list[str]:
    """Open what is to be mounted, into ``held``, and name it by descriptors from ``at`` on.

    What a path names may be replaced at any moment; what is open stays what it is. bwrap closes them.
    """
    found = list(words)
    for place, word in enumerate(words):
        if word in HELD.values():
            held.append(_hold(words[place + 1]))
            found[place + 1] = str(at + len(held) - 1)
    return found


def _hold(path: str) -> int:
    """Open a real path, and make sure that it is one: no link has taken the place of any part of it."""
    try:
        low = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = f"cannot open {path}: {error.strerror}"
        raise Refused("sandbox_failed", f"cannot make the sandbox: {why}", error.errno) from None
    try:
        now = os.readlink(f"/proc/self/fd/{low}")
        if now != path or stat.S_ISLNK(os.fstat(low).st_mode):
            raise Refused("sandbox_failed", f"cannot make the sandbox: {path} is not the place any more that it was")
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    finally:
        os.close(low)


def _variables(env: dict[str, str]) -> int:
    """The environment as arguments for bwrap, in a file that has no name: not on its command line, which all can read.

    The descriptor is at its beginning. Raises ValueError as a spawn does.
    """
    words = b""
    for name, value in env.items():
        pair = os.fsencode(name), os.fsencode(value)
        if not name or "=" in name or b"\0" in b"".join(pair):
            raise ValueError("illegal environment variable name, or a null byte in its value")
        words += b"--setenv\0%b\0%b\0" % pair
    descriptor = os.memfd_create("variables", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(words)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _script(at: int) -> str:
    """The shell's part inside. A program that cannot be seen there is none of its own faults, so it is said apart."""
    unseen, inside = _UNSEEN.decode().strip(), _INSIDE.decode().strip()
    return f'[ -x "$1" ] || {{ echo {unseen} >&{at}; exit 125; }}; echo {inside} >&{at}; exec {at}>&-; exec "$@"'


def _await_word(pipe: int, patience_s: float = _SANDBOX_S) -> bytes | None:
    """What is said over the pipe, up to the end of a line or of the pipe; None where neither comes in time.

    Only the process that becomes the program keeps its end of it: bwrap's others close what is not theirs.
    """
    said = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    until = time.monotonic() + patience_s
    while (left := until - time.monotonic()) > 0 and poll.poll(left * 1000):
        chunk = os.read(pipe, 4096)
        said += chunk
        if not chunk or said.endswith(b"\n"):
            return said
    return None


def _sandbox_failed(order: Order, program: str, pid: int, said: bytes | None) -> Refused:
    """Clear away what was started, and say why there is no sandbox."""
    if said is None:  # not waited for: it may hang in the kernel, and is reaped as a stray when it ends
        return Refused("sandbox_failed", f"cannot make the sandbox: it was not there within {_SANDBOX_S:.0f} s")
    os.waitpid(pid, 0)
    if said == _UNSEEN:
        return Refused("sandbox_failed", f"cannot run {program} in the sandbox: it cannot be seen from there")
    try:
        with open(order.spool + "/stderr", "rb") as file:
            lines = file.read(4096).decode("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    why = "; ".join(line.strip() for line in lines if line.strip())
    return Refused("sandbox_failed", f"cannot make the sandbox: {why or 'no reason was given'}")


def _kill_group(pid: int) -> None:
    """End the makers of a sandbox: its program has not run, so nobody has left the group."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _refusal(program: str, error: OSError) -> Refused:
    if error.errno == errno.ENOENT:  # the file is there: it was just looked up
        why = f"{error.strerror}: its interpreter (the #! line, or the loader) is missing"
        return Refused("program_not_executable", f"cannot run {program}: {why}", error.errno)
    code = "program_not_executable" if error.errno in _NOT_EXECUTABLE else "launch_failed"
    return Refused(code, f"cannot run {program}: {error.strerror}", error.errno)


def posix_spawn(program: str, argv: list[str], env: dict[str, str], descriptors: list[int]) -> int:
    """Spawn with exactly these descriptors as 0, 1, 2..., in a session of its own, all signals at their defaults.

    Everything else that the keeper has open is close-on-exec. Its descriptors 0 to 5 are in use (the last three by its
    link and its wakeup pipe), so none of those given here is one of them, and no ``dup2`` overwrites the source of a
    later one.
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
