"""The scripts follow the rule: random steps on a server and on `core/rule.py` give the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf, isclose
from typing import Any

import pytest

from lockstead.core import gcra
from lockstead.core.model import Ask, Line, RateRequest, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.memory import MemoryServer
from lockstead.stores.redis.store import RedisStore
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer

TICK = 100.0
"""Time goes in ticks, by which the server's clock is set forward; what passes by itself is small beside one."""
DURATIONS = (0.5 * TICK, 1.5 * TICK, 3.5 * TICK)
"""Nothing ends near a tick."""
NAMES = ("x", "y")
RATES = ("r", "s")
CLIENTS = range(7)
STEPS = 1000
RATE_REQUESTS = 150


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture
def pair(start_server: Callable[..., RedisServer], key_prefix: str) -> Iterator[Pair]:
    pair = Pair(start_server(clock=True), key_prefix)
    yield pair
    pair.close()


class Pair:
    """A server and the rule, given the same requests."""

    def __init__(self, server: RedisServer, key_prefix: str) -> None:
        self.time = 0.0
        self._key_prefix = key_prefix
        self._server = server
        self._model = MemoryServer(clock=lambda: self.time)
        store = open_store(server.url, ThreadRuntime(), key_prefix=key_prefix)
        assert isinstance(store, RedisStore)
        self.store = store
        self._rates: dict[str, gcra.RateState] = {}
        self._listener = server.client(decode_responses=False)
        self._channel = self._listener.pubsub()
        self._channel.psubscribe(f"{key_prefix}:*")
        self._channel.get_message(timeout=5)
        self._notified: set[str] = set()
        """Owners woken since they last took a place."""
        self._owners: dict[bytes, str] = {}
        """By the secret that wakes it."""

    def close(self) -> None:
        self._channel.close()
        self._listener.close()
        drive(self.store.close())

    def tick(self) -> None:
        self._server.step_clock(TICK)
        self.time += TICK

    def join(self, ask: Ask) -> None:
        self._begin(ask)
        self._owners[self.store._subscriber.expect(ask.owner)] = ask.owner
        theirs = drive(self.store.join(ask, 5.0))
        ours, woken = self._model.join(ask)
        assert comparable(theirs) == comparable(ours)
        self._check_woken(woken)

    def renew(self, renewals: list[Renewal]) -> None:
        theirs = drive(self.store.renew(renewals, 5.0))
        ours, woken = self._model.renew(renewals)
        assert comparable(theirs) == comparable(ours)
        self._check_woken(woken)

    def leave(self, name: str, owner: str, tombstone: float) -> None:
        theirs = drive(self.store.leave(name, owner, 5.0, tombstone))
        ours, woken = self._model.leave(name, owner, tombstone)
        assert theirs or not ours, "only of an expired place that is still there may the answer differ"
        self._check_woken(woken)

    def reserve(self, reservation: Reservation) -> None:
        theirs = drive(self.store.reserve(reservation, 5.0))
        ours, woken = self._model.reserve(reservation)
        assert theirs == ours
        self._check_woken(woken)

    def join_all(self, asks: list[Ask]) -> None:
        for ask in asks:
            self._begin(ask)
        theirs = drive(self.store.join_all(asks, 5.0))
        ours, woken = self._model.join_all(asks)
        assert comparable(theirs) == comparable(ours)
        self._check_woken(woken)

    def step(self, ticks: int) -> None:
        """Set the clock forward or back, and look which rates are unused again: their state is gone by then."""
        self._server.step_clock(ticks * TICK)
        self.time += ticks * TICK
        for name in RATES:
            self.consume(RateRequest(name, 0.0, 0.0))
            if not gcra.level_at(self._rates.get(name), self.time):
                self._rates.pop(name, None)

    def consume(self, request: RateRequest) -> None:
        theirs = drive(self.store.consume(request, 5.0))
        ours, state = gcra.consume(self._rates.get(request.name), request, self.time)
        assert (theirs.allowed, ticks(theirs.level)) == (ours.allowed, ticks(ours.level))
        if state is not None:
            self._rates[request.name] = state

    def check_lines(self) -> None:
        theirs = drive(self.store.inspect())
        assert list(map(seen, theirs)) == list(map(seen, self._model.inspect("", exact=False)))

    def _begin(self, ask: Ask) -> None:
        standing = {place.owner for line in self._model.inspect(ask.name, exact=True) for place in line.places}
        if ask.owner not in standing:
            self._notified.discard(ask.owner)

    def _check_woken(self, expected: list[str]) -> None:
        """Places that newly hold were woken; by the sweep perhaps a little before a request came."""
        self._listener.publish(f"{self._key_prefix}:", "that is all")
        while (message := self._channel.get_message(timeout=5)) and message["data"] != b"that is all":
            if owner := self._owners.get(message["data"]):
                self._notified.add(owner)
        assert self._notified >= set(expected)


def comparable(answer: object) -> Any:
    """Return a reply without the clock and the ticket, which are each server's own."""
    if isinstance(answer, list):
        return list(map(comparable, answer))
    if isinstance(answer, Standing):
        return "stands", answer.held, answer.holder, ticks(answer.recheck)
    if isinstance(answer, Refusal):
        return "refused", answer.holder, answer.capacity, ticks(answer.recheck), answer.name
    return "gone"


def ticks(seconds: float) -> float:
    """Round a duration to half ticks, as all of them are made."""
    if seconds == inf:
        return inf
    halves = seconds / (TICK / 2)
    assert isclose(halves, round(halves), abs_tol=0.6), "too much time passed by itself"
    return round(halves) / 2


def seen(line: Line) -> Any:
    return line.name, [
        (
            place.owner,
            place.capacity,
            place.weight,
            ticks(place.expires_at - line.now),
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
    ttl, heartbeat = chance.choice(DURATIONS), DURATIONS[0] if chance.random() < 0.5 else chance.choice(DURATIONS)
    kind = chance.choices(("join", "join_all", "renew", "leave", "reserve", "tick"), (5, 2, 3, 3, 1, 2))[0]
    if kind.startswith("join"):
        capacity = chance.choices((1, 3), (1, 3))[0] if name == "x" else 1
        weight = chance.randint(1, capacity)
        ask = Ask(name, owner, ttl, heartbeat, capacity, weight, queue=chance.random() < 0.8, metadata='{"a": 1}')
        if kind == "join":
            return pair.join, ask
        other = "y" if name == "x" else "x"
        asks = [ask, Ask(other, owner_of(other, chance.choice(CLIENTS)), ttl, heartbeat)]
        return pair.join_all, [each._replace(queue=False) for each in asks]
    if kind == "renew":
        renewals = [
            Renewal(name, owner_of(name, client), ttl, heartbeat, claim=chance.random() < 0.7)
            for client in chance.sample(CLIENTS, chance.randint(1, 4))
            for name in chance.sample(NAMES, 1)
        ]
        return pair.renew, renewals
    if kind == "leave":
        tombstone = chance.choice((0.0, 0.0, *DURATIONS))
        return pair.leave, name, owner, tombstone
    if kind == "reserve":
        metadata = chance.choice((None, '{"b": "ü"}'))
        return pair.reserve, Reservation(
            name, owner, chance.choice(DURATIONS), metadata, chance.choice((0.0, *DURATIONS))
        )
    return (pair.tick,)


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
    """Costs are whole ticks, and no limit is near one."""
    chance = random.Random(seed)
    history: list[str] = []
    for _ in range(RATE_REQUESTS):
        if chance.random() < 0.3:
            act: Callable[[Any], None] = pair.step
            arg: Any = chance.choice((1, 1, 2, -1, -2))
        else:
            act, arg = (
                pair.consume,
                RateRequest(
                    chance.choice(RATES),
                    chance.randint(0, 3) * TICK,
                    chance.choice((0.5, 2.5, 4.5)) * TICK,
                    chance.choice((0.0, 0.0, 2 * TICK, inf)),
                ),
            )
        history.append(f"{act.__name__} {arg}")
        try:
            act(arg)
        except AssertionError as error:
            error.add_note("\n".join(history[-12:]))
            raise


def test_a_join_repeated_after_its_place_has_expired_has_a_place_in_a_line_that_works(pair: Pair) -> None:
    """Its first reply was lost, and it took longer than a heartbeat to ask again."""
    short, _, long = DURATIONS
    holder, late, other = (Ask("x", f"{client}/1", ttl=long, heartbeat=short) for client in ("holder", "late", "other"))
    pair.join(holder)
    pair.join(late)
    pair.join(other._replace(heartbeat=long))
    pair.tick()
    pair.join(late)
    pair.check_lines()
    pair.leave("x", "holder/1", 0.0)
    pair.check_lines()
    pair.leave("x", "other/1", 0.0)
    pair.check_lines()


def test_a_reservation_ends_in_time_though_the_clock_is_set_back(pair: Pair) -> None:
    pair.join(Ask("x", "holder/1", ttl=DURATIONS[2], heartbeat=DURATIONS[0]))
    pair.tick()
    pair.reserve(Reservation("x", "holder/1", DURATIONS[1]))
    pair.step(-1)
    pair.join(Ask("x", "other/1", ttl=DURATIONS[2], heartbeat=DURATIONS[0], queue=False))
    pair.check_lines()


def test_tickets_that_were_drawn_at_once_are_not_drawn_again_though_the_clock_is_set_back(pair: Pair) -> None:
    asks = [
        Ask(name, owner_of(name, 1), ttl=DURATIONS[2], heartbeat=DURATIONS[0], queue=False) for name in (*NAMES, "z")
    ]
    standings = drive(pair.store.join_all(asks[:2], 5.0))
    assert isinstance(standings, list)
    pair.step(-1)
    later = drive(pair.store.join(asks[2], 5.0))
    assert isinstance(later, Standing)
    assert later.ticket > max(standing.ticket for standing in standings)
