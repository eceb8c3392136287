"""``python -m pawl.daemon``: the daemon's process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys

from pawl import log as logging
from pawl.daemon.app import App
from pawl.daemon.notify import notify
from pawl.errors import PawlError, StorageError
from pawl.home import Home

_FILES_WANTED = 4096  # connections and spool files; inherited by workers, so no more than needed


def main() -> None:
    parser = argparse.ArgumentParser(prog="pawl daemon run", description="Run the daemon in the foreground.")
    parser.add_argument("--home")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--report-fd", type=int, help="write one JSON line there once ready, or why not")
    arguments = parser.parse_args()
    logging.configure(arguments.log_level)
    sys.exit(asyncio.run(_run(Home(arguments.home), arguments.report_fd)))


async def _run(home: Home, report_fd: int | None) -> int:
    _allow_files()
    app = App(home)
    try:
        await app.start()
    except (PawlError, OSError) as fault:
        error = fault if isinstance(fault, PawlError) else StorageError(f"cannot start: {fault}")
        body = {**error.as_json(), "exit": error.exit_code}
        _report(report_fd, {"error": json.loads(json.dumps(body, default=str))})
        if report_fd is None:
            sys.stderr.write(f"pawl: {error.message}\n")
        else:
            logging.logger("daemon").error("cannot start", code=error.code, error=error.message)
        return error.exit_code
    _on_signals(app)  # first: whoever is told may send a signal at once
    _report(report_fd, {"ready": app.about()})
    notify("READY=1")
    await app.stopped.wait()
    return 0


def _on_signals(app: App) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: app.begin_stop(cancel=False))
    reloads = set[asyncio.Task[None]]()

    def reload() -> None:
        task = loop.create_task(_reload(app))
        reloads.add(task)  # a task that nobody holds may vanish
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)


async def _reload(app: App) -> None:
    try:
        await app.reload()
    except PawlError as error:
        logging.logger("daemon").error("the old configuration stays", code=error.code, error=error.message)


def _report(descriptor: int | None, message: dict[str, object]) -> None:
    """Tell whoever started us in the background. Nobody may be reading any more."""
    if descriptor is not None:
        with contextlib.suppress(OSError), os.fdopen(descriptor, "w") as channel:
            channel.write(json.dumps(message) + "\n")


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_WANTED:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES_WANTED, hard), hard))


if __name__ == "__main__":
    main()
