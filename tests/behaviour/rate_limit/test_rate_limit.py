"""Rates against a model that keeps every event and counts, in exact fractions, those of every window."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from itertools import accumulate
from time import monotonic
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lockstead import (
    AsyncDistributedLock,
    ClosedError,
    DistributedLock,
    InvalidInputError,
    LockError,
    RateDecision,
    RateLimitError,
    RetryPolicy,
    StoreError,
    UnsupportedError,
)
from lockstead.core import gcra as rule
from lockstead.core.engine import Engine
from lockstead.core.model import RateRequest, RateResult
from lockstead.primitives.rate_limit import MOST, Limiter, rate
from lockstead.runtimes.simulated import Process, World
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore
from lockstead.testing import Faults, SimulatedServer, SimulatedStore

START = 1.7e9
"""What a wall clock shows: where a moment in floating point is coarse."""
TICK = Fraction(1, 1024)
"""Floating point holds START and so many of these exactly: only what is computed from them may be off."""


ORDINARY: dict[str, Any] = {"name": "x", "limit": 10, "per": 1}


class Model:
    """All that is known is which event happened when; what is asked of every window that ends with it is counted."""

    def __init__(self, limit: int, per: Fraction, burst: int) -> None:
        self.interval = per / limit
        self.burst = burst
        self.events: list[tuple[Fraction, int]] = []

    def earliest(self, now: Fraction, cost: int) -> Fraction:
        """Find the first moment for an event, after those that were let through before it."""
        moment = max([now, *(at for at, _ in self.events[-1:])])
        counts = accumulate((consumed for _, consumed in reversed(self.events)), initial=cost)
        next(counts)
        for (begin, _), count in zip(reversed(self.events), counts, strict=True):
            if cost:
                moment = max(moment, begin + (count - self.burst) * self.interval)
        return moment

    def remaining(self, now: Fraction) -> int:
        return max(cost for cost in range(self.burst + 1) if not cost or self.earliest(now, cost) == now)

    def check_every_window(self) -> None:
        for first, (begin, _) in enumerate(self.events):
            count = 0
            for end, cost in self.events[first:]:
                count += cost
                assert count <= self.burst + (end - begin) / self.interval


class Step(NamedTuple):
    pause: int
    """Before it, in ticks."""
    cost: int
    max_wait: int = 0


class Scenario(NamedTuple):
    limit: int
    per: Fraction
    burst: int
    steps: list[Step]


@st.composite
def scenarios(draw: st.DrawFn, *, waiting: bool) -> Scenario:
    limit, burst = draw(st.integers(1, 50)), draw(st.integers(1, 12))
    per = Fraction(draw(st.integers(1, 240)), 4)
    interval = per / limit / TICK
    pauses = st.integers(0, int(3 * interval) + 1) | st.just(0) | st.sampled_from([int(interval), int(per / TICK)])
    max_wait = st.integers(0, int(4 * interval) + 1) if waiting else st.just(0)
    return Scenario(
        limit, per, burst, draw(st.lists(st.builds(Step, pauses, st.integers(0, burst), max_wait), max_size=25))
    )


def follows(scenario: Scenario, take: Callable[[float, int, float], RateDecision]) -> None:
    """Compare every step's decision and its times with the model."""
    model = Model(scenario.limit, scenario.per, scenario.burst)
    now = Fraction(START)
    for step in scenario.steps:
        now += step.pause * TICK
        max_wait = step.max_wait * TICK
        turn = model.earliest(now, step.cost)
        decision = take(float(now), step.cost, float(max_wait))
        assert decision.allowed == bool(decision) == (turn - now <= max_wait)
        assert decision.retry_after == pytest.approx(0 if decision.allowed else float(turn - now), abs=1e-6)
        if decision.allowed and step.cost:
            model.events.append((turn, step.cost))
        assert decision.remaining == model.remaining(now)
        assert decision.reset_after == pytest.approx(float(model.earliest(now, scenario.burst) - now), abs=1e-6)
    model.check_every_window()


@given(scenarios(waiting=True))
@settings(max_examples=100, deadline=None)
def test_the_rule_allows_what_the_model_does_and_waits_as_long(scenario: Scenario) -> None:
    state: rule.RateState | None = None
    terms = rate(scenario.limit, float(scenario.per), scenario.burst)

    def take(now: float, cost: int, max_wait: float) -> RateDecision:
        nonlocal state
        request = terms.request("x", cost)
        result, changed = rule.consume(state, request._replace(max_wait=max_wait), now)
        state = changed or state
        return terms.decision(request, result)

    follows(scenario, take)


@given(scenarios(waiting=False))
@settings(max_examples=50, deadline=None)
def test_a_client_allows_what_the_model_does(scenario: Scenario) -> None:
    clock = [START]
    store = MemoryStore(ThreadRuntime(), MemoryServer(lambda: clock[0]))
    with DistributedLock(store) as locks:
        limiter = locks.rate_limiter("x", scenario.limit, timedelta(seconds=float(scenario.per)), scenario.burst)

        def take(now: float, cost: int, _: float) -> RateDecision:
            clock[0] = now
            return limiter.try_acquire(cost)

        follows(scenario, take)


@pytest.mark.parametrize("per", [0.001, 1.0, 365 * 24 * 3600.0])
def test_the_largest_burst_is_let_through_to_the_last_event(per: float) -> None:
    terms = rate(MOST, per, MOST)
    state: rule.RateState | None = None
    for cost in [97] * (MOST // 97) + [1] * (MOST % 97):
        result, state = rule.consume(state, terms.request("x", cost), START)
        assert result.allowed
    result, _ = rule.consume(state, terms.request("x", 1), START)
    assert not result.allowed
    assert terms.decision(terms.request("x", 1), result).remaining == 0


class VirtualTime(ThreadRuntime):
    """Threads whose clock only sleep moves, and that wake up early: so do event loops that count in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.time = START

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds / 2 if seconds > 0.001 else seconds


class LosingReplies(MemoryStore):
    """A store whose next replies are lost, which takes a while to notice."""

    def __init__(self, runtime: VirtualTime) -> None:
        super().__init__(runtime, MemoryServer(runtime.now))
        self.lost = 0
        self.requests = 0
        self._time = runtime

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        self.requests += 1
        result = await super().consume(request, timeout)
        if self.lost:
            self.lost -= 1
            self._time.time += 0.4
            msg = "no answer"
            raise StoreError(msg, transient=True)
        return result


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def store(time: VirtualTime) -> LosingReplies:
    return LosingReplies(time)


@pytest.fixture
def locks(store: LosingReplies) -> DistributedLock:
    return DistributedLock(store, retry=RetryPolicy(max_retries=1, retry_delay=0.001))


def test_a_wait_takes_one_request_and_exactly_the_time_it_must(
    locks: DistributedLock, store: LosingReplies, time: VirtualTime
) -> None:
    limiter = locks.rate_limiter("x", limit=4, per=2, burst=3)
    turns = []
    for _ in range(6):
        limiter.acquire()
        turns.append(time.now() - START)
    assert turns == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5], abs=1e-6)
    limiter.acquire(3)
    assert time.now() - START == pytest.approx(3.0, abs=1e-6)
    assert store.requests == 7


def test_a_caller_that_would_wait_too_long_is_refused_at_once_at_no_cost(
    locks: DistributedLock, time: VirtualTime
) -> None:
    limiter = locks.rate_limiter("x", limit=1, per=10, burst=2)
    assert limiter.try_acquire(2)
    with pytest.raises(RateLimitError, match=r"'x'.* 10 s.* 9\.5 s") as refusal:
        limiter.acquire(timeout=9.5)
    assert time.now() == START
    assert refusal.value.name == "x"
    assert refusal.value.retry_after == pytest.approx(10.0)
    assert limiter.try_acquire(0).reset_after == pytest.approx(20.0)
    limiter.acquire(timeout=timedelta(seconds=10))
    assert time.now() == pytest.approx(START + 10)


def test_a_repeated_request_may_count_twice(locks: DistributedLock, store: LosingReplies) -> None:
    limiter = locks.rate_limiter("x", limit=1, per=1, burst=5)
    store.lost = 1
    assert limiter.try_acquire().remaining == 3


def test_a_repeated_request_waits_no_longer_than_what_is_left_of_the_timeout(
    locks: DistributedLock, store: LosingReplies, time: VirtualTime
) -> None:
    limiter = locks.rate_limiter("x", limit=1, per=1, burst=1)
    limiter.try_acquire()
    store.lost = 1
    with pytest.raises(RateLimitError):  # it waits for two by now, one of them its own
        limiter.acquire(timeout=1.7)
    assert time.now() < START + 0.5


def test_a_caller_that_does_not_wait_still_retries_a_request_without_a_reply(
    locks: DistributedLock, store: LosingReplies
) -> None:
    limiter = locks.rate_limiter("x", limit=10, per=3, burst=4)
    limiter.try_acquire(3)
    store.lost = 1
    limiter.acquire(timeout=0)
    assert store.requests == 3


def test_a_store_that_never_answers_is_reported(locks: DistributedLock, store: LosingReplies) -> None:
    limiter = locks.rate_limiter("x", limit=1, per=1)
    store.lost = 2
    with pytest.raises(StoreError, match="no answer"):
        limiter.try_acquire()
    assert store.requests == 2


def test_a_rate_limiter_of_a_closed_client_raises_closed_error(locks: DistributedLock) -> None:
    limiter = locks.rate_limiter("x", limit=1, per=1)
    locks.close()
    for use in (limiter.try_acquire, limiter.acquire):
        with pytest.raises(ClosedError):
            use()


@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_many_waiters_are_served_in_order_and_as_fast_as_allowed_but_no_faster(lost: float) -> None:
    world = World(seed=7)
    server = SimulatedServer(world, Faults(lost_request=lost, lost_reply=lost))
    turns: list[float] = []
    asked: list[int] = []
    served: list[int] = []

    async def wait(limiter: Limiter, number: int) -> None:
        await limiter._engine.runtime.sleep(number * 0.05)
        asked.append(number)
        await limiter._acquire(1, None)
        served.append(number)
        turns.append(world.now)

    for number in range(30):
        process = Process(world, f"client-{number}")
        engine = Engine(SimulatedStore(process, server), lambda name=process.name: name)  # type: ignore[misc]
        process.start(wait(Limiter(engine, "x", rate(2, 1, 10), RetryPolicy(max_retries=9)), number))
    while world.step():
        pass

    late = 0.01  # what messages take, so replies arrive that late
    assert len(turns) == 30
    for first, begin in enumerate(turns):
        for count, end in enumerate(turns[first:], start=1):
            assert count <= 10 + (end - begin + late) * 2
    if not lost:
        assert served == asked
        assert turns[-1] - turns[0] <= (30 - 10) / 2 + late


def test_a_caller_that_is_cancelled_while_it_waits_has_consumed_its_cost() -> None:
    async def test() -> None:
        async with AsyncDistributedLock("memory://cancelled") as locks:
            limiter = locks.rate_limiter("x", limit=1, per=3600)
            await limiter.try_acquire()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(limiter.acquire(), 0.01)
            look = await limiter.try_acquire(0)
            assert not look
            assert 7190 < look.reset_after <= 7200

    asyncio.run(test())


@pytest.mark.parametrize("kind", [DistributedLock, AsyncDistributedLock])
def test_a_decorated_function_waits_before_every_call_in_the_name_of_its_arguments(kind: type[Any]) -> None:
    async def test() -> None:
        locks = kind(f"memory://{kind.__name__}")
        calls: list[str] = []

        def send(user: str, number: int = 0) -> str:
            """Send."""
            calls.append(user)
            return f"{number} sent"

        async def send_later(user: str, number: int = 0) -> str:
            """Send."""
            return send(user, number)

        function, other = (send, send_later) if kind is DistributedLock else (send_later, send)
        limited = locks.rate_limiter("mail:{user}", limit=5, per=3600)
        decorated = limited(function)
        assert decorated.__doc__ == "Send."
        assert [await ask(decorated(user, number=7)) for user in "aab"] == ["7 sent"] * 3
        assert calls == ["a", "a", "b"]
        left = [(await ask(locks.rate_limiter(f"mail:{user}", 5, 3600).try_acquire(0))).remaining for user in "abc"]
        assert left == [3, 4, 5]
        began = monotonic()
        paced = locks.rate_limiter("pace", limit=100, per=1, burst=1)(function)
        for _ in range(3):
            await ask(paced("d"))
        assert monotonic() - began > 0.0199
        named = locks.rate_limiter(lambda user, number: f"{user}:{number}", limit=5, per=3600)
        await ask(named(function)("z", 1))
        assert (await ask(locks.rate_limiter("z:1", 5, 3600).try_acquire(0))).remaining == 4
        with pytest.raises(InvalidInputError, match="decorator only"):
            await ask(named.try_acquire())
        with pytest.raises(InvalidInputError, match="coroutine function"):
            limited(other)
        with pytest.raises(InvalidInputError, match="names a parameter that"):
            locks.rate_limiter("{missing}", 1, 1)(function)
        await ask(locks.close())

    asyncio.run(test())


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"limit": 0}, "limit must be from 1"),
        ({"limit": 1.5}, "limit must be a whole number"),
        ({"limit": True}, "limit must be a whole number"),
        ({"limit": MOST + 1}, "limit must be from 1"),
        ({"burst": 0}, "burst must be from 1"),
        ({"burst": MOST + 1}, "burst must be from 1"),
        ({"per": 0}, "per must be from a millisecond"),
        ({"per": timedelta(days=366)}, "to a year"),
        ({"per": -1}, "per must not be negative"),
        ({"per": "minute"}, "per must be seconds"),
        ({"per": 86400, "burst": 4000}, "more than a year"),
        ({"name": ""}, "must not be empty"),
        ({"name": 7}, "must be a string"),
    ],
)
def test_invalid_parameters_of_a_rate_limiter_are_refused(
    locks: DistributedLock, terms: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        locks.rate_limiter(**ORDINARY | terms)


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (lambda limiter: limiter.try_acquire(-1), "cost must be from 0"),
        (lambda limiter: limiter.try_acquire(0.5), "cost must be a whole number"),
        (lambda limiter: limiter.try_acquire(6), "could never be allowed: at most 5"),
        (lambda limiter: limiter.acquire(6), "could never be allowed: at most 5"),
        (lambda limiter: limiter.acquire(timeout=-1), "timeout must not be negative"),
    ],
)
def test_an_invalid_cost_or_timeout_is_refused_and_consumes_nothing(
    locks: DistributedLock, use: Callable[[Any], object], problem: str
) -> None:
    limiter = locks.rate_limiter("x", limit=10, per=1, burst=5)
    with pytest.raises(InvalidInputError, match=problem):
        use(limiter)
    assert limiter.try_acquire(0).reset_after == 0


def test_a_store_without_rate_limits_names_the_stores_that_have_them() -> None:
    class Plain:
        """A store, and nothing more."""

        def __init__(self, store: MemoryStore) -> None:
            for name in ("address", "capabilities", "runtime", "join", "renew", "leave", "wait", "inspect", "close"):
                setattr(self, name, getattr(store, name))

    store: Any = Plain(MemoryStore(ThreadRuntime()))
    with (
        DistributedLock(store) as locks,
        pytest.raises(UnsupportedError, match="SQLite, Redis") as refusal,
    ):
        locks.rate_limiter("x", limit=1, per=1)
    assert refusal.value.name == "x"


def test_a_refusal_is_a_timeout_and_pickles() -> None:
    error = RateLimitError("too soon", name="x", retry_after=1.5)
    assert isinstance(error, LockError)
    assert isinstance(error, TimeoutError)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.name, copy.retry_after) == ("too soon", "x", 1.5)
    decision = RateDecision(False, 0, 1.5, 3.0)
    assert pickle.loads(pickle.dumps(decision)) == decision
    with pytest.raises(AttributeError):
        decision.allowed = True  # type: ignore[misc]


async def ask(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
