"""Money moves between accounts in both directions at once: each transfer locks both accounts, without deadlocks.

Run it: python examples/multi_lock.py
"""

from __future__ import annotations

import asyncio

from lockstead import AsyncDistributedLock

balances = {"ann": 100, "bob": 100, "eve": 100}


async def main() -> None:
    async with AsyncDistributedLock("memory://multi-lock") as locks:

        @locks.multi_lock(["account:{source}", "account:{target}"], timeout=30)
        async def transfer(source: str, target: str, amount: int) -> None:
            before = balances[source], balances[target]
            await asyncio.sleep(0)  # another transfer would read the same balances here
            balances[source], balances[target] = before[0] - amount, before[1] + amount

        pairs = [("ann", "bob"), ("bob", "ann"), ("bob", "eve"), ("eve", "ann")] * 25
        await asyncio.gather(*(transfer(source, target, 1) for source, target in pairs))
    print(f"{len(pairs)} transfers: {balances}")
    assert sum(balances.values()) == 300


if __name__ == "__main__":
    asyncio.run(main())
