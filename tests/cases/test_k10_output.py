"""K10: capturing what programs write."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time

import psutil
from scenes import Marker, config, pawl

from harness.daemon import Daemon, until

MIB = 1024**2
SMALL = """
[policies.small]
max_output = "1000"

[agents.small]
command = ["sh", "-c"]
prompt = "argument"
policy = "small"
"""


def test_b096_a_child_left_behind_does_not_keep_the_task_open(daemon: Daemon, marker: Marker) -> None:
    """B-096: the command ends and leaves a child that holds its output open: the task completes at once, and the
    child is ended.
    """
    daemon.start()
    began = time.monotonic()
    task = daemon.wait_one(daemon.delegate("sh", f"sleep {marker} & echo started")["id"])

    assert time.monotonic() - began < 5
    assert (task["status"], task["exit_code"]) == ("completed", 0)
    assert daemon.result(task["id"]) == b"started\n"
    assert marker.alive() == []
    assert task["leftovers"]["left"] == []
    assert task["leftovers"]["terminated"] >= 1


def test_b098_bytes_that_are_not_utf_8_hurt_nobody(daemon: Daemon) -> None:
    """B-098: they are kept as they are, what follows is kept too, and JSON stays JSON."""
    daemon.start()
    strange = r'printf "caf\351 \377\376 ok\n"'
    long = daemon.wait_one(daemon.delegate("sh", f'{strange}; head -c 300000 /dev/zero | tr "\\0" x; echo end')["id"])
    short = daemon.wait_one(daemon.delegate("sh", strange)["id"])

    assert (long["status"], long["exit_code"]) == ("completed", 0)
    assert daemon.result(long["id"]) == b"caf\xe9 \xff\xfe ok\n" + b"x" * 300000 + b"end\n"
    data = daemon.result(short["id"])
    assert (len(data), hashlib.sha256(data).hexdigest()) == (
        11, "cbe5b4bc0d5fb19b2ebd397eef91220455c91025ef2c45a5526f2ef4a9cc4cd6",
    )  # fmt: skip
    for verb in ("result", "logs"):
        document = pawl(daemon.home, verb, short["id"], "--json").json
        assert "text" not in document
        assert base64.b64decode(document["base64"]) == data
        assert pawl(daemon.home, verb, short["id"]).out == data


def test_b101_a_flood_of_output_ends_itself_and_nothing_else(daemon: Daemon) -> None:
    """B-101: two gigabytes under the default cap. The task ends by itself: `failed` with `output_limit`, marked as
    truncated, with the number of bytes it wrote, and the first 64 MiB of them kept. The daemon grows by less than
    100 MiB, and a small task beside it is not held up.
    """
    daemon.start()
    process = psutil.Process(daemon.pid)
    before, peak, over = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        noisy = daemon.delegate("sh", "yes | head -c 2000000000")["id"]
        until(lambda: len(daemon.get(noisy)["worker"] or ()), "it does not begin")
        began = time.monotonic()
        small = daemon.wait_one(daemon.delegate("sh", "echo small")["id"])
        took = time.monotonic() - began
        task = daemon.wait_one(noisy, timeout_s=60)
        kept = daemon.result(noisy)
    finally:
        over.set()
        watcher.join()

    assert (small["status"], daemon.result(small["id"])) == ("completed", b"small\n")
    assert took < 10
    assert peak - before < 100 * MIB
    assert (task["status"], task["error"]["code"], task["truncated"]) == ("failed", "output_limit", True)
    assert task["output"]["size_bytes"] == len(kept) == 64 * MIB
    assert kept == b"y\n" * (32 * MIB)
    told = _largest(task["error"]["message"])
    total = (task["leftovers"] or {}).get("written_bytes", told)  # without leftovers it ended before it was caught
    assert 64 * MIB < told <= total <= 2_000_000_000


def test_b101_a_program_that_ends_before_it_is_caught_is_over_the_limit_too(daemon: Daemon) -> None:
    """B-101: what it wrote in all is told to the byte, whoever was quicker."""
    daemon.configure(config(more=SMALL))
    daemon.start()
    exact = daemon.wait_one(daemon.delegate("small", "head -c 1000 /dev/zero")["id"])
    over = daemon.wait_one(daemon.delegate("small", "head -c 1001 /dev/zero; echo x >&2")["id"])

    assert (exact["status"], exact["truncated"]) == ("completed", False)
    assert (over["status"], over["error"]["code"], over["truncated"]) == ("failed", "output_limit", True)
    assert "1003 bytes" in over["error"]["message"]
    assert daemon.result(over["id"]) == b"\0" * 1000


def test_b101_a_program_that_would_never_stop_writing_is_stopped(daemon: Daemon) -> None:
    """B-101: nobody has to cancel it, and what it wrote until it was ended is counted."""
    daemon.configure(config(more=SMALL))
    daemon.start()
    task = daemon.wait_one(daemon.delegate("small", "exec yes")["id"])

    assert (task["status"], task["error"]["code"], task["truncated"]) == ("failed", "output_limit", True)
    assert daemon.result(task["id"]) == b"y\n" * 500
    assert task["leftovers"]["written_bytes"] >= _largest(task["error"]["message"]) > 1000


def _largest(message: str) -> int:
    """The largest number that a message tells."""
    words = message.replace(";", " ").replace(":", " ").split()
    return max(int(word) for word in words if word.isdecimal())


def test_b103_output_larger_than_a_pipe_on_both_streams(daemon: Daemon) -> None:
    """B-103: a megabyte to each stream and exit code 3: it ends within seconds and every byte is there."""
    daemon.start()
    prompt = "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; exit 3"

    began = time.monotonic()
    task = daemon.wait_one(daemon.delegate("sh", prompt)["id"])

    assert time.monotonic() - began < 10
    assert (task["status"], task["exit_code"], task["error"]["code"]) == ("failed", 3, "exit_code")
    assert daemon.result(task["id"]) == b"\0" * 1_000_000
    assert daemon.logs(task["id"], "stderr") == b"\0" * 1_000_000
    assert json.loads(json.dumps(task))["stderr"]["size_bytes"] == 1_000_000
