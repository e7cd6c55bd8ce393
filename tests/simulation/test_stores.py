"""Random histories of our own stores, on real servers whose clocks follow the simulated world's.

A failure names its seed. LOCKSTEAD_SEED moves the first seed, LOCKSTEAD_HISTORIES changes how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from lockstead import UnsupportedError
from lockstead.core.model import Ask, Capabilities, Line, Place, Refusal, Renewal, Standing, Wake
from lockstead.core.runtime import Runtime, drive
from lockstead.core.store import Store
from lockstead.runtimes.simulated import Process
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.stores.postgres.table.schema import script
from lockstead.stores.redis import commands
from lockstead.stores.sqlite import liveness
from lockstead.stores.sqlite import store as sqlite_store
from lockstead.stores.sqlite.liveness import Liveness
from lockstead.stores.sqlite.store import SqliteStore, _SqliteLine
from lockstead.testing import ViolationError, simulate
from lockstead.testing.simulation.any_store import StoreClock, StoreServer
from lockstead.testing.simulation.history import some_history
from tests.servers.binaries import POSTGRES18, VALKEY9, redis_flavours
from tests.servers.clock import SteppedClock
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import mutated
from tests.simulation.test_histories import FIRST_SEED, HISTORIES
from tests.torture.mutants import MUTANTS as SERVER_MUTANTS

SEEDS = 300
# Valkey 9 looks at its clock once a millisecond only, and counts on from there. The wheel of an older one ends with
# Python 3.12: after that it takes one of the system's.
OLDER_REDIS = [flavour for flavour in redis_flavours() if flavour is not VALKEY9]


class Rig(NamedTuple):
    open_store: Callable[[Runtime], Store]
    set_clock: Callable[[float], None]
    url: str = ""

    def simulate(self, seeds: Iterable[int]) -> int:
        return simulate(self.open_store, self.set_clock, seeds)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def set(self, seconds: float) -> None:
        self.time = seconds

    def read(self) -> float:
        return self.time


@contextmanager
def memory(folder: Path) -> Iterator[Rig]:
    clock = Clock()
    server = MemoryServer(clock.read)
    yield Rig(lambda runtime: MemoryStore(runtime, server), clock.set)


@contextmanager
def sqlite(folder: Path, **options: Any) -> Iterator[Rig]:
    """Processes that crash are proven to be dead, by the kernel's locks, some time later: each has one of its own."""
    clock = Clock()
    clients: dict[str, MortalStore] = {}
    original = Process.crash

    def crash(process: Process) -> None:
        original(process)
        if (store := clients.get(process.name)) is not None:
            process.world.after(process.world.forger_random.choice((0.0, 0.1, 2.0)), store.die)

    locks = liveness._Locks()  # dropped in the end, with what it keeps
    with (
        mock.patch.object(Process, "crash", crash),
        mock.patch.object(liveness, "_locks", locks),
        mock.patch.object(locks, "_find", return_value=None),
    ):
        yield Rig(
            lambda runtime: MortalStore(clients, runtime, folder / "locks.db", clock=clock.read, **options), clock.set
        )


class MortalStore(SqliteStore):
    """Records whose store it is. Requests of the dead that are still on their way arrive all the same."""

    def __init__(self, clients: dict[str, MortalStore], *args: Any, **options: Any) -> None:
        self.clients = clients
        super().__init__(*args, **options)
        self._joins = 0  # which joins sweep is random otherwise, and no seed would replay

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        self.clients[ask.owner.rpartition("/")[0]] = self
        return await super().join(ask, timeout)

    def die(self) -> None:
        self._liveness.drop(has_places=False)


@contextmanager
def redis(folder: Path) -> Iterator[Rig]:
    with RedisServer(OLDER_REDIS[0], clock=True) as server:
        yield Rig(lambda runtime: open_store(server.url, runtime), server.clock.stop_at)


@contextmanager
def postgres(folder: Path) -> Iterator[Rig]:
    with PostgresServer(POSTGRES18, SteppedClock, fsync="off") as server:
        server.sql(script("leases"))
        yield Rig(lambda runtime: open_store(server.url, runtime, schema="leases"), server.clock.stop_at, server.url)


SHARES = {sqlite: 30, **({redis: 40} if OLDER_REDIS else {}), postgres: 100}
"""What part of the histories of a simulated server each store has: its steps take real time."""


@pytest.mark.timeout(120 + HISTORIES)
@pytest.mark.parametrize("store", SHARES, ids=lambda store: store.__name__)
def test_no_invariant_is_broken_in_random_histories_of_a_real_store(store: Any, tmp_path: Path) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + max(HISTORIES // SHARES[store], 1))
    with store(tmp_path) as rig:
        sections = rig.simulate(seeds)
    assert sections > len(seeds) or len(seeds) < 5, "hardly any lock was granted: these histories prove nothing"


def test_a_store_that_follows_the_rule_makes_the_histories_of_the_simulated_server(tmp_path: Path) -> None:
    """Wake-ups included: which places a step lets hold is found by looking."""
    with memory(tmp_path) as rig:
        make = partial(StoreServer, open_store=rig.open_store, clock=StoreClock(rig.set_clock), clock_goes_back=True)
        for seed in range(10):
            simulated, real = some_history(seed).run(), some_history(seed, make).run()
            assert (real.steps, real.sections) == (simulated.steps, simulated.sections), f"seed {seed}"


def test_no_waiter_is_woken_by_a_store_without_wake_ups(tmp_path: Path) -> None:
    with sqlite(tmp_path, push=False) as rig:
        assert rig.simulate(range(3)) > 3


class Plain:
    """A store that has no line, carries exclusive locks only, and has none of the abilities that it need not have."""

    address = "plain://server"
    capabilities = Capabilities(fifo=False, push=False, semaphore=False, shared=False)

    def __init__(self, runtime: Runtime, server: MemoryServer) -> None:
        self.runtime = runtime
        self._store = MemoryStore(runtime, server)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        assert not ask.queue
        assert ask.capacity == 1
        return await self._store.join(ask, timeout)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        return await self._store.renew(renewals, timeout)

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        return await self._store.leave(name, owner, timeout, tombstone)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        raise NotImplementedError

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        return await self._store.inspect(prefix, exact=exact)

    async def close(self) -> None:
        return None


def test_the_simulation_requests_only_what_a_store_supports() -> None:
    clock = Clock()
    server = MemoryServer(clock.read)
    assert simulate(lambda runtime: Plain(runtime, server), clock.set, range(20)) > 20


def test_a_store_whose_places_do_not_expire_is_refused(tmp_path: Path) -> None:
    def open_endless(runtime: Runtime) -> Store:
        store = rig.open_store(runtime)
        store.capabilities = Capabilities(expiry=False)  # type: ignore[misc]
        return store

    with memory(tmp_path) as rig, pytest.raises(UnsupportedError):
        simulate(open_endless, rig.set_clock)


def test_a_store_that_another_client_uses_is_refused(tmp_path: Path) -> None:
    with memory(tmp_path) as rig:
        drive(rig.open_store(ThreadRuntime()).join(Ask("mine", "me/1", inf, inf), 5.0))
        with pytest.raises(ViolationError, match="mine is not empty"):
            rig.simulate(range(5))


def test_a_store_that_fails_is_a_violation_that_names_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_SqliteLine, "find", lambda self, owner: 1 / 0)
    with sqlite(tmp_path) as rig, pytest.raises(ViolationError, match=r"seed 70: .*ZeroDivisionError"):
        rig.simulate(range(70, 80))


def every_client_has_a_file_of_its_own(patch: pytest.MonkeyPatch) -> None:
    def init(self, runtime, path, **options):
        original(self, runtime, path.with_name(f"{id(self)}.db"), **options)

    original = SqliteStore.__init__
    patch.setattr(SqliteStore, "__init__", init)


def tickets_repeat(patch: pytest.MonkeyPatch) -> None:
    """By the rule, and by the statement for the first place of a line."""

    def append(self: _SqliteLine, place: Place) -> bool:
        is_in = original(self, place)
        first = self._execute("SELECT count(*) FROM place WHERE name = ?", (self._name,)).fetchone()[0] == 1
        if is_in and first:
            self._execute("UPDATE place SET ticket = 1 WHERE name = ?", (self._name,))
            place.ticket = 1
        return is_in

    original = _SqliteLine.append
    patch.setattr(_SqliteLine, "append", append)
    the_first_ticket_of_a_line_repeats(patch)


def the_first_ticket_of_a_line_repeats(patch: pytest.MonkeyPatch) -> None:
    def init(self, *args, **options):
        original(self, *args, **options)
        self._floor = lambda: 7

    original = SqliteStore.__init__
    patch.setattr(SqliteStore, "__init__", init)
    _without(patch, "join_empty_line", "ticket >= 0 AND ticket < ?2 AND")


def a_line_with_places_counts_as_empty(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "join_empty_line", "AND NOT EXISTS (SELECT 1 FROM place WHERE name = ?1)")


def late_requests_find_an_empty_line(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "join_empty_line", "AND NOT EXISTS (SELECT 1 FROM tombstone WHERE owner = ?3 AND until > ?7)")


def an_owner_may_leave_for_the_only_holder(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "leave_only_place", "owner = ?1 AND")


def _without(patch: pytest.MonkeyPatch, name: str, condition: str) -> None:
    """Remove a condition from one of the statements that replace a step."""
    assert condition in sqlite_store._SQL[name]
    changed = {**sqlite_store._SQL, name: sqlite_store._SQL[name].replace(condition, "")}
    patch.setattr(sqlite_store, "_SQL", changed)


def late_requests_are_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_SqliteLine, "add_tombstone", lambda self, owner, until: None)


def a_clock_set_back_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteStore, "_follow_clock", lambda self, cursor, now: None)


def a_reservation_keeps_its_owner(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_SqliteLine, "rename", lambda self, place, owner: None)


def every_other_process_counts_as_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "is_dead", Liveness.can_judge)


def reservations_end_with_their_process(patch: pytest.MonkeyPatch) -> None:
    def living(self: SqliteStore, place: Any) -> Any:
        if self._liveness.is_dead(place.address):
            place.expires_at = -inf
        return place

    patch.setattr(SqliteStore, "_living", living)


BROKEN: dict[Callable[[Any], None], int] = {
    **{
        MUTANTS[name]: seed
        for name, seed in {
            "one_more_fits": 0,
            "newcomers_overtake": 13,
            "any_owner_may_leave_for_the_holder": 0,
            "any_owner_may_renew_for_the_holder": 0,
            "renewals_resurrect": 0,
            "a_repeated_join_does_not_refresh": 275,
            "renewals_shorten": 0,
            "waiting_places_never_claim_their_ttl": 0,
            "the_dead_hold_for_ever": 3,
            "a_refusal_of_several_leaves_the_first_behind": 19,
            "a_reservation_is_released": 0,
            "the_capacity_of_the_dead_counts": 1,
        }.items()
    },
    every_client_has_a_file_of_its_own: 0,
    tickets_repeat: 1,
    the_first_ticket_of_a_line_repeats: 0,
    a_line_with_places_counts_as_empty: 0,
    late_requests_find_an_empty_line: 734,
    an_owner_may_leave_for_the_only_holder: 0,
    late_requests_are_accepted: 68,
    a_clock_set_back_is_ignored: 16,
    a_reservation_keeps_its_owner: 0,
    every_other_process_counts_as_dead: 0,
    reservations_end_with_their_process: 43,
}
"""What is broken, and the seed that has shown it, which is tried first."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a client that gets wrong answers may leave coroutines unawaited
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_store_is_caught(broken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutated(broken, monkeypatch), sqlite(tmp_path) as rig, pytest.raises(ViolationError) as violation:
        rig.simulate([BROKEN[broken], *range(SEEDS)])
    print(violation.value)


SERVERS = {
    "redis: an_owner_may_leave_for_another": 1,
    "redis: a_renewal_resurrects": 4,
    "redis: a_line_counts_places_not_weights": 0,
    "redis: newcomers_ignore_waiters": 13,
    "redis: tickets_start_over": 1,
    "postgres: the_sql_lets_one_more_in": 0,
    "postgres: the_sql_renews_for_less_than_it_says": 0,
}
"""What is broken in scripts and SQL, and the seed that has shown it."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [name for name in SERVERS if OLDER_REDIS or not name.startswith("redis")])
def test_a_bug_in_the_server_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (commands.JOIN, commands.JOIN_ALL, commands.RENEW, commands.LEAVE):
        for part in ("_text", "digest"):
            monkeypatch.setattr(command, part, getattr(command, part))  # to have it back afterwards
    mutant = SERVER_MUTANTS[name]
    with {"redis": redis, "postgres": postgres}[mutant.arena](tmp_path) as rig:
        mutant.install(monkeypatch, rig.url)
        with pytest.raises(ViolationError) as violation:
            rig.simulate([SERVERS[name], *range(SEEDS)])
    print(violation.value)
