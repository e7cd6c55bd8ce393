"""What does an uncontended acquire + release cost on Redis, compared with the peers and the bare commands?

The floor is a blocking socket that sends two plain scripts, packed beforehand, and does not parse their replies. The
same with lockstead's scripts shows the server's part of our time; a thin protocol, the cost of an event loop alone;
five sockets, all written to before any is read, the cost of five nodes.
By default all runs on one CPU, which isolates the client's cost: across networks all ratios shrink.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial

from bench._measure import Target, report
from bench._pairs import (
    LOOPS,
    Contest,
    Timer,
    async_client,
    async_pairs_of,
    client,
    pairs_of,
    time_async_pairs,
    time_pairs,
)
from bench._peers import ASYNC_REDIS, REDIS, async_pottery, pottery, traces_in_redis
from bench._redis import DROP, TAKE, TTL, ThinProtocol, Wire, drop, options, take
from lockstead.core.model import Ask
from lockstead.stores.redis.commands import JOIN, LEAVE, pack_join, sized
from tests.servers.redis import RedisServer

FLOOR = "floor: two plain scripts"
THIN = "floor: thin protocol"
PEER = "redis-py Lock"
OURS = "lockstead redis://"
QUORUM = "lockstead redlock://"
MEMBERS = 5
ONE, FIVE = "1 node", f"{MEMBERS} nodes"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="300, or 20 in a quick run")
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="all on one CPU")
    arguments = parser.parse_args()
    if arguments.pin:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ExitStack() as stack:
        enter = stack.enter_context
        url = enter(RedisServer(arguments.flavour)).url
        # Without persistence there would be a warning.
        members = [enter(RedisServer(arguments.flavour, save="3600 1")) for _ in range(MEMBERS)]
        urls = [member.url for member in members]
        redlock = f"redlock://{','.join(f'{host}:{port}' for host, port in (member.address for member in members))}/0"
        traces = enter(traces_in_redis(url))
        traces_of_members = enter(traces_in_redis(*urls))
        contest = Contest(stack)
        contest.add(("threads", ONE, FLOOR), plain_scripts([url]))
        contest.add(("threads", ONE, "floor: lockstead's scripts"), own_scripts(url))
        for name, peer in REDIS.items():
            contest.add_peer(("threads", ONE, name), pairs_of(peer(url), traces))
        contest.add(("threads", ONE, OURS), client(url))
        contest.add(("threads", FIVE, FLOOR), plain_scripts(urls))
        contest.add_peer(("threads", FIVE, "pottery"), pairs_of(pottery(*urls), traces_of_members))
        contest.add(("threads", FIVE, QUORUM), client(redlock))
        for runtime, loop_factory in LOOPS.items():
            runner = enter(asyncio.Runner(loop_factory=loop_factory))
            contest.add((runtime, ONE, THIN), thin_protocol(url, runner))
            for name, async_peer in ASYNC_REDIS.items():
                contest.add_peer((runtime, ONE, name), async_pairs_of(async_peer(url), runner, traces))
            contest.add((runtime, ONE, OURS), async_client(url, runner))
            contest.add_peer(
                (runtime, FIVE, "pottery"), async_pairs_of(async_pottery(*urls), runner, traces_of_members)
            )
            contest.add((runtime, FIVE, QUORUM), async_client(redlock, runner))
        contest.run(arguments.rounds or (20 if arguments.quick else 300))
    floor = contest.median("threads", ONE, FLOOR)
    rows = [
        {
            "runtime": runtime,
            "nodes": nodes,
            "case": case,
            "µs (p10-p90)": times.scaled(1e6),
            "x floor": times.median / floor,
            f"x {PEER}": times.median / contest.median(runtime, ONE, PEER),
        }
        for (runtime, nodes, case), times in contest.spreads.items()
    ]
    bounds = {
        ("threads", ONE, OURS): 2,
        ("asyncio", ONE, OURS): 4,
        ("uvloop", ONE, OURS): 2,
        **{(runtime, FIVE, QUORUM): 8 for runtime in ("threads", *LOOPS)},
    }
    targets = [
        Target(f"{', '.join(case)}: x floor", contest.median(*case) / floor, most) for case, most in bounds.items()
    ]
    where = "one CPU" if arguments.pin else "all CPUs"
    report(
        f"Uncontended acquire + release on {arguments.flavour}, {where}",
        rows,
        as_json=arguments.json,
        targets=targets,
        broken=contest.broken,
    )


def plain_scripts(urls: Sequence[str]) -> AbstractContextManager[Timer]:
    wires = [Wire(url) for url in urls]
    (taking,) = {take(wire.load(TAKE), "bench:floor") for wire in wires}
    (dropping,) = {drop(wire.load(DROP), "bench:floor") for wire in wires}
    return exchange(wires, taking, dropping)


def own_scripts(url: str) -> AbstractContextManager[Timer]:
    wire = Wire(url)
    ask = Ask("bench", "host:12345:0123456789abcdef/1", TTL, TTL)
    key, wake_up = b"floor:bucket:0", sized(b"floor:0123456789abcdef") + sized(16 * b"s")
    arguments = ask.name, pack_join(ask, wake_up, is_member=False)
    wire.call(JOIN.pack_in_full(key, arguments))
    wire.call(LEAVE.pack_in_full(key, (ask.name, ask.owner)))
    return exchange([wire], JOIN.pack(key, arguments), LEAVE.pack(key, (ask.name, ask.owner)))


@contextmanager
def exchange(wires: Sequence[Wire], join: bytes, leave: bytes) -> Iterator[Timer]:
    assert all(wire.call(join) for wire in wires)
    assert all(wire.call(leave) == 1 for wire in wires)
    senders = [wire.socket.sendall for wire in wires]
    receivers = [wire.socket.recv for wire in wires]

    def pair() -> None:
        for payload in join, leave:
            for send in senders:
                send(payload)
            for receive in receivers:
                receive(4096)

    with ExitStack() as stack:
        for wire in wires:
            stack.enter_context(closing(wire))
        yield partial(time_pairs, pair)


@contextmanager
def thin_protocol(url: str, runner: asyncio.Runner) -> Iterator[Timer]:
    async def prepare() -> tuple[ThinProtocol, bytes, bytes]:
        protocol = await ThinProtocol.connect(url)
        taking = take(await protocol.load(TAKE), "bench:thin")
        dropping = drop(await protocol.load(DROP), "bench:thin")
        assert await protocol.call(taking)
        assert await protocol.call(dropping) == 1
        return protocol, taking, dropping

    protocol, taking, dropping = runner.run(prepare())

    async def pair() -> None:
        await protocol.call(taking)
        await protocol.call(dropping)

    yield partial(time_async_pairs, runner, pair)
    protocol.close()


if __name__ == "__main__":
    main()
