"""Process tasks (``true``) beside ``tsp``, which keeps nothing, and beside bare ``posix_spawn``."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import deque

from load import callers
from measure import Report

from harness.daemon import Daemon
from pawl.home import Home

TRUE = shutil.which("true") or "/bin/true"
SLOTS = (1, 2, 8)


def run(report: Report, folder: str) -> None:
    for slots in SLOTS:
        report.add(f"posix_spawn, {slots} at once", _spawn(400, slots), "processes/s")
        if shutil.which("tsp"):
            report.add(f"tsp, {slots} slots", _tsp(150, slots, folder), "jobs/s")
        report.add(f"pawl true, {slots} slots", _ours(400, slots, folder), "tasks/s")
        report.ratio(f"pawl true, {slots} slots", f"tsp, {slots} slots", "1" if slots == 8 else "")
        report.ratio(f"pawl true, {slots} slots", f"posix_spawn, {slots} at once")


def _ours(tasks: int, slots: int, folder: str) -> float:
    config = f'[daemon]\nmax_concurrent = {slots}\n[agents.true]\ncommand = ["{TRUE}"]\n'
    daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)), config)
    daemon.start()
    try:
        return callers(daemon.home.socket, tasks, 1 if slots == 1 else slots * 4, agent="true")[0]
    finally:
        daemon.close()


def _spawn(count: int, at_once: int) -> float:
    """As a runner would: a session of its own, input and output redirected."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    running: deque[int] = deque()
    start = time.perf_counter()
    for _ in range(count):
        if len(running) >= at_once:
            os.waitpid(running.popleft(), 0)
        running.append(os.posix_spawn(TRUE, [TRUE], os.environ, setsid=True, file_actions=actions))
    while running:
        os.waitpid(running.popleft(), 0)
    return count / (time.perf_counter() - start)


def _tsp(count: int, slots: int, folder: str) -> float:
    """Submitted one after another by its own client, until the last has ended. Its server is ours to end."""
    place = tempfile.mkdtemp(dir=folder)
    env = os.environ | {"TS_SOCKET": os.path.join(place, "ts"), "TS_MAXFINISHED": "10", "TMPDIR": place}
    subprocess.run(["tsp", "-S", str(slots)], env=env, check=True)
    try:
        start = time.perf_counter()
        for _ in range(count):
            subprocess.run(["tsp", "-n", TRUE], env=env, stdout=subprocess.DEVNULL, check=True)
        while True:
            listed = subprocess.run(["tsp"], env=env, capture_output=True, text=True, check=True).stdout
            if "queued" not in listed and "running" not in listed.split("\n", 1)[-1]:
                return count / (time.perf_counter() - start)
    finally:
        subprocess.run(["tsp", "-K"], env=env, check=False)
