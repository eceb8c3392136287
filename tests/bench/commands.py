"""The start of the commands that people and scripts call most, beside the bare interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from measure import Report, median_ms

from harness.daemon import Daemon
from pawl.home import Home

BARE = "python -c pass"
COMMANDS = {"status --json": 3, "list --json": 3, "delegate echo hello": 3, "status": 3, "list": 3}


def run(report: Report, folder: str) -> None:
    daemon = Daemon(Home(tempfile.mkdtemp(dir=folder)))
    daemon.start()
    env = os.environ | {"PAWL_HOME": daemon.home.path}
    pawl = os.path.join(os.path.dirname(sys.executable), "pawl")

    def call(*command: str) -> None:
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)

    try:
        call(pawl, "delegate", "echo", "hello", "--wait")
        report.add(BARE, median_ms(25, lambda: call(sys.executable, "-c", "pass")), "ms")
        for command, aim in COMMANDS.items():
            words = command.split()
            report.add(f"pawl {command}", median_ms(25, lambda words=words: call(pawl, *words)), "ms")
            report.ratio(f"pawl {command}", BARE, f"under {aim}")
    finally:
        daemon.close()
