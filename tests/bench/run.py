"""Runs the benchmarks: ``python tests/bench/run.py [NAME...] [--repeat N] [--json FILE]``."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from measure import Report, machine

NAMES = ("noop", "process", "commands", "recovery", "growth", "schedules")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], default=NAMES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(machine())
    report = Report()
    for _ in range(arguments.repeat):
        for name in arguments.names or NAMES:
            folder = tempfile.mkdtemp(prefix="pb")
            try:
                importlib.import_module(name).run(report, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    report.print()
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
