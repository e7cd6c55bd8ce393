"""Messages on our channels that no store has sent: all that another client can guess or overhear, and garbage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random
from threading import Event, Thread
from typing import Any, Protocol

import psycopg
import redis

from tests.servers.redis import client_of

PAUSE = 0.01
"""Between two volleys, for the clients have work to do besides."""
KEPT = 200
"""How many received messages are kept."""


class Forger(Protocol):
    """A client of the server, none of ours, that may listen and publish."""

    def listen(self) -> list[bytes]:
        """Give what was published since the last time."""
        ...

    def owners(self) -> Iterable[bytes]:
        """Give the owners of places: no secret, and more than it has a right to know."""
        ...

    def publish(self, messages: Collection[bytes]) -> None:
        """Send each to every channel there is."""
        ...


@contextmanager
def forging(connect: Callable[[], AbstractContextManager[Forger]], chance: Random) -> Iterator[None]:
    """Publish in the background until the context ends, whatever becomes of the server meanwhile."""
    over = Event()
    thread = Thread(target=_forge, args=(connect, Random(chance.random()), over), name="forger")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _forge(connect: Callable[[], AbstractContextManager[Forger]], chance: Random, over: Event) -> None:
    received: list[bytes] = [b"nothing yet"]
    while not over.is_set():
        with suppress(redis.RedisError, psycopg.Error), connect() as forger:
            while not over.wait(PAUSE):
                received = [*received, *forger.listen()][-KEPT:]
                owners = [guess for owner in forger.owners() for guess in (owner, _next(owner))]
                forger.publish([*owners, chance.choice(received), _garbage(chance)])
        over.wait(PAUSE)


def _next(owner: bytes) -> bytes:
    """Guess the owner of the place that the same client asks for next."""
    client, _, number = owner.rpartition(b"/")
    return b"%s/%d" % (client, int(number) + 1) if number.isdigit() else owner


def _garbage(chance: Random) -> bytes:
    return chance.choice((b"", b"\xff\xfe", b"x" * 5000, chance.randbytes(16), b"\0" * 16, b"{}", b"\xc3("))


class RedisOutsider:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._subscriber = client.pubsub(ignore_subscribe_messages=True)
        self._subscriber.psubscribe("lockstead:*")
        self._channels: set[bytes] = set()

    def listen(self) -> list[bytes]:
        messages = []
        while message := self._subscriber.get_message():
            messages.append(message["data"])
            self._channels.add(message["channel"])
        return messages

    def owners(self) -> Iterable[bytes]:
        for key in self._client.scan_iter("lockstead:bucket:*"):
            fields: Any = self._client.hkeys(key)
            for field in fields:
                name, _, owner = field.partition(b"\0")
                if name and owner:
                    yield owner

    def publish(self, messages: Collection[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for channel in self._channels.union(self._client.pubsub_channels("lockstead:*")):
            for message in messages:
                pipeline.publish(channel, message)
        pipeline.execute()


@contextmanager
def of_redis(url: str) -> Iterator[RedisOutsider]:
    with client_of(url, decode_responses=False) as client:
        yield RedisOutsider(client)


class PostgresOutsider:
    def __init__(self, session: psycopg.Connection) -> None:
        self._session = session
        self._channels: set[str] = set()
        self._rows: list[tuple[str, str]] = []

    def listen(self) -> list[bytes]:
        rows = self._session.execute("SELECT channel, holder FROM lockstead.distributed_locks WHERE channel <> ''")
        self._rows = rows.fetchall()
        for channel in {channel for channel, _ in self._rows} - self._channels:
            self._session.execute(f'LISTEN "{channel}"'.encode())
            self._channels.add(channel)
        return [notice.payload.encode() for notice in self._session.notifies(timeout=0)]

    def owners(self) -> Iterable[bytes]:
        return [holder.encode() for _, holder in self._rows]

    def publish(self, messages: Collection[bytes]) -> None:
        texts = [message.decode("latin-1").replace("\0", "") for message in messages]
        send = "SELECT pg_notify(c, m) FROM unnest(%s::text[]) c, unnest(%s::text[]) m"
        self._session.execute(send, (sorted(self._channels), texts))


@contextmanager
def of_postgres(url: str, application: str) -> Iterator[PostgresOutsider]:
    with psycopg.connect(url, autocommit=True, application_name=application, connect_timeout=2) as session:
        yield PostgresOutsider(session)
