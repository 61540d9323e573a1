"""A worker pool with a limit per tenant: over all processes on all machines, a tenant's database has two connections.

printf '%s\n' 'blue one' 'blue two' 'red one' | SIGNALBOX_URL=http://127.0.0.1:11217 python3 worker_pool.py
"""

import asyncio
import sys
from datetime import timedelta

import signalbox
from signalbox import aio


async def do(client: aio.Client, job: str) -> None:
    tenant, _, task = job.partition(" ")
    try:
        async with client.acquire(f"tenant/{tenant}", maximum=2, wait=timedelta(seconds=30)) as permit:
            # The work is cancelled if the permit is lost.
            await permit.guard(asyncio.sleep(0.01))
            print(f"{task} for {tenant}", flush=True)
    except signalbox.SignalboxError as error:
        print(f"not done: {job}: {error}", file=sys.stderr)


async def main() -> None:
    client = aio.Client()
    await asyncio.gather(*(do(client, line.strip()) for line in sys.stdin))


asyncio.run(main())
