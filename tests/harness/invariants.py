"""Reads a home whose daemon is idle or down and says which invariant does not hold.

Which test shows which invariant of the design, beside this checker, which runs at the end of every test of a daemon
(lines are those of ``tests/crash/test_crash_matrix.py``):

| invariant | shown by |
| --- | --- |
| 1 one authority per fact | lines 15, 16, 20; the counters and the audit log against the rows, here |
| 2 durable before it is acknowledged or started | lines 1, 2, 3; ``test_random_kill`` |
| 3 every terminal change is a compare-and-set | lines 21 to 24, 33, 34; ``test_b080_*`` |
| 4 no output before its promise, none without its bytes | lines 9 to 15, 19; ``test_b090_*`` |
| 5 bad evidence is never success | lines 11, 14, 27, 28; ``test_exit_records_that_are_torn_forged_or_contradicted`` |
| 6 uncertain ownership keeps the row | lines 29 to 32, 36; ``test_b066_*`` |
| 7 recovery is idempotent, row by row, repeats no effect | lines 28, 34, 35; ``test_recovery_of_many_rows_*`` |
| 8 a cancel leaves no process behind | line 26; ``test_b069_*``, ``test_b071_*``, ``test_b074_*`` |
| 9 nothing accepted is dropped | lines 2, 17, 20; ``test_retries_go_on_*``, ``test_random_kill`` |
| 10 everything has a bound in time and a driver | lines 6, 19, 28, 36, 37; ``test_b144_*``, ``test_b146_*`` |
| 9, of fires | ``test_crash_cron``, ``test_random_kill_cron``; ``_fires`` and ``_jobs`` here |
| 12 a child's policy, budget and reach are at most its parent's | ``_trees`` and ``_policies`` here; ``tests/policy`` |
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil

from pawl.control_plane.audit import entry_hash
from pawl.control_plane.model import TASK, TERMINAL, Task
from pawl.control_plane.store import RETRIED
from pawl.engines.cron.model import OPEN, Fire, Job, jitter_ms
from pawl.home import Home
from pawl.policy import Policy, beyond
from pawl.runner import kernel
from pawl.storage.database import read_only_uri

_KEPT = 1_000  # fires, of all jobs together: then none was pruned
_SLACK_MS = 5_000  # from the look at the clock to the commit


def broken(home: Home, *, running_allowed: bool = False, pid: int | None = None) -> list[str]:
    """Every broken invariant, in words; an empty list is what a test wants to see.

    ``running_allowed``: whether tasks may still run (their processes are no leftovers then). ``pid``: of the daemon
    that runs or ran last, where that is known.
    """
    connection = sqlite3.connect(read_only_uri(home.database), uri=True)
    try:
        tasks = [Task._make(row) for row in connection.execute("SELECT * FROM task ORDER BY seq")]
        found = [line for task in tasks for line in _task(home, task, running_allowed)]
        found += _intents(connection) + _counts(connection, tasks) + _audit(connection, tasks) + _retries(tasks)
        found += _trees(tasks) + _viewers(connection, tasks) + _policies(connection, tasks)
        found += _fires(connection, tasks, pid) + _jobs(connection)
        if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            found.append("the database is damaged")
    finally:
        connection.close()
    found += _artifacts(home)
    found += _spools(home, {task.id for task in tasks})
    found += _modes(home)
    found += _processes(home, {task.id for task in tasks if not task.ended})
    return found


def processes_of(home: Home) -> dict[int, str]:
    """Living processes of this home's tasks: pid and task id, found by their environment."""
    found = {}
    for pid, environment in _environments():
        if environment.get("PAWL_HOME") == home.path and "PAWL_TASK_ID" in environment:
            found[pid] = environment["PAWL_TASK_ID"]
    return found


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Every living process whose environment can be read; a zombie has none."""
    if not kernel.HAS_PROC:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid, process.environ()
        return
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(OSError):
            text = kernel.read_file(f"/proc/{pid}/environ")
            if b"PAWL_TASK_ID=" in text:
                pairs = (os.fsdecode(item).partition("=") for item in text.split(b"\0"))
                yield pid, {name: value for name, _, value in pairs}


def _task(home: Home, task: Task, running_allowed: bool) -> list[str]:
    found = []
    if not task.ended and not running_allowed:
        found.append(f"{task.id} is {task.status}")
    if task.cleanup == "pending" and not running_allowed:
        found.append(f"{task.id} is {task.status} and its processes are not proven ended")
    if task.status == "completed" and task.output is None:
        found.append(f"{task.id} is completed and has no output")
    for artifact in filter(None, (task.output, task.stderr)):
        path = Path(home.artifacts, artifact.sha256)
        if not path.exists():
            found.append(f"{task.id} is {task.status} and its output {artifact.sha256} is missing")
        elif path.stat().st_size != artifact.size_bytes:
            found.append(f"{task.id} is {task.status} and its output {artifact.sha256} is altered")
    if task.ended and task.cleanup != "pending" and os.path.exists(os.path.join(home.spool, task.id)):
        found.append(f"{task.id} is {task.status} and its spool is still there")
    return found


def _trees(tasks: list[Task]) -> list[str]:
    """Nothing lives below what was cancelled, and no sub-agent without its parent."""
    found = []
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        above = by_id.get(task.parent_id or "")
        if task.ended or above is None:
            continue
        if task.kind == "subagent" and above.ended:
            found.append(f"{task.id} is a sub-agent of {above.id}, which is {above.status}, and lives")
        while above is not None:
            if above.status == "cancelled" and (above.finished_at_ms or 0) > task.created_at_ms:
                found.append(f"{task.id} lives below {above.id}, which was cancelled")
            above = by_id.get(above.parent_id or "")
    return found


def _viewers(connection: sqlite3.Connection, tasks: list[Task]) -> list[str]:
    """The index of who may see a task says what the rows say."""
    stored: dict[int, set[str]] = {}
    for alias, seq in connection.execute("SELECT alias, task_seq FROM task_viewer"):
        stored.setdefault(seq, set()).add(alias)
    by_id = {task.id: task for task in tasks}

    def real(task: Task) -> set[str]:
        parent = by_id.get(task.parent_id or "")
        if task.kind == "subagent" and parent is not None:
            return {parent.agent} | real(parent)
        with contextlib.suppress(ValueError):
            return set() if task.creator in (None, "operator") else {task.creator, *json.loads(task.chain)}
        return stored.get(task.seq, set())

    return [
        f"{task.id} exists for {sorted(stored.get(task.seq, set()))}, by its row for {sorted(real(task))}"
        for task in tasks
        if stored.get(task.seq, set()) != real(task)
    ]


def _policies(connection: sqlite3.Connection, tasks: list[Task]) -> list[str]:
    """Each recorded policy is there under its digest, and a bounded one is at most its parent's."""
    found = []
    policies: dict[str, Policy] = {}
    for sha256, document in connection.execute("SELECT sha256, document FROM policy"):
        if hashlib.sha256(document.encode()).hexdigest() != sha256:
            found.append(f"the policy {sha256} has another digest")
        policies[sha256] = Policy.parse(document)
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        parent = by_id.get(task.parent_id or "")
        if task.mode == "bounded" and parent is not None and task.policy_sha256 and parent.policy_sha256:
            wider = beyond(policies[task.policy_sha256], policies[parent.policy_sha256])
            if wider:
                found.append(f"{task.id} may do more than its parent {parent.id}: {wider}")
    return found


def _intents(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT i.task_id, t.status FROM settlement_intent i JOIN task t ON t.id = i.task_id "
        "WHERE t.status <> 'running'"
    )
    return [f"an intent stands beside {task_id}, which is {status}" for task_id, status in rows]


def _counts(connection: sqlite3.Connection, tasks: list[Task]) -> list[str]:
    stored = {status: count for status, count in connection.execute("SELECT * FROM task_count") if count}
    real: dict[str, int] = {}
    for task in tasks:
        real[task.status] = real.get(task.status, 0) + 1
    return [] if stored == real else [f"the counters say {stored}, the rows {real}"]


def _audit(connection: sqlite3.Connection, tasks: list[Task]) -> list[str]:
    """The chain is whole; each task's changes follow the table, end once, and end where its row is."""
    found = []
    before = "0" * 64
    status: dict[str, str] = {}
    for at, row in enumerate(connection.execute("SELECT * FROM event ORDER BY seq"), 1):
        if row[0] != at or row[-1] != entry_hash(before, row[:-1]):
            return [f"the audit log breaks at {at}"]
        before = row[-1]
        subject, old, new = row[4], row[6], row[7]
        if row[3] == "task" and new is not None:
            if status.get(subject) != old:
                found.append(f"the log moves {subject} from {old}, and it was {status.get(subject)}")
            if old is not None and (old in TERMINAL or not TASK.allows(old, new)):
                found.append(f"the log moves {subject} from {old} to {new}")
            status[subject] = new
    found += [f"{t.id} is {t.status}, the log says {status.get(t.id)}" for t in tasks if status.get(t.id) != t.status]
    return found


def _retries(tasks: list[Task]) -> list[str]:
    """A task that ran and may be tried again has its next attempt, once it is over and done with."""
    retried = {task.retry_of for task in tasks}
    cancelled = {task.id for task in tasks if task.status == "cancelled"}
    return [
        f"{task.id} is {task.status}, has {task.retries_left} retries left and is not tried again"
        for task in tasks
        if task.status in RETRIED
        and task.retries_left
        and task.started_at_ms
        and task.cleanup != "pending"
        and task.id not in retried
        and not _above(task, tasks) & cancelled
    ]


def _fires(connection: sqlite3.Connection, tasks: list[Task], pid: int | None) -> list[str]:
    """A fire that is open has a living task or waits in the daemon; one that has a task ends with it; each instant is
    on record once, and each task of a fire is one's."""
    found = []
    fires = [Fire._make(row) for row in connection.execute("SELECT * FROM cron_fire ORDER BY seq")]
    by_id = {task.id: task for task in tasks}
    follows = {task.retry_of for task in tasks}
    for fire in fires:
        name = f"the fire of {fire.job} at {fire.nominal_at_ms}"
        task = by_id.get(fire.task_id or "")
        if fire.task_id is not None and task is None:
            found.append(f"{name} is {fire.status} and its task is gone")
        elif task is None and fire.status in OPEN and pid not in (None, fire.owner_pid):
            found.append(f"{name} is {fire.status}, and who claimed it ({fire.owner_pid}) is no more")
        elif task is not None and task.id in follows:
            found.append(f"{name} names an attempt that was followed by another")
        elif task is not None and task.ended and fire.status != task.status:
            to_come = task.status in RETRIED and task.retries_left and task.cleanup == "pending"
            if not (to_come and fire.status in OPEN):
                found.append(f"{name} is {fire.status}, and its task {task.id} is {task.status}")
        elif task is not None and not task.ended and fire.status not in OPEN:
            found.append(f"{name} is {fire.status}, and its task {task.id} is {task.status}")
    if len(fires) < _KEPT:  # more are pruned
        known = {each for fire in fires for each in (fire.task_id, fire.check_id)}
        heads = [task for task in tasks if task.kind == "cron" and task.id not in follows]
        found += [f"the task {task.id} ran for no fire" for task in heads if task.id not in known]
    instants: dict[tuple[str, int], int] = {}
    for fire in fires:
        key = (fire.job, fire.nominal_at_ms)
        if not fire.manual:
            instants[key] = instants.get(key, 0) + 1
    spans = [(fire.job, fire.nominal_at_ms, fire.until_at_ms) for fire in fires if fire.until_at_ms is not None]
    for (job, at_ms), times in instants.items():
        inside = [span for span in spans if span[0] == job and span[1] <= at_ms <= span[2]]
        if times > 1 or len(inside) > (1 if any(span[1] == at_ms for span in inside) else 0):
            found.append(f"the fire of {job} at {at_ms} is on record more than once")
    return found


def _jobs(connection: sqlite3.Connection) -> list[str]:
    """A job that fires has a next fire, later than all that it has on record, or earlier and not on record."""
    found = []
    for row in connection.execute("SELECT * FROM cron_job"):
        job = Job._make(row)
        if job.fires != (job.next_at_ms is not None):
            found.append(f"the job {job.name} {'has no' if job.fires else 'does not fire, and has a'} next fire")
        if job.next_at_ms is None:
            continue
        newest = "SELECT recorded_at_ms FROM cron_fire WHERE job = ? AND manual = 0 ORDER BY seq DESC LIMIT 1"
        looked_at_ms = (connection.execute(newest, (job.name,)).fetchone() or (0,))[0]
        if job.next_at_ms + jitter_ms(job.config) < looked_at_ms - _SLACK_MS:
            found.append(f"the next fire of {job.name} ({job.next_at_ms}) was due when it fired last ({looked_at_ms})")
        same = (
            "SELECT 1 FROM cron_fire WHERE job = ? AND manual = 0 "
            "AND ? BETWEEN nominal_at_ms AND coalesce(until_at_ms, nominal_at_ms)"
        )
        if connection.execute(same, (job.name, job.next_at_ms)).fetchone():
            found.append(f"the next fire of {job.name} ({job.next_at_ms}) is on record already")
    return found


def _above(task: Task, tasks: list[Task]) -> set[str]:
    """The ids of all tasks above one."""
    parents = {each.id: each.parent_id for each in tasks}
    found: set[str] = set()
    above = task.parent_id
    while above is not None and above not in found:
        found.add(above)
        above = parents.get(above)
    return found


def _artifacts(home: Home) -> list[str]:
    """No name lies, and nothing half done is left."""
    found = []
    for path in Path(home.artifacts).iterdir():
        if path.name.startswith(".tmp"):
            found.append(f"a temporary file is left: {path.name}")
        elif _sha256(path) != path.name:
            found.append(f"the artifact {path.name} is altered")
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _spools(home: Home, known: set[str]) -> list[str]:
    return [f"the spool {name} belongs to no task" for name in os.listdir(home.spool) if name not in known]


def _modes(home: Home) -> list[str]:
    """Private to the owner, whatever created it."""
    wanted = {home.path: 0o700, home.database: 0o600}
    wanted |= {str(path): 0o600 for path in Path(home.artifacts).iterdir()}
    return [
        f"{path} has mode {mode:o}" for path in wanted if (mode := stat.S_IMODE(os.stat(path).st_mode)) != wanted[path]
    ]


def _processes(home: Home, alive: set[str]) -> list[str]:
    return [f"process {pid} of {task} is left over" for pid, task in processes_of(home).items() if task not in alive]
