"""Run in the place of ``python -m pawl.daemon`` by the tests of ``daemon start`` and ``stop``.

Its first argument says how it behaves: ``good``, ``refuses``, ``refuses_and_hangs``, ``dies``, ``lingers``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from fake_daemon import Asked, FakeDaemon, hello, overview, task

from pawl.home import Home


def main() -> None:
    behaviour, home = sys.argv[1], Home(sys.argv[3])
    report = os.fdopen(int(sys.argv[5]), "w")
    if behaviour == "dies":
        sys.exit("something terrible happened")
    if behaviour == "refuses":
        error = {
            "code": "config_invalid",
            "message": "config.toml:1: bad",
            "exit": 2,
            "retryable": False,
            "details": {},
        }
        report.write(json.dumps({"error": error}) + "\n")
        report.close()
        sys.exit(2)
    if behaviour == "refuses_and_hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report.write(json.dumps({"error": {"code": "disk_full", "message": "no space", "exit": 1}}) + "\n")
        report.close()
        time.sleep(60)
    stopping = threading.Event()
    about = overview()["daemon"] | {"pid": os.getpid(), "home": home.path, "socket": home.socket}

    def stop(asked: Asked) -> dict[str, object]:
        threading.Timer(0.1, stopping.set).start()
        return {"pid": os.getpid(), "running": [], "queued": 2, "grace_s": 0 if asked.params["wait"] is False else 0.5}

    # The task's worker is whoever started this: alive before and after.
    running = task(status="running", worker={"pid": os.getppid(), "started": "1"})
    FakeDaemon(
        home,
        {
            "hello": hello,
            "daemon.status": lambda asked: overview(daemon=about),
            "daemon.stop": stop,
            "task.list": lambda asked: [running],
        },
    ).start()
    print("a line in the log", flush=True)  # before the answer: whoever has that may look for it
    report.write(json.dumps({"ready": about, "cwd": os.getcwd(), "sid": os.getsid(0)}) + "\n")
    report.close()
    stopping.wait(60)
    os.unlink(home.socket)
    if behaviour == "lingers":
        time.sleep(60)
    os._exit(0)


main()
