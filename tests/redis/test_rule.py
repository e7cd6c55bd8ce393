"""The scripts follow the rule: random steps on a server and on `_rule.py` give the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from math import inf, isclose
from typing import Any

import pytest

from leasehold._model import Ask, Line, Refusal, Renewal, Standing
from leasehold._runtime import drive
from leasehold.runtimes.threads import ThreadRuntime
from leasehold.stores import open_store
from leasehold.stores.memory import MemoryServer
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer

TICK = 10.0
"""Time goes in ticks, of which the server's clock is set forward; what passes by itself is small beside one."""
LIVES = (0.5 * TICK, 1.5 * TICK, 3.5 * TICK)
"""Nothing ends near a tick."""
NAMES = ("x", "y")
CLIENTS = range(7)
STEPS = 1000


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture
def pair(start_server: Callable[..., RedisServer], key_prefix: str) -> Iterator[Pair]:
    pair = Pair(start_server(clock=True), key_prefix)
    yield pair
    pair.close()


class Pair:
    """A server and the rule, told the same."""

    def __init__(self, server: RedisServer, key_prefix: str) -> None:
        self.time = 0.0
        self._key_prefix = key_prefix
        self._server = server
        self._model = MemoryServer(clock=lambda: self.time)
        self._store = open_store(server.url, ThreadRuntime(), key_prefix=key_prefix)
        self._listener = server.client()
        self._channel = self._listener.pubsub()
        self._channel.psubscribe(f"{key_prefix}:*")
        self._channel.get_message(timeout=5)
        self._heard: set[str] = set()
        """Owners woken since they last took a place."""

    def close(self) -> None:
        self._channel.close()
        self._listener.close()
        drive(self._store.close())

    def tick(self) -> None:
        self._server.step_clock(TICK)
        self.time += TICK

    def join(self, ask: Ask) -> None:
        standing = {place.owner for line in self._model.inspect(ask.name, exact=True) for place in line.places}
        if ask.owner not in standing:
            self._heard.discard(ask.owner)
        theirs = drive(self._store.join(ask, 5.0))
        ours, woken = self._model.join(ask)
        assert told(theirs) == told(ours)
        self._check_woken(woken)

    def renew(self, renewals: list[Renewal]) -> None:
        theirs = drive(self._store.renew(renewals, 5.0))
        ours, woken = self._model.renew(renewals)
        assert list(map(told, theirs)) == list(map(told, ours))
        self._check_woken(woken)

    def leave(self, name: str, owner: str, unsure: float) -> None:
        theirs = drive(self._store.leave(name, owner, 5.0, unsure))
        ours, woken = self._model.leave(name, owner, unsure)
        assert theirs or not ours, "only of an expired place that is still there may the answer differ"
        self._check_woken(woken)

    def check_lines(self) -> None:
        theirs = drive(self._store.inspect())
        assert list(map(seen, theirs)) == list(map(seen, self._model.inspect("", exact=False)))

    def _check_woken(self, expected: list[str]) -> None:
        """Whoever newly holds was told; by the sweep perhaps a little before anybody looked."""
        self._listener.publish(f"{self._key_prefix}:", "that is all")
        while (message := self._channel.get_message(timeout=5)) and message["data"] != "that is all":
            self._heard.add(message["data"])
        assert self._heard >= set(expected)


def told(answer: Standing | Refusal | None) -> Any:
    """Give what an answer says but for the clock and the ticket, which are each server's own."""
    if isinstance(answer, Standing):
        return "stands", answer.held, answer.holder, ticks(answer.recheck)
    if isinstance(answer, Refusal):
        return "refused", answer.holder, answer.capacity, ticks(answer.recheck)
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
        (place.owner, place.capacity, place.weight, ticks(place.expires_at - line.now), place.acquired_at is not None)
        for place in line.places
    ]


def owner_of(name: str, client: int) -> str:
    """Name an owner: no two lines ever have the same."""
    return f"client-{client}/{name}"


def step(pair: Pair, chance: random.Random) -> tuple[Any, ...]:
    """Draw a step: what to call, and with what."""
    name = chance.choice(NAMES)
    owner = owner_of(name, chance.choice(CLIENTS))
    ttl, heartbeat = chance.choice(LIVES), LIVES[0] if chance.random() < 0.5 else chance.choice(LIVES)
    kind = chance.choices(("join", "renew", "leave", "tick"), (5, 3, 3, 2))[0]
    if kind == "join":
        capacity = chance.choices((1, 3), (1, 3))[0] if name == "x" else 1
        weight = chance.randint(1, capacity)
        ask = Ask(name, owner, ttl, heartbeat, capacity, weight, queue=chance.random() < 0.8, metadata='{"a": 1}')
        return pair.join, ask
    if kind == "renew":
        renewals = [
            Renewal(name, owner_of(name, client), ttl, heartbeat, claim=chance.random() < 0.7)
            for client in chance.sample(CLIENTS, chance.randint(1, 4))
            for name in chance.sample(NAMES, 1)
        ]
        return pair.renew, renewals
    if kind == "leave":
        unsure = chance.choice((0.0, 0.0, *LIVES))
        return pair.leave, name, owner, unsure
    return (pair.tick,)


def test_random_steps_are_answered_as_the_rule_answers_them(pair: Pair, seed: int) -> None:
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


def test_a_join_repeated_after_its_place_has_expired_has_a_place_in_a_line_that_works(pair: Pair) -> None:
    """Its first reply was lost, and it took longer than a heartbeat to ask again."""
    holder, late, other = (Ask("x", f"{who}/1", ttl=35.0, heartbeat=5.0) for who in ("holder", "late", "other"))
    pair.join(holder)
    pair.join(late)
    pair.join(other._replace(heartbeat=35.0))
    pair.tick()
    pair.join(late)
    pair.check_lines()
    pair.leave("x", "holder/1", 0.0)
    pair.check_lines()
    pair.leave("x", "other/1", 0.0)
    pair.check_lines()
