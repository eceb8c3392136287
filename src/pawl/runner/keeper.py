"""The keeper: the process that is the parent of all workers of one daemon, and outlives it for their sake.

It takes orders over a socket pair, starts workers, writes their exit records and reports both. When the daemon
is gone (end of file) it takes no more orders, waits for the workers it has, writes their records, and ends when it
has no child left: as long as anything descends from it, that is known to be work of its home. Nobody
talks to a keeper whose daemon is gone: the next daemon starts its own, and adopts the old workers by their identity,
their mark and their record. So the protocol never meets another version of itself.

    -> {"op": "launch", "task", "argv", "env", "cwd", "spool", "stdin", "limits", "wrapper"}
    <- {"op": "ready", "pid", "start", "boot_id"}                once, first
    <- {"op": "launched", "task", "pid", "start", "boot_id"}     one answer for each order, in their order
    <- {"op": "refused", "task", "code", "message", "errno"}
    <- {"op": "exited", "task", "record", "leftovers"}           once for each worker

Orphans come to it. Those that bear the id of a task are ended with that task, by the daemon. A stray bears none, or a
false one: it is ended here, once no worker lives that could have made it, which is to say that all are younger.

One thread, one loop. It must never die of a bug in the handling of one task: all others would lose their parent.
It runs in a bare interpreter (``-I -S``) and imports everything at its start: an upgrade may replace the files
under it. Its own environment is nearly empty, so that it is neither found as part of a task nor a place to read
the daemon's secrets from.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time

from pawl.runner import kernel, reap, spawn
from pawl.runner.spawn import Order, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Few, so that answers go out while the next orders are carried out: with eight in flight and all of them in one turn,
# keeper and daemon take turns at being idle, which costs a fifth of the rate.
_ORDERS_A_TURN = 4
_ENDS_A_TURN = 256
_READ_BYTES = 262_144
_RETRY_MS = 500
_DAEMONS_TURN_S = 10.0  # beyond the grace: how long a daemon has to end what it knows by its id
# The first process of a sandbox ends a moment after the worker, which reports for it: no reason to search.
_SANDBOX_END_S = 0.05
_LOOK_MS = 2
# What the system may take back: full, out of something, or a file system that comes back writable.
_PASSING = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
}  # fmt: skip


class Worker:
    """A living child that was launched by order."""

    __slots__ = ("pid", "record", "sandboxed", "spool", "start", "task", "until")

    def __init__(self, task: str, spool: str, pid: int, start: str, sandboxed: bool) -> None:
        self.sandboxed = sandboxed
        self.until = 0.0  # monotonic seconds; what lives on of it until then is no leftover yet
        self.task = task
        self.spool = spool
        self.pid = pid
        self.start = start
        self.record: dict[str, object] = {}


class Keeper:
    """The loop and what it knows. ``link`` is the descriptor of a non-blocking socket."""

    def __init__(self, link: int, kill_grace_s: float) -> None:
        self.link = link  # -1 when the daemon is gone
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.clogged = False  # whether we wait for the link to take more
        self.workers: dict[int, Worker] = {}
        self.ended: list[Worker] = []  # recorded and reaped, not reported yet
        self.stuck: set[int] = set()  # zombies whose record could not be written yet
        self.unmarked: set[int] = set()  # workers whose mark could not be filled yet
        self.more_ends = False
        self.strays = Strays(kill_grace_s)
        self.identity = (os.getpid(), kernel.start_of(os.getpid()), kernel.boot_id())
        self.wakeup = _wake_on_signals()
        self.poll = select.poll()
        self.poll.register(self.link, select.POLLIN)
        self.poll.register(self.wakeup, select.POLLIN)

    def run(self) -> None:
        """Work until the daemon is gone and the last child has ended."""
        pid, start, boot = self.identity
        self.tell({"op": "ready", "pid": pid, "start": start, "boot_id": boot})
        self.send()
        while self.link >= 0 or self.workers or kernel.own_thread_children():
            try:
                self.turn()
            except Exception:
                _complain_of_bug()
                time.sleep(0.1)  # a bug that stays must not eat a processor

    def turn(self) -> None:
        """One round of the loop."""
        self.sleep()
        self.take_orders()
        self.collect_ends()
        self.fill_marks()
        self.strays.end(time.monotonic())
        self.send()

    def sleep(self) -> None:
        """Until something happens; shortly, while something has to be tried again."""
        timeout = _RETRY_MS if self.stuck or self.unmarked or self.strays.doomed else None
        if self.ended:
            timeout = _LOOK_MS
        if self.more_ends or b"\n" in self.inbox:
            timeout = 0
        ready = [descriptor for descriptor, _ in self.poll.poll(timeout)]
        if self.wakeup in ready:
            os.read(self.wakeup, 4096)
        if self.link in ready:
            self.receive()

    # --- the link ---------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Read what has come. The end of the link ends the orders that were not begun, too."""
        data = b"?"
        while data:
            try:
                data = os.read(self.link, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.inbox += data
        self.let_go()

    def let_go(self) -> None:
        """The daemon is gone: nobody to answer, nobody to take orders from."""
        self.poll.unregister(self.link)
        os.close(self.link)
        self.link = -1
        self.inbox.clear()
        self.outbox.clear()

    def tell(self, message: dict[str, object]) -> None:
        if self.link >= 0:
            self.outbox += json.dumps(message).encode() + b"\n"

    def send(self) -> None:
        """Send what the link takes, and keep the rest: a daemon that does not read never blocks its keeper."""
        if self.link < 0 or not self.outbox:
            return
        try:
            del self.outbox[: os.write(self.link, self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            return self.let_go()
        if self.clogged != bool(self.outbox):
            self.clogged = bool(self.outbox)
            self.poll.modify(self.link, select.POLLIN | select.POLLOUT if self.clogged else select.POLLIN)

    # --- launching --------------------------------------------------------------------------------------------

    def take_orders(self) -> None:
        for _ in range(_ORDERS_A_TURN):
            end = self.inbox.find(b"\n")
            if end < 0:
                return
            line = bytes(self.inbox[:end])
            del self.inbox[: end + 1]
            self.tell(self.launch(line))

    def launch(self, line: bytes) -> dict[str, object]:
        """Carry one order out: the answer to it."""
        task = ""
        try:
            order = Order(json.loads(line))
            task = order.task
            pid, start, marked = spawn.spawn(order, self.identity)
        except Refused as refused:
            return _refused(task, refused.code, refused.message, refused.number)
        except Exception as error:
            _complain_of_bug()
            return _refused(task, "launch_failed", f"cannot launch: {type(error).__name__}: {error}", None)
        self.workers[pid] = Worker(task, order.spool, pid, start, bool(order.wrapper))
        if not marked:
            self.unmarked.add(pid)
        return {"op": "launched", "task": task, "pid": pid, "start": start, "boot_id": self.identity[2]}

    def fill_marks(self) -> None:
        """Try again to name workers in their marks: the disk was full."""
        for pid in list(self.unmarked):
            worker = self.workers.get(pid)
            if worker is None or spawn.fill_mark(worker.spool, (pid, worker.start, self.identity[2])):
                self.unmarked.discard(pid)

    # --- ends -------------------------------------------------------------------------------------------------

    def collect_ends(self) -> None:
        """Write the record of each worker that ended, let its PID go, and report it."""
        reaped = False
        for end in self.ends():
            worker = self.workers.get(end.pid)
            if worker is None:
                end.reap()  # an orphan that some worker left behind
                self.strays.forget(end.pid)
                reaped = True
            else:
                self.put_record(worker, end)
        if self.ended:
            self.report()
        elif reaped:
            self.look_for_strays(kernel.own_thread_children() or [])  # its children are ours now

    def ends(self) -> Iterator[reap.End]:
        """Children that have ended, not more than fit one turn. The caller reaps each, or leaves it in ``stuck``."""
        self.more_ends = False
        for _ in range(_ENDS_A_TURN):
            end = _end_of(0)
            if end is None:
                return
            if end.pid in self.stuck:
                break  # as long as it stays, it hides the others: ask for each of them
            yield end
        else:
            self.more_ends = True
            return
        for pid in kernel.own_thread_children() or list(self.workers):
            if (end := _end_of(pid)) is not None:
                yield end

    def put_record(self, worker: Worker, end: reap.End) -> None:
        """Put the record in place, then reap; or leave the zombie for another try."""
        record = reap.record_of(end, worker.task, worker.start, worker.spool)
        try:
            reap.write_record(worker.spool, record)
        except OSError as error:
            if worker.pid not in self.stuck:
                _complain(f"cannot write the exit record of task {worker.task}: {error.strerror}")
            if error.errno in _PASSING and not end.reaped:
                self.stuck.add(worker.pid)
                return
            # The worker has put something in the way, or the system cannot tell an end without reaping: trying
            # again would help nobody, and the report is all that is left of this end.
        end.reap()
        self.stuck.discard(worker.pid)
        del self.workers[worker.pid]
        worker.record = record
        if worker.sandboxed:
            worker.until = time.monotonic() + _SANDBOX_END_S
        self.ended.append(worker)

    def report(self) -> None:
        """Tell the daemon, once the zombies are reaped: they would pass for members of their group."""
        children = kernel.own_thread_children()
        strays = self.look_for_strays(children or [])
        for worker in list(self.ended):
            if children is None:
                left = _group_lives(worker.pid)
            else:  # whatever it left has come to us, itself or with its parents: without strays there is nothing
                left = bool(strays) and (_group_lives(worker.pid) or any(_is_of(pid, worker) for pid in strays))
            if left and time.monotonic() < worker.until:
                continue
            self.tell({"op": "exited", "task": worker.task, "record": worker.record, "leftovers": left})
            self.ended.remove(worker)

    def look_for_strays(self, children: list[int]) -> list[int]:
        """The orphans among our children. Dooms those that no living worker can have made."""
        orphans = [pid for pid in children if pid not in self.workers]
        if orphans:
            tasks = {worker.task for worker in self.workers.values()}
            oldest = min((int(worker.start) for worker in self.workers.values() if worker.start), default=None)
            self.strays.look(orphans, tasks, oldest, time.monotonic())
        return orphans


class Strays:
    """Orphans that are of no living task, and when each is ended: TERM, the grace, KILL. Clock: monotonic, seconds."""

    def __init__(self, kill_grace_s: float) -> None:
        self.kill_grace_s = kill_grace_s
        self.doomed: dict[int, list[tuple[float, int]]] = {}  # what each is still to be sent, and when

    def look(self, orphans: list[int], tasks: set[str], oldest: int | None, now_s: float) -> None:
        """Doom those that are older than the oldest worker, whose start is ``oldest``; all where there is none.

        One that bears the id of a task which has ended is the daemon's to end, and gets the time for that first.
        """
        for pid in orphans:
            if pid in self.doomed:
                continue
            start = kernel.start_of(pid)
            if not start or (oldest is not None and int(start) >= oldest):
                continue
            named = os.fsdecode(kernel.value_of(pid, b"PAWL_TASK_ID"))
            if named not in tasks:
                due_s = now_s + (self.kill_grace_s + _DAEMONS_TURN_S if named else 0)
                self.doomed[pid] = [(due_s, signal.SIGTERM), (due_s + self.kill_grace_s, signal.SIGKILL)]

    def end(self, now_s: float) -> None:
        """Send what is due. No PID can change hands: it is our child, and reaped by nobody else."""
        for pid, due in self.doomed.items():
            while due and due[0][0] <= now_s:
                with contextlib.suppress(OSError):
                    os.kill(pid, due.pop(0)[1])

    def forget(self, pid: int) -> None:
        """It has ended and was reaped."""
        self.doomed.pop(pid, None)


def _end_of(pid: int) -> reap.End | None:
    try:
        return reap.next_end(pid)
    except ChildProcessError:
        return None


def _refused(task: str, code: str, message: str, number: int | None) -> dict[str, object]:
    return {"op": "refused", "task": task, "code": code, "message": message, "errno": number}


def _is_of(pid: int, worker: Worker) -> bool:
    """Whether a stray is of this worker's task: by its session, or by the task's id in its environment."""
    try:
        return os.getsid(pid) == worker.pid or kernel.carries(pid, b"PAWL_TASK_ID", os.fsencode(worker.task))
    except OSError:
        return False


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and another user's
    return True


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, os.fsencode(text) + b"\n")


def _complain_of_bug() -> None:
    with contextlib.suppress(Exception):  # a log that cannot be written is no reason to die
        sys.excepthook(*sys.exc_info())


def _wake_on_signals() -> int:
    """A descriptor that becomes readable when a child ends.

    TERM, INT and HUP are meant for the daemon or the terminal, not for the parent of work that goes on. They get an
    empty handler, not SIG_IGN, which the workers would inherit.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def main() -> None:
    """Entry of the process: its standard input is the link, its standard error a log."""
    link = os.dup(0)  # the copy is close-on-exec, and not one of 0, 1, 2
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    os.set_blocking(link, False)
    os.chdir("/")
    kernel.set_name(b"pawl-keeper")
    kernel.become_subreaper()
    Keeper(link, int(sys.argv[3]) / 1000).run()
