"""Every store as a place to be tortured in: real servers, all the harm that can be done to them, and what they promise.

What is promised is what `docs/guarantees.md` says. Where a promise ends with a fault, its kind is in the arena's
`Promises`. Nothing is done after which next to nothing is promised: never are three of five Redlock nodes harmed at a
time, and no server of advisory locks crashes, since their fences may then repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from typing import Protocol, Self

import psycopg
from redis.crc import key_slot

from lockstead import DistributedLock, StoreError
from lockstead.stores.postgres.table.schema import script
from lockstead.stores.redis.store import RedisStore
from lockstead.testing.torture.arena import (
    AT_ONCE,
    FORCE_RELEASE,
    JUMP_CLOCK,
    LONG,
    PROMISES,
    RECOVERY,
    TTL,
    Arena,
    Fault,
    Harm,
    Surroundings,
    by_kind,
    network,
)
from lockstead.testing.torture.arena import CLIENT_FAULTS as PLAIN_CLIENT_FAULTS
from lockstead.testing.torture.history import KILL
from lockstead.testing.torture.worker import NAMES
from tests.harness.conditions import eventually
from tests.harness.sqlite import transaction_of_another_program, url_of
from tests.servers.binaries import POSTGRES18
from tests.servers.clock import SteppedClock
from tests.servers.cluster import ClusterDeployment
from tests.servers.disk import FullDisk, SlowDisk
from tests.servers.postgres import PostgresServer
from tests.servers.preload import Preload, environment_of
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer, client_of
from tests.servers.sentinel import SentinelDeployment
from tests.torture import forgery

STEP = (0.1, 5 * TTL)
"""By how much a clock is set: always by more than the margin of a lease."""
HOUR = 3600.0
CLIENT_FAULTS = PLAIN_CLIENT_FAULTS | {JUMP_CLOCK}


def surrounded(*preloads: Preload) -> Callable[[Path], Surroundings]:
    """Give clients a clock of their own, and whatever else is to be loaded into their processes."""

    def surround(directory: Path) -> Surroundings:
        clock = SteppedClock(directory)

        def step(seconds: float) -> None:
            clock.offset = seconds

        return Surroundings(environment=environment_of([clock, *preloads]), step_clock=step)

    return surround


@dataclass(frozen=True, kw_only=True)
class ArenaOfOurs(Arena):
    client_faults: frozenset[str] = CLIENT_FAULTS
    surround: Callable[[Path], Surroundings] = field(default_factory=surrounded)


@contextmanager
def memory(directory: Path) -> Iterator[Arena]:
    """One process, with which everything is gone. So it is not killed."""
    url = f"memory://{directory.name}"
    yield ArenaOfOurs(name="memory", url=url, promises=PROMISES, client_faults=CLIENT_FAULTS - {KILL}, one_process=True)


@contextmanager
def sqlite(directory: Path) -> Iterator[Arena]:
    path = directory.resolve() / "locks.db"
    disk = FullDisk(path.parent)

    @contextmanager
    def full(chance: Random) -> Iterator[None]:
        disk.is_full = True
        try:
            yield
        finally:
            disk.is_full = False

    @contextmanager
    def locked(chance: Random) -> Iterator[None]:
        with transaction_of_another_program(path):
            yield

    arena = ArenaOfOurs(
        name="sqlite",
        url=url_of(path),
        # "Free as soon as its process is dead": within a tenth of a second, and the slack.
        promises=replace(PROMISES, frees_dead_within=0.1 + PROMISES.slack),
        faults=by_kind([Fault(kind="lock file", harm=locked), Fault(kind="full disk", harm=full)]),
        surround=surrounded(disk),
    )
    arena.settle()
    yield arena


@contextmanager
def redis(directory: Path) -> Iterator[Arena]:
    with RedisServer(append_only=True, clock=True, slow_disk=True) as server, FaultProxy(server) as proxy:
        harm = RedisHarm(server, proxy)

        def heal() -> None:
            proxy.heal()
            harm.heal()

        arena = ArenaOfOurs(
            name="redis",
            url=proxy.url,
            direct=server.url,
            # "Exclusion if a Redis server loses data: FLUSHALL, a restart without persistence"; "Exclusion after the
            # store's clock was set forward".
            promises=replace(PROMISES, may_lose_grants={"flush server", "empty server", "clock forward"}),
            faults=by_kind([*network(proxy), *harm.faults()]),
            heal=heal,
        )
        arena.settle()
        yield arena


@contextmanager
def sentinel(directory: Path) -> Iterator[Arena]:
    with SentinelDeployment() as deployment:
        arena = ArenaOfOurs(
            name="sentinel",
            # Its networks are good: Sentinels send clients the address by which they themselves watch, and a proxy that
            # a busy machine holds up for two seconds would be a failover that was not recorded.
            url=f"redis+sentinel://{_hosts(deployment.addresses)}/{deployment.service}",
            # "A failover to a replica that lacks the newest writes".
            promises=replace(PROMISES, may_lose_grants={"force failover", "pause primary"}),
            faults=by_kind(sentinel_faults(deployment)),
            heal=deployment.restore,
        )
        arena.settle()
        yield arena


@contextmanager
def cluster(directory: Path) -> Iterator[Arena]:
    with Sextet() as sextet:
        arena = ArenaOfOurs(
            name="cluster",
            url=sextet.url,
            # "A failover to a replica that lacks the newest writes".
            promises=replace(PROMISES, may_lose_grants={"force failover", "pause primary"}),
            faults=by_kind(sextet.faults()),
            heal=sextet.heal,
        )
        arena.settle()
        yield arena


@contextmanager
def redlock(directory: Path) -> Iterator[Arena]:
    with Quintet() as quintet:
        arena = ArenaOfOurs(
            name="redlock",
            url=quintet.url,
            direct=quintet.direct,
            # "Exclusive, with growing fences, while any minority is killed, paused or emptied": nothing is forgotten.
            # "It is not fair" (`docs/redis.md`). "If a majority restarts empty, even one after another, within one
            # hold, the hold is lost, and its holder is notified in time" (decision 0006).
            # Not promised: "That a reservation lasts if nodes restart empty meanwhile" (`docs/redis.md`).
            promises=replace(
                PROMISES,
                fifo=False,
                may_lose_holds_early={"kill node", "empty node"},
                may_lose_reservations={"kill node", "empty node"},
            ),
            faults=by_kind(quintet.faults()),
            at_once=2,
            heal=quintet.heal,
        )
        arena.settle()
        yield arena


@contextmanager
def postgres(directory: Path) -> Iterator[Arena]:
    with (
        PostgresServer(POSTGRES18, SteppedClock, SlowDisk, max_connections="100") as server,
        FaultProxy(server) as proxy,
    ):
        server.sql(script("lockstead"))
        harm = PostgresHarm(server)

        def heal() -> None:
            proxy.heal()
            harm.heal()

        arena = ArenaOfOurs(
            name="postgres",
            url=proxy.url,
            direct=server.url,
            # "Exclusion after the store's clock was set forward"; "Releases and rate-limit requests of the last moment
            # before a crash", but "a crash of the server lets no second client hold" (`docs/postgres.md`).
            promises=replace(PROMISES, may_lose_grants={"clock forward"}, may_lose_rate_limits={"crash server"}),
            faults=by_kind([*network(proxy), *harm.faults()]),
            heal=heal,
        )
        arena.settle()
        yield arena


@contextmanager
def advisory(directory: Path) -> Iterator[Arena]:
    """The same server, whose locks end with their sessions: with whatever cuts a connection, and with its client."""
    with PostgresServer(POSTGRES18, SlowDisk, max_connections="100") as server, FaultProxy(server) as proxy:
        harm = PostgresHarm(server, ends_sessions=False)

        def heal() -> None:
            proxy.heal()
            harm.heal()

        kept = {"stall server", "slow disk", "exhaust connections", "end sessions", "restart server"}
        arena = ArenaOfOurs(
            name="advisory",
            url=_advisory(proxy.url),
            direct=_advisory(server.url),
            # "It ends with its session."
            promises=replace(
                PROMISES,
                may_lose_grants={
                    KILL,
                    "end sessions",
                    "restart server",
                    "lose requests",
                    "lose replies",
                    "black hole",
                    "cut network",
                    "cut connections",
                },
            ),
            # It would end a session, and with it whatever else is held there.
            client_faults=CLIENT_FAULTS - {FORCE_RELEASE},
            faults=by_kind([*network(proxy), *(fault for fault in harm.faults() if fault.kind in kept)]),
            heal=heal,
        )
        arena.settle()
        yield arena


ARENAS = {arena.__name__: arena for arena in (memory, sqlite, redis, sentinel, cluster, redlock, postgres, advisory)}


class Server(Protocol):
    """A server with faults of its process, its clock and its disk."""

    @property
    def is_running(self) -> bool: ...
    @property
    def disk(self) -> SlowDisk: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def step_clock(self, seconds: float) -> None: ...


class ServerHarm:
    """What can be done to a server that keeps what it has written, and has a clock and a disk of its own."""

    def __init__(self, server: Server) -> None:
        self._any_server = server

    def faults(self) -> list[Fault]:
        return [
            Fault(kind="stall server", harm=self.stalled),
            Fault(kind="restart server", harm=self.stopped, seconds=(0.0, 1.0)),
            Fault(kind="crash server", harm=self.crashed, seconds=(0.0, LONG)),
            Fault(kind="slow disk", harm=self.slow),
            Fault(kind="clock forward", harm=self.clock_forward, seconds=AT_ONCE),
            Fault(kind="clock back", harm=self.clock_back, seconds=AT_ONCE),
        ]

    def heal(self) -> None:
        self._any_server.resume()
        if not self._any_server.is_running:
            self._any_server.restart()
        self._any_server.disk.delay = 0.0

    @contextmanager
    def stalled(self, chance: Random) -> Iterator[None]:
        self._any_server.pause()
        try:
            yield
        finally:
            self._any_server.resume()

    @contextmanager
    def stopped(self, chance: Random) -> Iterator[None]:
        self._any_server.stop()
        try:
            yield
        finally:
            self._any_server.restart()

    @contextmanager
    def crashed(self, chance: Random) -> Iterator[None]:
        self._any_server.kill()
        try:
            yield
        finally:
            self._any_server.restart()

    @contextmanager
    def slow(self, chance: Random) -> Iterator[None]:
        self._any_server.disk.delay = chance.uniform(0.01, 0.3)
        try:
            yield
        finally:
            self._any_server.disk.delay = 0.0

    @contextmanager
    def clock_forward(self, chance: Random) -> Iterator[None]:
        self._any_server.step_clock(chance.uniform(*STEP))
        yield

    @contextmanager
    def clock_back(self, chance: Random) -> Iterator[None]:
        self._any_server.step_clock(-chance.choice((chance.uniform(*STEP), HOUR)))
        yield


class RedisHarm(ServerHarm):
    def __init__(self, server: RedisServer, proxy: FaultProxy) -> None:
        super().__init__(server)
        self._server = server
        self._proxy = proxy
        self._forward = 0.0
        """How far its clock was ever set forward: so far ahead may the store's own be, which never goes back."""

    def faults(self) -> list[Fault]:
        return [
            *super().faults(),
            *redis_faults(lambda chance: self._server),
            Fault(kind="empty server", harm=self.emptied, seconds=(0.0, LONG)),
            Fault(kind="flush server", harm=self.flushed, seconds=AT_ONCE),
            Fault(kind="exhaust connections", harm=self.without_connections),
            Fault(kind="exhaust memory", harm=self.without_memory),
        ]

    @contextmanager
    def emptied(self, chance: Random) -> Iterator[None]:
        self._server.kill()
        self._keep_time()
        try:
            yield
        finally:
            self._server.restart(empty=True)

    @contextmanager
    def flushed(self, chance: Random) -> Iterator[None]:
        with client_of(self._server.url) as client:
            self._proxy.refuse()
            try:  # a client that is served between the two gets a fence that is ahead of both clocks
                client.client_kill_filter(_type="normal", skipme=True)
                self._keep_time()
                client.flushall()
            finally:
                self._proxy.heal()
        yield

    @contextmanager
    def without_connections(self, chance: Random) -> Iterator[None]:
        """Accept no connection, and end some of those there are."""
        with client_of(self._server.url) as client:
            client.config_set("maxclients", 1)
            try:
                me = client.client_id()
                for other in client.client_list():
                    if int(other["id"]) != me and chance.random() < 0.5:
                        client.client_kill_filter(_id=other["id"])
                yield
            finally:
                client.config_set("maxclients", 10_000)

    @contextmanager
    def without_memory(self, chance: Random) -> Iterator[None]:
        with client_of(self._server.url) as client:
            client.config_set("maxmemory", 1)
            try:
                yield
            finally:
                client.config_set("maxmemory", 0)

    @contextmanager
    def clock_forward(self, chance: Random) -> Iterator[None]:
        before = self._server.clock.offset
        with super().clock_forward(chance):
            self._forward += self._server.clock.offset - before
            yield

    def _keep_time(self) -> None:
        """Set the clock of a server that is about to lose its data to where its fences may have come to.

        "Growing fences if the counter and the clock are lost together" are not promised.
        """
        self._server.step_clock(self._forward - self._server.clock.offset)


def redis_faults(server: Callable[[Random], RedisServer]) -> list[Fault]:
    """List what can be said to any server."""

    @contextmanager
    def flushed(chance: Random) -> Iterator[None]:
        with client_of(server(chance).url) as client:
            client.script_flush()
        yield

    @contextmanager
    def put_out(chance: Random) -> Iterator[None]:
        kind = chance.choice(("normal", "pubsub"))
        with client_of(server(chance).url) as client:
            client.client_kill_filter(_type=kind, skipme=True)
        yield

    @contextmanager
    def forged(chance: Random) -> Iterator[None]:
        with forgery.forging(partial(forgery.of_redis, server(chance).url), chance):
            yield

    return [
        Fault(kind="flush scripts", harm=flushed, seconds=AT_ONCE),
        Fault(kind="kill connections", harm=put_out, seconds=AT_ONCE),
        Fault(kind="forge messages", harm=forged),
    ]


def sentinel_faults(deployment: SentinelDeployment) -> list[Fault]:
    @contextmanager
    def killed(chance: Random) -> Iterator[None]:
        deployment.failover("kill")
        try:
            yield
        finally:
            deployment.restore()

    @contextmanager
    def paused(chance: Random) -> Iterator[None]:
        old = deployment.master()
        deployment.failover("pause")
        try:
            yield
        finally:
            if chance.random() < 0.5:
                # It takes itself for the primary until a Sentinel demotes it, and serves clients that still ask it.
                old.resume()
                time.sleep(chance.uniform(0.0, 0.5))
            deployment.restore()

    @contextmanager
    def without(server: RedisServer) -> Iterator[None]:
        server.kill()
        try:
            yield
        finally:
            deployment.restore()

    return [
        *redis_faults(lambda chance: deployment.master()),
        Fault(kind="force failover", harm=killed, seconds=(0.0, 1.0)),
        Fault(kind="pause primary", harm=paused, seconds=(0.0, 1.0)),
        Fault(kind="kill replica", harm=lambda chance: without(chance.choice(deployment.replicas()))),
        Fault(kind="kill sentinel", harm=lambda chance: without(chance.choice(deployment.sentinels))),
    ]


class Sextet:
    """A cluster of three primaries with a replica each, all behind networks that can be bad.

    Only what its nodes send each other goes past those, so a bad network alone leads to no failover.
    """

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.deployment = stack.enter_context(ClusterDeployment(replicas=1))
            self.proxies = [stack.enter_context(FaultProxy(node)) for node in self.deployment.nodes]
            self._stack = stack.pop_all()
        self.url = f"redis+cluster://{_hosts(proxy.address for proxy in self.proxies)}"
        with DistributedLock(self.url) as locks:
            store = locks._engine.store
            assert isinstance(store, RedisStore)
            self.slots = sorted({key_slot(store._key(name)) for name in NAMES})
        for node, proxy in zip(self.deployment.nodes, self.proxies, strict=True):
            node.options["cluster_announce_port"] = str(proxy.port)
            with client_of(node.url) as client:
                client.config_set("cluster-announce-port", proxy.port)
        eventually(self._is_known_by_its_networks, "all are known by the ports of their networks", RECOVERY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def faults(self) -> list[Fault]:
        return [
            *redis_faults(self._primary),
            *(replace(fault, harm=self._on_the_way(fault.kind)) for fault in network(self.proxies[0])),
            Fault(kind="force failover", harm=lambda chance: self._harm(self._failover(chance)), seconds=(0.0, 1.0)),
            Fault(kind="pause primary", harm=lambda chance: self._harm(self._paused(chance))),
            Fault(kind="kill replica", harm=lambda chance: self._harm(self._without_replica(chance))),
            Fault(kind="move slot", harm=lambda chance: self._harm(self._moving(chance))),
        ]

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.heal()
        self.deployment.restore()

    def _on_the_way(self, kind: str) -> Harm:
        @contextmanager
        def harm(chance: Random) -> Iterator[None]:
            proxy = self.proxies[self.deployment.nodes.index(self._primary(chance))]
            with by_kind(network(proxy))[kind].harm(chance):
                yield
            if kind == "black hole":
                proxy.reset_all()  # else a replica goes on without what was lost, as over no real network

        return lambda chance: self._harm(harm(chance))

    @contextmanager
    def _harm(self, harm: AbstractContextManager[None]) -> Iterator[None]:
        """Do it, and wait until replicas have again what their primaries have: else a failover would lose more."""
        with harm:
            yield
        self.heal()

    @contextmanager
    def _failover(self, chance: Random) -> Iterator[None]:
        self.deployment.failover(self._primary(chance))
        yield

    @contextmanager
    def _paused(self, chance: Random) -> Iterator[None]:
        """Stop one for a while: for long enough, perhaps, that its replica is elected."""
        node = self._primary(chance)
        node.pause()
        try:
            yield
        finally:
            node.resume()

    @contextmanager
    def _without_replica(self, chance: Random) -> Iterator[None]:
        primaries = self.deployment.masters()
        chance.choice([node for node in self.deployment.nodes if node not in primaries]).kill()
        yield

    @contextmanager
    def _moving(self, chance: Random) -> Iterator[None]:
        """Move a slot in use: its keys when it begins, or when it is over."""
        slot = chance.choice(self.slots)
        with self.deployment.moving_slot(slot, self.deployment.other_master(slot)) as move:
            if chance.random() < 0.5:
                move.move_keys()
            yield

    def _primary(self, chance: Random) -> RedisServer:
        return chance.choice(self.deployment.masters())

    def _is_known_by_its_networks(self) -> bool:
        ports = {proxy.port for proxy in self.proxies}
        return all(self.deployment.ports_seen_by(node) == ports for node in self.deployment.nodes)


SKEWS = (0.0, 1.5, -1.5, 4.0, -4.0)
"""How far the clocks of five nodes are off: by their clocks alone, fences would not grow."""


class Quintet:
    """Five Redlock nodes. Two keep what they have written, two are behind a network that can be bad.

    Whatever is done to a node, it counts as harmed until it votes again.
    """

    def __init__(self) -> None:
        with ExitStack() as stack:
            self.nodes = [stack.enter_context(RedisServer(append_only=number < 2, clock=True)) for number in range(5)]
            for node, seconds in zip(self.nodes, SKEWS, strict=True):
                node.step_clock(seconds)
            self.proxies = {number: stack.enter_context(FaultProxy(self.nodes[number])) for number in (1, 3)}
            self.direct = f"redlock://{_hosts(node.address for node in self.nodes)}"
            ways = [self.proxies.get(number, node).address for number, node in enumerate(self.nodes)]
            self.url = f"redlock://{_hosts(ways)}"
            self._doctor = stack.enter_context(DistributedLock(self.direct))
            self._stack = stack.pop_all()
        self._mutex = Lock()
        self.harmed: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def faults(self) -> list[Fault]:
        networks = {number: by_kind(network(proxy)) for number, proxy in self.proxies.items()}

        def on_the_way(kind: str) -> Harm:
            return lambda chance: self._harm(chance, list(networks), lambda number: networks[number][kind].harm(chance))

        everywhere = range(len(self.nodes))
        return [
            Fault(kind="stall node", harm=lambda chance: self._harm(chance, everywhere, self._stalled)),
            Fault(kind="kill node", harm=lambda chance: self._harm(chance, everywhere, self._killed)),
            Fault(kind="empty node", harm=lambda chance: self._harm(chance, everywhere, self._emptied)),
            Fault(kind="stall all nodes", harm=lambda chance: self._all_stalled()),
            *(replace(fault, harm=on_the_way(fault.kind)) for fault in networks[min(networks)].values()),
        ]

    def heal(self) -> None:
        """Bring all back, and wait until they vote; so do new ones, once they have all been seen."""
        for proxy in self.proxies.values():
            proxy.heal()
        for node in self.nodes:
            node.resume()
            if not node.is_running:
                node.restart()
        self.await_votes()

    def await_votes(self, numbers: Collection[int] = range(5)) -> None:
        try:
            eventually(lambda: not self._abstainers() & {*numbers}, "the nodes vote again", RECOVERY)
        except AssertionError as error:
            error.add_note(f"{self._doctor.examine()}")
            raise

    @contextmanager
    def _harm(
        self, chance: Random, among: Iterable[int], harm: Callable[[int], AbstractContextManager[None]]
    ) -> Iterator[None]:
        """Do it to one that is well."""
        with self._mutex:
            assert len(self.harmed) < 2, "never more than a minority"
            number = chance.choice([number for number in among if number not in self.harmed])
            self.harmed.add(number)
        with harm(number):
            yield
        self.await_votes([number])
        with self._mutex:
            self.harmed.remove(number)

    @contextmanager
    def _stalled(self, number: int) -> Iterator[None]:
        self.nodes[number].pause()
        try:
            yield
        finally:
            self.nodes[number].resume()

    @contextmanager
    def _all_stalled(self) -> Iterator[None]:
        """Let no majority answer: all that are well are stalled. What they have granted they keep."""
        with self._mutex, ExitStack() as stack:
            for number in {*range(len(self.nodes))} - self.harmed:
                stack.enter_context(self._stalled(number))
            yield

    @contextmanager
    def _killed(self, number: int) -> Iterator[None]:
        self.nodes[number].kill()
        try:
            yield
        finally:
            self.nodes[number].restart()

    @contextmanager
    def _emptied(self, number: int) -> Iterator[None]:
        self.nodes[number].kill()
        try:
            yield
        finally:
            self.nodes[number].restart(empty=True)

    def _abstainers(self) -> set[int]:
        ports = {f"{host}:{port}": n for n, (host, port) in enumerate(node.address for node in self.nodes)}
        with suppress(StoreError):
            return {
                ports[found.subject]
                for found in self._doctor.examine()
                if found.subject in ports and (found.level == "error" or "votes" in found.message.partition(":")[0])
            }
        return set(ports.values())


class PostgresHarm(ServerHarm):
    def __init__(self, server: PostgresServer, *, ends_sessions: bool = True) -> None:
        super().__init__(server)
        self._server = server
        self._ends_sessions = ends_sessions
        """Whether a session may be ended by what is not called so."""

    def faults(self) -> list[Fault]:
        return [
            *super().faults(),
            Fault(kind="end sessions", harm=self.put_out, seconds=AT_ONCE),
            Fault(kind="exhaust connections", harm=self.without_connections),
            Fault(kind="lock table", harm=self.table_locked),
            Fault(kind="lock name", harm=self.name_locked),
            Fault(kind="forge messages", harm=self.forged),
        ]

    @contextmanager
    def crashed(self, chance: Random) -> Iterator[None]:
        """Kill all of it at once, or have it end without a checkpoint."""
        if chance.random() < 0.5:
            self._server.stop("immediate")
        with super().crashed(chance):
            yield

    @contextmanager
    def put_out(self, chance: Random) -> Iterator[None]:
        self._server.sql(ENDING, [chance.choice((0.3, 1.0))])
        yield

    @contextmanager
    def without_connections(self, chance: Random) -> Iterator[None]:
        """Take all connections that can be had; of those that others have, some."""
        with ExitStack() as stack:
            taken = self._take_all(stack)
            if self._ends_sessions:
                taken[0].execute(ENDING.encode(), [0.5])
                self._take_all(stack)
            yield

    @contextmanager
    def table_locked(self, chance: Random) -> Iterator[None]:
        with self._transaction("LOCK TABLE lockstead.distributed_locks IN ACCESS EXCLUSIVE MODE"):
            yield

    @contextmanager
    def name_locked(self, chance: Random) -> Iterator[None]:
        with self._transaction("SELECT FROM lockstead.lock_names ORDER BY random() LIMIT 1 FOR UPDATE"):
            yield

    @contextmanager
    def forged(self, chance: Random) -> Iterator[None]:
        with forgery.forging(partial(forgery.of_postgres, self._server.url, NEMESIS), chance):
            yield

    def _take_all(self, stack: ExitStack) -> list[psycopg.Connection]:
        taken = []
        with suppress(psycopg.OperationalError):
            while True:
                connection = psycopg.connect(self._server.url, autocommit=True, application_name=NEMESIS)
                stack.callback(connection.close)
                taken.append(connection)
        return taken

    @contextmanager
    def _transaction(self, statement: str) -> Iterator[None]:
        with psycopg.connect(self._server.url, application_name=NEMESIS) as connection:
            connection.execute(statement.encode())
            yield
            connection.rollback()


NEMESIS = "nemesis"
ENDING = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    f" AND application_name <> '{NEMESIS}' AND pid <> pg_backend_pid() AND random() < %s"
)
"""End a part of the clients' sessions."""


def _hosts(addresses: Iterable[tuple[str, int]]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


def _advisory(url: str) -> str:
    return url.replace("postgresql://", "postgresql+advisory://", 1)
