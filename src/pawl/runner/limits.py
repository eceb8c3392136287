"""Resource limits for one worker, without a ``preexec_fn``: a shell sets them and becomes the program.

``/bin/sh`` is asked, because ``setrlimit`` in the keeper would hold the keeper too, and ``prlimit`` on the started
program comes too late for what it has forked. Fails closed: no program runs under limits that could not be set.
Costs a second exec, so it is done only where limits are given.
"""

from __future__ import annotations

SHELL = "/bin/sh"
_NAMES = ("cpu_s", "memory_bytes", "processes", "open_files")
_CPU_GRACE_S = 5  # between SIGXCPU, which says why, and the SIGKILL that follows
_REFUSED = "pawl-limits-refused"


def fault(limits: dict[str, int]) -> str | None:
    """What is wrong with these limits as numbers; None where nothing is."""
    for name, value in limits.items():
        if name not in _NAMES or type(value) is not int or value < 1:
            return f"cannot limit {name} to {value!r}: it must be a whole number above zero"
    return None


def shell_argv(limits: dict[str, int], program: str, argv: list[str]) -> list[str]:
    """The command line of a shell that sets the limits and becomes the program. Its descriptor 3 is a pipe to us."""
    return [SHELL, "-c", script(limits), argv[0], program, *argv[1:]]


def refusal(pipe: int) -> str | None:
    """Wait until the shell has set the limits (None) or said why it could not. Closes ``pipe``.

    The shell closes its end just before it becomes the program: this takes the millisecond that the shell takes.
    """
    with open(pipe, "rb") as reading:
        answer = reading.read().decode("utf-8", "replace").strip()
    if not answer.endswith(_REFUSED):
        return None
    return answer.removesuffix(_REFUSED).strip() or "the shell gave no reason"


def script(limits: dict[str, int]) -> str:
    """The shell's part. Descriptor 3 is the pipe to the keeper; what goes wrong is said there, and nothing else."""
    steps = " && ".join(_steps(limits))
    return f'{{ {steps}; }} 2>&3 || {{ echo {_REFUSED} >&3; exit 125; }}; exec 3>&-; exec "$@"'


def _steps(limits: dict[str, int]) -> list[str]:
    steps = []
    if "cpu_s" in limits:
        # Soft before hard: a hard limit may not go below the soft one. A hard one that is lower already stays.
        cpu_s = limits["cpu_s"]
        steps.append(f"ulimit -S -t {cpu_s}")
        steps.append(f"{{ ulimit -H -t {cpu_s + _CPU_GRACE_S} 2>/dev/null || ulimit -S -t {cpu_s}; }}")
    if "memory_bytes" in limits:
        steps.append(f"ulimit -v {max(1, limits['memory_bytes'] // 1024)}")
    if "processes" in limits:
        # dash and busybox say -p and know no -u; for bash, and so for macOS, -p is the size of a pipe.
        steps.append(f"{{ ulimit -u {limits['processes']} 2>/dev/null || ulimit -p {limits['processes']}; }}")
    if "open_files" in limits:
        steps.append(f"ulimit -n {limits['open_files']}")
    return steps
