"""Every fault does the harm it is named after, and none is left when it is over.

What shows a fault is a scenario in three parts: before it, while it lasts, and once it is healed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import redis
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import OutOfMemoryError
from redis.exceptions import TimeoutError as Unresponsive

from lockstead import DistributedLock
from lockstead.runtimes import clock
from lockstead.stores.postgres.table.schema import script
from lockstead.testing.torture.arena import PROMISES, WORKLOADS, Arena, Fault, network
from lockstead.testing.torture.history import KILL, History, Recorder
from lockstead.testing.torture.nemesis import Nemesis
from lockstead.testing.torture.worker import NAMES
from tests.harness.conditions import eventually
from tests.harness.processes import Worker
from tests.harness.sqlite import is_free
from tests.servers.binaries import POSTGRES18
from tests.servers.clock import SteppedClock
from tests.servers.disk import SlowDisk
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer, client_of
from tests.servers.sentinel import SentinelDeployment
from tests.torture.arenas import (
    ARENAS,
    CLIENT_FAULTS,
    PostgresHarm,
    Quintet,
    RedisHarm,
    Sextet,
    sentinel_faults,
)

SHORT = 0.2
"""How long to wait for what does not come."""
SEED = 3

Scenario = Generator[None, None, None]


def run_scenario(scenario: Scenario, fault: Fault, seed: int = SEED) -> None:
    next(scenario)
    with fault.harm(Random(seed)):
        next(scenario)
    next(scenario, None)


def fails(error: type[Exception], act: Callable[[], object]) -> bool:
    try:
        act()
    except error:
        return True
    return False


def seconds(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


@dataclass
class Redis:
    """A server, a network in front of it, and what can be done to both."""

    server: RedisServer
    proxy: FaultProxy
    faults: Mapping[str, Fault]

    @contextmanager
    def caller(self, url: str = "", timeout: float = SHORT) -> Iterator[redis.Redis]:
        """Give a client of one connection, which is open, and that retries nothing."""
        with client_of(url or self.server.url, socket_timeout=timeout, single_connection_client=True) as client:
            client.ping()
            yield client

    def answers(self) -> bool:
        """Return whether a new client can write something, on its way through the network."""
        try:
            with self.caller(self.proxy.url) as client:
                return bool(client.set("answer", "42"))
        except (Unreachable, Unresponsive):
            return False


@pytest.fixture(scope="module")
def with_redis() -> Iterator[Redis]:
    with RedisServer(append_only=True, clock=True, slow_disk=True) as server, FaultProxy(server) as proxy:
        faults = [*network(proxy), *RedisHarm(server, proxy).faults()]
        yield Redis(server, proxy, {fault.kind: fault for fault in faults})


def lost_requests(on: Redis) -> Scenario:
    with on.caller(on.proxy.url) as client, on.caller() as witness:
        yield
        assert fails(Unreachable, lambda: client.set("request", "sent"))
        assert witness.get("request") is None
        yield


def lost_replies(on: Redis) -> Scenario:
    with on.caller(on.proxy.url) as client, on.caller() as witness:
        yield
        assert fails(Unreachable, lambda: client.set("reply", "lost"))
        assert witness.get("reply") == "lost"
        yield


def delayed(on: Redis) -> Scenario:
    with on.caller(on.proxy.url, timeout=5) as client:
        yield
        assert seconds(client.ping) >= 0.01
        yield
    assert not any(on.proxy.delays.values())


def unsteady(on: Redis) -> Scenario:
    with on.caller(on.proxy.url, timeout=5) as client:
        yield
        took = [seconds(client.ping) for _ in range(20)]
        assert max(took) > 2 * min(took)
        yield
    assert not any(on.proxy.delays.values())


def silent(on: Redis) -> Scenario:
    with on.caller(on.proxy.url) as client, on.caller() as witness:
        yield
        assert fails(Unresponsive, client.ping)
        assert witness.ping()
        yield


def cut_off(on: Redis) -> Scenario:
    with on.caller(on.proxy.url) as client:
        yield
        assert fails(Unreachable, client.ping)
        assert not on.answers()
        yield


def connections_cut(on: Redis) -> Scenario:
    with on.caller(on.proxy.url) as client:
        yield
        assert fails(Unreachable, client.ping)
        assert on.answers()
        yield


def connections_left(on: Redis) -> Scenario:
    """A client that connects anew is served, and what it sent before is carried out after all."""
    with on.caller(on.proxy.url) as client, on.caller() as witness:
        witness.delete("late")
        yield
        assert fails(Unresponsive, lambda: client.set("late", "42"))
        assert on.answers()
        assert witness.get("late") is None
        yield
        eventually(lambda: witness.get("late") == "42", "what was held up arrives")


def stalled(on: Redis) -> Scenario:
    with on.caller() as client:
        yield
        assert fails(Unresponsive, client.ping)
        yield


def gone(on: Redis) -> Scenario:
    with on.caller() as client:
        client.set("kept", "42")
        yield
        assert fails(Unreachable, client.ping)
        assert not on.server.is_running
        yield
    with on.caller() as client:
        assert client.get("kept") == "42"


def gone_empty(on: Redis) -> Scenario:
    with on.caller() as client:
        client.set("kept", "42")
        yield
        assert fails(Unreachable, client.ping)
        yield
    with on.caller() as client:
        assert client.dbsize() == 0


def flushed(on: Redis) -> Scenario:
    with on.caller() as client:
        client.set("kept", "42")
    yield
    with on.caller() as client:
        assert client.dbsize() == 0
    yield


def disk_slow(on: Redis) -> Scenario:
    with on.caller(timeout=5) as client:
        yield
        assert seconds(lambda: client.set("slow", "42")) >= 0.01
        yield
    assert on.server.disk.delay == 0


def clock_ahead(on: Redis) -> Scenario:
    before = on.server.clock.offset
    yield
    assert ahead(on) > before + 0.05
    yield


def clock_behind(on: Redis) -> Scenario:
    before = on.server.clock.offset
    yield
    assert ahead(on) < before - 0.05
    yield


def ahead(on: Redis) -> float:
    with on.caller() as client:
        whole, micro = client.time()
    return whole + micro / 1e6 - time.time()


def scripts_flushed(on: Redis) -> Scenario:
    with on.caller() as client:
        script = client.script_load("return 42")
        yield
        assert client.script_exists(script) == [False]
        yield


def connections_killed(on: Redis) -> Scenario:
    with on.caller() as client, on.caller() as listener:
        subscription = listener.pubsub()
        subscription.subscribe("news")
        subscription.get_message(timeout=SHORT)
        yield
        assert fails(Unreachable, client.ping) or fails(Unreachable, lambda: subscription.get_message(timeout=SHORT))
        yield
        subscription.close()


def messages_forged(on: Redis) -> Scenario:
    with on.caller() as client, on.caller() as listener:
        client.hset("lockstead:bucket:7", "x\0me/7", "waits")
        subscription = listener.pubsub(ignore_subscribe_messages=True)
        subscription.subscribe("lockstead:mine")
        subscription.get_message(timeout=SHORT)
        yield
        eventually(lambda: _next_of(subscription) == "me/7", "the owner is guessed")
        eventually(lambda: _next_of(subscription) == "me/8", "so is the next one")
        yield
        eventually(lambda: not _next_of(subscription), "it is over")
        subscription.close()
        client.delete("lockstead:bucket:7")


def _next_of(subscription: redis.client.PubSub) -> str:
    """Give the next message, or nothing; what is no text counts as nothing."""
    with suppress(UnicodeDecodeError):
        message = subscription.get_message(timeout=SHORT)
        return message["data"] if message else ""
    return "garbage"


def full(on: Redis) -> Scenario:
    yield
    with client_of(on.server.url) as client, pytest.raises(redis.RedisError, match="max number of clients"):
        client.ping()
    yield


def without_memory(on: Redis) -> Scenario:
    with on.caller() as client:
        yield
        assert fails(OutOfMemoryError, lambda: client.set("large", "42"))
        yield
        client.set("large", "42")


ON_REDIS: dict[str, Callable[[Redis], Scenario]] = {
    "lose requests": lost_requests,
    "lose replies": lost_replies,
    "delay network": delayed,
    "unsteady network": unsteady,
    "hold network": silent,
    "black hole": silent,
    "cut network": cut_off,
    "cut connections": connections_cut,
    "duplicate connections": connections_left,
    "stall server": stalled,
    "restart server": gone,
    "crash server": gone,
    "empty server": gone_empty,
    "flush server": flushed,
    "slow disk": disk_slow,
    "clock forward": clock_ahead,
    "clock back": clock_behind,
    "flush scripts": scripts_flushed,
    "kill connections": connections_killed,
    "forge messages": messages_forged,
    "exhaust connections": full,
    "exhaust memory": without_memory,
}


@pytest.mark.parametrize("kind", ON_REDIS)
def test_a_fault_on_redis_has_its_effect_and_is_healed(with_redis: Redis, kind: str) -> None:
    for seed in range(SEED, SEED + 3):
        run_scenario(ON_REDIS[kind](with_redis), with_redis.faults[kind], seed)
        eventually(with_redis.answers, "it answers again")


def test_every_fault_on_redis_is_tested(with_redis: Redis) -> None:
    assert set(with_redis.faults) == set(ON_REDIS)


def test_fences_grow_across_clock_steps_and_data_loss_on_redis(with_redis: Redis) -> None:
    """Or its fences, which follow a clock that never goes back, could do so; and that is not promised."""

    def fence() -> int:
        with DistributedLock(with_redis.server.url) as locks, locks.lock("x") as handle:
            return handle.fence

    newest = fence()
    for kind in ("clock back", "clock forward", "empty server", "clock forward", "clock back", "flush server"):
        with with_redis.faults[kind].harm(Random(SEED)):
            pass
        before, newest = newest, fence()
        assert newest > before, kind


@dataclass
class Postgres:
    server: PostgresServer
    faults: Mapping[str, Fault]

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        connection = psycopg.connect(self.server.url, autocommit=True)
        try:
            yield connection
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            self.server.sql("INSERT INTO kept DEFAULT VALUES")
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="module")
def with_postgres() -> Iterator[Postgres]:
    with PostgresServer(POSTGRES18, SteppedClock, SlowDisk, max_connections="50") as server:
        server.sql(script("lockstead"))
        server.sql("CREATE TABLE kept (number serial)")
        server.sql("SELECT lockstead.acquire_lock('x', 'me', 30)")
        yield Postgres(server, {fault.kind: fault for fault in PostgresHarm(server).faults()})


def all_stalled(on: Postgres) -> Scenario:
    with on.session() as session:
        answered = threading.Event()

        def ask() -> None:
            session.execute("SELECT 1")
            answered.set()

        yield
        thread = threading.Thread(target=ask)
        thread.start()
        assert not answered.wait(SHORT)
        yield
        thread.join()


def down(on: Postgres) -> Scenario:
    on.server.sql("INSERT INTO kept DEFAULT VALUES")
    before = on.server.sql("SELECT max(number) FROM kept")
    with on.session() as session:
        yield
        assert fails(psycopg.OperationalError, lambda: session.execute("SELECT 1"))
        assert not on.answers()
        yield
    assert on.server.sql("SELECT max(number) FROM kept") == before


def log_slow(on: Postgres) -> Scenario:
    with on.session() as session:
        yield
        assert seconds(lambda: session.execute("INSERT INTO kept DEFAULT VALUES")) >= 0.01
        yield
    assert on.server.disk.delay == 0


def time_ahead(on: Postgres) -> Scenario:
    before = on.server.clock.offset
    yield
    assert postgres_ahead(on) > before + 0.05
    yield


def time_behind(on: Postgres) -> Scenario:
    before = on.server.clock.offset
    yield
    assert postgres_ahead(on) < before - 0.05
    yield


def postgres_ahead(on: Postgres) -> float:
    ((now,),) = on.server.sql("SELECT extract(epoch FROM clock_timestamp())")
    return float(now) - time.time()


def sessions_ended(on: Postgres) -> Scenario:
    with ExitStack() as stack:
        sessions = [stack.enter_context(on.session()) for _ in range(20)]  # of which it may be a third that end
        yield
        eventually(
            lambda: any(fails(psycopg.OperationalError, partial(one.execute, "SELECT 1")) for one in sessions),
            "sessions are ended",
        )
        yield


def no_session_left(on: Postgres) -> Scenario:
    with on.session():
        yield
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(on.server.url)
        yield


def no_lease_is_renewed(on: Postgres) -> Scenario:
    with on.session() as session:
        session.execute(f"SET lock_timeout = {round(1000 * SHORT)}")
        yield
        look = partial(session.execute, "TABLE lockstead.distributed_locks")
        assert fails(psycopg.errors.LockNotAvailable, look)
        yield
        look()


def a_name_is_stuck(on: Postgres) -> Scenario:
    on.server.sql("DELETE FROM lockstead.lock_names WHERE name <> 'x'")
    with on.session() as session:
        session.execute(f"SET lock_timeout = {round(1000 * SHORT)}")
        yield
        take = partial(session.execute, "SELECT FROM lockstead.lock_names FOR UPDATE")
        assert fails(psycopg.errors.LockNotAvailable, take)
        yield
        take()


def notifications_forged(on: Postgres) -> Scenario:
    on.server.sql("UPDATE lockstead.distributed_locks SET channel = 'news', holder = 'me/7' WHERE name = 'x'")
    with on.session() as session:
        session.execute("LISTEN news")
        yield
        received: set[str] = set()

        def is_guessed() -> bool:
            received.update(notice.payload for notice in session.notifies(timeout=SHORT, stop_after=1))
            return {"me/7", "me/8"} <= received

        eventually(is_guessed, "owners are guessed")
        yield
        eventually(lambda: not list(session.notifies(timeout=SHORT)), "it is over")


ON_POSTGRES: dict[str, Callable[[Postgres], Scenario]] = {
    "stall server": all_stalled,
    "restart server": down,
    "crash server": down,
    "slow disk": log_slow,
    "clock forward": time_ahead,
    "clock back": time_behind,
    "end sessions": sessions_ended,
    "exhaust connections": no_session_left,
    "lock table": no_lease_is_renewed,
    "lock name": a_name_is_stuck,
    "forge messages": notifications_forged,
}


@pytest.mark.parametrize("kind", ON_POSTGRES)
def test_a_fault_on_postgres_has_its_effect_and_is_healed(with_postgres: Postgres, kind: str) -> None:
    run_scenario(ON_POSTGRES[kind](with_postgres), with_postgres.faults[kind])
    eventually(with_postgres.answers, "it answers again")


def test_every_fault_on_postgres_is_tested(with_postgres: Postgres) -> None:
    assert set(with_postgres.faults) == set(ON_POSTGRES)


def test_connections_are_taken_without_ending_sessions_that_hold_locks(with_postgres: Postgres) -> None:
    with with_postgres.session() as session:
        gentle = PostgresHarm(with_postgres.server, ends_sessions=False)
        with gentle.without_connections(Random(SEED)):
            session.execute("SELECT 1")
            assert fails(psycopg.OperationalError, lambda: psycopg.connect(with_postgres.server.url))


def test_a_fault_on_sqlite_has_its_effect_and_is_healed(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    with ARENAS["sqlite"](tmp_path) as arena:
        assert set(arena.faults) == {"lock file", "full disk"}
        assert is_free(path)
        with arena.faults["lock file"].harm(Random(SEED)):
            assert not is_free(path)
        assert is_free(path)
        worker = Worker("harness/programs/peer.py", path, env=dict(arena.surround(tmp_path).environment))
        try:
            assert worker.answer()["ready"]
            with arena.faults["full disk"].harm(Random(SEED)):
                assert worker.ask("acquire", "x")["error"] == "StoreError"
            assert worker.ask("acquire", "x")["fence"]
        finally:
            worker.dispose()


def test_a_fault_on_sentinel_has_its_effect_and_is_healed(sentinel: SentinelDeployment) -> None:
    faults = {fault.kind: fault for fault in sentinel_faults(sentinel)}
    assert set(faults) == {
        "flush scripts",
        "kill connections",
        "forge messages",
        "force failover",
        "pause primary",
        "kill replica",
        "kill sentinel",
    }
    for kind in ("force failover", "pause primary"):
        old = sentinel.master()
        with faults[kind].harm(
            Random(0)
        ):  # it is not resumed as a master, which would take ten seconds to be corrected
            assert sentinel.master() is not old
            assert old.is_paused or not old.is_running
        assert sentinel.replicas() == [old]
    master, (replica,) = sentinel.master(), sentinel.replicas()
    with faults["kill replica"].harm(Random(SEED)):
        assert not replica.is_running
    with faults["kill sentinel"].harm(Random(SEED)):
        assert [one.is_running for one in sentinel.sentinels].count(False) == 1
    assert sentinel.master() is master
    assert all(server.is_running for server in [*sentinel.servers, *sentinel.sentinels])


@pytest.fixture(scope="module")
def sextet() -> Iterator[Sextet]:
    with Sextet() as sextet:
        yield sextet


@pytest.mark.parametrize("kind", ["force failover", "pause primary", "kill replica", "move slot", "cut network"])
def test_a_fault_on_a_cluster_has_its_effect_and_is_healed(sextet: Sextet, kind: str) -> None:
    deployment = sextet.deployment
    faults = {fault.kind: fault for fault in sextet.faults()}
    before = {slot: deployment.owner(slot) for slot in sextet.slots}
    primaries = {*deployment.masters()}
    with faults[kind].harm(Random(SEED)):
        down = {node for node in deployment.nodes if node.is_paused or not node.is_running}
        cut = [proxy for proxy in sextet.proxies if fails(redis.RedisError, partial(_ping, proxy.url))]
        match kind:
            case "force failover":
                assert down < primaries
                assert not down & {*deployment.masters()}
            case "pause primary":
                assert down < primaries
            case "kill replica":
                assert len(down - primaries) == 1
            case "move slot":
                assert not down
            case "cut network":
                assert (down, len(cut)) == (set(), 1)
    assert all(node.is_running and not node.is_paused for node in deployment.nodes)
    for proxy in sextet.proxies:
        _ping(proxy.url)
    assert ({*deployment.masters()} != primaries) == (kind == "force failover")
    assert (before != {slot: deployment.owner(slot) for slot in before}) or kind != "move slot"
    with DistributedLock(sextet.url) as locks:
        for name in NAMES:
            locks.acquire(name, timeout=10).release()


def _ping(url: str) -> None:
    with client_of(url, socket_timeout=SHORT) as client:
        client.ping()


def test_every_fault_on_a_cluster_is_listed(sextet: Sextet) -> None:
    assert {fault.kind for fault in sextet.faults()} == {
        "flush scripts",
        "kill connections",
        "forge messages",
        "lose requests",
        "lose replies",
        "delay network",
        "hold network",
        "black hole",
        "cut network",
        "cut connections",
        "duplicate connections",
        "unsteady network",
        "force failover",
        "pause primary",
        "kill replica",
        "move slot",
    }


@pytest.fixture(scope="module")
def quintet() -> Iterator[Quintet]:
    with Quintet() as quintet:
        quintet.heal()
        yield quintet


@pytest.mark.parametrize("kind", ["stall node", "kill node", "hold network", "cut network"])
def test_a_fault_on_a_redlock_node_has_its_effect_and_is_healed(quintet: Quintet, kind: str) -> None:
    fault = {fault.kind: fault for fault in quintet.faults()}[kind]
    with fault.harm(Random(SEED)):
        (number,) = quintet.harmed
        node = quintet.proxies[number] if "network" in kind else quintet.nodes[number]
        with client_of(node.url, socket_timeout=SHORT) as client:
            assert fails(redis.RedisError, client.ping)
    assert not quintet.harmed


def test_all_redlock_nodes_are_stalled_but_those_that_are_down(quintet: Quintet) -> None:
    faults = {fault.kind: fault for fault in quintet.faults()}
    with faults["kill node"].harm(Random(SEED)):
        with faults["stall all nodes"].harm(Random(SEED)):
            assert sum(node.is_paused for node in quintet.nodes) == 4
        assert not any(node.is_paused for node in quintet.nodes)


def test_a_node_that_restarted_empty_counts_as_harmed_until_it_votes(quintet: Quintet) -> None:
    fault = {fault.kind: fault for fault in quintet.faults()}["empty node"]
    with fault.harm(Random(SEED)):
        (number,) = quintet.harmed
        assert not quintet.nodes[number].is_running
        began = time.monotonic()
    assert time.monotonic() - began > 2, "it voted at once"
    quintet.await_votes()


def test_never_more_than_two_redlock_nodes_are_harmed(quintet: Quintet) -> None:
    fault = {fault.kind: fault for fault in quintet.faults()}["stall node"]
    with fault.harm(Random(SEED)), fault.harm(Random(SEED)):
        assert sum(node.is_paused for node in quintet.nodes) == 2
        with pytest.raises(AssertionError, match="minority"), fault.harm(Random(SEED)):
            pass


@pytest.mark.parametrize("name", ARENAS)
def test_an_arena_settles_and_shows_the_places_that_are_left(name: str, tmp_path: Path) -> None:
    with ARENAS[name](tmp_path) as arena:
        assert arena.name == name
        assert arena.workloads <= WORKLOADS
        suspended = {
            *arena.promises.may_lose_grants,
            *arena.promises.may_lose_rate_limits,
            *arena.promises.may_lose_holds_early,
        }
        assert suspended <= {*arena.faults, *arena.client_faults}
        assert not CLIENT_FAULTS & set(arena.faults), "what is done to a server would excuse its clients"
        with arena.client() as locks, locks.lock("x"):
            assert [line.partition(":")[0] for line in arena.inspect()] == ["x"]
        assert arena.inspect() == []


class Crew:
    """Clients that only note what is done to them."""

    def __init__(self, *names: str) -> None:
        self.alive = list(names)
        self.injected: list[tuple[str, str]] = []
        self._paused: set[str] = set()

    def names(self) -> list[str]:
        return list(self.alive)

    def kill(self, name: str) -> None:
        self._record(name, KILL)
        self.alive.remove(name)
        self.alive.append(f"{name}'")

    def pause(self, name: str) -> None:
        self._record(name, "pause")
        self._paused.add(name)

    def resume(self, name: str) -> None:
        self._paused.remove(name)

    def inject(self, name: str, what: str) -> None:
        self._record(name, what)

    def _record(self, name: str, what: str) -> None:
        assert name not in self._paused
        self.injected.append((name, what))


class Ward:
    """Faults that only note that they happen, and how many at a time."""

    def __init__(self, *kinds: str, at_once: int = 1, seconds: tuple[float, float] = (0.0, 0.02)) -> None:
        self.begun: list[str] = []
        self.most = self._now = 0
        self._mutex = threading.Lock()
        faults = {kind: Fault(kind=kind, harm=self._of(kind), seconds=seconds) for kind in kinds}
        self.arena = Arena(
            name="ward", url="", promises=PROMISES, faults=faults, client_faults=CLIENT_FAULTS, at_once=at_once
        )

    def _of(self, kind: str) -> Callable[[Random], Any]:
        @contextmanager
        def harm(chance: Random) -> Iterator[None]:
            with self._mutex:
                self.begun.append(kind)
                self._now += 1
                self.most = max(self.most, self._now)
            yield
            with self._mutex:
                self._now -= 1

        return harm


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "nemesis.jsonl", "nemesis")
    yield recorder
    recorder.close()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CALM", "LULL"):
        monkeypatch.setattr(f"lockstead.testing.torture.nemesis.{name}", (0.0, 0.01))
    monkeypatch.setattr("lockstead.testing.torture.nemesis.LONG", 0.06)


@pytest.mark.parametrize("at_once", [1, 2])
def test_injected_faults_are_recorded_counted_and_healed(recorder: Recorder, tmp_path: Path, at_once: int) -> None:
    ward, crew = Ward("quake", "flood", "fire", at_once=at_once), Crew("a", "b", "c")
    nemesis = Nemesis(ward.arena, crew, recorder, Random(SEED))
    for _ in range(20):  # until all have come together that may: a busy machine takes its time
        nemesis.run(clock.now() + 0.5)
        if ward.most == at_once and len(nemesis.done) == len(CLIENT_FAULTS) + 3:
            break
    faults = History.read([tmp_path / "nemesis.jsonl"]).faults
    assert all(fault.is_known for fault in faults)
    assert sorted(one.name for one in faults if not one.target) == sorted(ward.begun)
    assert sorted((one.target, one.name) for one in faults if one.target) == sorted(crew.injected)
    assert nemesis.done.total() == len(faults)
    assert set(nemesis.done) == {"quake", "flood", "fire", *CLIENT_FAULTS}
    assert ward.most == at_once


def test_the_seed_decides_which_faults_are_injected(tmp_path: Path) -> None:
    def kinds(number: int, seed: int) -> list[str]:
        recorder = Recorder(tmp_path / f"{number}.jsonl", "nemesis")
        ward = Ward("quake", "flood", "fire", "plague")
        nemesis = Nemesis(replace(ward.arena, client_faults=frozenset()), Crew(), recorder, Random(seed))
        nemesis.run(clock.now() + 0.15)
        recorder.close()
        return ward.begun[:4]

    assert kinds(1, seed=1) == kinds(2, seed=1) != []
    assert len(set(kinds(3, seed=1))) == 4
    assert len({tuple(kinds(4 + seed, seed)) for seed in range(4)}) > 1


def test_the_nemesis_can_be_stopped_while_a_fault_lasts(recorder: Recorder) -> None:
    ward = Ward("quake", seconds=(60.0, 60.0))
    nemesis = Nemesis(ward.arena, Crew(), recorder, Random(SEED))
    thread = threading.Thread(target=nemesis.run, args=[clock.now() + 60])
    thread.start()
    eventually(lambda: ward.begun, "it began")
    nemesis.stop()
    thread.join(5)
    assert not thread.is_alive()


def test_a_fault_that_cannot_be_healed_is_an_error(recorder: Recorder) -> None:
    @contextmanager
    def harm(chance: Random) -> Iterator[None]:
        yield
        raise OSError("it is broken for good")

    faults = {"quake": Fault(kind="quake", harm=harm, seconds=(0.0, 0.0))}
    arena = Arena(name="ward", url="", promises=PROMISES, faults=faults)
    with pytest.raises(OSError, match="for good"):
        Nemesis(arena, Crew(), recorder, Random(SEED)).run(clock.now() + 5)
