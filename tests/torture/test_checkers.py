"""The checkers are tested: they find every violation that is put in, and nothing where nothing is.

LOCKSTEAD_SEED moves the first seed, LOCKSTEAD_HISTORIES changes how many histories there are. A failure names its seed;
`Model(seed).run()` replays it.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest

from lockstead.testing.torture import checkers
from lockstead.testing.torture.checkers import CHECKERS, Promises, Violation, check
from lockstead.testing.torture.history import (
    KILL,
    Acquire,
    Check,
    Consume,
    Fault,
    ForcedRelease,
    History,
    Inspection,
    Operation,
    Read,
    Recorder,
    Release,
    Wait,
    Write,
)
from tests.harness.tree import ROOT
from tests.torture.injections import INJECTIONS, Injection
from tests.torture.model import LOSE_DATA, PROMISES, Client, Model, Place, Register

FIRST_SEED = int(os.environ.get("LOCKSTEAD_SEED", "0"))
HISTORIES = max(int(os.environ.get("LOCKSTEAD_HISTORIES", "3000")) // 150, 1)
"""So many good ones of each kind for each of four tests, and so many bad ones for each injection."""

lines = count(1)


def find(rule: str, history: History, promises: Promises = PROMISES) -> list[Violation]:
    checker: Callable[[History, Promises], list[Violation]] = getattr(checkers, rule)
    return checker(history, promises)


def hold(client: str, start: float, end: float, **fields: Any) -> Acquire:
    """Make a hold that was asked for a second before it began, and was sure to last."""
    options: dict[str, Any] = {
        "invoked": start - 1,
        "completed": start,
        "name": "a",
        "ttl": 5.0,
        "outcome": "granted",
        "checks": [Check(start, start, end)],
    }
    return Acquire(client=client, line=next(lines), **options | fields)


def fault(kind: str, start: float, end: float, target: str = "") -> Fault:
    return Fault(client="nemesis", line=next(lines), invoked=start, completed=end, name=kind, target=target)


def write(start: float, end: float, value: object, fence: int, outcome: Any = "accepted") -> Write:
    return Write(
        client="w", line=next(lines), invoked=start, completed=end, name="r", value=value, fence=fence, outcome=outcome
    )


def read(start: float, end: float, value: object, fence: int | None = None) -> Read:
    return Read(client="r", line=next(lines), invoked=start, completed=end, name="r", value=value, fence=fence)


def consume(start: float, end: float, cost: int = 1) -> Consume:
    return Consume(
        client="s",
        line=next(lines),
        invoked=start,
        completed=end,
        name="l",
        cost=cost,
        interval=1,
        burst=3,
        allowed=True,
    )


def history_of(*operations: Operation) -> History:
    return History().add(*operations)


class TestRandomHistories:
    @pytest.mark.parametrize("part", range(4))
    def test_no_violation_is_found_in_a_correct_history(self, part: int) -> None:
        first = FIRST_SEED + part * HISTORIES
        for seed in range(first, first + HISTORIES):
            for model in (Model, LosingData, Violent):
                found = check(model(seed).run(), PROMISES)
                assert not found, f"{model.__name__}({seed}): {found[0]}"

    @pytest.mark.parametrize("injection", INJECTIONS, ids=lambda injection: injection.__name__)
    def test_an_injected_violation_is_found(self, injection: Injection) -> None:
        tried = 0
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            history = good_history(seed)
            if injection(history, random.Random(seed)):
                tried += 1
                assert find(INJECTIONS[injection], history), f"seed {seed}: {injection.__name__} was not found"
        print(f"{injection.__name__}: {tried} of {tried} found, seeds {FIRST_SEED} to {FIRST_SEED + HISTORIES - 1}")
        assert tried > HISTORIES / 3, "there was hardly an opportunity"

    def test_every_checker_has_an_injected_violation(self) -> None:
        assert {checker.__name__ for checker in CHECKERS} == set(INJECTIONS.values())

    def test_what_lost_grants_excuse_is_found_without_the_excuse(self) -> None:
        strict = Promises()
        rules = set()
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            history = LosingData(seed).run()
            rules |= {rule for rule in ("exclusion", "retractions", "rates") if find(rule, history, strict)}
        assert rules == {"exclusion", "retractions", "rates"}

    def test_what_a_forced_release_excuses_is_found_without_the_excuse(self) -> None:
        rules = set()
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            history = Violent(seed).run()
            history.forced_releases.clear()
            rules |= {rule for rule in ("exclusion", "retractions", "reservations") if find(rule, history)}
        assert rules == {"exclusion", "retractions", "reservations"}


@cache
def _pickled(seed: int) -> bytes:
    return pickle.dumps(Model(seed).run())


def good_history(seed: int) -> History:
    history: History = pickle.loads(_pickled(seed))
    return history


class LosingData(Model):
    """A store that often loses its data."""

    def _harm(self, client: Client) -> None:
        for _ in range(2):
            self._at(self.random.random() * 10, lambda: self._hurt(client, LOSE_DATA, 0))


class Violent(Model):
    """Names are often taken away by force."""

    def _harm(self, client: Client) -> None:
        super()._harm(client)
        operator = Client("operator")
        for _ in range(4):
            steps = self._force_release(self.random.choice(("lock", "shared", "permit", "leader", "once")))
            self._at(self.random.random() * 10, partial(self._resume, operator, steps))


class Overtaking(Model):
    """A place that fits may hold, whatever is before it."""

    def settle(self, name: str) -> list[Place]:
        line = self.lines.setdefault(name, [])
        line[:] = [place for place in line if place.expires_at > self.now]
        for place in reversed(line):
            held = sum(other.owner.weight for other in line if other.holds and other is not place)
            place.holds = place.holds or held + place.owner.weight <= place.owner.capacity
        return line


class LettingOneMoreIn(Model):
    def settle(self, name: str) -> list[Place]:
        line = super().settle(name)
        waiting = [place for place in line if not place.holds]
        if waiting and self.random.random() < 0.01:
            waiting[0].holds = True
        return line


class EndingEarly(Model):
    def renew(self, place: Place) -> bool:
        alive = super().renew(place)
        if place.holds:
            place.expires_at = self.now + place.owner.ttl * 0.6
        return alive


class ForgettingToWake(Model):
    def leave(self, place: Place, seconds: float = 0.0) -> bool:
        line = self.settle(place.owner.name)
        if place not in line:
            return False
        blocked = Place(place.owner, place.ticket, self.now + 0.3)
        line[line.index(place)] = blocked
        return True


class GivingFencesAtRandom(Model):
    def join(self, owner: Acquire) -> Place | None:
        place = super().join(owner)
        if place is not None and self.random.random() < 0.05:
            place.ticket -= self.random.randint(1, 1000)
        return place


class GivingFencesTwice(Model):
    def join(self, owner: Acquire) -> Place | None:
        place = super().join(owner)
        if place is not None:
            place.ticket //= 100
        return place


class AcceptingAnyFence(Model):
    def accepts(self, register: Register, write: Write) -> bool:
        return True


class RefusingWithoutReason(Model):
    def accepts(self, register: Register, write: Write) -> bool:
        return super().accepts(register, write) and self.random.random() > 0.02


class LettingTwiceAsMuchThrough(Model):
    def consume(self, consume: Consume) -> bool:
        consume.interval /= 2
        allowed = super().consume(consume)
        consume.interval *= 2
        return allowed


class KeepingPlaces(Model):
    def settle(self, name: str) -> list[Place]:
        for place in self.lines.get(name, ()):
            if place.expires_at <= self.now and place.ticket % 50 == 0:
                place.expires_at = inf
        return super().settle(name)


class HalvingReservations(Model):
    def leave(self, place: Place, seconds: float = 0.0) -> bool:
        return super().leave(place, seconds / 2)


class MixingOutcomesUp(Model):
    def leave(self, place: Place, seconds: float = 0.0) -> bool:
        was_there = super().leave(place, seconds)
        if place.reserved and place.owner.value is not None:
            place.owner = replace(place.owner, value=-place.owner.value)
        return was_there


class LivingOnAfterAForcedRelease(Violent):
    def renew(self, place: Place) -> bool:
        """Let a place last on, if it is there or not."""
        line = self.settle(place.owner.name)
        if place not in line:
            line.insert(0, place)
        return super().renew(place)


class TrustingTooLong(Model):
    def _check(self, one: Acquire, trusted: float) -> None:
        super()._check(one, trusted + 0.2)


BROKEN: dict[type[Model], set[str]] = {
    Overtaking: {"fifo"},
    LettingOneMoreIn: {"exclusion"},
    EndingEarly: {"retractions"},
    ForgettingToWake: {"wake_ups"},
    GivingFencesAtRandom: {"fences"},
    GivingFencesTwice: {"fences"},
    AcceptingAnyFence: {"stale_writes", "linearizability"},
    RefusingWithoutReason: {"linearizability"},
    LettingTwiceAsMuchThrough: {"rates"},
    KeepingPlaces: {"nothing_left"},
    TrustingTooLong: {"exclusion"},
    HalvingReservations: {"reservations"},
    MixingOutcomesUp: {"outcomes"},
    LivingOnAfterAForcedRelease: {"forced_releases"},
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_violations_of_a_broken_store_are_found(broken: type[Model]) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 40):
        rules = {violation.rule for violation in check(broken(seed).run(), PROMISES)}
        if rules & BROKEN[broken]:
            print(f"{broken.__name__}: seed {seed}")
            return
    pytest.fail(f"{broken.__name__} survived 40 histories from seed {FIRST_SEED}")


class TestExclusion:
    def test_two_holders_inside_their_trust_windows_are_found(self) -> None:
        (found,) = find("exclusion", history_of(hold("p", 1, 5), hold("q", 4, 6)))
        assert "at 4.000000: holders of 'a' have a total weight of 2, and its capacity is 1" in str(found)
        assert "p:" in str(found)
        assert "q:" in str(found)

    def test_one_holder_after_the_other_is_allowed(self) -> None:
        assert not find("exclusion", history_of(hold("p", 1, 4), hold("q", 4, 6)))

    def test_holders_of_different_names_may_overlap(self) -> None:
        assert not find("exclusion", history_of(hold("p", 1, 5), hold("q", 4, 6, name="b")))

    def test_a_release_ends_a_hold_when_it_begins(self) -> None:
        assert not find("exclusion", history_of(hold("p", 1, 9, release=Release(3)), hold("q", 3, 6)))
        assert find("exclusion", history_of(hold("p", 1, 9, release=Release(3.1)), hold("q", 3, 6)))

    def test_a_kill_ends_a_hold_only_where_that_is_promised(self) -> None:
        some = hold("p", 1, 9), hold("q", 4, 6), fault(KILL, 3, 3.5, "p")
        assert find("exclusion", history_of(*some))
        promises = replace(PROMISES, frees_dead_within=1)
        assert not find("exclusion", history_of(*some), promises)
        assert find("exclusion", history_of(*some, hold("r", 5, 6)), promises)
        assert find("exclusion", history_of(hold("p", 1, 9), hold("q", 4, 6), fault(KILL, 4.1, 5, "p")), promises)

    def test_weights_of_permits_are_added(self) -> None:
        some = [hold(f"p{number}", 1, 5, capacity=3) for number in range(3)]
        assert not find("exclusion", history_of(*some))
        assert find("exclusion", history_of(*some, hold("q", 4, 6, capacity=3)))

    def test_a_reader_beside_a_writer_is_found(self) -> None:
        readers = [hold("p", 1, 5, capacity=9), hold("q", 1, 5, capacity=9)]
        assert find("exclusion", history_of(*readers, hold("w", 4, 6, capacity=9, weight=9)))
        assert not find("exclusion", history_of(*readers, hold("w", 5, 6, capacity=9, weight=9)))

    def test_trust_after_a_pause_is_found(self) -> None:
        paused = hold("p", 1, 3, checks=[Check(1, 1, 3), Check(6, 6, 8)])
        assert find("exclusion", history_of(paused, hold("q", 5, 7), fault("pause", 2, 6, "p")))
        paused.checks[1] = Check(6, 6, 6)
        assert not find("exclusion", history_of(paused, hold("q", 5, 7), fault("pause", 2, 6, "p")))

    def test_a_hold_that_was_lost_early_counts_up_to_its_last_check(self) -> None:
        lost = hold("p", 1, 9, lost_at=5)
        assert not find("exclusion", history_of(lost, hold("q", 4, 7)))
        lost.checks.append(Check(4.5, 4.5, 9))
        assert find("exclusion", history_of(lost, hold("q", 4, 7)))

    def test_a_fault_that_may_lose_grants_excuses_the_holds_before_it(self) -> None:
        before, after = hold("p", 1, 9), hold("q", 4, 7, invoked=3.6)
        assert not find("exclusion", history_of(before, after, fault(LOSE_DATA, 3, 3.5)))
        assert find("exclusion", history_of(before, after, hold("z", 5, 6), fault(LOSE_DATA, 3, 3.5)))


class TestRetractions:
    def test_a_loss_inside_the_trust_window_is_found(self) -> None:
        assert find("retractions", history_of(hold("p", 1, 9, lost_at=8)))
        assert not find("retractions", history_of(hold("p", 1, 9, lost_at=9.1)))

    def test_a_release_that_finds_its_place_gone_is_found(self) -> None:
        assert find("retractions", history_of(hold("p", 1, 9, release=Release(3, 4, "lost"))))
        assert not find("retractions", history_of(hold("p", 1, 9, release=Release(3, 10, "lost"))))

    def test_a_check_that_lasted_until_the_trust_window_ended_proves_nothing(self) -> None:
        assert find("retractions", history_of(hold("p", 1, 9, checks=[Check(1, 1, 9), Check(2, 3, 2)])))
        assert not find("retractions", history_of(hold("p", 1, 9, checks=[Check(1, 1, 9), Check(2, 9.5, 2)])))

    def test_a_fault_that_may_lose_grants_excuses_an_early_loss(self) -> None:
        assert not find("retractions", history_of(hold("p", 1, 9, lost_at=8), fault(LOSE_DATA, 5, 5)))
        assert find("retractions", history_of(hold("p", 1, 9, lost_at=8), fault("cut off", 5, 5)))

    def test_a_fault_by_which_holds_end_early_excuses_only_that(self) -> None:
        promises = replace(PROMISES, may_lose_holds_early={"empty node"})
        early, other = hold("p", 1, 9, lost_at=8), hold("q", 4, 7)
        early.checks.append(Check(5, 5, 9))
        assert not find("retractions", history_of(early, fault("empty node", 5, 5)), promises)
        assert find("exclusion", history_of(early, other, fault("empty node", 3, 5)), promises)


class TestFences:
    def test_a_fence_that_goes_back_is_found(self) -> None:
        assert find("fences", history_of(hold("p", 1, 2, fence=7), hold("q", 4, 5, fence=6)))
        assert not find("fences", history_of(hold("p", 1, 2, fence=6), hold("q", 4, 5, fence=7)))

    def test_equal_fences_are_found(self) -> None:
        assert find("fences", history_of(hold("p", 1, 2, fence=7), hold("q", 1.5, 5, fence=7)))

    def test_a_smaller_fence_confirmed_after_a_greater_one_is_found(self) -> None:
        first, second = hold("p", 2, 3, fence=7), hold("q", 4, 5, invoked=1, fence=6)
        assert find("fences", history_of(first, second))
        assert not find("fences", history_of(first, second, fault(LOSE_DATA, 3.5, 3.5)))
        second.checks.clear()
        assert not find("fences", history_of(first, second))

    def test_fences_of_shared_grants_have_no_order(self) -> None:
        some = hold("p", 1, 2, fence=7, capacity=3), hold("q", 4, 5, fence=6, capacity=3)
        assert not find("fences", history_of(*some))


class TestLosses:
    def test_a_signal_after_the_next_grant_is_found(self) -> None:
        assert find("losses", history_of(hold("p", 1, 3, lost_at=5), hold("q", 4, 6)))
        assert not find("losses", history_of(hold("p", 1, 3, lost_at=4.04), hold("q", 4, 6)))

    def test_a_missing_signal_is_found(self) -> None:
        loser, other = hold("p", 1, 3, watched=True), hold("q", 4, 6)
        assert not find("losses", history_of(loser, other))
        assert find("losses", history_of(loser, other, hold("p", 9, 10)))
        loser.watched = False
        assert not find("losses", history_of(loser, other, hold("p", 9, 10)))

    def test_a_check_without_a_signal_after_the_next_grant_is_found(self) -> None:
        loser = hold("p", 1, 3, checks=[Check(1, 1, 3), Check(5, 5, 5, signalled=False)])
        assert find("losses", history_of(loser, hold("q", 4, 6)))
        loser.checks[1] = Check(5, 5, 5, signalled=True)
        assert not find("losses", history_of(loser, hold("q", 4, 6)))

    def test_a_released_hold_needs_no_loss_signal(self) -> None:
        released = hold("p", 1, 3, watched=True, release=Release(2, 2.5, "done"))
        assert not find("losses", history_of(released, hold("q", 4, 6), hold("p", 9, 10)))

    def test_a_paused_client_cannot_be_notified(self) -> None:
        some = hold("p", 1, 3, lost_at=8), hold("q", 4, 6)
        assert not find("losses", history_of(*some, fault("pause", 2, 7.99, "p")))
        assert find("losses", history_of(*some, fault("pause", 2, 7.99, "q")))
        assert find("losses", history_of(*some, fault("pause", 5, 7.99, "p")))
        assert not find("losses", history_of(*some, fault(LOSE_DATA, 2, 2)))


class TestRegisters:
    def test_a_stale_write_is_found(self) -> None:
        newer, older = write(1, 2, "x", 7), write(3, 4, "y", 6)
        assert find("stale_writes", history_of(newer, older))
        assert find("linearizability", history_of(newer, older))
        older.outcome = "refused"
        assert not check_register(newer, older)

    def test_a_stale_write_after_the_newer_fence_was_read_is_found(self) -> None:
        newer = write(0, inf, "x", 7, "unknown")
        assert find("stale_writes", history_of(newer, read(1, 2, "x", 7), write(3, 4, "y", 6)))

    def test_concurrent_writes_may_go_either_way(self) -> None:
        assert not check_register(write(1, 4, "x", 7), write(2, 3, "y", 6), read(5, 6, "x"))
        assert check_register(write(1, 4, "x", 7), write(2, 3, "y", 6), read(5, 6, "y"))

    def test_a_read_of_an_overwritten_value_is_found(self) -> None:
        assert check_register(write(1, 2, "x", 6), write(3, 4, "y", 6), read(5, 6, "x"))
        assert not check_register(write(1, 2, "x", 6), write(3, 5.5, "y", 6), read(5, 6, "x"))

    def test_a_read_of_an_older_value_than_the_read_before_is_found(self) -> None:
        writes = write(1, 2, "x", 6), write(3, 9, "y", 6)
        assert not check_register(*writes, read(4, 5, "x"), read(6, 7, "y"))
        assert check_register(*writes, read(4, 5, "y"), read(6, 7, "x"))

    def test_a_lost_write_may_take_effect_late_or_never_but_once(self) -> None:
        lost = write(1, inf, "x", 6, "unknown")
        assert not check_register(lost, read(2, 3, None), read(8, 9, None))
        assert not check_register(lost, read(2, 3, None), read(8, 9, "x"))
        assert not check_register(lost, write(2, 3, "y", 6), read(4, 5, "y"), read(8, 9, "x"))
        again = write(10, 11, "y", 6), read(12, 13, "x")
        assert check_register(lost, read(2, 3, "x"), *again)
        assert check_register(lost, write(2, 3, "z", 7), read(4, 5, "x"))

    def test_a_lost_write_may_be_why_another_was_refused(self) -> None:
        lost, refused = write(1, inf, "x", 7, "unknown"), write(2, 3, "y", 6, "refused")
        assert not check_register(lost, refused)
        assert check_register(refused)
        assert check_register(lost, refused, read(4, 5, None))

    @pytest.mark.parametrize("part", range(2))
    def test_the_checker_agrees_with_trying_every_order(self, part: int) -> None:
        explained = 0
        for seed in range(FIRST_SEED + part * 1000, FIRST_SEED + part * 1000 + 1000):
            operations = some_operations(random.Random(seed))
            expected = has_an_order(operations)
            explained += expected
            assert (not check_register(*operations)) == expected, f"seed {seed}"
        assert 200 < explained < 800, explained

    def test_thousands_of_operations_take_seconds(self) -> None:
        operations = long_register(random.Random(FIRST_SEED), 5000)
        began = time.process_time()
        assert not check_register(*operations)
        took = time.process_time() - began
        print(f"{len(operations)} operations in {took:.2f} s")
        assert took < 5
        last = max(operations, key=lambda one: one.invoked)
        first = next(one for one in operations if isinstance(one, Write) and one.outcome == "accepted")
        late = last.invoked + 100
        assert check_register(*operations, read(late, late + 1, first.value))


def check_register(*operations: Operation) -> list[Violation]:
    return find("linearizability", history_of(*operations))


def some_operations(chance: random.Random) -> list[Write | Read]:
    """Make up a few operations on one register, which may or may not make sense."""
    operations: list[Write | Read] = []
    for _ in range(chance.randint(2, 5)):
        start = chance.randint(0, 12)
        end = start + chance.randint(1, 12)
        if chance.random() < 0.5:
            value = chance.choice((None, 1, 2))
            operations.append(read(start, end, value, chance.choice((None, None, chance.randint(0, 3)))))
        else:
            outcome = chance.choice(("accepted", "accepted", "refused", "unknown"))
            operations.append(
                write(start, inf if outcome == "unknown" else end, chance.randint(1, 2), chance.randint(1, 3), outcome)
            )
    return operations


def has_an_order(left: list[Write | Read], value: object = None, fence: int = 0) -> bool:
    """Try every order in which an operation comes after all that had completed before it was invoked."""
    if not any(one.is_known for one in left):
        return True
    soonest = min(one.completed for one in left)
    for one in left:
        rest = [other for other in left if other is not one]
        if one.invoked > soonest:
            continue
        if isinstance(one, Read):
            if one.value == value and one.fence in {None, fence} and has_an_order(rest, value, fence):
                return True
        elif one.outcome == "refused":
            if one.fence < fence and has_an_order(rest, value, fence):
                return True
        elif one.fence >= fence and has_an_order(rest, one.value, one.fence):
            return True
    return False


def long_register(chance: random.Random, size: int) -> list[Write | Read]:
    """Let ten clients at a time write and read a register that enforces fences; some answers are lost."""
    operations: list[Write | Read] = []
    moments = sorted((chance.random() * size, number) for number in range(size))
    value, fence = None, 0
    for moment, number in moments:
        start, end = moment - chance.random() * 5, moment + chance.random() * 5
        if chance.random() < 0.5:
            operations.append(read(start, end, value, chance.choice((None, fence))))
            continue
        one = write(start, end, number, max(int(moment / 10) + 1 - chance.choice((0, 0, 0, 1)), 1))
        if chance.random() < 0.05:
            one.completed, one.outcome = inf, "unknown"
        if one.fence < fence:
            one.outcome = "refused" if one.is_known else "unknown"
        elif one.is_known or chance.random() < 0.5:
            value, fence = one.value, one.fence
        operations.append(one)
    return operations


class TestFifo:
    def test_an_overtaken_waiter_is_found(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, fence=5, waits=[Wait(1, 2, 5), Wait(7, 7.1, 5)])
        assert find("fifo", history_of(waiter, hold("q", 6, 6.5, invoked=3)))
        assert not find("fifo", history_of(waiter, hold("q", 6, 6.5, invoked=1.9)))

    def test_a_later_request_that_returns_first_is_found(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, fence=5, waits=[Wait(1, 2, 5)])
        other = hold("q", 6, 6.5, invoked=3)
        assert find("fifo", history_of(waiter, other))
        assert not find("fifo", history_of(waiter, other, fault(LOSE_DATA, 4, 4)))
        other.capacity = waiter.capacity = 2
        assert not find("fifo", history_of(waiter, other))

    def test_a_waiter_that_lost_its_place_was_not_overtaken(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, fence=8, waits=[Wait(1, 2, 5), Wait(7, 7.1, 8)])
        assert not find("fifo", history_of(waiter, hold("q", 6, 6.5, invoked=3)))

    def test_without_tickets_a_fault_excuses_overtaking(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, waits=[Wait(1, 2), Wait(7, 7.1)])
        some = waiter, hold("q", 6, 6.5, invoked=3)
        assert find("fifo", history_of(*some))
        assert not find("fifo", history_of(*some, fault("pause", 3, 5, "p")))
        assert find("fifo", history_of(*some, fault("pause", 3, 5, "q")))
        assert find("fifo", history_of(*some, fault("pause", 3, 5, "p")), Promises(may_lose_waiting_places=()))

    def test_lost_data_excuses_overtaking(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, fence=5, waits=[Wait(1, 2, 5), Wait(7, 7.1, 5)])
        assert not find("fifo", history_of(waiter, hold("q", 6, 6.5, invoked=3), fault(LOSE_DATA, 0, 5)))

    def test_a_store_without_a_line_promises_none(self) -> None:
        waiter = hold("p", 9, 10, invoked=1, waits=[Wait(1, 2), Wait(7, 7.1)])
        assert not find("fifo", history_of(waiter, hold("q", 6, 6.5, invoked=3)), Promises(fifo=False))


class TestWakeUps:
    PROMISES = Promises(wakes_within=1, recovers_within=5, longest_ttl=5)

    def released(self, at: float, **fields: Any) -> Acquire:
        return hold("p", 1, 9, release=Release(at - 0.1, at, "done"), **fields)

    def waiter(self, client: str, returned: float, **fields: Any) -> Acquire:
        return hold(client, returned, returned + 1, **{"invoked": 1.5, "fence": 5, "waits": [Wait(1.5, 2, 5)]} | fields)

    def find(self, *operations: Operation) -> list[Violation]:
        return find("wake_ups", history_of(*operations), self.PROMISES)

    def test_a_waiter_that_holds_too_late_is_found(self) -> None:
        assert not self.find(self.released(3), self.waiter("q", 4))
        assert self.find(self.released(3), self.waiter("q", 4.1))

    def test_several_waiters_that_are_not_woken_are_found(self) -> None:
        assert self.find(self.released(3), self.waiter("q", 4.1), self.waiter("r", 9, fence=6, waits=[Wait(2, 3, 6)]))

    def test_a_fault_extends_the_deadline_of_a_wake_up(self) -> None:
        assert not self.find(self.released(3), self.waiter("q", 8.4), fault("cut off", 3.2, 3.5))
        assert self.find(self.released(3), self.waiter("q", 8.6), fault("cut off", 3.2, 3.5))

    def test_a_name_that_another_client_may_hold_is_not_reported(self) -> None:
        assert not self.find(self.released(3), self.waiter("q", 6), self.waiter("r", 3.5))
        dead = self.waiter("r", 0, completed=inf, outcome="unknown", checks=[])
        assert not self.find(self.released(3), self.waiter("q", 6), dead)
        assert self.find(self.released(30), self.waiter("q", 36), dead, fault(KILL, 20, 20, "r"))

    def test_a_name_that_a_waiter_for_several_names_may_hold_is_not_reported(self) -> None:
        assert not self.find(self.released(3), self.waiter("q", 6, several=True))
        assert not self.find(self.released(3), self.waiter("q", 6, several=True), self.waiter("r", 9, fence=6))

    def test_a_waiter_that_gave_up_blocks_no_other(self) -> None:
        reader = hold("p", 1, 50, capacity=9)
        writer = hold("w", 3, 3, invoked=1, outcome="cancelled", checks=[], capacity=9, weight=9)
        assert self.find(reader, writer, self.waiter("q", 5.1, capacity=9))
        assert not self.find(reader, writer, self.waiter("q", 5, capacity=9))
        assert not self.find(reader, writer, self.waiter("q", 5.1, capacity=9), fault("cut off", 2, 2.5))

    def test_a_dead_client_blocks_no_other_once_its_ttl_is_over(self) -> None:
        some = hold("p", 1, 9), fault(KILL, 10, 10, "p")
        assert self.find(*some, self.waiter("q", 16.1))
        assert not self.find(*some, self.waiter("q", 16))

    def test_a_dead_client_blocks_no_other_at_all_where_that_is_promised(self) -> None:
        promises = replace(self.PROMISES, frees_dead_within=0.5)
        some = hold("p", 1, 9), fault(KILL, 10, 10, "p")
        assert find("wake_ups", history_of(*some, self.waiter("q", 11.6)), promises)
        assert not find("wake_ups", history_of(*some, self.waiter("q", 11.5)), promises)

    def test_a_reader_waits_for_no_other_reader(self) -> None:
        readers = hold("r", 1, 50, capacity=9), self.released(3, capacity=9, weight=5)
        assert self.find(*readers, self.waiter("q", 6, capacity=9, weight=8))
        assert not self.find(*readers, self.waiter("q", 6, capacity=9, weight=9))


class TestReservations:
    def left(self, until: float, **fields: Any) -> Acquire:
        """Make a hold that was asked for and granted at 1, and released at 2."""
        return hold("p", 1, 9, **{"invoked": 1, "at_least": until - 1, "release": Release(2, 2.1, "done")} | fields)

    def test_a_hold_before_the_reservation_ends_is_found(self) -> None:
        assert find("reservations", history_of(self.left(6), hold("q", 5, 7)))
        assert not find("reservations", history_of(self.left(6), hold("q", 6, 7)))
        assert not find("reservations", history_of(self.left(2), hold("q", 2.2, 7)))
        assert not find("exclusion", history_of(self.left(6), hold("q", 5, 7)))

    def test_a_reservation_counts_from_the_grant(self) -> None:
        waited = self.left(6, invoked=0, fence=5, waits=[Wait(0.5, 0.6, 5)])
        assert not find("reservations", history_of(waited, hold("q", 5.6, 7)))
        assert find("reservations", history_of(waited, hold("q", 5.3, 7)))

    def test_as_many_permits_are_reserved_as_were_held(self) -> None:
        some = self.left(6, capacity=3), hold("q", 5, 7, capacity=3, weight=2)
        assert not find("reservations", history_of(*some))
        assert find("reservations", history_of(*some, hold("r", 5.5, 7, capacity=3)))

    def test_only_a_stored_outcome_reserves_its_name(self) -> None:
        done = self.left(1, period=3, value=42)
        assert find("reservations", history_of(done, hold("q", 4.5, 7)))
        assert not find("reservations", history_of(done, hold("q", 5, 7)))
        done.value = None
        assert not find("reservations", history_of(done, hold("q", 4.5, 7)))

    def test_a_release_in_doubt_may_have_reserved_nothing(self) -> None:
        in_doubt, other = self.left(6, release=Release(2, 2.1, "error")), hold("q", 5, 7)
        assert find("reservations", history_of(in_doubt, other))
        assert not find("reservations", history_of(in_doubt, other, fault("cut off", 1.5, 2.05)))
        assert find("reservations", history_of(in_doubt, other, fault("cut off", 3, 4)))

    def test_a_release_after_the_lease_expired_reserves_nothing(self) -> None:
        late = self.left(12, release=Release(8.9, 9.1, "done"))
        assert not find("reservations", history_of(late, hold("q", 10, 11)))

    def test_faults_excuse_from_when_they_began(self) -> None:
        some = self.left(6), hold("q", 5, 7, invoked=4.9)
        assert not find("reservations", history_of(*some, fault(LOSE_DATA, 3, 3)))
        assert find("reservations", history_of(*some, fault("empty node", 3, 3)))
        promises = replace(PROMISES, may_lose_reservations={"empty node"})
        assert not find("reservations", history_of(*some, fault("empty node", 3, 3)), promises)
        assert not find("reservations", history_of(*some, forced_release(3, 4)))

    def test_no_wake_up_is_expected_before_the_name_is_free(self) -> None:
        promises = Promises(wakes_within=1, recovers_within=5, longest_ttl=5)
        waiter = hold("q", 6.9, 9, invoked=1.5, fence=5, waits=[Wait(1.5, 2, 5)])
        assert find("wake_ups", history_of(self.left(2), waiter), promises)
        assert not find("wake_ups", history_of(self.left(6), waiter), promises)
        waiter.completed = 7.2
        assert find("wake_ups", history_of(self.left(6), waiter), promises)


class TestOutcomes:
    def reported(self, at: float, value: object) -> Acquire:
        return hold("q", at, at, outcome="remembered", value=value, checks=[])

    def test_an_outcome_that_no_attempt_had_produced_by_then_is_found(self) -> None:
        done = hold("p", 1, 4, value=42, release=Release(2, 3, "done"))
        assert not find("outcomes", history_of(done, self.reported(3, 42)))
        assert not find("outcomes", history_of(done, self.reported(2.5, 42)))
        assert find("outcomes", history_of(done, self.reported(3, 43)))
        assert find("outcomes", history_of(done, self.reported(1.9, 42)))

    def test_an_outcome_of_a_failed_attempt_is_found(self) -> None:
        failed = hold("p", 1, 4, release=Release(2, 3, "done"))
        assert find("outcomes", history_of(failed, self.reported(3, 42)))
        assert find("outcomes", history_of(failed, self.reported(3, None)))

    def test_an_outcome_of_another_name_is_found(self) -> None:
        done = hold("p", 1, 4, name="b", value=42, release=Release(2, 3, "done"))
        assert find("outcomes", history_of(done, self.reported(3, 42)))


def forced_release(start: float, end: float, *fences: int, name: str = "a") -> ForcedRelease:
    return ForcedRelease(
        client="operator", line=next(lines), invoked=start, completed=end, name=name, fences=list(fences)
    )


class TestForcedReleases:
    def test_a_loss_is_reported_at_the_next_renewal(self) -> None:
        released = hold("p", 1, 6, fence=7, checks=[Check(1, 1, 6), Check(4.4, 4.4, 6)])
        assert not find("forced_releases", history_of(released, forced_release(1.9, 2, 7)))
        released.checks.append(Check(4.6, 4.6, 6))
        assert find("forced_releases", history_of(released, forced_release(1.9, 2, 7)))
        assert not find("forced_releases", history_of(released, forced_release(1.9, 2, 6)))
        assert not find("forced_releases", history_of(released, forced_release(1.9, 2, 7), fault("cut off", 3, 3)))
        released.renew = False
        assert not find("forced_releases", history_of(released, forced_release(1.9, 2, 7)))

    def test_a_lost_lease_is_not_renewed(self) -> None:
        released = hold("p", 1, 6, fence=7, checks=[Check(1, 1, 6), Check(3, 3, 7.1)])
        assert find("forced_releases", history_of(released, forced_release(1.9, 2, 7), fault("cut off", 3, 3)))
        assert not find("forced_releases", history_of(released, forced_release(1.9, 2.2, 7), fault("cut off", 3, 3)))

    def test_two_clients_may_hold_after_a_forced_release(self) -> None:
        some = hold("p", 1, 6), hold("q", 4, 6, invoked=3.1)
        assert not find("exclusion", history_of(*some, forced_release(2, 3)))
        assert find("exclusion", history_of(*some, forced_release(2, 3, name="b")))
        assert find("exclusion", history_of(*some, hold("z", 5, 6), forced_release(2, 3)))

    def test_a_forced_release_of_one_name_explains_the_loss_of_a_multi_lock(self) -> None:
        lost = hold("p", 1, 9, lost_at=4)
        assert find("retractions", history_of(lost, forced_release(2, 3, name="b")))
        lost.several = True
        assert not find("retractions", history_of(lost, forced_release(2, 3, name="b")))

    def test_fences_grow_after_a_forced_release(self) -> None:
        some = hold("p", 1, 6, fence=7), hold("q", 4, 6, invoked=3.1, fence=6)
        assert find("fences", history_of(*some, forced_release(2, 3)))

    def test_the_time_of_a_forced_release_by_a_killed_client_is_unknown(self) -> None:
        some = hold("p", 1, 6), hold("q", 4, 6, invoked=3.1), forced_release(2, inf)
        assert not find("exclusion", history_of(*some))
        later = hold("r", 7, 9, invoked=6.5), hold("s", 8, 9)
        assert find("exclusion", history_of(*later, forced_release(2, inf), fault(KILL, 3, 3, "operator")))
        assert not find("exclusion", history_of(*later, forced_release(2, inf), fault(KILL, 6.6, 6.6, "operator")))


class TestNothingLeft:
    def look(self, at: float, *left: str) -> Inspection:
        return Inspection(client="nemesis", line=next(lines), invoked=at, completed=at + 1, left=list(left))

    def test_a_place_left_after_all_clients_are_gone_is_found(self) -> None:
        gone = hold("p", 1, 9, release=Release(2, 3, "done"))
        assert not find("nothing_left", history_of(gone, self.look(7)))
        assert find("nothing_left", history_of(gone, self.look(7, "a: p")))
        assert not find("nothing_left", history_of(gone, self.look(6, "a: p"), self.look(7)))

    def test_a_missing_inspection_is_found(self) -> None:
        assert find("nothing_left", history_of(hold("p", 1, 9), self.look(3)))
        assert not find("nothing_left", History())


class TestRates:
    def test_more_than_the_burst_at_once_is_found(self) -> None:
        some = [consume(1, 1.1) for _ in range(3)]
        assert not find("rates", history_of(*some))
        assert find("rates", history_of(*some, consume(1, 1.1)))
        assert not find("rates", history_of(*some, consume(1, 2.2)))

    def test_a_rate_limit_drains_with_time(self) -> None:
        steady = [consume(number, number + 0.1) for number in range(100)]
        assert not find("rates", history_of(*steady))
        assert find("rates", history_of(*steady, consume(50, 50.01, cost=3)))

    def test_refused_requests_do_not_count_against_a_rate_limit(self) -> None:
        some = [consume(1, 1.1) for _ in range(5)]
        some[0].allowed = some[1].allowed = False
        assert not find("rates", history_of(*some))

    def test_after_lost_data_a_rate_limit_begins_again(self) -> None:
        some = [consume(1, 1.1) for _ in range(3)] + [consume(1.3, 1.4) for _ in range(3)]
        assert find("rates", history_of(*some))
        assert not find("rates", history_of(*some, fault(LOSE_DATA, 1.2, 1.2)))
        assert find("rates", history_of(*some, consume(1.3, 1.4), fault(LOSE_DATA, 1.2, 1.2)))

    def test_a_fault_that_may_lose_rate_limits_is_excused(self) -> None:
        some = [consume(1, 1.1) for _ in range(3)] + [consume(1.3, 1.4) for _ in range(3)]
        crash, promises = fault("crash", 1.2, 1.2), replace(PROMISES, may_lose_rate_limits={"crash"})
        assert find("rates", history_of(*some, crash))
        assert not find("rates", history_of(*some, crash), promises)

    def test_the_checker_agrees_with_trying_every_period(self) -> None:
        found = 0
        for seed in range(FIRST_SEED, FIRST_SEED + 500):
            chance = random.Random(seed)
            starts = [chance.random() * 8 for _ in range(chance.randint(1, 14))]
            some = [consume(start, start + chance.random(), chance.randint(1, 2)) for start in starts]
            expected = is_exceeded(some)
            found += expected
            assert bool(find("rates", history_of(*some), Promises(drift=0))) == expected, f"seed {seed}"
        assert 100 < found < 400


def is_exceeded(consumes: list[Consume]) -> bool:
    for start in (one.invoked for one in consumes):
        for end in (one.completed for one in consumes):
            within = [one.cost for one in consumes if start <= one.invoked and one.completed <= end]
            if within and sum(within) > 3 + end - start:
                return True
    return False


class TestElections:
    def term(self, client: str, elected: float, deposed: float, stopped: float = inf) -> Acquire:
        return hold(client, elected, deposed, kind="leader", elected_at=elected, deposed_at=deposed, stopped_at=stopped)

    def test_a_leader_is_notified_before_the_next_is_elected(self) -> None:
        assert not find("elections", history_of(self.term("p", 1, 4), self.term("q", 4, 6)))
        assert find("elections", history_of(self.term("p", 1, 4), self.term("q", 3.9, 6)))

    def test_an_on_lost_within_its_grace_ends_before_the_next_election(self) -> None:
        assert find("elections", history_of(self.term("p", 1, 4, 4.09), self.term("q", 4.03, 6)))
        assert not find("elections", history_of(self.term("p", 1, 4, 4.2), self.term("q", 4.03, 6)))

    def test_a_leader_that_resigns_has_stopped_before_the_next(self) -> None:
        resigned = self.term("p", 1, 4, 4.3)
        assert not find("elections", history_of(resigned, self.term("q", 4.2, 6)))
        resigned.checks.append(Check(3, 3, 5))
        assert find("elections", history_of(resigned, self.term("q", 4.2, 6)))
        assert not find("elections", history_of(resigned, self.term("q", 4.3, 6)))

    def test_a_leader_that_is_never_notified_leads_for_as_long_as_it_runs(self) -> None:
        never = self.term("p", 1, inf)
        assert not find("elections", history_of(never, self.term("q", 4, 6)))
        assert find("elections", history_of(never, self.term("q", 4, 6), self.term("p", 8, 9)))

    def test_a_stopped_client_is_excused(self) -> None:
        some = self.term("p", 1, 9), self.term("q", 4, 6)
        assert not find("elections", history_of(*some, fault("pause", 2, 9, "p")))
        assert find("elections", history_of(*some, fault("pause", 5, 9, "p")))

    def test_an_on_lost_without_an_on_elected_is_found(self) -> None:
        assert find("elections", history_of(self.term("p", inf, 4, 5)))


class Handle:
    """What a recorder asks."""

    holder_id = "host:1:abc"

    def __init__(self, remaining: float) -> None:
        self.remaining = remaining
        self.lost = self

    def is_set(self) -> bool:
        return self.remaining <= 0


class TestFaults:
    def test_a_long_fault_is_found_behind_a_short_one(self) -> None:
        long, short = fault("cut off", 1, 9), fault("cut off", 2, 3)
        history = history_of(long, short)
        assert history.harm(None, "p", 5, 6) == [long]
        assert history.harm({"pause"}, "p", 5, 6) == []
        assert history.harm(None, "p", 9.1, 10) == []

    def test_faults_of_other_clients_do_not_count(self) -> None:
        history = history_of(fault("pause", 1, 9, "p"))
        assert history.harm(None, "p", 5, 6)
        assert history.harm(None, None, 5, 6)
        assert not history.harm(None, "q", 5, 6)

    def test_a_killed_server_does_not_count_as_a_killed_client(self) -> None:
        history = history_of(fault(KILL, 1, 2), fault(KILL, 3, 4, "p"))
        assert (history.killed_at("p"), history.killed_at("q")) == (4, inf)


class TestRecording:
    @pytest.fixture
    def clock(self) -> Iterator[float]:
        return iter(range(1, 1000))

    def test_a_recorded_history_is_read_back_unchanged(self, tmp_path: Path, clock: Iterator[float]) -> None:
        recorder = Recorder(tmp_path / "p.jsonl", "p", lambda: float(next(clock)))
        number = recorder.acquire("a", ttl=5, kind="permit", capacity=3, weight=2, timeout=1.5, watched=True)
        recorder.waits(number, asked=2.5, ticket=7)
        recorder.granted(number, Handle(3), fence=7)
        assert recorder.check(number, Handle(2))
        assert not recorder.check(number, Handle(0))
        recorder.lost(number)
        recorder.release(number)
        recorder.released(number, "lost")
        recorder.elected(number)
        recorder.deposed(number)
        recorder.stopped(number)
        recorder.ended(recorder.acquire("b", ttl=5, queue=False), "refused")
        once = recorder.acquire("c", ttl=5, kind="once", renew=False, at_least=1, period=2)
        recorder.granted(once, Handle(3), fence=0)
        recorder.release(once, 42)
        recorder.remembered(recorder.acquire("c", ttl=5, kind="once", period=2), 42)
        recorder.force_released(recorder.force_release("c"), [7])
        recorder.wrote(recorder.write("r", "x", 7), "accepted")
        recorder.got(recorder.read("r"), "x", 7)
        recorder.consumed(recorder.consume("l", 2, interval=0.5, burst=3), allowed=False, retry_after=1.5)
        recorder.healed(recorder.fault("pause", "p"))
        recorder.inspected(recorder.inspect("a"), ["a: p"])
        recorder.write("r", "y", 8)
        recorder.close()
        history = History.read([tmp_path / "p.jsonl"])
        granted, refused, done, reported = history.acquires
        assert granted == Acquire(
            client="p",
            line=2,
            invoked=2,
            completed=4,
            name="a",
            kind="permit",
            capacity=3,
            weight=2,
            timeout=1.5,
            ttl=5,
            watched=True,
            outcome="granted",
            fence=7,
            holder="host:1:abc",
            waits=[Wait(2.5, 3, 7)],
            checks=[Check(5, 6, 8), Check(7, 8, 9), Check(9, 10, 9, signalled=True)],
            release=Release(12, 13, "lost"),
            lost_at=11,
            elected_at=14,
            deposed_at=15,
            stopped_at=16,
        )
        assert (refused.outcome, refused.queue) == ("refused", False)
        assert (done.renew, done.at_least, done.period, done.value) == (False, 1, 2, 42)
        assert (reported.outcome, reported.value) == ("remembered", 42)
        assert [(one.name, one.fences, one.is_known) for one in history.forced_releases] == [("c", [7], True)]
        assert [one.outcome for one in history.writes] == ["accepted", "unknown"]
        assert [(one.value, one.fence) for one in history.reads] == [("x", 7)]
        assert [(one.cost, one.allowed, one.retry_after) for one in history.consumes] == [(2, False, 1.5)]
        assert [(one.name, one.target, one.is_known) for one in history.faults] == [("pause", "p", True)]
        assert [one.left for one in history.inspections] == [["a: p"]]
        assert history.last_seen == {"p": 38}
        assert len(history.operations) == 11

    def test_many_files_are_one_history_and_a_torn_line_is_dropped(self, tmp_path: Path) -> None:
        for client in "pq":
            recorder = Recorder(tmp_path / client, client)
            recorder.ended(recorder.acquire("a", ttl=5), "refused")
            recorder.close()
        with (tmp_path / "q").open("a") as file:
            file.write('{"event": "acquire", "id": 2, "at')
        history = History.read(sorted(tmp_path.iterdir()))
        assert [one.client for one in history.acquires] == ["p", "q"]
        assert {one.outcome for one in history.acquires} == {"refused"}

    def test_a_killed_recorder_has_written_every_event(self, tmp_path: Path) -> None:
        path = tmp_path / "p"
        program = (
            "import os, signal, sys, pathlib\n"
            "from lockstead.testing.torture.history import Recorder\n"
            "recorder = Recorder(pathlib.Path(sys.argv[1]), 'p')\n"
            "recorder.ended(recorder.acquire('a', ttl=5), 'refused')\n"
            "recorder.acquire('b', ttl=5)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", ROOT]))}
        ended = subprocess.run([sys.executable, "-c", program, path], env=environment, check=False)
        assert ended.returncode == -signal.SIGKILL
        known, unknown = History.read([path]).acquires
        assert (known.outcome, unknown.outcome, unknown.is_known) == ("refused", "unknown", False)

    def test_a_forked_child_needs_its_own_recorder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = Recorder(tmp_path / "p", "p")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(AssertionError, match="its own recorder"):
            recorder.acquire("a", ttl=5)
        recorder.close()
