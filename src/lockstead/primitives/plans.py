"""What each primitive asks of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple, Unpack

from lockstead.core.checks import MAX_TTL, Seconds, check_count, check_name, check_seconds, check_ttl, encode_metadata
from lockstead.core.model import WHOLE, Ask
from lockstead.core.retry import RetryPolicy
from lockstead.errors import InvalidInputError
from lockstead.primitives.options import LockOptions

HEARTBEAT = 3.0
"""How long a waiting place outlives its client. A dead waiter holds the line up for that long, not for a ttl."""

MAX_NAMES = 1000
"""How many may be held as one."""


class Defaults(NamedTuple):
    ttl: float
    retry: RetryPolicy


class Plan(NamedTuple):
    """A checked request for the engine."""

    asks: tuple[Ask, ...]
    """Of different names, in the order of names: whoever waits for several waits in that order."""
    timeout: float
    renew_for: float
    at_least: float
    grace: float
    retry: RetryPolicy
    reentrant: bool
    on_lost: Callable[[Any], Any] | None
    is_scoped: bool = False
    """It is for a block, and to be given up however that is left."""

    def within(self, timeout: Seconds) -> Plan:
        """Plan the same with another patience."""
        patience = check_seconds(timeout, "timeout")
        return self._replace(timeout=patience, asks=tuple(ask._replace(queue=patience > 0) for ask in self.asks))

    def of(self, names: Iterable[str]) -> Plan:
        """Plan the same for other names."""
        return self._replace(asks=tuple(self.asks[0]._replace(name=name) for name in in_order(names)))


def plan(
    name: str,
    defaults: Defaults,
    capacity: int = 1,
    weight: int = 1,
    *,
    ttl: Seconds | None = None,
    timeout: Seconds | None = None,
    metadata: Mapping[str, Any] | None = None,
    max_hold: Seconds | None = None,
    at_least: Seconds = 0.0,
    renew: bool = True,
    reentrant: bool = False,
    grace: float = 0.0,
    on_lost: Callable[[Any], Any] | None = None,
    retry: RetryPolicy | None = None,
) -> Plan:
    """Ask for so much of a line of that capacity: the whole of one, if nothing is said. Raises InvalidInputError."""
    life = defaults.ttl if ttl is None else check_ttl(ttl)
    patience = inf if timeout is None else check_seconds(timeout, "timeout")
    renew_for = inf if renew else 0.0
    if max_hold is not None:
        longest = check_ttl(max_hold, "max_hold")
        life = min(life, longest)
        renew_for = min(renew_for, longest)
    taken = check_seconds(at_least, "at_least")
    if taken > MAX_TTL:
        msg = f"at_least may be a year at the most, got {taken:g} s"
        raise InvalidInputError(msg)
    heartbeat = min(life, HEARTBEAT)
    words = encode_metadata(metadata)
    ask = Ask(check_name(name), "", life, heartbeat, capacity, weight, patience > 0, words)
    return Plan((ask,), patience, renew_for, taken, grace, retry or defaults.retry, reentrant, on_lost)


def reading(name: str, defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Ask to hold beside other readers, but no writer."""
    return plan(name, defaults, WHOLE, 1, **options)


def writing(name: str, defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Ask to hold alone where others read."""
    return plan(name, defaults, WHOLE, WHOLE, **options)


def permits(name: str, defaults: Defaults, of: int, weight: int, **options: Unpack[LockOptions]) -> Plan:
    """Ask for so many of a number of permits."""
    capacity = check_count(of, "permits", most=WHOLE - 1)
    return plan(name, defaults, capacity, check_count(weight, "weight", most=capacity), **options)


def several(names: Iterable[str], defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Ask for several names, each alone."""
    if options.get("reentrant"):
        msg = "several names at once cannot be re-entered: acquire them once, and pass the handle on"
        raise InvalidInputError(msg)
    ordered = in_order(names)
    return plan(ordered[0], defaults, **options).of(ordered)


def single(
    name: str, defaults: Defaults, at_most: Seconds, at_least: Seconds, metadata: Mapping[str, Any] | None
) -> Plan:
    """Ask once, without waiting, for a name that is then taken from `at_least` to `at_most` seconds."""
    longest, shortest = check_ttl(at_most, "at_most"), check_seconds(at_least, "at_least")
    if shortest > longest:
        msg = f"at_least must not be longer than at_most, got {shortest:g} and {longest:g} s"
        raise InvalidInputError(msg, name=name)
    return plan(name, defaults, ttl=longest, renew=False, timeout=0, at_least=shortest, metadata=metadata)


def in_order(names: Iterable[str]) -> list[str]:
    """Put names into the one order in which everybody waits for them, each once."""
    ordered = sorted({check_name(name) for name in names})
    if not 0 < len(ordered) <= MAX_NAMES:
        msg = f"there must be from 1 to {MAX_NAMES} names at once, got {len(ordered)}"
        raise InvalidInputError(msg)
    return ordered
