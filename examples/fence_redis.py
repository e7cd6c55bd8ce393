"""A Lua script checks the fence and writes in one step, and refuses the late write of a holder whose lease has expired.

Run it: python examples/fence_redis.py [redis://localhost:6379]
"""

from __future__ import annotations

import sys

import redis

from lockstead import DistributedLock, LockHandle
from lockstead.fencing import CHECK_FENCE_LUA

URL = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379"

# The braces keep both keys in one slot of a Cluster.
FENCE, BALANCE = "{lockstead-example:alice}:fence", "{lockstead-example:alice}:balance"

WRITE = f"""{CHECK_FENCE_LUA}
if not check_fence(KEYS[1], ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""

with redis.Redis.from_url(URL, decode_responses=True) as data, DistributedLock(URL) as locks:
    script = data.register_script(WRITE)

    def write(handle: LockHandle, balance: int) -> bool:
        return bool(script(keys=[FENCE, BALANCE], args=[handle.fence, balance]))

    try:
        # Without renewal the lease expires, as if its holder had been paused; the holder continues without a check.
        paused = locks.acquire("lockstead-example:alice", ttl=0.2, renew=False)
        assert write(paused, 100)
        print("the first holder, fence", paused.fence, "writes 100")
        with locks.lock("lockstead-example:alice", timeout=30) as successor:
            assert write(successor, 50)
            print("its lease expires; the next holder, fence", successor.fence, "writes 50")
            assert not write(paused, 90)
            print("the late write of 90 is refused; the balance is", data.get(BALANCE))
            assert data.get(BALANCE) == "50"
    finally:
        data.delete(FENCE, BALANCE)
