"""What each primitive requests of the line: its capacity and weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple, Unpack

from lockstead.core import timing
from lockstead.core.checks import MAX_TTL, Seconds, check_count, check_name, check_seconds, check_ttl, encode_metadata
from lockstead.core.model import WHOLE, Ask
from lockstead.core.retry import RetryPolicy
from lockstead.errors import InvalidInputError
from lockstead.primitives.options import LockOptions

MAX_NAMES = 1000
"""How many names one multi-lock may have."""


class Defaults(NamedTuple):
    ttl: float
    retry: RetryPolicy


class Plan(NamedTuple):
    """A checked request for the engine."""

    asks: tuple[Ask, ...]
    """Of different names, sorted: every client waits for several names in that order."""
    timeout: float
    renew_for: float
    at_least: float
    grace: float
    retry: RetryPolicy
    reentrant: bool
    on_lost: Callable[[Any], Any] | None

    def within(self, timeout: Seconds) -> Plan:
        """Return the same plan with another timeout."""
        max_wait = check_seconds(timeout, "timeout")
        return self._replace(timeout=max_wait, asks=tuple(ask._replace(queue=max_wait > 0) for ask in self.asks))

    def of(self, names: Iterable[str]) -> Plan:
        """Return the same plan for other names."""
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
    """Plan for `weight` of a line's `capacity`; by default an exclusive lock. Raises InvalidInputError."""
    lease_ttl = defaults.ttl if ttl is None else check_ttl(ttl)
    max_wait = inf if timeout is None else check_seconds(timeout, "timeout")
    renew_for = inf if renew else 0.0
    if max_hold is not None:
        longest = check_ttl(max_hold, "max_hold")
        lease_ttl = min(lease_ttl, longest)
        renew_for = min(renew_for, longest)
    reserved_for = check_seconds(at_least, "at_least")
    if reserved_for > MAX_TTL:
        msg = f"at_least must be at most a year, got {reserved_for:g} s"
        raise InvalidInputError(msg)
    heartbeat = min(lease_ttl, timing.HEARTBEAT)
    encoded = encode_metadata(metadata)
    ask = Ask(check_name(name), "", lease_ttl, heartbeat, capacity, weight, max_wait > 0, encoded)
    return Plan((ask,), max_wait, renew_for, reserved_for, grace, retry or defaults.retry, reentrant, on_lost)


def reading(name: str, defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Plan for the shared (read) side of a read-write lock."""
    return plan(name, defaults, WHOLE, 1, **options)


def writing(name: str, defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Plan for the exclusive (write) side of a read-write lock."""
    return plan(name, defaults, WHOLE, WHOLE, **options)


def permits(name: str, defaults: Defaults, of: int, weight: int, **options: Unpack[LockOptions]) -> Plan:
    """Plan for `weight` of a semaphore's permits."""
    capacity = check_count(of, "permits", most=WHOLE - 1)
    return plan(name, defaults, capacity, check_count(weight, "weight", most=capacity), **options)


def several(names: Iterable[str], defaults: Defaults, **options: Unpack[LockOptions]) -> Plan:
    """Plan for exclusive locks of several names."""
    if options.get("reentrant"):
        msg = "a multi-lock is not re-entrant: acquire it once, and pass the handle on"
        raise InvalidInputError(msg)
    ordered = in_order(names)
    return plan(ordered[0], defaults, **options).of(ordered)


def single(
    name: str, defaults: Defaults, at_most: Seconds, at_least: Seconds, metadata: Mapping[str, Any] | None
) -> Plan:
    """Plan for a name that is held or reserved from `at_least` to `at_most` seconds, without waiting for it."""
    longest, shortest = check_ttl(at_most, "at_most"), check_seconds(at_least, "at_least")
    if shortest > longest:
        msg = f"at_least must not be longer than at_most, got {shortest:g} and {longest:g} s"
        raise InvalidInputError(msg, name=name)
    return plan(name, defaults, ttl=longest, renew=False, timeout=0, at_least=shortest, metadata=metadata)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names, each once: the one order in which every client waits for them."""
    ordered = sorted({check_name(name) for name in names})
    if not 0 < len(ordered) <= MAX_NAMES:
        msg = f"there must be from 1 to {MAX_NAMES} names at once, got {len(ordered)}"
        raise InvalidInputError(msg)
    return ordered
