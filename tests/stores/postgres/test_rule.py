"""The functions follow the rule: random steps on a server and on `core/rule.py` give the same answers."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from math import inf
from typing import Any

import psycopg
import pytest

from lockstead.core.model import RESERVED, Ask, Line, RateRequest, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import drive
from lockstead.stores.memory import MemoryServer
from tests.servers.binaries import postgres_flavours
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.table import EPOCH, Table

TICK = 10.0
DURATIONS = (0.5 * TICK, 1.5 * TICK, 3.5 * TICK)
NAMES = ("x", "y")
CLIENTS = range(7)
STEPS = 400


pytestmark = pytest.mark.parametrize(
    "postgres_flavour", postgres_flavours(), indirect=True, ids=lambda flavour: flavour.name
)


@pytest.fixture
def pair(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Pair]:
    with Table(postgres_server, postgres_schema, clock=True) as table:
        yield Pair(table)


class Pair:
    """A server and the rule, given the same requests."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.time = 0.0
        self.model = MemoryServer(clock=lambda: self.time)
        self.store = table.store()
        self.store._maybe_sweep = lambda: None  # type: ignore[method-assign] # it is a step here: in the background, it would notify at any time
        self._subscriber = table.connect()
        self._subscriber.add_notify_handler(self._on_notify)
        self._subscriber.execute(f"LISTEN {self.store._channel}".encode())
        self._tombstones: dict[str, float] = {}
        self._notified: set[str] = set()
        """Owners notified that they hold, since they last took a place."""
        self._to_notify: set[str] = set()
        """Owners that hold by the rule, and were not notified yet."""

    def _on_notify(self, notice: psycopg.Notify) -> None:
        self._notified.add(notice.payload)

    def tick(self, ticks: float = 1) -> None:
        self.table.step_clock(ticks * TICK)
        self.time += ticks * TICK

    def join(self, ask: Ask) -> None:
        self._begin(ask)
        theirs = drive(self.store.join(ask, 5.0))
        ours, woken = self.model.join(ask)
        assert comparable(theirs) == comparable(ours)
        self._check_woken(woken, ask.name)

    def renew(self, renewals: list[Renewal]) -> None:
        theirs = drive(self.store.renew(renewals, 5.0))
        ours, woken = self.model.renew(renewals)
        assert list(map(comparable, theirs)) == list(map(comparable, ours))
        self._check_woken(woken)

    def leave(self, name: str, owner: str, tombstone: float) -> None:
        theirs = drive(self.store.leave(name, owner, 5.0, tombstone))
        ours, woken = self.model.leave(name, owner, self._lasting_tombstone(owner, tombstone))
        assert theirs == ours
        self._check_woken(woken, name)

    def reserve(self, reservation: Reservation) -> None:
        theirs = drive(self.store.reserve(reservation, 5.0))
        ours, woken = self.model.reserve(
            reservation._replace(tombstone=self._lasting_tombstone(reservation.owner, reservation.tombstone))
        )
        assert theirs == ours
        self._check_woken(woken, reservation.name, gone={reservation.owner})

    def join_all(self, asks: list[Ask]) -> None:
        for ask in asks:
            self._begin(ask)
        theirs = drive(self.store.join_all(asks, 5.0))
        ours, woken = self.model.join_all(asks)
        names = [ask.name for ask in asks]
        gone: set[str] = set()
        if isinstance(ours, Refusal):
            assert comparable(theirs) == comparable(ours)
            names = names[: names.index(ours.name) + 1]
            gone = {ask.owner for ask in asks}
        else:
            assert isinstance(theirs, list)
            assert list(map(comparable, theirs)) == list(map(comparable, ours))
        self._check_woken(woken, *names, gone=gone)

    def sweep(self) -> None:
        drive(self.store._sweep())
        self._check_woken([])

    def consume(self, request: RateRequest) -> None:
        assert drive(self.store.consume(request, 5.0)) == self.model.consume(request)

    def reserved(self, owner: str) -> bool:
        """Return whether an owner has reserved already: no owner leaves twice."""
        return bool(self.table.sql("SELECT count(*) FROM {s}.distributed_locks WHERE holder = %s", owner + RESERVED))

    def _lasting_tombstone(self, owner: str, tombstone: float) -> float:
        """Return how long the owner's tombstone lasts: here, a second one does not shorten the first."""
        if tombstone:
            self._tombstones[owner] = max(self._tombstones.get(owner, 0.0), self.time + tombstone)
            tombstone = self._tombstones[owner] - self.time
        return tombstone

    def check_lines(self) -> None:
        theirs = drive(self.store.inspect())
        assert list(map(seen, theirs)) == list(map(seen, self.model.inspect("", exact=False)))
        for name in NAMES:
            shown = self.table.rows("SELECT holder, state FROM {s}.locks WHERE name = %s ORDER BY fence", name)
            (places,) = [line.places for line in self.model.inspect(name, exact=True)] or [()]
            assert shown == [(place.owner, "waits" if place.acquired_at is None else "holds") for place in places]

    def _begin(self, ask: Ask) -> None:
        """Forget notifications, sent or due, of an owner's earlier place."""
        standing = {place.owner for line in self.model.inspect(ask.name, exact=True) for place in line.places}
        if ask.owner not in standing:
            self._notified.discard(ask.owner)
            self._to_notify.discard(ask.owner)

    def _check_woken(self, woken: list[str], *settled: str, gone: Collection[str] = ()) -> None:
        """Only a place that holds is woken: when its line is settled, not when a holder renews.

        Owners that held only at the moment they were `gone` may be notified.
        """
        before = set(self._notified)
        self._subscriber.execute(f"NOTIFY {self.store._channel}, 'that is all'".encode())
        self._notified.discard("that is all")
        holding = {
            place.owner
            for line in self.model.inspect("", exact=False)
            for place in line.places
            if place.acquired_at is not None
        }
        assert self._notified - before <= holding | set(gone)
        self._to_notify = (self._to_notify | set(woken)) & holding - self._notified
        due = {owner for owner in self._to_notify if owner.partition("/")[2] in settled}
        assert not due, f"not notified: {due}"


def comparable(answer: object) -> Any:
    """Return a reply without the clock and the ticket, which are each server's own."""
    if isinstance(answer, Standing):
        return "stands", answer.held, answer.holder, rounded(answer.recheck)
    if isinstance(answer, Refusal):
        return "refused", answer.name, answer.holder, answer.capacity, rounded(answer.recheck)
    return "gone"


def rounded(seconds: float) -> float:
    return inf if seconds == inf else round(seconds, 3)


def seen(line: Line) -> Any:
    return line.name, [
        (
            place.owner,
            place.capacity,
            place.weight,
            rounded(place.expires_at - line.now),
            place.acquired_at is not None,
            place.metadata,
        )
        for place in line.places
    ]


def owner_of(name: str, client: int) -> str:
    """Name an owner: no two lines ever have the same."""
    return f"client-{client}/{name}"


def step(pair: Pair, chance: random.Random) -> tuple[Any, ...]:
    """Draw a step: what to call, and with what."""
    name = chance.choice(NAMES)
    owner = owner_of(name, chance.choice(CLIENTS))
    ttl = chance.choice(DURATIONS)
    heartbeat = DURATIONS[0] if chance.random() < 0.5 else min(ttl, chance.choice(DURATIONS))
    kinds = {"join": 20, "join_all": 8, "renew": 12, "leave": 12, "reserve": 4, "tick": 8, "sweep": 1}
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    if kind.startswith("join"):
        asks = []
        for each in chance.sample(NAMES, 2):
            capacity = chance.choices((1, 3), (1, 3))[0] if each == "x" else 1
            weight = chance.randint(1, capacity)
            ask = Ask(each, owner_of(each, chance.choice(CLIENTS)), ttl, heartbeat, capacity, weight, queue=False)
            asks.append(ask._replace(metadata='{"a": 1}'))
        return (pair.join, asks[0]._replace(queue=chance.random() < 0.8)) if kind == "join" else (pair.join_all, asks)
    if kind == "renew":
        renewals = [
            Renewal(name, owner_of(name, client), ttl, heartbeat, claim=chance.random() < 0.7)
            for client in chance.sample(CLIENTS, chance.randint(1, 4))
            for name in chance.sample(NAMES, 1)
        ]
        return pair.renew, in_line(pair, renewals)
    tombstone = chance.choice((0.0, 0.0, *DURATIONS))
    if kind == "leave" or (kind == "reserve" and pair.reserved(owner)):
        return pair.leave, name, owner, tombstone
    if kind == "reserve":
        return pair.reserve, Reservation(
            name, owner, chance.choice(DURATIONS), chance.choice((None, '{"b": 2}')), tombstone
        )
    return (pair.tick,) if kind == "tick" else (pair.sweep,)


def in_line(pair: Pair, renewals: list[Renewal]) -> list[Renewal]:
    """Put a batch into the order of the line: a batch is one step here, and in the rule one step for each."""
    order = [place.owner for line in pair.model.inspect("", exact=False) for place in line.places]
    return sorted(renewals, key=lambda renewal: order.index(renewal.owner) if renewal.owner in order else -1)


def test_random_steps_get_the_replies_of_the_rule(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    history: list[str] = []
    for _ in range(STEPS):
        act, *args = step(pair, chance)
        history.append(f"{act.__name__} {args}")
        try:
            act(*args)
            pair.check_lines()
        except AssertionError as error:
            error.add_note("\n".join(history[-12:]))
            raise


def test_random_rate_requests_get_the_replies_of_the_rule(pair: Pair, seed: int) -> None:
    """To the last bit: the clock steps by parts of a second that have no fraction in binary either."""
    chance = random.Random(seed)
    for _ in range(STEPS):
        limit = chance.choice((1.0, 1.0, 0.3, 7.0))
        cost = chance.choice((0.0, 0.1, 0.1, 0.1, 0.7, limit, 1.2 * limit))
        pair.consume(RateRequest(chance.choice(NAMES), cost, limit, max_wait=chance.choice((0.0, 0.0, 0.2, inf))))
        kept = pair.table.rows("SELECT name, level, extract(epoch FROM at)::float8 - %s FROM {s}.rate_limits", EPOCH)
        assert {name: (level, at) for name, level, at in kept} == pair.model._rates
        if chance.random() < 0.3:
            pair.tick(chance.choice((0.125, 0.125, 1, 4, -0.25, -100)) / TICK)


def test_no_dead_place_outlives_a_clock_that_is_set_back_by_more_than_a_ttl(pair: Pair, seed: int) -> None:
    """Unlike the rule, which knows of each line when it last moved, a place knows only of itself."""
    chance = random.Random(seed)
    for _ in range(STEPS // 10):
        for _ in range(10):
            act, *args = step(pair, chance)
            if act == pair.leave:
                drive(pair.store.leave(args[0], args[1], 5.0, args[2]))
            elif act == pair.sweep:
                drive(pair.store._sweep())
            elif act == pair.tick:
                act(*args)
            else:
                drive(getattr(pair.store, act.__name__)(args[0], 5.0))
            assert_fits(pair.table)
        if chance.random() < 0.5:
            pair.tick(-chance.choice((0.3, 5, 1000)))
        elif chance.random() < 0.5:
            # All are dead. A newcomer holds, at the latest, when one ttl has passed.
            name = chance.choice(NAMES)
            capacity = pair.table.sql("SELECT max(capacity) FROM {s}.distributed_locks WHERE name = %s", name) or 1
            ask = Ask(name, f"survivor/{name}", DURATIONS[0], DURATIONS[0], capacity, capacity)
            for _ in range(10):
                answer = drive(pair.store.join(ask, 5.0))
                if isinstance(answer, Standing) and answer.held:
                    break
                pair.tick(0.45)
            else:
                pytest.fail(
                    f"{answer} after {DURATIONS[-1]} s: {pair.table.rows('SELECT * FROM {s}.distributed_locks')}"
                )
            drive(pair.store.leave(name, ask.owner, 5.0))


def assert_fits(table: Table) -> None:
    """Holders are a prefix of the line that fits; none holds for longer than the longest ttl."""
    held_weight: dict[str, int] = {}
    waits = set()
    for name, weight, capacity, holds in table.rows(
        "SELECT name, weight, capacity, acquired_at IS NOT NULL FROM {s}.distributed_locks"
        " WHERE expires_at > {s}.test_clock() ORDER BY name, fence"
    ):
        if not holds:
            waits.add(name)
            continue
        assert name not in waits
        held_weight[name] = held_weight.get(name, 0) + weight
        assert held_weight[name] <= capacity


def test_a_place_behind_the_front_does_not_keep_what_a_clock_set_back_gave_it(pair: Pair) -> None:
    """It asks again in time, so that it is alive; then it dies."""
    asks = [
        Ask("x", f"{client}/x", ttl=DURATIONS[2], heartbeat=DURATIONS[0]) for client in ("holder", "first", "second")
    ]
    for ask in asks:
        drive(pair.store.join(ask, 5.0))
    pair.tick(-100)
    drive(
        pair.store.renew(
            [Renewal("x", f"{client}/x", DURATIONS[2], DURATIONS[0]) for client in ("holder", "first")], 5.0
        )
    )
    drive(pair.store.join(asks[2], 5.0))
    drive(pair.store.leave("x", "holder/x", 5.0))
    pair.tick(0.6)
    last = Ask("x", "last/x", ttl=DURATIONS[2], heartbeat=DURATIONS[0])
    answer = drive(pair.store.join(last, 5.0))
    assert isinstance(answer, Standing)
    assert answer.held, answer


def test_a_repeated_join_of_several_names_has_one_place_in_each(pair: Pair) -> None:
    asks = [Ask(name, f"me/{name}", DURATIONS[1], DURATIONS[0], queue=False) for name in ("y", "x")]
    for _ in range(2):
        pair.join_all(asks)
        pair.check_lines()
        pair.tick()
    answer = drive(pair.store.join_all(asks[:1], 5.0))
    assert isinstance(answer, list), "it was refreshed"


def test_a_refused_join_of_several_names_wakes_places_that_hold_by_then(pair: Pair) -> None:
    pair.join(Ask("x", "holder/x", DURATIONS[0], DURATIONS[0]))
    pair.join(Ask("x", "next/x", DURATIONS[2], DURATIONS[2]))
    pair.tick()
    pair.join_all([Ask(name, f"you/{name}", DURATIONS[2], DURATIONS[0], queue=False) for name in ("y", "x")])
    pair.check_lines()


def test_a_repeated_join_of_several_names_succeeds_after_the_clock_is_set_back(pair: Pair) -> None:
    pair.join(Ask("x", "dead/x", DURATIONS[0], DURATIONS[0]))
    asks = [Ask(name, f"me/{name}", DURATIONS[2], DURATIONS[0], queue=False) for name in ("y", "x")]
    pair.tick(-100)
    pair.join_all(asks)
    pair.tick(0.6)
    pair.join_all(asks)
    pair.check_lines()


def test_a_holder_that_was_not_notified_of_its_grant_can_reserve(pair: Pair) -> None:
    """The holder before it has expired, and no request has come since."""
    pair.join(Ask("x", "holder/x", DURATIONS[0], DURATIONS[0]))
    pair.join(Ask("x", "next/x", DURATIONS[2], DURATIONS[2]))
    pair.tick()
    pair.reserve(Reservation("x", "next/x", DURATIONS[0]))
    pair.check_lines()
    assert [place.owner for line in drive(pair.store.inspect("x")) for place in line.places] == ["next/x+"]


def test_a_reservation_keeps_nothing_that_a_clock_set_back_gives_it(pair: Pair) -> None:
    pair.join(Ask("x", "me/x", DURATIONS[2], DURATIONS[0]))
    pair.tick()
    pair.reserve(Reservation("x", "me/x", DURATIONS[0]))
    pair.tick(-0.8)
    assert drive(pair.store.join(Ask("x", "you/x", DURATIONS[2], DURATIONS[0], queue=False), 5.0)) == Refusal(
        "me/x+", DURATIONS[0]
    )


def test_a_dead_waiter_blocks_a_semaphore_no_longer_than_its_heartbeat_after_the_clock_is_set_back(pair: Pair) -> None:
    drive(pair.store.join(Ask("x", "holder/x", DURATIONS[2], DURATIONS[0], capacity=3, weight=1), 5.0))
    drive(pair.store.join(Ask("x", "dead/x", DURATIONS[2], DURATIONS[0], capacity=3, weight=3), 5.0))
    pair.tick(-100)
    small = Ask("x", "small/x", DURATIONS[2], DURATIONS[0], capacity=3, weight=1)
    for _ in range(2):
        drive(pair.store.renew([Renewal("x", "holder/x", DURATIONS[2], DURATIONS[0])], 5.0))
        answer = drive(pair.store.join(small, 5.0))
        assert isinstance(answer, Standing)
        if answer.held:
            break
        pair.tick(0.45)
    pair.tick(0.1)
    answer = drive(pair.store.join(small, 5.0))
    assert isinstance(answer, Standing)
    assert answer.held, answer
