"""The peers: how to get a lock of each.

An adapter is entered for as long as its peer is used, and yields a function from a name to a lock, which is a context
manager. Everything is the peer's default, except that all have the same ttl.

A peer is imported when its adapter is entered: so one that is not installed, or conflicts with others, is only missing
in the report.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any

import psycopg
import redis
import redis.asyncio

from bench._postgres import TTL, sqlalchemy_url

MANY = 1000
"""Connections."""

Locks = Callable[[str], AbstractContextManager[object]]
AsyncLocks = Callable[[str], AbstractAsyncContextManager[object]]
Adapter = Callable[[str], AbstractContextManager[Locks]]
AsyncAdapter = Callable[[str], AbstractAsyncContextManager[AsyncLocks]]
Traces = Callable[[], set[Any]]
"""Lists what is in a store."""


def for_many(url: str) -> str:
    """Configure a redis-py client for many threads or tasks at once: with its defaults it raises.

    They are a hundred connections at most, and 5 s to open each, which is too little where many are opened at once.
    """
    return f"{url}?max_connections={MANY}&socket_connect_timeout={TTL}&socket_timeout={TTL}"


def why_not(error: Exception) -> str:
    """Explain in one line why a peer is not in the report."""
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error}"
    root: BaseException = error
    while root.__cause__:
        root = root.__cause__
    lines = str(root).strip().splitlines() or [""]
    return f"broke: {type(root).__name__}: {lines[0]}".rstrip(": ")


class NotALockError(Exception):
    def __init__(self) -> None:
        super().__init__("nothing was in the store while it was held that was gone after its release")


def prove(lock: AbstractContextManager[object], traces: Traces) -> None:
    """Check that a lock really locks: something is in the store while it is held, and only then.

    Raises NotALockError if it is not.
    """
    with lock:
        held = traces()
    if not held - traces():
        raise NotALockError


async def prove_async(lock: AbstractAsyncContextManager[object], traces: Traces) -> None:
    async with lock:
        held = traces()
    if not held - traces():
        raise NotALockError


@contextmanager
def traces_in_files(directory: str) -> Iterator[Traces]:
    """List the kernel's locks of files in a directory, and files that name a holder."""

    def traces() -> set[Any]:
        locked = {int(line.split()[-3].split(":")[-1]) for line in Path("/proc/locks").read_text("ascii").splitlines()}
        return {file for file in Path(directory).rglob("*") if file.stat().st_ino in locked or file.suffix == ".json"}

    yield traces


@contextmanager
def traces_in_redis(*urls: str) -> Iterator[Traces]:
    """List keys."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis.Redis.from_url(url)) for url in urls]
        yield lambda: {(number, key) for number, node in enumerate(nodes) for key in node.scan_iter(count=1000)}


@contextmanager
def traces_in_postgres(url: str) -> Iterator[Traces]:
    """List advisory locks."""
    query = "SELECT classid, objid, pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    with psycopg.connect(url, autocommit=True) as connection:
        yield lambda: set(connection.execute(query).fetchall())


@contextmanager
def filelock(directory: str) -> Iterator[Locks]:
    from filelock import FileLock

    yield lambda name: FileLock(f"{directory}/{name}.filelock")


@asynccontextmanager
async def async_filelock(directory: str) -> AsyncIterator[AsyncLocks]:
    from filelock import AsyncFileLock

    yield lambda name: AsyncFileLock(f"{directory}/{name}.filelock")


@contextmanager
def fasteners(directory: str) -> Iterator[Locks]:
    """Make locks that exclude other processes, but not other threads."""
    from fasteners import InterProcessLock

    yield lambda name: InterProcessLock(f"{directory}/{name}.fasteners")


@contextmanager
def sherlock_file(directory: str) -> Iterator[Locks]:
    from sherlock import FileLock

    yield lambda name: FileLock(name, client=Path(directory), expire=TTL)


@contextmanager
def tooz(url: str) -> Iterator[Locks]:
    from tooz.coordination import get_coordinator

    coordinator = get_coordinator(url, b"bench")
    coordinator.start()
    yield lambda name: coordinator.get_lock(name.encode())
    coordinator.stop()


def tooz_file(directory: str) -> AbstractContextManager[Locks]:
    return tooz(f"file://{directory}/tooz")


def tooz_redis(url: str) -> AbstractContextManager[Locks]:
    """Drop redis-py's options from the URL, which tooz does not know."""
    return tooz(url.partition("?")[0])


@contextmanager
def redis_py(url: str) -> Iterator[Locks]:
    with redis.Redis.from_url(url) as server:
        yield lambda name: server.lock(name, timeout=TTL)


@asynccontextmanager
async def async_redis_py(url: str) -> AsyncIterator[AsyncLocks]:
    async with redis.asyncio.Redis.from_url(url) as server:
        yield lambda name: server.lock(name, timeout=TTL)


@contextmanager
def python_redis_lock(url: str, *, auto_renewal: bool = False) -> Iterator[Locks]:
    from redis_lock import Lock

    with redis.Redis.from_url(url) as server:
        yield lambda name: Lock(server, name, expire=TTL, auto_renewal=auto_renewal)


def python_redis_lock_renewed(url: str) -> AbstractContextManager[Locks]:
    return python_redis_lock(url, auto_renewal=True)


@contextmanager
def py_redis_semaphore(url: str) -> Iterator[Locks]:
    from redis_semaphore import Mutex

    with redis.Redis.from_url(url) as server:
        yield lambda name: Mutex(server, name, lock_timeout=TTL)


@asynccontextmanager
async def async_py_redis_semaphore(url: str) -> AsyncIterator[AsyncLocks]:
    from redis_semaphore import Mutex

    async with redis.asyncio.Redis.from_url(url) as server:
        yield lambda name: Mutex(server, name, lock_timeout=TTL)


@contextmanager
def pottery(*urls: str) -> Iterator[Locks]:
    from pottery import Redlock

    with ExitStack() as stack:
        masters = {stack.enter_context(redis.Redis.from_url(url)) for url in urls}
        yield lambda name: Redlock(key=name, masters=masters, auto_release_time=TTL)


@asynccontextmanager
async def async_pottery(*urls: str) -> AsyncIterator[AsyncLocks]:
    from pottery import AIORedlock

    async with AsyncExitStack() as stack:
        masters = {await stack.enter_async_context(redis.asyncio.Redis.from_url(url)) for url in urls}
        yield lambda name: AIORedlock(key=name, masters=masters, auto_release_time=TTL)


@contextmanager
def sherlock(url: str) -> Iterator[Locks]:
    from sherlock import RedisLock

    with redis.Redis.from_url(url) as server:
        yield lambda name: RedisLock(name, client=server, expire=TTL)


@asynccontextmanager
async def grelmicro(url: str) -> AsyncIterator[AsyncLocks]:
    backend: Any
    try:
        from grelmicro.coordination import Lock
        from grelmicro.coordination.redis import RedisLockAdapter
        from grelmicro.providers.redis import RedisProvider

        provider = RedisProvider(url)
        backend = RedisLockAdapter(provider=provider)
    except ModuleNotFoundError:  # the last version for Python 3.11 has it elsewhere
        from grelmicro.sync import Lock
        from grelmicro.sync.redis import RedisSyncBackend

        provider = backend = RedisSyncBackend(url)
    async with provider:
        yield lambda name: Lock(name, backend=backend, lease_duration=TTL)


@contextmanager
def sqlalchemy_dlock(url: str) -> Iterator[Locks]:
    """Use one connection, as programs do that also query on it: its locks do not exclude each other."""
    import sqlalchemy
    from sqlalchemy_dlock.factory import create_sadlock

    engine = sqlalchemy.create_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield lambda name: create_sadlock(connection, name)
    engine.dispose()


@asynccontextmanager
async def async_sqlalchemy_dlock(url: str) -> AsyncIterator[AsyncLocks]:
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy_dlock.factory import create_async_sadlock

    engine = create_async_engine(sqlalchemy_url(url), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        yield lambda name: create_async_sadlock(connection, name)
    await engine.dispose()


@contextmanager
def pals(url: str) -> Iterator[Locks]:
    import sqlalchemy
    from pals import Locker

    def create_engine() -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(sqlalchemy_url(url), pool_size=MANY)

    locker = Locker("bench", create_engine_callable=create_engine)
    yield locker.lock
    locker.engine.dispose()


FILES: Mapping[str, Adapter] = {
    "filelock": filelock,
    "fasteners": fasteners,
    "tooz file": tooz_file,
    "sherlock file": sherlock_file,
}
ASYNC_FILES: Mapping[str, AsyncAdapter] = {"filelock": async_filelock}
REDIS: Mapping[str, Adapter] = {
    "redis-py Lock": redis_py,
    "python-redis-lock": python_redis_lock,
    "python-redis-lock, renewed": python_redis_lock_renewed,
    "py-redis-semaphore": py_redis_semaphore,
    "pottery": pottery,
    "sherlock": sherlock,
    "tooz": tooz_redis,
}
ASYNC_REDIS: Mapping[str, AsyncAdapter] = {
    "redis-py Lock": async_redis_py,
    "py-redis-semaphore": async_py_redis_semaphore,
    "pottery": async_pottery,
    "grelmicro": grelmicro,
}
POSTGRES: Mapping[str, Adapter] = {"sqlalchemy-dlock": sqlalchemy_dlock, "pals": pals, "tooz": tooz}
ASYNC_POSTGRES: Mapping[str, AsyncAdapter] = {"sqlalchemy-dlock": async_sqlalchemy_dlock}
