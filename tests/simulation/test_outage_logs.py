"""Outages of the store: how long a waiter outlasts one, and what is logged when it begins and when it ends."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any

import pytest

from lockstead.core.engine import Engine
from lockstead.core.lease import Claim, Lease
from lockstead.core.model import UNKNOWN, Ask, Refusal, Renewal, Standing
from lockstead.core.outage import reason
from lockstead.core.refusals import Busy
from lockstead.core.retry import RetryPolicy
from lockstead.errors import StoreError
from lockstead.runtimes.simulated import Process, World
from lockstead.stores.transport.pipeline import CONNECTION_REFUSED
from lockstead.testing import Faults, SimulatedServer, SimulatedStore

RETRY = RetryPolicy(max_retries=1_000_000, retry_delay=0.05)
TTL = 9.0


class FailingStore(SimulatedStore):
    """Fails the requests of the names in `down`, with `error` if there is one."""

    error: Exception | None = None

    def __init__(self, process: Process, server: SimulatedServer) -> None:
        super().__init__(process, server)
        self.address = "redis://db:6379"
        self.down: set[str] = set()

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if ask.name in self.down:
            raise self._failure()
        return await super().join(ask, timeout)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        if all(renewal.name in self.down for renewal in renewals):
            raise self._failure()
        standings = await super().renew(renewals, timeout)
        return [
            UNKNOWN if renewal.name in self.down else standing
            for renewal, standing in zip(renewals, standings, strict=True)
        ]

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        if name in self.down:
            raise self._failure()
        return await super().leave(name, owner, timeout, tombstone)

    def _failure(self) -> Exception:
        return self.error or StoreError("db:6379: connection refused", transient=True)


class Client:
    """One client of a simulated server, and what it logs."""

    def __init__(self, world: World, server: SimulatedServer, name: str) -> None:
        self.world = world
        self.process = Process(world, name)
        self.store = FailingStore(self.process, server)
        self.engine = Engine(self.store, lambda: name)
        self.claims: list[Claim] = []

    async def acquire(
        self,
        name: str,
        ttl: float = TTL,
        renew_for: float = inf,
        timeout: float = inf,
        retry: RetryPolicy = RETRY,
        *,
        queue: bool = True,
    ) -> Lease:
        claim = Claim()
        self.claims.append(claim)
        ask = Ask(name, "", ttl, 3.0, queue=queue)
        outcome = await self.engine.acquire(ask, claim, timeout=timeout, renew_for=renew_for, retry=retry)
        if isinstance(outcome, Busy):
            raise outcome.error(self.engine.holder_id)
        return outcome

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.process.start(work)
        while not task.finished:
            assert self.world.step(), "nothing is left to happen"
        task.outcome()

    async def sleep(self, seconds: float) -> None:
        await self.engine.runtime.sleep(seconds)

    async def until(self, condition: Callable[[], bool]) -> float:
        while not condition():
            await self.sleep(0.01)
        return self.process.now()


@pytest.fixture
def world() -> Iterator[World]:
    world = World(seed=0)
    yield world
    world.end()


@pytest.fixture
def server(world: World) -> SimulatedServer:
    return SimulatedServer(world, Faults())


@pytest.fixture
def alice(world: World, server: SimulatedServer) -> Client:
    return Client(world, server, "alice")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "lockstead")

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    return warnings


def seconds_in(pattern: str, message: str) -> float:
    found = re.fullmatch(pattern, message)
    assert found is not None, message
    return float(found[1])


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    alice: Client, logged: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        leases = [await alice.acquire(name) for name in ("x", "y", "z")]
        alice.store.down = {"x", "y", "z"}
        began = await alice.until(lambda: bool(logged()))
        (beginning,) = logged()
        first = min(lease.trusted_until for lease in leases) - began
        pattern = (
            r"store redis://db:6379 unreachable \(connection refused\): "
            r"3 held leases at risk, first one in (\d+\.\d) s; retrying"
        )
        assert seconds_in(pattern, beginning) == pytest.approx(first, abs=0.2)
        await alice.sleep(2.0)
        assert logged() == [beginning], "once, not at every attempt"
        assert [record for record in caplog.records if record.levelno == logging.DEBUG], "the attempts are there to see"
        alice.store.down = set()
        ended = await alice.until(lambda: len(logged()) > 1)
        end = logged()[1]
        pattern = r"store redis://db:6379 reachable again after (\d+\.\d) s: 3 leases kept, 0 lost"
        assert seconds_in(pattern, end) == pytest.approx(ended - began, abs=0.2)
        await alice.sleep(30.0)
        assert logged() == [beginning, end]

    alice.run(scenario())


def test_a_second_outage_is_logged_again(alice: Client, logged: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        await alice.acquire("x")
        for number in (1, 2):
            alice.store.down = {"x"}
            await alice.until(lambda number=number: len(logged()) == 2 * number - 1)  # type: ignore[misc]
            alice.store.down = set()
            await alice.until(lambda number=number: len(logged()) == 2 * number)  # type: ignore[misc]
        assert [message.split(" (")[0].split(" after")[0] for message in logged()] == [
            "store redis://db:6379 unreachable",
            "store redis://db:6379 reachable again",
        ] * 2

    alice.run(scenario())


def test_leases_lost_and_released_in_an_outage_are_counted(alice: Client, logged: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        await alice.acquire("short", ttl=3.0)
        await alice.acquire("long", ttl=60.0)
        released = await alice.acquire("released", ttl=60.0)
        alice.store.down = {"short", "long", "released"}
        await alice.until(lambda: bool(logged()))
        assert "3 held leases at risk, first one in 2.1 s" in logged()[0]
        with pytest.raises(StoreError):
            await alice.engine.release(released)
        await alice.sleep(4.0)
        (loss,) = logged()[1:]
        assert loss.startswith("redis://db:6379: lost 'short'")
        alice.store.down = set()
        await alice.until(lambda: "reachable again" in logged()[-1])
        assert logged()[-1].endswith(" s: 1 lease kept, 1 lost, 1 released")

    alice.run(scenario())


def test_an_outage_that_concerns_only_waiting_places_says_so(
    world: World, server: SimulatedServer, alice: Client, logged: Callable[[], list[str]]
) -> None:
    bob = Client(world, server, "bob")

    async def scenario() -> None:
        await bob.acquire("x")
        waits = alice.process.start(alice.acquire("x"))
        await alice.sleep(0.1)
        alice.store.down = {"x"}
        await alice.until(lambda: bool(logged()))
        pattern = (
            r"store redis://db:6379 unreachable \(connection refused\): "
            r"no lease held, 1 waiting place at risk, first one in (\d\.\d) s; retrying"
        )
        assert 0 < seconds_in(pattern, logged()[0]) < 3
        alice.store.down = set()
        await alice.until(lambda: len(logged()) > 1)
        assert re.fullmatch(r"store redis://db:6379 reachable again after \d\.\d s: no lease was held", logged()[1])
        waits.cancel()
        await alice.until(lambda: waits.finished)

    alice.run(scenario())


def test_an_outage_that_delays_only_a_release_says_so(alice: Client, logged: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        lease = await alice.acquire("x")
        alice.store.down = {"x"}
        with pytest.raises(StoreError):
            await alice.engine.release(lease)
        await alice.until(lambda: bool(logged()))
        assert logged()[0].endswith("connection refused): no lease held, 1 release pending; retrying")
        alice.store.down = set()
        await alice.until(lambda: len(logged()) > 1)
        assert not alice.engine.keeper.leases

    alice.run(scenario())


def test_an_answer_for_another_place_does_not_end_an_outage(alice: Client, logged: Callable[[], list[str]]) -> None:
    """One node of a cluster is down: what the others answer is no reason to log its outage again and again."""

    async def scenario() -> None:
        await alice.acquire("healthy", ttl=1.0)
        await alice.acquire("failing", ttl=60.0)
        alice.store.down = {"failing"}
        await alice.until(lambda: bool(logged()))
        await alice.sleep(10.0)
        assert len(logged()) == 1
        alice.store.down = set()
        await alice.until(lambda: len(logged()) > 1)
        assert logged()[1].endswith(": 2 leases kept, 0 lost")

    alice.run(scenario())


def test_a_store_that_refuses_a_request_is_not_called_unreachable(
    alice: Client, logged: Callable[[], list[str]]
) -> None:
    """Only what was refused is at risk: the store answers other requests."""

    async def scenario() -> None:
        await alice.acquire("x")
        await alice.acquire("y", renew_for=0.0, ttl=600.0)
        alice.store.error = StoreError("db:6379: READONLY")
        alice.store.down = {"x"}
        await alice.until(lambda: bool(logged()))
        assert logged()[0].startswith("request to store redis://db:6379 failed (READONLY): 1 held lease at risk")
        alice.store.down = set()
        await alice.until(lambda: len(logged()) > 1)
        assert re.fullmatch(
            r"requests to store redis://db:6379 succeed again after \d\.\d s: 1 lease kept, 0 lost", logged()[1]
        )

    alice.run(scenario())


def test_an_outage_outlived_by_no_lease_does_not_silence_the_next(
    alice: Client, logged: Callable[[], list[str]]
) -> None:
    async def scenario() -> None:
        await alice.acquire("x", ttl=3.0)
        alice.store.down = {"x"}
        await alice.until(lambda: bool(logged()))
        await alice.until(lambda: not alice.engine.keeper.leases)  # it has expired, so no request is repeated
        alice.store.down = set()
        before = len(logged())
        await alice.acquire("x", ttl=3.0)
        alice.store.down = {"x"}
        await alice.until(lambda: len(logged()) > before)
        assert logged()[-1].startswith("store redis://db:6379 unreachable (")

    alice.run(scenario())


def test_an_outage_goes_on_after_the_leases_that_showed_it_are_gone(
    alice: Client, logged: Callable[[], list[str]]
) -> None:
    async def scenario() -> None:
        await alice.acquire("short", ttl=2.0)
        await alice.acquire("long", ttl=60.0)
        alice.store.down = {"short", "long"}
        began = await alice.until(lambda: bool(logged()))
        await alice.until(lambda: len(alice.engine.keeper.leases) == 1)  # before the long one is due
        await alice.sleep(10.0)
        alice.store.down = set()
        ended = await alice.until(lambda: "reachable again" in logged()[-1])
        assert [message.split(" (")[0] for message in logged()[:-1]] == [
            "store redis://db:6379 unreachable",
            "redis://db:6379: lost 'short'",
        ]
        pattern = r"store redis://db:6379 reachable again after (\d+\.\d) s: 1 lease kept, 1 lost"
        assert seconds_in(pattern, logged()[-1]) == pytest.approx(ended - began, abs=0.2)

    alice.run(scenario())


def test_an_error_of_several_lines_is_logged_in_one(alice: Client, logged: Callable[[], list[str]]) -> None:
    async def scenario() -> None:
        await alice.acquire("x")
        alice.store.error = StoreError("db:6379: terminating connection\nserver closed\n\tit", transient=True)
        alice.store.down = {"x"}
        await alice.until(lambda: bool(logged()))
        assert logged()[0].startswith("store redis://db:6379 unreachable (terminating connection server closed it): ")
        alice.store.down = set()

    alice.run(scenario())


def test_a_renewal_loop_that_failed_says_when_it_retries(alice: Client, logged: Callable[[], list[str]]) -> None:
    scan = alice.engine.keeper._scan

    def fail_once(now: float) -> Any:
        alice.engine.keeper._scan = scan  # type: ignore[method-assign]
        msg = "a mistake"
        raise RuntimeError(msg)

    alice.engine.keeper._scan = fail_once  # type: ignore[method-assign]

    async def scenario() -> None:
        lease = await alice.acquire("x")
        await alice.sleep(20.0)
        alice.engine.check(lease)
        assert logged() == ["redis://db:6379: renewal loop failed; retrying in 0.1 s"]

    alice.run(scenario())


def test_a_release_that_fails_when_the_client_is_closed_says_why_and_when_the_lease_expires(
    alice: Client, logged: Callable[[], list[str]]
) -> None:
    async def scenario() -> None:
        lease = await alice.acquire("x")
        alice.store.down = {"x"}
        with pytest.raises(StoreError):
            await alice.engine.close()
        pattern = r"redis://db:6379: could not release 'x' \(connection refused\): it expires in at most (\d+\.\d) s"
        assert seconds_in(pattern, logged()[-1]) == pytest.approx(lease.gone_by - alice.process.now(), abs=0.1)

    alice.run(scenario())


@pytest.mark.parametrize(
    ("address", "text", "shown"),
    [
        ("redis://db:6379", "db:6379: connection refused", "connection refused"),
        ("redis://db:6379", f"db:6379: {CONNECTION_REFUSED}", CONNECTION_REFUSED),
        ("redis://[::1]:6379", "[::1]:6379: no answer in time", "no answer in time"),
        ("sqlite:////var/lib/locks.db", "/var/lib/locks.db: disk I/O error", "disk I/O error"),
        ("file:///srv/locks", "file:///srv/locks: locked", "locked"),
        ("redis+cluster://a:1,b:2", "b:2: connection refused", "b:2: connection refused"),
        ("postgresql://db/app", "app: no such role", "app: no such role"),
        ("redis://db:6379", "too few nodes", "too few nodes"),
        ("redis://db:6379", "", "StoreError"),
    ],
)
def test_a_line_names_its_store_once(address: str, text: str, shown: str) -> None:
    assert reason(StoreError(text), address) == shown


@pytest.mark.parametrize("is_in_line", [False, True], ids=["joining", "waiting"])
def test_a_waiter_outlasts_an_outage_of_30_s_with_the_default_policy(
    world: World, server: SimulatedServer, alice: Client, logged: Callable[[], list[str]], is_in_line: bool
) -> None:
    bob = Client(world, server, "bob")

    async def scenario() -> None:
        await alice.acquire("known")
        first = await bob.acquire("x")
        if not is_in_line:
            alice.store.down = {"x"}
        waits = alice.process.start(alice.acquire("x", retry=RetryPolicy()))
        await alice.sleep(0.1)
        alice.store.down = {"x"}
        await alice.sleep(30.0)
        assert not waits.finished
        alice.store.down = set()
        await bob.engine.release(first)
        began = alice.process.now()
        await alice.until(lambda: waits.finished)
        assert alice.process.now() - began < RetryPolicy().max_delay + 0.5
        assert waits.outcome().fence > first.fence
        assert [bool(re.search("unreachable", message)) for message in logged()] == [True, False]
        assert re.search("reachable again after (29|30)\\.[0-9] s: 1 lease kept, 0 lost", logged()[1])

    alice.run(scenario())


def test_a_waiter_fails_at_its_timeout_and_what_does_not_wait_fails_soon(
    world: World, server: SimulatedServer, alice: Client
) -> None:
    async def fails_after(work: Coroutine[Any, Any, Lease]) -> float:
        began = alice.process.now()
        with pytest.raises(StoreError):
            await work
        return alice.process.now() - began

    async def scenario() -> None:
        alice.store.down = {"x"}
        assert await fails_after(alice.acquire("x", timeout=40, retry=RetryPolicy())) < 1, "a first contact"
        await alice.acquire("known")
        assert 39.5 < await fails_after(alice.acquire("x", timeout=40, retry=RetryPolicy())) <= 40
        assert await fails_after(alice.acquire("x", timeout=0, queue=False, retry=RetryPolicy())) < 1
        alice.store.error = StoreError("db:6379: wrong password")
        assert await fails_after(alice.acquire("x", timeout=40, retry=RetryPolicy())) < 0.1, "not transient"

    alice.run(scenario())
