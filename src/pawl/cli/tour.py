"""The tour of ``pawl demo``: a throw-away home, a daemon, work, a cancellation, a crash; every claim is
checked.

It calls what the commands call. Whatever happens, the daemon it started is stopped, the work it started is
ended and the home is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

from pawl.cli import daemon_process, output
from pawl.cli.call import Call
from pawl.cli.client import Client
from pawl.cli.commands.tasks import rows, why
from pawl.errors import PawlError
from pawl.home import Home

_PATIENCE_S = 20.0  # longer than anything here takes on a slow machine
_LOOK_S = 0.05
_PAUSE_S = 0.7  # between the steps, on a terminal: time to read

_CONFIG = """[daemon]
kill_grace = "2s"

[agents.sh]
description = "A shell: its prompt is a script."
command = ["sh"]
"""
_COUNT = 'for i in 1 2 3 4 5; do echo "counting: $i"; sleep 0.3; done'
_COUNTED = b"".join(b"counting: %d\n" % number for number in range(1, 6))
# A child and an orphan, so that there is something to miss when it is ended.
_STUBBORN = 'echo "$$"; sleep 300 & echo "$!"; (sleep 300 & echo "$!"); wait'
_LONG = 'for i in 1 2 3 4 5 6 7 8; do echo "chapter $i"; sleep 0.5; done'
_WRITTEN = b"".join(b"chapter %d\n" % number for number in range(1, 9))


class Wrong(Exception):
    """Something is not as the tour says it is."""


class Tour:
    """One tour. ``json``: no narration, one document at the end."""

    def __init__(self, *, json: bool) -> None:
        self.home = Home(tempfile.mkdtemp(prefix="pawl-demo-"))
        self.call = Call(self.home, json=json)
        self.json = json
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.steps: list[dict[str, Any]] = []

    def run(self) -> int:
        """The exit status: 0 if everything was as claimed."""
        began = time.monotonic()
        self.say(f"A short tour. Everything happens in {self.home.path}, which is thrown away at the end.")
        try:
            ok = all(self.step(number, name) for number, name in enumerate(_STEPS, 1))
        finally:
            ending = time.monotonic()
            left = self.clean_up()
        ok = self.note_step("clean_up", not left, left or "the daemon is stopped, the home is removed", ending) and ok
        self.end(ok, time.monotonic() - began)
        return 0 if ok else 1

    def step(self, number: int, name: str) -> bool:
        title, act = _STEPS[name]
        self.say(f"\n{number}. {title}")
        started = time.monotonic()
        try:
            message = act(self)
        except (Wrong, PawlError, OSError) as error:
            return self.note_step(name, False, str(error), started)
        if self.call.screen.terminal and not self.json:
            time.sleep(_PAUSE_S)
        return self.note_step(name, True, message, started)

    def note_step(self, name: str, ok: bool, message: str, started: float) -> bool:
        took_s = round(time.monotonic() - started, 3)
        self.steps.append({"step": name, "ok": ok, "message": message, "took_s": took_s})
        if not ok:
            self.say(f"   This is not as it should be: {message}")
        return ok

    # --- the steps ------------------------------------------------------------------------------------------

    def daemon(self) -> str:
        with open(self.home.config, "w", encoding="utf-8") as file:
            file.write(_CONFIG)
        self.show("pawl daemon start")
        daemon = self.start_daemon()
        self.say(f"   It runs with pid {daemon['pid']} and waits for work; it costs nothing while it waits.")
        return f"the daemon runs with pid {daemon['pid']}"

    def hello(self) -> str:
        self.show('pawl delegate echo "hello" --wait')
        task = self.delegate("echo", "hello")
        ended = self.ended(task["id"])
        self.claim(ended["status"] == "completed", f"the task {ended['status']}: {why(ended)}")
        self.expect(self.result(task["id"]), b"hello")
        self.say("   hello")
        self.say(f"   That was task {task['id']}: stored on disk before it began.")
        return "echo answered with its prompt"

    def work(self) -> str:
        self.show("pawl delegate sh 'for i in 1 2 3 4 5; do ...'", "pawl logs -f ...")
        task = self.delegate("sh", _COUNT)
        self.follow(task["id"])
        ended = self.ended(task["id"])
        self.claim(ended["status"] == "completed", f"the task {ended['status']}: {why(ended)}")
        self.expect(self.result(task["id"]), _COUNTED)
        self.say("   Any program that reads a prompt and prints a result can be an agent; this one is a shell.")
        return "a shell counted to five"

    def cancel(self) -> str:
        self.show("pawl delegate sh 'sleep 300 & (sleep 300 &) ...'", "pawl cancel ...")
        task = self.delegate("sh", _STUBBORN)
        pids = [int(line) for line in self.output_of(task["id"], lines=3).split()]
        self.claim(all(map(daemon_process.alive, pids)), "its processes did not run")
        ended = self.client().call("task.cancel", ids=[task["id"]], reason="shown in the demo")[0]
        self.claim(ended["status"] == "cancelled", f"the task is {ended['status']}")
        left = [pid for pid in pids if daemon_process.alive(pid)]
        self.claim(not left, f"processes were left behind: {left}")
        self.say(f"   It had started processes {', '.join(map(str, pids))}, one of them cut loose. All are gone.")
        return f"cancelled, and its {len(pids)} processes are gone"

    def crash(self) -> str:
        self.show("pawl delegate sh 'for i in 1 2 ... 8; do ...'")
        task = self.delegate("sh", _LONG)
        seen = self.output_of(task["id"], lines=2)
        self.quote(seen)
        worker = self.client().call("task.get", id=task["id"])["worker"]
        first = self.daemons[-1]
        self.show(f"kill -9 {first.pid}          # the daemon, in the middle of it")
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.claim(daemon_process.alive(worker["pid"]), "the work died with the daemon")
        self.say(f"   The daemon is dead. The program (pid {worker['pid']}) has not noticed and works on.")
        self.show("pawl daemon start")
        daemon = self.start_daemon()
        now = self.client().call("task.get", id=task["id"])
        self.claim(now["worker"] == worker, f"another process does the work now: {now['worker']}")
        self.say(f"   The new daemon, pid {daemon['pid']}, found it and took it over:")
        self.follow(task["id"], skip=seen.count(b"\n"))
        ended = self.ended(task["id"])
        self.claim(ended["status"] == "completed", f"the task {ended['status']}: {why(ended)}")
        self.expect(self.result(task["id"]), _WRITTEN)
        self.say("   All eight chapters, each of them once, and the task is completed.")
        return "the work outlived its daemon, with all its output"

    def look(self) -> str:
        self.show("pawl list")
        tasks = self.client().call("task.list")
        found = sorted(task["status"] for task in tasks)
        self.claim(found == ["cancelled", "completed", "completed", "completed"], f"the list says {found}")
        if not self.json:
            output.lines([f"   {line}" for line in rows(self.call, tasks)])
        return f"{len(tasks)} tasks, each with the status it should have"

    # --- what the steps are made of -------------------------------------------------------------------------

    def start_daemon(self) -> dict[str, Any]:
        process, daemon = daemon_process.start(self.home)
        self.daemons.append(process)
        return daemon

    def client(self) -> Client:
        return Client(self.home, patience_s=_PATIENCE_S)

    def delegate(self, agent: str, prompt: str) -> dict[str, Any]:
        return dict(self.client().call("task.delegate", agent=agent, prompt=prompt, source={"type": "demo"}))

    def ended(self, task_id: str) -> dict[str, Any]:
        answer = self.client().call("task.wait", ids=[task_id], timeout_s=_PATIENCE_S)
        self.claim(bool(answer["completed"]), f"task {task_id} has not ended after {_PATIENCE_S:g} s")
        return dict(answer["completed"][0])

    def result(self, task_id: str) -> bytes:
        return b"".join(self.client().stream("task.result", id=task_id))

    def follow(self, task_id: str, *, skip: int = 0) -> None:
        """Show the task's output as it comes, until it ends; without the first lines, which were shown before."""
        rest = b""
        for piece in self.client().stream("task.logs", id=task_id, stream="stdout", follow=True):
            *whole, rest = (rest + piece).split(b"\n")
            skipped = min(skip, len(whole))
            skip -= skipped
            self.quote(b"".join(line + b"\n" for line in whole[skipped:]))

    def quote(self, output: bytes) -> None:
        """What a program printed, marked as such."""
        for line in output.decode(errors="replace").splitlines():
            self.say(f"   | {line}")

    def output_of(self, task_id: str, *, lines: int) -> bytes:
        """The task's output, as soon as there are so many lines of it."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            data = b"".join(self.client().stream("task.logs", id=task_id, stream="stdout"))
            if data.count(b"\n") >= lines:
                return data
            time.sleep(_LOOK_S)
        raise Wrong(f"task {task_id} printed nothing for {_PATIENCE_S:g} s")

    def claim(self, true: bool, otherwise: str) -> None:
        if not true:
            raise Wrong(otherwise)

    def expect(self, found: bytes, wanted: bytes) -> None:
        self.claim(found == wanted, f"the output is {found!r} and should be {wanted!r}")

    def say(self, text: str) -> None:
        if not self.json:
            output.line(text)

    def show(self, *commands: str) -> None:
        for command in commands:
            self.say(f"   $ {command}")

    # --- the end --------------------------------------------------------------------------------------------

    def clean_up(self) -> str:
        """Stop the daemon, end the work, remove the home. What could not be done, or nothing."""
        wrong = ""
        try:
            if daemon_process.running(self.home) is not None:
                daemon_process.stop(self.home, cancel=True)
        except PawlError as error:
            wrong = error.message
        for process in self.daemons:
            if process.poll() is None:
                try:
                    process.wait(timeout=daemon_process.STOP_MARGIN_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        shutil.rmtree(self.home.path, ignore_errors=True)
        if os.path.dirname(self.home.socket) != self.home.run:
            shutil.rmtree(os.path.dirname(self.home.socket), ignore_errors=True)
        return wrong or (f"{self.home.path} could not be removed" if os.path.exists(self.home.path) else "")

    def end(self, ok: bool, took_s: float) -> None:
        if self.json:
            output.document({"ok": ok, "took_s": round(took_s, 3), "steps": self.steps})
        elif ok:
            output.lines(["", f"That was all, in {took_s:.0f} seconds; the demo's home is gone again.", *_NEXT])
        else:
            output.lines(["", "The tour ends here: something was not as it should be. `pawl doctor` may know more."])


_STEPS: dict[str, tuple[str, Callable[[Tour], str]]] = {
    "daemon": ("One daemon owns the work.", Tour.daemon),
    "hello": (
        "Work is handed to an agent. The simplest one, echo, answers with what it was asked.",
        Tour.hello,
    ),
    "work": ("Real work is done by real programs, and you can watch.", Tour.work),
    "cancel": ("Cancelled means cancelled: nothing is left running.", Tour.cancel),
    "crash": ("Now the worst case: the daemon dies.", Tour.crash),
    "look": ("Every piece of work has a row, and every row tells the truth.", Tour.look),
}
_NEXT = (
    "",
    "Your turn:",
    "  pawl init                          a home of your own, with a commented config.toml",
    "  pawl daemon start                  (or: pawl daemon install, for every login)",
    '  pawl delegate echo "hello" --wait',
    "  pawl --help                        everything there is",
)
