"""What one task may take of what all share: connections, and room in an answer."""

from __future__ import annotations

import json
import sys

from harness.daemon import CONFIG, Daemon, until
from harness.fixtures import Ran

_CROWD = """
import json, os, socket, sys
path, out = os.environ["PAWL_SOCKET"], os.environ["OUT"]
hello = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "hello", "params": {"protocol": 1}}).encode()
held, codes = [], []
for _ in range(int(sys.argv[1])):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.sendall(hello + b"\\n")
    answer = json.loads(client.makefile("rb").readline())
    codes.append(answer["error"]["data"] if "error" in answer else "taken")
    held.append(client)
open(out, "w").write(json.dumps(codes) + "\\n")
open(out + ".go").readline()
"""
_CROWDS = CONFIG + f"[agents.crowd]\ncommand = {json.dumps([sys.executable, '-c', _CROWD, '200'])}\n"


def test_one_task_cannot_take_every_connection(daemon: Daemon, ran: Ran) -> None:
    """It has so many and no more, is told so in words that a program can act on, and the operator gets through."""
    daemon.configure(_CROWDS)
    daemon.start()
    task = daemon.delegate("crowd", "", env=ran.env)["id"]
    until(lambda: ran.lines, "it never connected")
    codes = json.loads(ran.lines[0])

    assert codes[:64] == ["taken"] * 64
    assert {(each["code"], each["exit"], each["retryable"]) for each in codes[64:]} == {
        ("too_many_connections", 5, True)
    }
    assert codes[64]["details"] == {"limit": 64, "task": task}
    assert daemon.pawl("list").returncode == 0
    ran.go()
    assert daemon.wait_one(task)["status"] == "completed"
