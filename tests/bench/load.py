"""Callers of a daemon's socket, many at once: each submits a task and waits for its settled end."""

from __future__ import annotations

import asyncio
import json
import time


async def _caller(socket: str, left: list[int], latencies: list[float], params: dict[str, object]) -> None:
    reader, writer = await asyncio.open_unix_connection(socket, limit=1 << 24)
    writer.write(b'{"jsonrpc":"2.0","id":0,"method":"hello","params":{"protocol":1}}\n')
    await reader.readline()
    while left[0] > 0:
        left[0] -= 1
        number = left[0]
        body = {"wait": True, "prompt": f"{time.time_ns()} {number}", **params}
        start = time.perf_counter()
        request = {"jsonrpc": "2.0", "id": number, "method": "task.delegate", "params": body}
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
        latencies.append(time.perf_counter() - start)
        if b'"status":"completed"' not in line:
            raise RuntimeError(line.decode())
    writer.close()


def callers(socket: str, tasks: int, at_once: int, **params: object) -> tuple[float, list[float]]:
    """Tasks a second, and each one's time from request to settled output in seconds."""

    async def run() -> tuple[float, list[float]]:
        left, latencies = [tasks], []
        start = time.perf_counter()
        await asyncio.gather(*(_caller(socket, left, latencies, params) for _ in range(at_once)))
        return tasks / (time.perf_counter() - start), latencies

    return asyncio.run(run())
