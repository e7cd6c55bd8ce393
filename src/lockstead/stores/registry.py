"""Choose and open the store of a URL or a client object."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from lockstead.core.runtime import Runtime
from lockstead.core.store import Store
from lockstead.errors import InvalidInputError, UnknownOptionError
from lockstead.stores.memory import MemoryStore, shared_server
from lockstead.stores.sqlite.store import SqliteStore
from lockstead.stores.suggestions import suggestion

REDIS_SCHEMES = (
    *("redis", "rediss", "valkey", "valkeys", "unix"),
    *("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
    *("redlock", "redlocks"),
)
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+advisory", "postgres+advisory")
SCHEMES = ("memory", "sqlite", *REDIS_SCHEMES, *POSTGRES_SCHEMES)

ACCEPTED = (
    "a URL such as 'redis://host:6379/0', a client of redis-py or valkey-py (or a list of them, for Redlock), "
    "a psycopg connection or pool, an SQLAlchemy engine, or a Store"
)


class RedisClient(Protocol):
    """A client of redis-py or valkey-py, blocking or asyncio, also one for the primary of a Sentinel."""

    @property
    def connection_pool(self) -> Any: ...


class RedisCluster(Protocol):
    """A cluster client of redis-py or valkey-py, blocking or asyncio."""

    @property
    def nodes_manager(self) -> Any: ...


class PostgresConnection(Protocol):
    """A connection of psycopg, blocking or asyncio."""

    @property
    def info(self) -> Any: ...
    @property
    def pgconn(self) -> Any: ...


class PostgresPool(Protocol):
    """A pool of psycopg_pool, blocking or asyncio."""

    @property
    def conninfo(self) -> Any: ...
    @property
    def kwargs(self) -> Any: ...


class SqlEngine(Protocol):
    """An engine of SQLAlchemy, blocking or asyncio, for PostgreSQL."""

    @property
    def url(self) -> Any: ...
    @property
    def dialect(self) -> Any: ...


Source = (
    str | Store | RedisClient | RedisCluster | Sequence[RedisClient] | PostgresConnection | PostgresPool | SqlEngine
)
"""What a client is made from. Only the address and the credentials of a driver's object are used, not the object."""


class Default(Enum):
    """What stands for a source that was not given: None may be an environment variable that is not set."""

    STORE = "the store of LOCKSTEAD_URL, else the user's own SQLite file"

    def __repr__(self) -> str:
        return f"<{self.value}>"


Opener = Callable[..., Store]
"""Opens a third-party store: `opener(url, runtime, **options)`."""
_registered: dict[str, Opener] = {}


def register(scheme: str, opener: Opener) -> None:
    """Open URLs with this scheme by `opener`, in clients and commands of this process.

    An installed package registers a scheme for all processes by an entry point of the group `lockstead.stores` that
    has the scheme's name.
    """
    scheme = scheme.lower()
    if scheme in SCHEMES:
        msg = f"{scheme}:// is a store of lockstead itself: register another scheme"
        raise InvalidInputError(msg)
    _registered[scheme] = opener


def open_store(source: Source | Default, runtime: Runtime, **options: Any) -> Store:
    """Open the store of a URL, of a client object (of redis-py, for example), or of several of them for Redlock.

    A store is returned as it is. `Default.STORE` is the store of LOCKSTEAD_URL, else the user's own SQLite file.
    Nothing is connected yet: the first request fails if the server is down. Raises InvalidInputError for None and "".
    """
    if isinstance(source, Store):
        if options:
            msg = f"{', '.join(options)}: give this to the store itself, which is open already"
            raise UnknownOptionError(msg, option=next(iter(options)))
        return source
    source = resolved(source)
    if source is None or source == "":
        raise InvalidInputError(_not_given(source))
    if not isinstance(source, str):
        return _open_by_object(source, runtime, options)
    scheme = source.partition(":")[0].lower()
    if "://" not in source and scheme in SCHEMES:
        raise _no_store(source)
    if scheme in POSTGRES_SCHEMES:
        return _open_postgres(source, runtime, options)
    if scheme in REDIS_SCHEMES:
        return _open_redis(source, runtime, options)
    if scheme not in SCHEMES:
        return _opener_of(source, scheme)(source, runtime, **options)
    if options:
        msg = f"{', '.join(options)}: {scheme}:// takes no such option"
        raise UnknownOptionError(msg, option=next(iter(options)))
    return _open_embedded(source, scheme, runtime)


def resolved(source: Source | Default) -> Source:
    """Replace the default by its URL."""
    return (os.environ.get("LOCKSTEAD_URL") or "sqlite://") if source is Default.STORE else source


def portable_url(source: Source, store: Store) -> str:
    """Return the URL of a client's store that was opened from that source, for any directory and environment.

    Raises TypeError, as pickle does, if no other process could open the store by a URL.
    """
    if not isinstance(source, str):
        msg = f"this client cannot be pickled: it was made from a {type(source).__name__}, not from a URL"
        raise TypeError(msg)
    if isinstance(store, MemoryStore):
        msg = "this client cannot be pickled: memory:// exists inside one process only; use sqlite:// or a server"
        raise TypeError(msg)
    return cast("str", portable_source(source, store))


def portable_source(source: Source, store: Store) -> Source:
    """Return what the same store can be opened from again, in any directory and environment."""
    is_ours = isinstance(source, str) and source.partition(":")[0].lower() == "sqlite"  # no opener of another package
    if is_ours and isinstance(store, SqliteStore):
        return f"sqlite:///{quote(str(store.path), errors='surrogateescape')}"  # a name need not be UTF-8
    return source


def _not_given(source: object) -> str:
    return (
        f"store is {source!r}: is the environment variable set that it is read from? On the user's own SQLite file, "
        "which would be used instead, only processes of this machine share locks. For that file, leave the argument "
        "out, or write 'sqlite://'"
    )


def _open_by_object(source: object, runtime: Runtime, options: dict[str, Any]) -> Store:
    if _origins(source) & {"psycopg", "psycopg_pool", "sqlalchemy"}:
        return _open_postgres(source, runtime, options)
    members = source if isinstance(source, list | tuple) else (source,)
    for member in members:
        if not (hasattr(member, "connection_pool") or hasattr(member, "nodes_manager")):
            inside = "" if member is source else f" in a {type(source).__name__}"
            if inside and isinstance(member, str):
                inside += ": did you mean 'redlock://host1,host2,host3'?"
            msg = f"store must be {ACCEPTED}; got {type(member).__name__}{inside}"
            raise InvalidInputError(msg)
    return _open_redis(source, runtime, options)


def _open_embedded(source: str, scheme: str, runtime: Runtime) -> Store:
    parts = None
    with suppress(ValueError):  # which may quote a password, also as the context of another error
        parts = urlsplit(source)
    if parts is None:
        msg = f"{scheme}://…: this is not a URL"
        raise InvalidInputError(msg)
    if parts.query or parts.fragment:
        msg = f"{scheme}://…: this URL takes no options after '?' or '#'"
        raise InvalidInputError(msg)
    if scheme == "memory":
        return MemoryStore(runtime, shared_server(parts.netloc + parts.path))
    if parts.netloc:
        msg = f"{scheme}://…: a path needs three slashes (sqlite:///relative.db) or four (sqlite:////absolute.db)"
        raise InvalidInputError(msg)
    if parts.path == "/:memory:":
        msg = "sqlite:///:memory:: a lock in memory is memory://, which is shared by one process only"
        raise InvalidInputError(msg)
    return SqliteStore(runtime, unquote(parts.path[1:], errors="surrogateescape") or None)


def _opener_of(source: str, scheme: str) -> Opener:
    from importlib.metadata import entry_points  # noqa: PLC0415 - its import takes longer than all of lockstead

    if scheme in _registered:
        return _registered[scheme]
    installed = entry_points(group="lockstead.stores")
    for entry in installed.select(name=scheme):
        opener: Opener = entry.load()
        return opener
    raise _no_store(source, tuple(sorted(installed.names)))


def _no_store(source: str, installed: Sequence[str] = ()) -> InvalidInputError:
    schemes = (*SCHEMES, *_registered, *installed)
    problem = f"{redact(source)}: no store has this scheme" if "://" in source else "this text is not a URL"
    hint = suggestion(source, schemes)
    known = ", ".join(f"{scheme}://" for scheme in schemes)
    return InvalidInputError(f"store: {problem}; {hint}{hint and ' '}there are {known}")


def redact(url: str) -> str:
    """Return the part of a URL that cannot belong to a password: its scheme, if it has one."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", url)
    return f"{scheme[0]}://…" if scheme else "this text, which is not a URL"


def _origins(source: object) -> set[str]:
    """Name the packages that an object's class, or one that it inherits from, is of."""
    return {kind.__module__.partition(".")[0] for kind in type(source).__mro__}


def _open_postgres(source: object, runtime: Runtime, options: dict[str, Any]) -> Store:
    try:
        from lockstead.stores.postgres.opening import open_postgres  # noqa: PLC0415 (needs psycopg)
    except ImportError as error:  # of psycopg, or of libpq
        msg = f"this store needs psycopg: pip install 'lockstead[postgres]' ({error})"
        raise InvalidInputError(msg) from error
    return open_postgres(source, runtime, options)


def _open_redis(source: object, runtime: Runtime, options: dict[str, Any]) -> Store:
    try:
        from lockstead.stores.redis.opening import open_redis  # noqa: PLC0415 (needs hiredis)
    except ModuleNotFoundError as error:
        msg = f"this store needs {error.name}: pip install 'lockstead[redis]'"
        raise InvalidInputError(msg) from error
    return open_redis(source, runtime, options)
