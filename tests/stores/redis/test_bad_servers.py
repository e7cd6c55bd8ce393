"""Servers that cannot be used: a typed error at once that names the server and the cause, and never the password."""

from __future__ import annotations

import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pytest

from lockstead import InvalidInputError, RetryPolicy, StoreError
from lockstead.core.model import Ask, RateRequest, Reservation, Standing
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import Source, open_store
from lockstead.stores.redis.address import parse_url
from lockstead.stores.redis.blocking import connect
from lockstead.stores.redis.store import RedisStore
from lockstead.stores.transport import subscriber
from tests.harness.clients import Harness, ask
from tests.servers.binaries import FLAVOURS, Flavour, redis_flavours
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.stats import commands_of
from tests.servers.wrong_server import WrongServer

Start = Callable[..., RedisServer]
SECRET = "s3cret-f00"
AT_ONCE = 2.0

on_each_flavour = pytest.mark.parametrize("flavour", redis_flavours(), ids=lambda flavour: flavour.name)


@pytest.fixture
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return getattr(request, "param", FLAVOURS["valkey9"])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have subscribers ask soon whether the server is still there."""
    monkeypatch.setattr(subscriber, "LIVENESS_TIMEOUT", 0.15)


@pytest.fixture
def secured(start: Start) -> RedisServer:
    return start(password=SECRET)


async def refusal(
    harness: Harness,
    source: Source,
    caplog: pytest.LogCaptureFixture | None = None,
    timeout: float = 5.0,
    **options: Any,
) -> str:
    """Acquire what cannot be had, and return what is said about it, having looked for the password everywhere."""
    if caplog is not None:
        caplog.set_level(logging.DEBUG)
    began = time.monotonic()
    locks = harness.client(source, **options)
    with pytest.raises(StoreError) as raised:
        await ask(locks.acquire("x", timeout=timeout))
    assert time.monotonic() - began < AT_ONCE
    error = raised.value
    shown = "".join(traceback.format_exception(error)) + "".join(map(repr, chain(error))) + repr(locks)
    assert SECRET not in shown + (caplog.text if caplog is not None else "")
    return str(error)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def with_user(server: RedisServer, *rules: str) -> str:
    """Make a user and return the URL with which it logs in."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", f">{SECRET}", *rules)
    return f"redis://app:{SECRET}@127.0.0.1:{server.port}"


async def test_a_refused_connection_is_named(harness: Harness, fresh_server: RedisServer) -> None:
    fresh_server.kill()
    said = await refusal(harness, f"redis://:{SECRET}@127.0.0.1:{fresh_server.port}")
    assert f"127.0.0.1:{fresh_server.port}" in said
    assert "refused" in said


async def test_an_unknown_host_is_named(harness: Harness) -> None:
    said = await refusal(harness, f"redis://:{SECRET}@no-such-host.invalid:7777/3")
    assert "no-such-host.invalid:7777/3" in said
    assert "known" in said or "resolution" in said


@on_each_flavour
async def test_a_wrong_password_is_named_and_not_shown(
    harness: Harness, secured: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refusal(harness, f"redis://:{SECRET}-not@127.0.0.1:{secured.port}", caplog)
    assert f"127.0.0.1:{secured.port}" in said
    assert "WRONGPASS" in said
    assert "check user and password" in said


@on_each_flavour
async def test_a_missing_password_is_named(harness: Harness, secured: RedisServer) -> None:
    said = await refusal(harness, f"redis://127.0.0.1:{secured.port}")
    assert "NOAUTH" in said
    assert "requires a password" in said


@on_each_flavour
async def test_a_password_for_a_server_without_one_is_an_error(harness: Harness, redis_server: RedisServer) -> None:
    said = await refusal(harness, f"redis://:{SECRET}@127.0.0.1:{redis_server.port}")
    assert "without any password configured" in said
    assert "check user and password" in said


@on_each_flavour
async def test_a_database_that_is_not_there_is_named(harness: Harness, redis_server: RedisServer) -> None:
    said = await refusal(harness, f"redis://127.0.0.1:{redis_server.port}/99")
    assert f"127.0.0.1:{redis_server.port}/99" in said
    assert "DB index is out of range" in said


@on_each_flavour
async def test_a_replica_is_refused(harness: Harness, start: Start) -> None:
    primary = start()
    replica = start(replicaof=f"127.0.0.1 {primary.port}")
    with replica.client() as client:
        await harness.until(lambda: client.info("replication")["master_link_status"] == "up", "it is in step")
    said = await refusal(harness, replica.url)
    assert "READONLY" in said
    assert "use its primary" in said


@on_each_flavour
async def test_a_server_without_free_memory_is_named(harness: Harness, start: Start) -> None:
    server = start(maxmemory="3mb", maxmemory_policy="noeviction")
    locks = harness.client(server.url)
    held = await ask(locks.acquire("y", ttl=30))
    store = harness.store(server.url)
    assert isinstance(store, RedisStore)
    await store.join(Ask("z", "me/1", 30.0, 3.0), 5.0)
    with server.client() as client:
        client.config_set("maxmemory", 1)
    said = await refusal(harness, server.url)
    assert "OOM" in said
    assert "raise maxmemory" in said
    await ask(held.release())
    assert not await ask(locks.is_locked("y"))
    assert await store.reserve(Reservation("z", "me/1", 30.0, '{"with": "more"}', tombstone=30.0), 5.0)
    assert not await store.reserve(Reservation("z", "me/1", 30.0, tombstone=30.0), 5.0)
    with server.client() as client:
        client.config_set("maxmemory", 0)
    assert (await ask(locks.acquire("x", timeout=5))).is_held


@on_each_flavour
async def test_a_user_without_rights_is_named(
    harness: Harness, fresh_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refusal(harness, with_user(fresh_server, "+auth", "+hget"), caplog)
    assert "NOPERM" in said
    assert "rights" in said


NEEDED = ("evalsha", "eval", "time", "hget", "hmget", "hset", "hdel", "hrandfield", "publish", "subscribe", "ping")
"""What the store's scripts and connections call."""
MINIMAL = (*(f"+{command}" for command in NEEDED), "+hscan", "+get", "+set")


def rules(harness: Harness, *commands: str) -> tuple[str, ...]:
    prefix = harness.options["key_prefix"]
    return (f"~{prefix}:bucket:*", f"~{prefix}:rate:*", "resetchannels", f"&{prefix}:*", *commands)


@on_each_flavour
@pytest.mark.usefixtures("impatient")
async def test_a_user_with_the_least_rights_can_do_everything(harness: Harness, fresh_server: RedisServer) -> None:
    url = with_user(fresh_server, *rules(harness, *MINIMAL))
    first, second = harness.client(url, ttl=1.0), harness.client(url, ttl=1.0)
    for number in range(60):  # far enough for the sweep
        await ask((await ask(first.acquire(f"y-{number}"))).release())
    held = await ask(first.acquire("x"))
    waiting = harness.start(lambda: second.acquire("x", timeout=20))
    await harness.waits(first, "x")
    await harness.sleep(0.7)  # long enough for the silence to be noticed, and for an answer to be missed
    assert held.is_held
    released = time.monotonic()
    await ask(held.release())
    taken = await waiting.result()
    assert waiting.ended_at - released < 0.4, "it was not woken"
    assert [info.name for info in await ask(first.inspect())] == ["x"]
    await ask(taken.extend(5))
    await ask(taken.release())
    store = harness.store(url)
    assert isinstance(store, RedisStore)
    asks = [Ask(name, f"me/{name}", 30.0, 3.0, queue=False) for name in ("x", "y")]
    assert isinstance(await store.join_all(asks, 5.0), list)
    assert await store.reserve(Reservation("x", "me/x", 30.0, tombstone=30.0), 5.0)
    assert (await store.consume(RateRequest("x", 1.0, 1.0), 5.0)).allowed


@pytest.mark.parametrize("lacking", ["evalsha", "time", "hmget", "hset"])
async def test_an_error_names_the_command_that_a_user_lacks(
    harness: Harness, fresh_server: RedisServer, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = await refusal(harness, with_user(fresh_server, *rules(harness, *MINIMAL, f"-{lacking}")), caplog)
    assert lacking in said.lower()
    assert str(fresh_server.port) in said


async def test_an_error_says_that_a_user_may_not_touch_the_keys(harness: Harness, fresh_server: RedisServer) -> None:
    said = await refusal(harness, with_user(fresh_server, "~other:*", "allchannels", *MINIMAL))
    assert "NOPERM" in said or "key" in said


@on_each_flavour
@pytest.mark.parametrize("lacking", ["channel", "subscribe"])
async def test_a_user_that_may_not_subscribe_gets_an_error_when_it_has_to_wait(
    harness: Harness, fresh_server: RedisServer, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    channels = "&other:*" if lacking == "channel" else f"&{harness.options['key_prefix']}:*"
    commands = (*MINIMAL, *(["-subscribe"] if lacking == "subscribe" else []))
    url = with_user(fresh_server, f"~{harness.options['key_prefix']}:*", "resetchannels", channels, *commands)
    held = await ask(harness.client(fresh_server.url).acquire("x", ttl=30))
    said = await refusal(harness, url, caplog)
    assert "NOPERM" in said
    assert held.is_held
    await harness.waits(harness.client(fresh_server.url), "x", 0)


@pytest.mark.usefixtures("impatient")
async def test_a_user_that_may_not_ping_can_still_wait(
    harness: Harness, fresh_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Only an idle line is asked whether it is alive: the answer that it may not be asked is one too."""
    url = with_user(fresh_server, *rules(harness, *MINIMAL, "-ping"))
    held = await ask(harness.client(fresh_server.url).acquire("x"))
    waiting = harness.start(lambda: harness.client(url).acquire("x", timeout=20))
    await harness.waits(harness.client(fresh_server.url), "x")
    await harness.sleep(0.7)
    await ask(held.release())
    assert (await waiting.result()).is_held
    assert "Traceback" not in caplog.text
    assert "Fatal" not in caplog.text


async def test_a_nopass_user_can_hold(harness: Harness, fresh_server: RedisServer) -> None:
    with fresh_server.client() as client:
        client.execute_command("ACL", "SETUSER", "guest", "reset", "on", "nopass", "+@all", "allkeys", "allchannels")
        locks = harness.client(f"redis://guest@127.0.0.1:{fresh_server.port}")
        await ask(locks.acquire("x"))
        assert "guest" in {one["user"] for one in client.client_list()}


async def test_a_unix_socket_is_connected_to(harness: Harness, start: Start) -> None:
    server = start(unix_socket=True, password=SECRET)
    by_path, by_port = harness.client(server.unix_url), harness.client(server.url)
    held = await ask(by_path.acquire("x"))
    assert await ask(by_port.try_acquire("x")) is None
    waiting = harness.start(lambda: by_path.acquire("x", timeout=5))
    await harness.waits(by_port, "x")
    await ask(held.release())
    assert (await waiting.result()).is_held


async def test_a_unix_socket_that_is_not_there_is_named(harness: Harness, tmp_path: Any) -> None:
    said = await refusal(harness, f"unix://:{SECRET}@{tmp_path}/nothing.sock")
    assert f"{tmp_path}/nothing.sock" in said


async def test_tls_with_a_trusted_authority_works(harness: Harness, tls_proxy: FaultProxy) -> None:
    first, second = harness.client(tls_proxy.url), harness.client(tls_proxy.server.url)
    held = await ask(first.acquire("x", ttl=1.0))
    await harness.sleep(1.2)
    assert held.is_held
    waiting = harness.start(lambda: first.acquire("x", timeout=5))
    await harness.waits(second, "x")
    await ask(held.release())
    assert (await waiting.result()).is_held


async def test_tls_with_an_unknown_authority_is_refused(harness: Harness, tls_proxy: FaultProxy) -> None:
    said = await refusal(harness, f"rediss://:{SECRET}@127.0.0.1:{tls_proxy.port}")
    assert f"127.0.0.1:{tls_proxy.port}" in said
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "ssl_ca_certs" in said


async def test_tls_without_verification_works(harness: Harness, tls_proxy: FaultProxy) -> None:
    locks = harness.client(f"rediss://127.0.0.1:{tls_proxy.port}?ssl_cert_reqs=none")
    assert (await ask(locks.acquire("x"))).is_held


class Relay:
    """Accepts connections, but forwards nothing before `forward` is called."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._may_forward = threading.Event()
        self.is_asked_in_plain_text = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(near,), daemon=True).start()

    def _talk(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            first = near.recv(65536)
            self.is_asked_in_plain_text |= first == b"PING\r\n"
            self._may_forward.wait()
            with socket.create_connection(("127.0.0.1", self._target)) as far:
                far.sendall(first)
                threading.Thread(target=_copy, args=(near, far), daemon=True).start()
                _copy(far, near)

    def forward(self) -> None:
        self._may_forward.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


@pytest.mark.parametrize("password", ["", "other"])
async def test_tls_to_a_server_without_tls_is_an_error_that_says_so(
    harness: Harness, fresh_server: RedisServer, password: str
) -> None:
    with fresh_server.client() as client:
        client.config_set("requirepass", password)
    said = await refusal(harness, f"rediss://:{SECRET}@127.0.0.1:{fresh_server.port}")
    assert f"127.0.0.1:{fresh_server.port}" in said
    assert "this server answers without TLS" in said


async def test_a_tls_server_that_is_slow_is_waited_for(harness: Harness, tls_proxy: FaultProxy) -> None:
    with Relay(tls_proxy.port) as relay:
        locks = harness.client(tls_proxy.url.replace(str(tls_proxy.port), str(relay.port)))
        work = harness.start(lambda: locks.acquire("x", timeout=30, retry=RetryPolicy(max_retries=0)))
        await harness.until(lambda: relay.is_asked_in_plain_text, "the client has looked what the server is")
        relay.forward()
        handle = await work.result()
        assert handle.is_held
        await ask(handle.release())


async def test_no_tls_to_a_server_that_requires_it_is_an_error(harness: Harness, tls_proxy: FaultProxy) -> None:
    said = await refusal(harness, f"redis://127.0.0.1:{tls_proxy.port}")
    assert f"127.0.0.1:{tls_proxy.port}" in said


async def test_a_server_that_is_not_redis_is_named(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    with WrongServer(lambda _: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as wrong_server:
        said = await refusal(harness, f"redis://127.0.0.1:{wrong_server.port}", caplog)
    assert str(wrong_server.port) in said
    assert "Redis" in said
    assert "Fatal" not in caplog.text


@pytest.mark.parametrize("version", ["5.0.14", "6.0.16"])
async def test_a_server_that_is_too_old_is_refused(harness: Harness, version: str) -> None:
    info = f"# Server\r\nredis_version:{version}\r\n".encode()
    with WrongServer(lambda _: b"$%d\r\n%s\r\n*0\r\n-ERR\r\n" % (len(info), info)) as wrong_server:
        said = await refusal(harness, f"redis://127.0.0.1:{wrong_server.port}")
    assert version in said
    assert "6.2" in said


async def test_a_server_that_reports_no_version_is_tried(harness: Harness) -> None:
    def answer(request: bytes) -> bytes:
        return b"$0\r\n\r\n*0\r\n-ERR\r\n" if b"INFO" in request else b"*2\r\n:1\r\n:7\r\n"

    with WrongServer(answer) as wrong_server:
        assert (await ask(harness.client(f"redis://127.0.0.1:{wrong_server.port}").acquire("x"))).fence == 7


async def test_too_many_clients_for_one_more_subscription_is_an_error(harness: Harness, start: Start) -> None:
    """A client that cannot subscribe polls, and gets the lock all the same."""
    server = start(maxclients="40")
    other, locks = harness.client(server.url), harness.client(server.url)
    held = await ask(other.acquire("x"))
    await ask(locks.try_acquire("x"))
    crowd = []
    try:
        for _ in range(60):
            crowd.append(connection := socket.create_connection(server.address))
            connection.sendall(b"PING\r\n")
            if not connection.recv(100).startswith(b"+PONG"):
                break
        waiting = harness.start(lambda: locks.acquire("x", timeout=10))
        await harness.sleep(1.0)
        assert not waiting.is_done
    finally:
        for connection in crowd:
            connection.close()
    await ask(held.release())
    assert (await waiting.result()).is_held


@pytest.mark.parametrize(
    "url",
    [
        f"redsi://:{SECRET}@localhost",
        f"redis://:{SECRET}@localhost:port",
        f"redis://:{SECRET}@localhost:99999",
        f"redis://:{SECRET}@localhost/zero",
        f"redis://:{SECRET}@localhost/-1",
        f"redis://:{SECRET}@localhost/0?db=x&colour=red",
        f"redis://:{SECRET}@localhost?db=x",
        f"redis://localhost?password={SECRET}",
        f"redis://:{SECRET}/@localhost",
        f"redis://:{SECRET}#1@localhost",
        f"redis://:{SECRET}?1@localhost",
        f"redis://:{SECRET}@[::1",
        f"redis://:{SECRET}@a,b",
        f"redis://:{SECRET}@localhost?key_prefix=",
        f"redis://:{SECRET}@localhost?key_prefix={'x' * 101}",
        f"redis://:{SECRET}@localhost?key_prefix=a%00b",
        f"redis://:{SECRET}@localhost?key_prefix={'%F0%9F%94%92' * 100}",
        f"redis://:{SECRET}@localhost?min_replicas=one",
        f"redis://:{SECRET}@localhost?min_replicas=-1",
        f"redis://:{SECRET}@localhost?strict=maybe",
        f"redlock://:{SECRET}@a,b,c?node_timeout=soon",
        f"redlock://:{SECRET}@a,b,c?node_timeout=-1",
        f"redlock://:{SECRET}@a,b,c?node_timeout=nan",
        f"redis+sentinel://:{SECRET}@a,b",
        f"redis+sentinel://a/service?sentinel_password={SECRET}&strict=maybe",
        f"rediss://:{SECRET}@localhost?ssl_ca_certs=/no/such/file",
        f"rediss://:{SECRET}@localhost?ssl_check_hostname=perhaps",
        f"rediss://:{SECRET}@localhost?ssl_min_version=old",
        f"rediss://:{SECRET}@localhost?ssl_ciphers=rot13",
        f"rediss://:{SECRET}@localhost?ssl_cert_reqs=whatever",
        f"rediss://localhost?ssl_password={SECRET}&strict=maybe",
        f"redis://:{SECRET}@localhost?ssl_ca_certs=/no/such/file",
        "unix://",
        f"unix://:{SECRET}@?db=1",
    ],
)
def test_a_mistaken_url_is_refused_when_the_client_is_made(url: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        open_store(url, ThreadRuntime())
    shown = "".join(traceback.format_exception(raised.value)) + "".join(map(repr, chain(raised.value)))
    assert SECRET not in shown.replace(f"{url!r}, ThreadRuntime", "")
    assert len(str(raised.value)) > 20


@pytest.mark.parametrize(
    "options",
    [{"colour": "red"}, {"key_prefix": ""}, {"key_prefix": 5}, {"min_replicas": -1}, {"min_replicas": "1"}],
    ids=str,
)
def test_a_mistaken_option_is_refused_when_the_client_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        open_store(f"redis://:{SECRET}@localhost", ThreadRuntime(), **options)


async def test_a_server_that_may_evict_is_warned_of(
    harness: Harness, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    assert (await ask(harness.client(server.url).acquire("x"))).is_held
    assert "allkeys-lru" in caplog.text
    assert str(server.port) in caplog.text
    said = await refusal(harness, server.url, strict=True)
    assert "allkeys-lru" in said
    assert "noeviction" in said


async def test_concurrent_first_requests_run_one_health_check(
    harness: Harness, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    with FaultProxy(server) as proxy:
        proxy.delay(0.1, "replies")  # all requests are there before the first is answered
        store = harness.store(f"redis://127.0.0.1:{proxy.port}")
        with commands_of(server) as calls:
            asks = [Ask(f"x{number}", f"me/{number}", 30.0, 3.0) for number in range(20)]
            works = [harness.start(store.join(request, 10.0)) for request in asks]
            for work in works:
                assert (await work.result()).held
    assert len([record for record in caplog.records if "allkeys-lru" in record.getMessage()]) == 1
    assert calls["info"] == 1


async def test_a_failed_health_check_is_repeated_by_the_next_request(harness: Harness, start: Start) -> None:
    server = start()
    with FaultProxy(server) as proxy:
        store = harness.store(f"redis://127.0.0.1:{proxy.port}")
        proxy.black_hole()
        works = [harness.start(store.join(Ask(f"x{number}", f"me/{number}", 30.0, 3.0), 0.3)) for number in range(3)]
        for work in works:
            with pytest.raises(StoreError) as failure:
                await work.result()
            assert failure.value.transient
        proxy.heal()
        proxy.reset_all()
        standing = await store.join(Ask("x", "me/9", 30.0, 3.0), 5.0)
        assert isinstance(standing, Standing)
        assert standing.held


async def test_all_steps_of_a_request_share_its_timeout(harness: Harness, secured: RedisServer) -> None:
    """Connecting, logging in, the health check, and the request itself."""
    with FaultProxy(secured) as proxy:
        proxy.delay(0.3, "replies")
        store = harness.store(f"redis://:{SECRET}@127.0.0.1:{proxy.port}")
        with pytest.raises(StoreError, match="no answer in time") as failure:
            await store.join(Ask("x", "me/1", 30.0, 3.0), 0.7)  # three replies take 0.9 s
        assert failure.value.transient


async def test_an_eviction_policy_without_a_memory_limit_is_not_warned_of(
    harness: Harness, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(maxmemory_policy="allkeys-lru")
    assert (await ask(harness.client(server.url, strict=True).acquire("x"))).is_held
    assert caplog.text == ""


async def test_a_redlock_node_that_persists_nothing_is_warned_of(
    harness: Harness, redlock_servers: list[RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in redlock_servers)
    handle = await ask(harness.client(f"redlock://{hosts}").acquire("x", timeout=5))
    assert handle.is_held
    assert "persists nothing" in caplog.text
    said = await refusal(harness, f"redlock://{hosts}", strict=True)
    assert "persists nothing" in said


async def test_with_strict_redlock_nodes_that_persist_are_accepted(harness: Harness, start: Start) -> None:
    servers = [start(append_only=True) for _ in range(3)]
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    assert (await ask(harness.client(f"redlock://{hosts}", strict=True).acquire("x", timeout=5))).is_held


def test_a_thread_gets_a_timeout_wherever_the_server_is_silent() -> None:
    """The kernel says only that nothing can be read now."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (deployment,), _ = parse_url(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        connection = drive(connect(ThreadRuntime(), deployment.addresses[0], 5.0))
        with pytest.raises(TimeoutError):
            connection.receive(0.01)
        with pytest.raises(TimeoutError):
            drive(connection.exchange(b"", 1, 0.01))
        with pytest.raises(TimeoutError):
            drive(connection.exchange(bytes(1 << 24), 1, 0.01))  # more than a peer takes that reads nothing
        connection.close()
