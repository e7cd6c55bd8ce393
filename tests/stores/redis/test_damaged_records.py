"""Records that something else has overwritten, cut short or tied in knots: a typed error, and a way out."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from math import inf, nan
from typing import Any, NamedTuple

import pytest
import redis

from lockstead import DamagedError, DistributedLock
from lockstead.cli import main
from lockstead.cli.outcome import Exit
from lockstead.core import inspection
from lockstead.core.engine import Engine
from lockstead.core.model import GONE, Ask, RateRequest, Refusal, Renewal, Reservation, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import parse_url
from lockstead.stores.redis.store import RedisStore
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer

TIMEOUT = 5.0
LARGEST = 2**53
ROUNDS = int(os.environ.get("LOCKSTEAD_GARBAGE", "500"))
"""How often what a server keeps is damaged at random, on each kind of server."""
OWN = b"\0"
OWNERS = ("a/1", "b/1", "c/1", "d/1")
NUMBERS = (nan, inf, -inf, 0.0, -0.0, -1.0, 5e-324, 1.0, 1e300, 2.0**53, 2.0**53 - 1, 2.0**62, 1.7e15)

Record = bytes
Fields = dict[bytes, Record]


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture
def site(redis_server: RedisServer, key_prefix: str) -> Iterator[Site]:
    site = Site(redis_server, key_prefix)
    yield site
    site.close()


@pytest.fixture
def member(redis_server: RedisServer, key_prefix: str) -> Iterator[Site]:
    site = Site(redis_server, key_prefix, is_member=True)
    token = drive(site.store.probe(TIMEOUT)).token
    drive(site.store.admit(token, 1, 0.0, TIMEOUT))
    yield site
    site.close()


class Site:
    """One store, and its key, to be looked at and damaged behind its back."""

    def __init__(self, server: RedisServer, key_prefix: str, *, is_member: bool = False) -> None:
        self.server = server
        (deployment,), _ = parse_url(server.url)
        self.url = f"{server.url}?key_prefix={key_prefix}"
        self.store = RedisStore(ThreadRuntime(), deployment, key_prefix=key_prefix, is_member=is_member)
        self.engine = Engine(self.store, lambda: "operator")
        self.raw: redis.Redis = server.client(decode_responses=False)
        self.key = f"{key_prefix}:{'member' if is_member else 'bucket'}:0"
        self.rate_key = f"{key_prefix}:rate:r"

    def close(self) -> None:
        self.raw.delete(self.key, self.rate_key)
        drive(self.store.close())
        self.raw.close()

    def join(self, owner: str, name: str = "x", **more: Any) -> Standing | Refusal:
        return drive(self.store.join(Ask(name, owner, 600.0, 600.0, **more), TIMEOUT))

    def fields(self) -> Fields:
        return dict(self.raw.hgetall(self.key))  # type: ignore[arg-type]

    def put(self, fields: Fields) -> None:
        with self.raw.pipeline(transaction=True) as pipeline:
            pipeline.delete(self.key)
            if fields:
                pipeline.hset(self.key, mapping=fields)  # type: ignore[arg-type]
            pipeline.execute()

    def damage(self, field: bytes, record: Record | None) -> None:
        if record is None:
            self.raw.hdel(self.key, field)
        else:
            self.raw.hset(self.key, field, record)

    def command(self, *arguments: str) -> Finished:
        """Run the command, in this process, which is quicker."""
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = main([*arguments, "--url", self.url])
        return Finished(code, out.getvalue(), err.getvalue())


class Finished(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def refused(call: Callable[[], object], *parts: str) -> DamagedError:
    with pytest.raises(DamagedError) as caught:
        call()
    assert not caught.value.transient
    for part in parts:
        assert part in str(caught.value)
    return caught.value


def line_of(site: Site) -> Fields:
    """Make a line of four, one of which holds, beside a name in good order."""
    assert isinstance(site.join("h/1", "fine"), Standing)
    for owner in OWNERS:
        site.join(owner, metadata='{"by": "me"}')
    return site.fields()


def linked(record: Record, before: str, after: str) -> Record:
    """Give a place other neighbours."""
    (length,) = struct.unpack_from("<H", record, 24)
    (second,) = struct.unpack_from("<H", record, 26 + length)
    links = b"".join(struct.pack("<H", len(owner)) + owner.encode() for owner in (before, after))
    return record[:24] + links + record[28 + length + second :]


def with_number(record: Record, index: int, number: float) -> Record:
    return record[: 8 * index] + struct.pack("<d", number) + record[8 * index + 8 :]


def test_a_truncated_record_is_reported_and_cleared(site: Site) -> None:
    site.join("a/1")
    site.join("h/1", "fine")
    site.damage(b"x", site.fields()[b"x"][:30])
    remedy = "`lockstead release x --force`"
    for call in (
        lambda: site.join("b/1"),
        lambda: drive(site.store.leave("x", "a/1", TIMEOUT)),
        lambda: drive(site.store.reserve(Reservation("x", "a/1", 5.0), TIMEOUT)),
        lambda: drive(inspection.find(site.engine, "x")),
    ):
        error = refused(call, repr(site.key), "'x'", remedy)
        assert (error.name, error.key, error.field) == ("x", site.key, "x")
    assert drive(site.store.renew([Renewal("x", "a/1", 5.0, 5.0)], TIMEOUT)) == [GONE]
    cleared = drive(inspection.force_release(site.engine, "x"))
    assert cleared is not None
    assert cleared.damage is not None
    standing = site.join("b/1")
    assert isinstance(standing, Standing)
    assert standing.held


def test_one_bad_record_keeps_no_other_from_being_listed(site: Site) -> None:
    line_of(site)
    site.damage(b"x\0b/1", b"nonsense")
    site.damage(b"y", b"")
    site.damage(b"\xff\xfe", b"not a name")
    listed = site.command("ls")
    assert listed.returncode == Exit.DAMAGED
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "fine"]
    complaints = listed.stderr.splitlines()
    assert len(complaints) == 3
    assert all(repr(site.key) in complaint for complaint in complaints)
    assert sum("release x --force" in complaint for complaint in complaints) == 1
    assert sum("HDEL" in complaint for complaint in complaints) == 1
    listed = site.command("ls", "--json")
    assert listed.returncode == Exit.DAMAGED
    entries = {entry["name"]: entry for entry in json.loads(listed.stdout)}
    assert sorted(entries) == ["\\xff\\xfe", "fine", "x", "y"]
    assert entries["fine"]["damage"] is None
    assert "release x --force" in entries["x"]["damage"]
    shown = site.command("show", "x", "--json")
    assert (shown.returncode, json.loads(shown.stderr)["error"]) == (65, "damaged")
    released = site.command("release", "x", "--force")
    assert released.returncode == 0
    assert "removed a record that could not be read" in released.stdout
    assert site.command("release", "x", "--force").returncode == Exit.FREE
    assert not [field for field in site.fields() if field.startswith(b"x")]
    with DistributedLock(site.url) as locks:
        with locks.lock("x", timeout=5):
            assert sorted(info.name for info in locks.inspect() if info.damage is None) == ["fine", "x"]
        (damaged,) = locks.inspect("y")
        with pytest.raises(DamagedError):
            _ = damaged.holder_id


KNOTS = {
    "a ring": (("a/1", "", "b/1"), ("b/1", "a/1", "c/1"), ("c/1", "b/1", "d/1"), ("d/1", "c/1", "a/1")),
    "a ring without an end": (("a/1", "d/1", "b/1"), ("d/1", "c/1", "a/1")),
    "itself": (("a/1", "a/1", "a/1"),),
    "itself again and again": (("a/1", "", "a/1"),),
    "back and forth": (("b/1", "a/1", "a/1"),),
    "a place left out": (("a/1", "", "c/1"),),
    "an end in the middle": (("b/1", "a/1", ""),),
    "a place that is not there": (("c/1", "b/1", "z/9"),),
}


@pytest.mark.parametrize("knot", KNOTS)
@pytest.mark.parametrize("ended", [False, True])
def test_every_script_ends_despite_circular_or_dangling_links(site: Site, knot: str, ended: bool) -> None:
    """With all leases but those of the good name ended, so that scripts drop what they meet; and with none."""
    fields = line_of(site)
    for owner, before, after in KNOTS[knot]:
        field = f"x\0{owner}".encode()
        fields[field] = linked(fields[field], before, after)
    if ended:
        for owner in OWNERS:
            field = f"x\0{owner}".encode()
            fields[field] = with_number(fields[field], 0, 1e12)
    for step in steps(site, random.Random(1)):
        site.put(fields)
        answer(step)
    site.put(fields)
    (line,) = drive(site.store.inspect("x", exact=True))
    assert line.damage is not None
    assert site.raw.ping()
    drive(inspection.force_release(site.engine, "x"))
    assert not [field for field in site.fields() if field.startswith(b"x")]


@pytest.mark.parametrize("number", [nan, inf, -inf, -1.0, 2.0**53, 1e300], ids=str)
@pytest.mark.parametrize("index", range(3), ids=["ticket", "time", "shift"])
def test_an_invalid_counter_gives_no_fence(site: Site, index: int, number: float) -> None:
    site.join("a/1")
    healthy = site.fields()
    site.damage(OWN, with_number(healthy[OWN], index, number))
    for call in (
        lambda: site.join("b/1", "other"),
        lambda: site.join("b/1"),
        lambda: drive(site.store.renew([Renewal("x", "a/1", 5.0, 5.0)], TIMEOUT)),
        lambda: drive(site.store.join_all([Ask("other", "b/1", 5.0, 5.0, queue=False)], TIMEOUT)),
    ):
        refused(call, repr(site.key), "counter", "`lockstead release NAME --force`")
    lines = drive(site.store.inspect())
    assert [(line.name, line.damage is None) for line in lines] == [("", False), ("x", True)]
    assert [finding.message for finding in drive(site.store.examine()) if "counter" in finding.message]
    drive(inspection.force_release(site.engine, "other"))
    assert drive(site.store.renew([Renewal("x", "a/1", 600.0, 5.0)], TIMEOUT))[0] != GONE, "no holder lost anything"
    standing = site.join("b/1", "other")
    assert isinstance(standing, Standing)
    assert struct.unpack_from("<d", healthy[OWN])[0] < standing.ticket < LARGEST


@pytest.mark.parametrize("record", [b"\xff" * 40, b"\xff" * 8, b"", b"\xff" * 56])
def test_a_counter_of_other_bytes_gives_no_fence(site: Site, record: bytes) -> None:
    site.damage(OWN, record)
    refused(lambda: site.join("a/1"), "counter")
    drive(inspection.force_release(site.engine, "x"))
    standing = site.join("a/1")
    assert isinstance(standing, Standing)
    assert time.time() * 1e6 - 60e6 < standing.ticket < LARGEST


def test_a_member_whose_votes_cannot_be_read_does_not_vote_until_it_is_admitted_again(member: Site) -> None:
    member.join("a/1", queue=False)
    member.damage(OWN, member.fields()[OWN][:-1] + b"\xff")
    refused(lambda: member.join("b/1", "other", queue=False), "counter")
    refused(lambda: drive(member.store.probe(TIMEOUT)), "counter")
    drive(inspection.force_release(member.engine, "other"))
    answer = member.join("b/1", "other", queue=False)
    assert isinstance(answer, Refusal)
    assert answer.abstains
    assert drive(member.store.probe(TIMEOUT)).votes_in == inf


def test_a_key_of_another_type_is_named_and_left_alone(site: Site) -> None:
    site.raw.set(site.key, "something else")
    calls: list[Callable[[], object]] = [
        lambda: site.join("a/1"),
        lambda: drive(site.store.inspect()),
        lambda: drive(inspection.force_release(site.engine, "x")),
        lambda: drive(site.store.renew([Renewal("x", "a/1", 5.0, 5.0)], TIMEOUT)),
        lambda: drive(site.store.leave("x", "a/1", TIMEOUT)),
    ]
    for call in calls:
        refused(call, repr(site.key), "WRONGTYPE", "delete it, or choose another key_prefix")
    assert site.raw.get(site.key) == b"something else"
    assert "error" in {finding.level for finding in drive(site.store.examine())}
    site.raw.delete(site.key)
    site.raw.lpush(site.rate_key, "something else")
    refused(lambda: drive(site.store.consume(RateRequest("r", 1.0, 1.0), TIMEOUT)), repr(site.rate_key), "delete it")


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"1",
        b"\xff" * 16,
        b"x" * 17,
        *(struct.pack("<dd", *pair) for pair in ((nan, 1.0), (1.0, nan), (-1.0, 1.0))),
    ],
    ids=repr,
)
def test_a_rate_that_cannot_be_read_is_refused(site: Site, record: bytes) -> None:
    site.raw.set(site.rate_key, record)
    refused(lambda: drive(site.store.consume(RateRequest("r", 1.0, 1.0), TIMEOUT)), repr(site.rate_key), "delete it")
    site.raw.delete(site.rate_key)
    assert drive(site.store.consume(RateRequest("r", 1.0, 1.0), TIMEOUT)).allowed


@pytest.mark.parametrize("metadata", [b"no JSON", b"[1]", b"", b"[" * 4000, b"7", b'{"\xff": 1}'])
def test_metadata_that_is_no_object_hides_no_holder(site: Site, metadata: bytes) -> None:
    site.join("a/1", metadata="{}")
    site.damage(b"x", site.fields()[b"x"][:-2] + metadata)
    with DistributedLock(site.url) as locks:
        (info,) = locks.inspect()
        assert (info.name, info.holder_id, info.metadata) == ("x", "a", {})
        assert "metadata of a/1" in (info.damage or "")
        assert locks.force_release("x") is not None
        assert not locks.is_locked("x")


def test_an_owner_that_is_no_text_is_reported_and_cleared(site: Site) -> None:
    site.join("a/1")
    site.damage(b"x", site.fields()[b"x"].replace(b"a/1", b"a\xff1"))
    refused(lambda: drive(inspection.find(site.engine, "x")), "release x --force")
    assert isinstance(site.join("b/1", queue=False), Refusal)
    drive(inspection.force_release(site.engine, "x"))
    assert isinstance(site.join("b/1", queue=False), Standing)


# A fuzz: states made by the store itself, damaged at random.


def states(site: Site, *, is_member: bool) -> list[Fields]:
    """Give what a server keeps of one name in several situations, always beside one in good order."""

    def single() -> None:
        site.join("a/1", queue=False)

    def waiting() -> None:
        line_of(site)

    def semaphore() -> None:
        for number, owner in enumerate(OWNERS):
            site.join(owner, capacity=3, weight=1 + number % 2)

    def reserved() -> None:
        site.join("a/1", queue=False)
        drive(site.store.reserve(Reservation("x", "a/1", 600.0, '{"outcome": 1}', tombstone=600.0), TIMEOUT))

    def tombstones() -> None:
        for owner in OWNERS:
            drive(site.store.leave("x", owner, TIMEOUT, 600.0))
        site.join("e/1")

    made = []
    for make in (
        (single, reserved, tombstones) if is_member else (single, waiting, waiting, semaphore, reserved, tombstones)
    ):
        if not is_member:
            site.raw.delete(site.key)
        else:
            site.put({OWN: site.fields()[OWN]})
        site.join("h/1", "fine", queue=False)
        make()
        made.append(site.fields())
    return made


def mutated(fields: Fields, chance: random.Random) -> Fields:
    """Damage something that does not belong to the name in good order."""
    fields = dict(fields)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        field = chance.choice([field for field in fields if not field.startswith(b"fine")])
        record = fields[field]
        kind = chance.randrange(9)
        if kind == 0:
            record = record[: chance.randrange(len(record) + 1)]
        elif kind == 1:
            record += chance.randbytes(chance.choice((1, 8, 300)))
        elif kind == 2 and record:
            flipped = bytearray(record)
            for _ in range(chance.choice((1, 3, 20))):
                flipped[chance.randrange(len(flipped))] = chance.choice((0, 1, 0xFF, chance.randrange(256)))
            record = bytes(flipped)
        elif kind == 3:
            number = chance.choice((*NUMBERS, time.time() * 1e6 - 1e6, time.time() * 1e6 + 1e9))
            record = with_number(record, chance.randrange(5 if field == OWN else 3), number)
        elif kind == 4:
            record = chance.randbytes(chance.choice((0, 1, 8, 40, 100, 70_000)))
        elif kind == 5:
            record = b"\xff" * len(record)
        elif kind == 6:
            one, other = (owner.encode() for owner in chance.sample(OWNERS, 2))
            record = record.replace(one, other, chance.choice((1, 1, 9)))
        elif kind == 7:
            record = fields[chance.choice(list(fields))]
        fields[field] = record
        if kind == 8:
            del fields[field]
            fields.setdefault(OWN, b"")
            fields.setdefault(b"x\0" + chance.choice(OWNERS).encode(), record)
    return fields


def steps(site: Site, chance: random.Random, *, is_member: bool = False) -> list[Callable[[], Any]]:
    """List everything a client may ask."""
    store = site.store
    queue = not is_member
    owner, other = chance.choice(OWNERS), chance.choice((*OWNERS, "new/1"))
    sweeping = int(time.time() * 1e6 + 500_000) // 16 * 16
    capacity = chance.choice((1, 1, 3))
    found: list[Callable[[], Any]] = [
        lambda: site.join(other, queue=queue, capacity=capacity),
        lambda: site.join("new/2", queue=False),
        lambda: site.join("new/3", "z", queue=False, floor=sweeping),
        lambda: drive(
            store.renew([Renewal(name, each, 600.0, 5.0) for name, each in (("x", owner), ("fine", "h/1"))], TIMEOUT)
        ),
        lambda: drive(store.renew([Renewal("x", owner, 600.0, 5.0, floor=sweeping)], TIMEOUT)),
        lambda: drive(store.leave("x", owner, TIMEOUT)),
        lambda: drive(store.leave("x", owner, TIMEOUT, 600.0)),
        lambda: drive(store.reserve(Reservation("x", owner, 600.0, tombstone=chance.choice((0.0, 5.0))), TIMEOUT)),
        lambda: drive(store.inspect()),
        lambda: drive(store.inspect("x", exact=True)),
    ]
    if is_member:
        found += [lambda: drive(store.probe(TIMEOUT)), lambda: drive(store.admit("token", 7, 1.0, TIMEOUT))]
    else:
        asks = [Ask(name, f"{name}/all", 600.0, 600.0, queue=False) for name in ("z", "x")]
        found += [lambda: drive(store.join_all(asks, TIMEOUT))]
    chance.shuffle(found)
    return found


def answer(step: Callable[[], Any]) -> Any:
    """Send a request, and check that its result is a reply, or an error that is not transient."""
    try:
        answer = step()
    except DamagedError as error:
        answer = error
    if isinstance(answer, DamagedError):
        assert not answer.transient
        assert str(answer).endswith(")"), "it says how to clear it"
        return None
    for standing in answer if isinstance(answer, list) else [answer]:
        if isinstance(standing, Standing) and standing is not GONE:
            assert 1 <= standing.ticket < LARGEST
    return answer


def is_free(site: Site, *, is_member: bool) -> bool:
    answer = site.join("after/1", queue=False)
    if is_member and isinstance(answer, Refusal):
        return answer.abstains
    return isinstance(answer, Standing) and answer.held


def test_a_damaged_line_is_read_or_refused_and_can_be_cleared(site: Site, seed: int) -> None:
    fuzz(site, random.Random(seed), ROUNDS)


def test_a_damaged_line_on_a_member_is_read_or_refused_and_can_be_cleared(member: Site, seed: int) -> None:
    fuzz(member, random.Random(seed), ROUNDS // 3, is_member=True)


def fuzz(site: Site, chance: random.Random, rounds: int, *, is_member: bool = False) -> None:
    site.raw.config_set("slowlog-log-slower-than", 1_000_000)
    site.raw.slowlog_reset()
    healthy = states(site, is_member=is_member)
    for number in range(rounds):
        fields = mutated(chance.choice(healthy), chance)
        site.put(fields)
        is_shared_sound = any(fields.get(OWN) == state[OWN] for state in healthy)
        try:
            for step in steps(site, chance, is_member=is_member)[:6]:
                answer(step)
                if is_shared_sound:
                    (standing,) = drive(site.store.renew([Renewal("fine", "h/1", 600.0, 5.0)], TIMEOUT))
                    assert standing != GONE, "the name in good order is not held any more"
                    assert standing.held
            for _ in range(12):
                if drive(inspection.force_release(site.engine, "x")) is None:
                    break
            assert is_free(site, is_member=is_member)
        except BaseException as error:
            error.add_note(f"round {number}: {fields!r}"[:5000])
            raise
    assert site.raw.ping()
    assert not site.raw.slowlog_get(), "a script took longer than a second"


def test_a_damaged_rate_limit_is_read_or_refused(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    drive(site.store.consume(RateRequest("r", 5.0, 10.0), TIMEOUT))
    record = site.raw.get(site.rate_key)
    assert isinstance(record, bytes)
    for _ in range(ROUNDS):
        site.raw.set(site.rate_key, mutated({b"r": record}, chance).get(b"r", b""))
        result = answer(lambda: drive(site.store.consume(RateRequest("r", 1.0, 10.0), TIMEOUT)))
        if result is not None:
            assert 0.0 <= result.level < inf
