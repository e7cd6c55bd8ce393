"""Users that may not do all that a script does: the error names the missing right at once, and nothing is half done."""

from __future__ import annotations

import re
from collections.abc import Iterator

import hiredis
import pytest
import redis

from lockstead import StoreError
from lockstead.core.model import Ask, RateRequest, Renewal, Reservation
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import Address, parse_url
from lockstead.stores.redis.errors import code_of, refused
from lockstead.stores.redis.store import RedisStore
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.redis import RedisServer
from tests.stores.redis.test_bad_servers import MINIMAL

TIMEOUT = 5.0


@pytest.fixture(params=[flavour.name for flavour in redis_flavours()])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return FLAVOURS[request.param]


@pytest.fixture
def admin(fresh_server: RedisServer) -> Iterator[redis.Redis]:
    with fresh_server.client(decode_responses=False) as client:
        yield client


def store_of(server: RedisServer, *rules: str) -> RedisStore:
    """Give the store as a user of these rights sees it."""
    with server.client() as client:
        client.execute_command(
            "ACL",
            "SETUSER",
            "app",
            "reset",
            "on",
            ">secret",
            "~lockstead:*",
            "resetchannels",
            "&lockstead:*",
            *MINIMAL,
            "+info",
            *rules,
        )
    (deployment,), _ = parse_url(f"redis://app:secret@127.0.0.1:{server.port}")
    return RedisStore(ThreadRuntime(), deployment)


def ask(name: str, owner: str, heartbeat: float = 60.0) -> Ask:
    return Ask(name, owner, 60.0, heartbeat)


def line_of_three(server: RedisServer) -> None:
    """Make a line whose second place has ended, so that more than one record has to change."""
    store = store_of(server)
    for owner, heartbeat in (("a", 60.0), ("b", 1e-6), ("c", 60.0)):
        drive(store.join(ask("x", owner, heartbeat), TIMEOUT))
    drive(store.close())


VALKEY9 = "{} script: 6a, on @user_script:1."
REDIS62 = "ERR Error running script (call to f_6a): @user_script:1: @user_script: 1: {}"
DENIED = "The user executing the script can't"
REFUSALS = {
    "NOPERM": (
        VALKEY9.format("ERR ACL failure in script: User app has no permissions to run the 'hset' command"),
        VALKEY9.format("ERR ACL failure in script: No permissions to access a key"),
        VALKEY9.format("ERR ACL failure in script: No permissions to access a channel"),
        REDIS62.format(f"{DENIED} run this command or subcommand"),
        REDIS62.format(f"{DENIED} access at least one of the keys mentioned in the command arguments"),
        REDIS62.format(f"{DENIED} publish to the channel mentioned in the command"),
    ),
    "OOM": (
        VALKEY9.format("OOM command not allowed when used memory > 'maxmemory'."),
        REDIS62.format("-OOM command not allowed when used memory > 'maxmemory'."),
    ),
    "READONLY": (
        VALKEY9.format("READONLY You can't write against a read only replica."),
        REDIS62.format("-READONLY You can't write against a read only replica."),
    ),
    "MISCONF": (
        VALKEY9.format(
            "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk."
        ),
        REDIS62.format(
            "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk."
        ),
    ),
}
"""What servers say inside a script."""


@pytest.mark.parametrize(("code", "said"), [(code, said) for code, texts in REFUSALS.items() for said in texts])
def test_a_refusal_inside_a_script_keeps_its_code_and_is_not_transient(code: str, said: str) -> None:
    reply = hiredis.ReplyError(said)
    assert code_of(reply) == code
    assert not refused(Address("localhost", 6379), reply).transient


LACKING = {
    "time": lambda store: store.join(ask("y", "z"), TIMEOUT),
    "hmget": lambda store: store.join(ask("y", "z"), TIMEOUT),
    "hset": lambda store: store.join(ask("y", "z"), TIMEOUT),
    "hget": lambda store: store.join(ask("x", "z"), TIMEOUT),
    "hdel": lambda store: store.leave("x", "a", TIMEOUT),
    "get": lambda store: store.consume(RateRequest("r", 1.0, 1.0), TIMEOUT),
    "set": lambda store: store.consume(RateRequest("r", 1.0, 1.0), TIMEOUT),
    "hscan": lambda store: store.inspect(),
    "evalsha": lambda store: store.join(ask("y", "z"), TIMEOUT),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_right_that_is_missing_inside_a_script_is_named_at_once(fresh_server: RedisServer, lacking: str) -> None:
    line_of_three(fresh_server)
    store = store_of(fresh_server, f"-{lacking}")
    with pytest.raises(StoreError) as caught:
        drive(LACKING[lacking](store))
    assert not caught.value.transient
    said = str(caught.value)
    assert re.search(rf"'{lacking}' command|allowed to {lacking.upper()}:", said)
    assert str(fresh_server.port) in said
    assert "docs/redis.md" in said
    drive(store.close())


@pytest.mark.parametrize("lacking", ["hset", "hdel"])
@pytest.mark.parametrize("step", ["join", "renew", "leave", "leave for good", "reserve", "join_all"])
def test_a_user_that_lacks_a_right_leaves_a_line_as_it_was(
    fresh_server: RedisServer, admin: redis.Redis, lacking: str, step: str
) -> None:
    line_of_three(fresh_server)
    store = store_of(fresh_server, f"-{lacking}")
    steps = {
        "join": lambda: store.join(ask("x", "d"), TIMEOUT),
        "renew": lambda: store.renew([Renewal("x", "c", 60.0, 61.0)], TIMEOUT),
        "leave": lambda: store.leave("x", "a", TIMEOUT),
        "leave for good": lambda: store.leave("x", "a", TIMEOUT, 30.0),
        "reserve": lambda: store.reserve(Reservation("x", "a", 30.0, tombstone=30.0), TIMEOUT),
        "join_all": lambda: store.join_all(
            [ask("y", "d")._replace(queue=False), ask("z", "d")._replace(queue=False)], 5.0
        ),
    }
    before = admin.hgetall("lockstead:bucket:0")
    try:
        drive(steps[step]())
    except StoreError as error:
        failure: StoreError | None = error
    else:
        failure = None
    after = admin.hgetall("lockstead:bucket:0")
    if failure is not None:
        assert not failure.transient
        assert after == before
    else:
        assert lacking == "hdel", "everything here writes"
        assert set(before) <= set(after), "it had nothing to remove"
    drive(store.close())
    healthy = store_of(fresh_server)
    assert [line.damage for line in drive(healthy.inspect())] == [None] * len(drive(healthy.inspect()))
    drive(healthy.close())


def test_a_user_that_may_not_publish_does_everything_else(fresh_server: RedisServer) -> None:
    """Only wake-ups are lost, which waiters survive: they ask by themselves."""
    line_of_three(fresh_server)
    for rules in (("-publish",), ("resetchannels",)):
        store = store_of(fresh_server, *rules)
        drive(store.join(ask("x", "d"), TIMEOUT))
        assert drive(store.leave("x", "d", TIMEOUT))
        drive(store.close())
    store = store_of(fresh_server, "-publish")
    assert drive(store.leave("x", "a", TIMEOUT))
    (standing,) = drive(store.renew([Renewal("x", "c", 60.0, 60.0)], TIMEOUT))
    assert standing.held
    drive(store.close())


def test_several_names_are_taken_as_a_whole_or_not_at_all_by_a_user_without_hdel(
    fresh_server: RedisServer, admin: redis.Redis
) -> None:
    """Of which only the second has something to remove."""
    store = store_of(fresh_server)
    drive(store.join(ask("y", "a")._replace(ttl=1e-6), TIMEOUT))
    drive(store.close())
    before = admin.hgetall("lockstead:bucket:0")
    store = store_of(fresh_server, "-hdel")
    several = [ask(name, f"me/{name}")._replace(queue=False) for name in ("x", "y")]
    with pytest.raises(StoreError) as raised:
        drive(store.join_all(several, TIMEOUT))
    assert not raised.value.transient
    assert admin.hgetall("lockstead:bucket:0") == before
    drive(store.close())


def test_a_counter_is_not_removed_by_a_user_that_cannot_reset_it(fresh_server: RedisServer, admin: redis.Redis) -> None:
    admin.hset("lockstead:bucket:0", b"\0", b"garbage")
    store = store_of(fresh_server, "-hset")
    with pytest.raises(StoreError) as raised:
        drive(store.repair("x", TIMEOUT))
    assert not raised.value.transient
    assert admin.hget("lockstead:bucket:0", b"\0") == b"garbage"
    drive(store.close())
