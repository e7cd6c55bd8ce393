"""Call `try_acquire` TIMES times once a line arrives on standard input; print how many were allowed.

Usage: consume PATH LIMIT TIMES.
"""

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
