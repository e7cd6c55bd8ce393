"""Rate limiting: workers call a service that allows 20 calls a second. Some skip a call, others wait for their turn.

Run it: python examples/rate_limit.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from lockstead import DistributedLock, RateLimitError

locks = DistributedLock("memory://")
service = locks.rate_limiter("service", limit=20, per=1, burst=5)


def call_or_skip(worker: int) -> str:
    decision = service.try_acquire()
    if decision:
        return f"worker {worker}: called, {decision.remaining} left"
    return f"worker {worker}: over the limit, retry in {decision.retry_after:.3f} s"


@locks.rate_limiter("service", limit=20, per=1, burst=5)
def call(worker: int) -> float:
    return monotonic()


with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(call_or_skip, range(8)))
    print(*answers, sep="\n")
    assert sum("called" in answer for answer in answers) >= 5

    began = monotonic()
    took = max(pool.map(call, range(8))) - began
    print(f"8 more calls, each in its turn, took {took:.2f} s")
    assert took > (8 - 5) / 20 - 0.001

try:
    service.acquire(5, timeout=0.01)
except RateLimitError as error:
    print(error)
