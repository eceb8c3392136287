"""How a crash is made: what works, how a daemon dies at a failpoint in the middle of it, and what is left."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness import rows
from harness.daemon import Daemon, until
from harness.fixtures import Ran, gate
from pawl.control_plane.model import Task

QUICK = """
[daemon]
max_concurrent = 32
kill_grace = "2s"
shutdown_grace = "1s"
heartbeat_interval = "250ms"

[agents.sh]
command = ["sh", "-c"]
prompt = "argument"
"""


class Work(NamedTuple):
    """A piece of work: what is asked of whom, and what it prints."""

    agent: str
    prompt: str
    output: bytes

    def __str__(self) -> str:
        return "echo" if self.agent == "echo" else "program"


ECHO = Work("echo", "hello\n", b"hello\n")
PROGRAM = Work("sh", 'echo ran >> "$OUT"; echo hello', b"hello\n")
SLOW = Work("sh", f'echo ran >> "$OUT"; echo hello; {gate()}; echo there', b"hello\nthere\n")
SLEEP = Work("sh", 'echo ran >> "$OUT"; echo hello; exec sleep 600', b"hello\n")
FAILING = Work("sh", 'echo ran >> "$OUT"; echo hello; exit 3', b"hello\n")


def submit(daemon: Daemon, work: Work, ran: Ran, **params: Any) -> dict[str, Any] | None:
    """Delegate; None where the daemon died before it could answer."""
    try:
        return daemon.delegate(work.agent, work.prompt, env=ran.env, **params)
    except ConnectionError:
        return None


def crash(daemon: Daemon, point: str, work: Work, ran: Ran, **params: Any) -> Task | None:
    """Let the daemon die of SIGKILL at a failpoint while it does one piece of work: the row that is left, if any."""
    daemon.start(f"{point}=kill")
    submit(daemon, work, ran, **params)
    assert daemon.died() == -9, f"the daemon never came to {point}"
    left = rows.tasks(daemon.home)
    return left[-1] if left else None


def die(daemon: Daemon, point: str, pass_: int) -> None:
    """Start a daemon that dies of SIGKILL at the given pass of a failpoint of its own start."""
    daemon.begin(f"{point}=kill@{pass_}")
    assert daemon.died() == -9, f"the daemon never came to {point}"


def ended(daemon: Daemon, task_id: str) -> Task:
    """Wait for the end of a task, and see that it ended exactly once."""
    daemon.wait_one(task_id)
    task = rows.task(daemon.home, task_id)
    assert rows.ends_of(daemon.home, task_id) == [task.status]
    return task


def recovered(daemon: Daemon, task_id: str) -> Task:
    """Start an ordinary daemon and see a task end."""
    daemon.start()
    return ended(daemon, task_id)


def worker_of(daemon: Daemon, task_id: str) -> int:
    """The PID of a task's worker, once its row knows it: that commit is awaited by nobody."""
    pid: int = until(lambda: rows.task(daemon.home, task_id).worker_pid, "its worker is not recorded")
    return pid


def unowned(task: Task) -> Task:
    """The row of an ended task without what may change: who cleans up after it, and that it is done."""
    return task._replace(
        owner_pid=None, owner_start=None, heartbeat_at_ms=None, heartbeat_mono_ms=None, worker_pid=None,
        worker_start=None, worker_boot=None, cleanup=None, cleanup_report=None,
    )  # fmt: skip
