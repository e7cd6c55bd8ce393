"""What does it cost one process to keep thousands of locks on Redis, and is any of them lost?

The floor is a blocking socket that sends the same script for the same batches, without a client that decides on them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import redis
import redis_lock

from bench._measure import interleave, report
from bench._redis import Wire, options
from bench.held import TTL, Kept, keep, keep_async
from leasehold._keeper import BATCH
from leasehold._model import Ask, Renewal
from leasehold.stores.redis._scripts import JOIN, RENEW, pack_join, pack_renewal
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of, connections_to

FLOOR = "floor: a script per batch"
PEER = "python-redis-lock"
PEERS_LOCKS = 1000
"""As many as it is fit for: at 5,000 it loses some."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--locks", default="1000,10000", help=f"how many; {PEER} keeps {PEERS_LOCKS:,}")
    parser.add_argument("--seconds", type=float, default=8.5, help=f"how long: two periods of {PEER} at a ttl of 6 s")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with RedisServer(arguments.flavour) as server:
        count = partial(count_connections, server)
        cases: dict[tuple[int, str], Callable[[], list[Kept]]] = {}
        for size in map(int, arguments.locks.split(",")):
            names = [f"bench:{number}" for number in range(size)]
            cases |= {
                (size, FLOOR): partial(renew_by_hand, server, names),
                (size, "leasehold threads"): partial(keep, server.url, names, arguments.seconds, count),
                (size, "leasehold asyncio"): partial(keep_async, server.url, names, arguments.seconds, count),
            }
        cases[PEERS_LOCKS, PEER] = partial(keep_by_threads, server, arguments.seconds)
        kept = interleave(cases, arguments.rounds, warm_up=0)
    cpu = {case: median(map(Kept.cpu_per_renewal, rounds)) for case, rounds in kept.items()}
    rows = [
        {
            "case": case,
            "locks": size,
            "CPU ms / 1,000 renewals": 1e6 * cpu[size, case],
            "x floor": cpu[size, case] / cpu[size, FLOOR] if (size, FLOOR) in cpu else None,
            "renewals": sum(result.renewals for result in rounds),
            "requests": sum(result.requests for result in rounds),
            "threads or tasks": max(result.helpers for result in rounds),
            "connections": max(result.connections for result in rounds),
            "lost": sum(result.lost for result in rounds),
        }
        for (size, case), rounds in kept.items()
    ]
    report(f"Held on {arguments.flavour}, ttl {TTL:g} s, one process", rows, as_json=arguments.json)


def count_connections(server: RedisServer) -> int:
    return len(connections_to(server))


def renew_by_hand(server: RedisServer, names: Sequence[str]) -> list[Kept]:
    wire = Wire(server.url)
    bucket = b"floor:bucket:0"
    for name in names:
        wire.call(JOIN.pack_in_full(bucket, (name, pack_join(Ask(name, "me", TTL, TTL), b"\0", is_member=False))))
    wire.call(RENEW.pack_in_full(bucket, (0,)))
    started = time.process_time()
    renewed = 0
    for start in range(0, len(names), BATCH):
        fields = [
            field
            for name in names[start : start + BATCH]
            for field in (name, pack_renewal(Renewal(name, "me", TTL, TTL)))
        ]
        _, *tickets = wire.call(RENEW.pack(bucket, (0, *fields)))
        renewed += sum(ticket > 0 for ticket in tickets)
    cpu = time.process_time() - started
    wire.close()
    return [Kept(cpu, len(names), -(-len(names) // BATCH), 0, 1, len(names) - renewed)]


def keep_by_threads(server: RedisServer, seconds: float) -> list[Kept]:
    with redis.Redis.from_url(server.url, max_connections=2 * PEERS_LOCKS) as client:
        locks = [
            redis_lock.Lock(client, f"bench:{number}", expire=int(TTL), auto_renewal=True)
            for number in range(PEERS_LOCKS)
        ]
        for lock in locks:
            lock.acquire()
        with commands_of(server) as calls:
            started = time.process_time()
            time.sleep(seconds)
            cpu = time.process_time() - started
        helpers, connections = threading.active_count() - 1, count_connections(server)
        lost = sum(lock.get_owner_id() != lock.id for lock in locks)
        for lock in locks:
            lock.release()
    return [Kept(cpu, calls["evalsha"], calls["evalsha"], helpers, connections, lost)]


if __name__ == "__main__":
    main()
