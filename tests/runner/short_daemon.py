"""A daemon that starts a keeper, launches what it is told on standard input, and waits to be killed.

One JSON line in, a list of ``[spool, argv]``; one JSON line out: the keeper and the workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from pawl.runner.launcher import Keeper, LaunchOrder


async def main() -> None:
    keeper = Keeper(on_exit=lambda *_: None, on_lost=lambda: None)
    await keeper.start()
    orders = json.loads(sys.stdin.readline())
    launches = []
    for spool, argv in orders:
        task = os.path.basename(spool)
        env = {"PATH": os.environ["PATH"], "PAWL_TASK_ID": task}
        launches.append(asyncio.ensure_future(keeper.launch(LaunchOrder(task, argv, env, "/", spool))))
    if "--do-not-wait" in sys.argv:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        print(json.dumps([keeper.identity, []]), flush=True)
    else:
        print(json.dumps([keeper.identity, await asyncio.gather(*launches)]), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
