"""What a server tells of itself that matters to locks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from lockstead.core.model import Finding
from lockstead.stores.redis.address import Address
from lockstead.stores.redis.errors import refused
from lockstead.stores.redis.resp import pack

MIN_VERSION = (6, 2)
SKEW = 1.0
"""Seconds between a server's clock and ours that are worth a word."""

QUESTIONS = pack(("INFO",)) + pack(("CONFIG", "GET", "save")) + pack(("TIME",))
ANSWERS = 3


def findings(address: Address, replies: Sequence[Any], *, is_member: bool) -> Iterator[Finding]:
    """Judge the answers to `QUESTIONS`. A server may keep its settings to itself; what it hides is not judged."""
    subject = str(address)
    info_text, save, _ = replies
    if isinstance(info_text, Exception):
        yield Finding("warning", subject, f"does not tell about itself: {refused(address, info_text)}")
        return
    info = dict(line.split(":", 1) for line in info_text.decode().splitlines() if ":" in line)
    name, version = _name_and_version(info)
    if "redis_version" in info and tuple(map(int, info["redis_version"].split(".")[:2])) < MIN_VERSION:
        yield Finding("error", subject, f"{name} {version} is too old: 6.2 is needed")
        return
    yield Finding("ok", subject, f"{name} {version}, {info.get('role', 'role unknown')}")
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys") and info.get("maxmemory", "0") != "0":
        yield Finding("warning", subject, f"maxmemory-policy {policy} may evict locks: set noeviction")
    if is_member and info.get("aof_enabled") == "0" and save == [b"save", b""]:
        yield Finding(
            "warning",
            subject,
            "this Redlock node persists nothing: after a restart it does not vote before the longest ttl has passed",
        )


def skew(address: Address, replies: Sequence[Any]) -> list[Finding]:
    """Compare clocks. Leases end by the server's alone, so a difference is worth a word, no more."""
    clock = replies[-1]
    ahead = 0.0 if isinstance(clock, Exception) else int(clock[0]) + int(clock[1]) / 1e6 - time.time()
    if abs(ahead) <= SKEW:
        return []
    return [Finding("warning", str(address), f"its clock is {ahead:+.1f} s off this machine's")]


def _name_and_version(info: dict[str, str]) -> tuple[str, str]:
    if "valkey_version" in info:
        return "Valkey", info["valkey_version"]
    return "Redis", info.get("redis_version", "?")
