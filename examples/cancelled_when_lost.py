"""An asyncio job is cancelled when its lock is released by force.

Run it: python examples/cancelled_when_lost.py
"""

from __future__ import annotations

import asyncio

from lockstead import AsyncDistributedLock, LockLostError


async def main() -> None:
    async with AsyncDistributedLock("memory://") as locks, AsyncDistributedLock("memory://") as operator:
        started = asyncio.Event()

        async def job() -> None:
            async with locks.lock("index:rebuild", ttl=1) as handle:
                started.set()
                print("rebuilding under fence", handle.fence)
                await asyncio.sleep(60)
                print("never printed")

        running = asyncio.create_task(job())
        await started.wait()
        released = await operator.force_release("index:rebuild")
        print("released by force; the holder was", released.holder_id if released else "unknown")
        try:
            await running
        except LockLostError as error:
            print("the job was cancelled:", error)
        else:
            raise SystemExit("the job continued without its lock")


asyncio.run(main())
