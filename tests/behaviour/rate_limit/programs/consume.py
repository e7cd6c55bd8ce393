"""Spend from a rate, so many times, once told to begin; then tell how often it was allowed."""

import json
import sys

from lockstead import DistributedLock

path, limit, times = sys.argv[1:]
with DistributedLock(f"sqlite:///{path}") as locks:
    limiter = locks.rate_limiter("mail", int(limit), 3600)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    allowed = sum(limiter.try_acquire().allowed for _ in range(int(times)))
    print(json.dumps({"allowed": allowed}), flush=True)
