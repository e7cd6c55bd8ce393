"""A release that hands over without opening its line has the result that it has when it opens the line."""

from __future__ import annotations

import random
import re
import struct
from math import inf, nan
from typing import Any

import pytest
import redis

from lockstead.core.model import WHOLE
from lockstead.stores.redis.commands import LEAVE
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer

SHORTCUT = "\nif state[2] and not ARGV[3] then\n"
NOW = 2.0**52
"""The bucket's clock: ahead of the server's, it stands still."""
NUMBERS = (nan, inf, 0.0, -1.0, NOW, NOW + 1, 2.0**54)
LINES = 4000
OWNERS = ("a/1", "b/12", "c/123", "d/1234")


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


def sized(text: str) -> bytes:
    return struct.pack("<H", len(text)) + text.encode()


def some_line(chance: random.Random, channel: str) -> dict[bytes, bytes]:
    """Draw a line of one to four places in good order, of which some may have expired."""
    owners = OWNERS[: chance.randint(1, 4)]
    capacity = chance.choice((1, 1, 1, 3, WHOLE))
    spent = 0
    fields = {b"x": struct.pack("<d", 0) + sized(owners[0]) + sized(owners[-1])}
    for number, owner in enumerate(owners):
        weight = chance.choice((1, capacity))
        spent += weight
        is_held = spent <= capacity
        expires = NOW + chance.choice((5e6, 5e6, 5e6, 0, -5e6))
        links = sized(owners[number - 1] if number else "") + sized((*owners, "")[number + 1])
        wake_up = bytes((len(channel),)) + channel.encode() + bytes((4,)) + owner.encode()[:4].ljust(4)
        record = struct.pack("<ddd", expires, 7 + number, NOW - 9 if is_held else 0) + links + sized(owner) + wake_up
        fields[b"x\0" + owner.encode()] = record + struct.pack("<II", capacity, weight) + b"{}"
    return fields


def damaged(fields: dict[bytes, bytes], chance: random.Random) -> dict[bytes, bytes]:
    """Overwrite a number, a byte or an owner in one record, cut it, exchange it for another one, or remove it."""
    field, other = chance.choice(sorted(fields)), chance.choice(sorted(fields))
    record = fields[field]
    at = chance.randrange(len(record))
    one, another = chance.choice(("", *OWNERS)), chance.choice(("", *OWNERS))
    start = 8 if field == b"x" else 24
    number = 8 * chance.randrange(3)
    return {
        "number": lambda: (
            fields | {field: record[:number] + struct.pack("<d", chance.choice(NUMBERS)) + record[number + 8 :]}
        ),
        "byte": lambda: fields | {field: record[:at] + bytes((chance.choice((0, 1, 97, 98, 255)),)) + record[at + 1 :]},
        "name": lambda: fields | {field: record[:start] + record[start:].replace(sized(one), sized(another), 1)},
        "cut": lambda: fields | {field: record[:at]},
        "exchange": lambda: fields | {field: fields[other]},
        "remove": lambda: {name: fields[name] for name in fields if name != field},
    }[chance.choice(("number", "byte", "name", "name", "cut", "exchange", "remove"))]()


def leave(raw: redis.Redis, digest: str, key: str, fields: dict[bytes, bytes], owner: str) -> tuple[Any, Any]:
    """Put a line on the server and release a place of it; return the reply, and what is there afterwards."""
    raw.delete(key)
    raw.hset(key, mapping=fields)  # type: ignore[arg-type]
    try:
        reply: Any = raw.evalsha(digest, 1, key, "x", owner)
    except redis.ResponseError as error:
        reply = re.search(r"DAMAGED\(.*?\)", str(error))[0]  # type: ignore[index]
    return reply, raw.hgetall(key)


def test_a_release_in_short_is_the_same_as_by_opening_the_line(
    redis_server: RedisServer, key_prefix: str, seed: int
) -> None:
    chance = random.Random(seed)
    text = LEAVE._text.decode()
    assert SHORTCUT in text
    raw = redis_server.client(decode_responses=False)
    digests = [raw.script_load(each) for each in (text, text.replace(SHORTCUT, "\nif false then\n"))]
    channels = raw.pubsub()
    channels.subscribe(key_prefix)
    channels.get_message(timeout=5)
    clock = struct.pack("<ddddd", 100, NOW, 0, 0, 0)
    handed_over = 0
    for _ in range(LINES):
        line = some_line(chance, key_prefix)
        if chance.random() < 0.5:
            line = damaged(line, chance)
        owner = chance.choice((OWNERS[0], OWNERS[0], *OWNERS))
        outcomes = []
        for digest in digests:
            outcome = leave(raw, digest, f"{key_prefix}line", {**line, b"\0": clock}, owner)
            raw.publish(key_prefix, "that is all")
            woken = []
            while (message := channels.get_message(timeout=5)) and message["data"] != b"that is all":
                woken.append(message["data"])
            outcomes.append((*outcome, woken))
        assert outcomes[0] == outcomes[1], (line, owner)
        handed_over += outcomes[0][0] == 1 and bool(outcomes[0][2])
    assert handed_over > LINES / 20, "hardly any release of these lines wakes a waiter"
    raw.delete(f"{key_prefix}line")
    channels.close()
    raw.close()
