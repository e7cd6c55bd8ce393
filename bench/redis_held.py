"""What does it cost one process to keep thousands of locks on Redis, and is any of them lost?

The floor is a blocking socket that sends the same script for the same batches, without a client that schedules them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import redis
import redis_lock

from bench._measure import interleave, report
from bench._redis import Wire, options
from bench.held import FLOOR, SHORTEST, SIZES, TASKS, THREADS, TTL, Kept, keep, keep_async, rows_of, targets
from lockstead.core.model import Ask, Renewal
from lockstead.core.timing import BATCH
from lockstead.stores.redis.commands import JOIN, NO_WAKE_UP, RENEW, pack_join, pack_renewals
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of, connections_to

PEER = "python-redis-lock"
PEERS_LOCKS = 1000
"""As many as it can keep: at 5,000 it loses some."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=4.5, help=f"how long they are kept; {PEER}'s twice as long")
    arguments = parser.parse_args()
    sizes, seconds = ((1000,), SHORTEST) if arguments.quick else (SIZES, arguments.seconds)
    with RedisServer(arguments.flavour) as server:
        count = partial(count_connections, server)
        cases: dict[tuple[int, str], Callable[[], list[Kept]]] = {}
        for size in sizes:
            names = [f"bench:{number}" for number in range(size)]
            cases |= {
                (size, FLOOR): partial(renew_directly, server, names),
                (size, THREADS): partial(keep, server.url, names, seconds, count),
                (size, TASKS): partial(keep_async, server.url, names, seconds, count),
            }
        if not arguments.quick:  # it renews too rarely for a quick run
            cases[PEERS_LOCKS, PEER] = partial(keep_by_threads, server, 2 * seconds)
        rows = rows_of(interleave(cases, rounds=1, warm_up=0))
    question = f"Held on {arguments.flavour}, ttl {TTL:g} s, one process"
    report(question, rows, as_json=arguments.json, targets=targets(rows, (THREADS, TASKS)))


def count_connections(server: RedisServer) -> int:
    return len(connections_to(server))


def renew_directly(server: RedisServer, names: Sequence[str]) -> list[Kept]:
    wire = Wire(server.url)
    bucket = b"floor:bucket:0"
    for name in names:
        wire.call(JOIN.pack_in_full(bucket, (name, pack_join(Ask(name, "me", TTL, TTL), NO_WAKE_UP, is_member=False))))
    wire.call(RENEW.pack_in_full(bucket, (b"0",)))
    started = time.process_time()
    renewed = 0
    for start in range(0, len(names), BATCH):
        fields = pack_renewals([Renewal(name, "me", TTL, TTL) for name in names[start : start + BATCH]])
        _, *tickets = wire.call(RENEW.pack(bucket, (b"0", *fields)))
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
