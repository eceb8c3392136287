"""The order in which a settlement reaches the disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ledger import HERE

from pawl.home import Home
from pawl.storage import Database

HELLO_SHA256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
SETTLE_ONE = """
import asyncio, os, sys
from ledger import COMPLETED, HERE, new_task
from pawl.clock import SystemClock
from pawl.control_plane import store
from pawl.control_plane.settlement import Output, Settlement
from pawl.home import Home
from pawl.storage import ArtifactStore, Database, Reader, Writer
from pawl.timers import Timers

async def main():
    home = Home(sys.argv[1])
    database = Database(home.database)
    writer = Writer(database.open_writer(), database.path, SystemClock())
    writer.start()
    reader = Reader(database)
    await reader.start()
    artifacts = ArtifactStore(home.artifacts)
    artifacts.start()
    settlement = Settlement(writer, reader, artifacts, Timers(SystemClock()), HERE)
    task = (await writer.submit(store.submit, new_task(), HERE, 0)).task
    ended = await settlement.settle(task, COMPLETED, Output(data=b"hello\\n"))
    assert ended.won and ended.task.status == "completed", ended
    os._exit(0)  # a close would sync what this is not about

asyncio.run(main())
"""


def steps(trace: str, home: Home) -> list[str]:
    """What was synced and renamed in the home, by name, in the order in which it was done."""
    found = []
    for line in trace.splitlines():
        sync = re.search(rf"f(?:data)?sync\(\d+<{re.escape(home.data)}/(?:artifacts/)?([^>]*)>", line)
        rename = re.search(r"rename\w*\(.*/(\.tmp-)[^/]*\".*/(\w+)\"", line)
        if sync:
            found.append("sync " + re.sub(r"^(\.tmp)-.*", r"\1", sync.group(1)))
        if rename:
            found.append(f"rename to {rename.group(2)}")
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="traces system calls")
def test_each_step_is_on_the_disk_before_the_next(home: Home) -> None:
    """The bytes are synced, then the promise; then the bytes get their name and the directory is synced; and only
    then is the row committed."""
    trace = home.path + "/trace"
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2"
    command = ["strace", "-f", "-y", "-o", trace, "-e", calls, sys.executable, "-B", "-c", SETTLE_ONE, home.path]
    subprocess.run(command, check=True, cwd=Path(__file__).parent)

    found = steps(Path(trace).read_text(), home)

    begin = found.index("sync .tmp")
    assert found[begin:] == [
        "sync .tmp",
        "sync pawl.db-wal",
        f"rename to {HELLO_SHA256}",
        "sync artifacts",
        "sync pawl.db-wal",
    ]
    connection = Database(home.database).open_reader()
    row = connection.execute("SELECT status, output_sha256, owner_pid FROM task").fetchone()
    connection.close()
    assert row == ("completed", HELLO_SHA256, HERE.pid)
