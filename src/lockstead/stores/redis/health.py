"""Check a server's configuration and clock for what would put locks at risk."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from lockstead.core.model import Finding
from lockstead.core.runtime import Event, Runtime
from lockstead.stores.redis.address import Address
from lockstead.stores.redis.errors import refused, unknown_outcome
from lockstead.stores.redis.node import Node
from lockstead.stores.redis.resp import pack

MIN_VERSION = (6, 2)
MAX_CLOCK_SKEW = 1.0
"""Seconds by which a server's clock may differ from this machine's without a finding."""

HEALTH_COMMANDS = pack(("INFO",)) + pack(("CONFIG", "GET", "save")) + pack(("TIME",))
HEALTH_REPLIES = 3


class Checks:
    """Lets one request check a server while the others wait for it, so that a warning is logged once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._checking: dict[Node, object] = {}
        self._waiting: dict[object, Event] = {}

    async def once(self, node: Node, check: Callable[[Node, float], Awaitable[None]], deadline: float) -> None:
        """Check a server by the deadline, unless another request does meanwhile.

        After half of the time left it is checked all the same: the other request may have ended without a trace, in
        the parent of a forked process or by an interrupt.
        """
        me = object()
        half_time = (self._runtime.now() + deadline) / 2
        while not node.is_checked:
            now = self._runtime.now()
            if now >= deadline:
                raise unknown_outcome(node.address, TimeoutError())
            if self._checking.setdefault(node, me) is not me and now < half_time:
                await self._wait(node, me, half_time - now)
                continue
            try:
                await check(node, deadline - now)
            finally:
                self._checking.pop(node, None)
                for event in list(self._waiting.values()):
                    event.set()

    async def _wait(self, node: Node, me: object, timeout: float) -> None:
        event = self._waiting[me] = self._runtime.event()
        try:
            if node in self._checking:  # otherwise the check ended before it could wake this request
                await event.wait(timeout)
        finally:
            self._waiting.pop(me, None)


def findings(address: Address, replies: Sequence[Any], *, is_member: bool) -> Iterator[Finding]:
    """Check the replies to `HEALTH_COMMANDS`. A setting that the server does not report is not checked."""
    subject = str(address)
    info_text, save, _ = replies
    if isinstance(info_text, Exception):
        yield Finding("warning", subject, f"does not report its settings: {refused(address, info_text)}")
        return
    info = _settings(info_text)
    name, version = _name_and_version(info)
    if "redis_version" in info and tuple(map(int, info["redis_version"].split(".")[:2])) < MIN_VERSION:
        yield Finding("error", subject, f"{name} {version} is too old: upgrade to Redis 6.2 or newer, or Valkey")
        return
    yield Finding("ok", subject, f"{name} {version}, {info.get('role', 'role unknown')}")
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and info.get("maxmemory", "0") != "0":
        yield Finding("warning", subject, f"maxmemory-policy {policy} may evict locks: set noeviction")
    if is_member and _persists_nothing(info, save):
        yield Finding(
            "warning",
            subject,
            "this Redlock node persists nothing: after a restart it does not vote before the longest ttl has "
            "passed: set appendonly yes and appendfsync always",
        )


def persistence(address: Address, replies: Sequence[Any]) -> list[Finding]:
    """Find that a server which is no member of a quorum persists nothing: no reason to refuse it."""
    info_text, save, _ = replies
    if isinstance(info_text, Exception) or not _persists_nothing(_settings(info_text), save):
        return []
    msg = (
        "this server persists nothing: a restart takes every lock from its holder, and forgets what once and at_least "
        "reserved: set appendonly yes"
    )
    return [Finding("warning", str(address), msg)]


def _persists_nothing(info: dict[str, str], save: object) -> bool:
    return info.get("aof_enabled") == "0" and save == [b"save", b""]


def _settings(info_text: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in info_text.decode().splitlines() if ":" in line)


def skew(address: Address, replies: Sequence[Any]) -> list[Finding]:
    """Compare clocks. Leases expire by the server's clock alone, so a difference is a warning, not an error."""
    clock = replies[-1]
    ahead = 0.0 if isinstance(clock, Exception) else int(clock[0]) + int(clock[1]) / 1e6 - time.time()
    if abs(ahead) <= MAX_CLOCK_SKEW:
        return []
    return [
        Finding("warning", str(address), f"its clock is {ahead:+.1f} s off this machine's: synchronise both with NTP")
    ]


def _name_and_version(info: dict[str, str]) -> tuple[str, str]:
    if "valkey_version" in info:
        return "Valkey", info["valkey_version"]
    return "Redis", info.get("redis_version", "?")
