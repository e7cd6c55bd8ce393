"""Several web workers receive the same request at once; one does the work, the others answer that it is being done.

Run it: python examples/web_workers.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from lockstead import DistributedLock

locks = DistributedLock("memory://")
all_have_asked = Barrier(4)


def handle_request(worker: int) -> str:
    handle = locks.try_acquire("report:2026-11:build", metadata={"worker": worker})
    all_have_asked.wait()
    if handle is None:
        return f"worker {worker}: another worker builds it"
    with handle:
        return f"worker {worker}: built it under fence {handle.fence}"


with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(handle_request, range(4)))
print(*answers, sep="\n")
assert sum("built it" in answer for answer in answers) == 1
