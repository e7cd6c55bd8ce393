"""One user for each kind of connection, with one interface, and the peer they contend with."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Self

import asyncpg
import django
import django.conf
import django.db
import psycopg
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as aio
from psycopg.rows import dict_row, tuple_row
from sqlalchemy import orm
from sqlalchemy.pool import NullPool

from lockstead.core.runtime import drive
from lockstead.stores.postgres.key import Name, advisory_key
from lockstead.transactions import xact_lock
from tests.harness.conditions import eventually


class User(ABC):
    """A user of the library, in a transaction of its own connection."""

    is_async: ClassVar[bool]
    connection: Any

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            await self.open()
            try:
                await self.begin()
                await scenario
            finally:
                scenario.close()
                await self.close()

        if self.is_async:
            asyncio.run(run())
        else:
            drive(run())

    @asynccontextmanager
    async def lock(self, *names: Name, **options: Any) -> AsyncIterator[None]:
        if self.is_async:
            async with xact_lock(self.connection, *names, **options):
                yield
        else:
            with xact_lock(self.connection, *names, **options):
                yield

    @abstractmethod
    async def open(self) -> None: ...

    async def begin(self) -> None:  # noqa: B027
        """Open a transaction, where the library does not by itself."""

    @abstractmethod
    async def execute(self, sql: str) -> Any:
        """Return the first value of the first row, if there is one."""

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def leave_transaction(self) -> None:
        """Go on where each statement is a transaction of its own."""

    @abstractmethod
    async def close(self) -> None: ...


class Psycopg(User):
    is_async = False

    async def open(self) -> None:
        self.connection = psycopg.connect(self.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor)

    async def execute(self, sql: str) -> Any:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row).execute(sql)
        return first(cursor.fetchall()) if cursor.description else None

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def leave_transaction(self) -> None:
        self.connection.rollback()
        self.connection.autocommit = True

    async def close(self) -> None:
        self.connection.close()


class PsycopgTransaction(Psycopg):
    """Autocommit, but inside of a `with connection.transaction()`."""

    async def open(self) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        self._transaction.__enter__()

    async def commit(self) -> None:
        self._transaction.__exit__(None, None, None)

    async def rollback(self) -> None:
        rollback = psycopg.Rollback()
        assert self._transaction.__exit__(psycopg.Rollback, rollback, None)

    async def leave_transaction(self) -> None:
        await self.rollback()


class AsyncPsycopg(User):
    is_async = True

    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(self.url)

    async def execute(self, sql: str) -> Any:
        cursor = await self.connection.execute(sql)
        return first(await cursor.fetchall()) if cursor.description else None

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def leave_transaction(self) -> None:
        await self.connection.rollback()
        await self.connection.set_autocommit(True)

    async def close(self) -> None:
        await self.connection.close()


class Asyncpg(User):
    is_async = True

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def execute(self, sql: str) -> Any:
        return first(await self.connection.fetch(sql))

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def leave_transaction(self) -> None:
        await self._transaction.rollback()

    async def close(self) -> None:
        await self.connection.close()


class AsyncpgPool(Asyncpg):
    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self._pool.acquire()

    async def close(self) -> None:
        self._pool.terminate()


class Django(User):
    is_async = False

    async def open(self) -> None:
        if not django.conf.settings.configured:
            parts = psycopg.conninfo.conninfo_to_dict(self.url)
            place = {"HOST": parts["host"], "PORT": parts["port"], "USER": parts["user"], "NAME": parts["dbname"]}
            django.conf.settings.configure(
                DATABASES={
                    "default": {"ENGINE": "django.db.backends.postgresql", **place},
                    "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
                }
            )
            django.setup()
        self.connection = django.db.connection

    async def begin(self) -> None:
        self._atomic = django.db.transaction.atomic()
        self._atomic.__enter__()

    async def execute(self, sql: str) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return first(cursor.fetchall()) if cursor.description else None

    async def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        self.connection.set_rollback(True)
        self._atomic.__exit__(None, None, None)

    async def leave_transaction(self) -> None:
        await self.rollback()

    async def close(self) -> None:
        if self.connection.in_atomic_block:
            await self.rollback()
        self.connection.close()


class DjangoWrapper(Django):
    """The connection itself, not the proxy that stands for each thread's."""

    async def open(self) -> None:
        await super().open()
        self.connection = django.db.connections["default"]


class SqlalchemyConnection(User):
    is_async = False

    async def open(self) -> None:
        self._engine = sa.create_engine(with_driver(self.url, "psycopg"), poolclass=NullPool)
        self.connection = self._engine.connect()

    async def execute(self, sql: str) -> Any:
        result = self.connection.execute(sa.text(sql))
        return first(result.all()) if result.returns_rows else None

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def leave_transaction(self) -> None:
        self.connection.rollback()
        self.connection.execution_options(isolation_level="AUTOCOMMIT")

    async def close(self) -> None:
        self.connection.close()
        self._engine.dispose()


class SqlalchemySession(SqlalchemyConnection):
    async def open(self) -> None:
        self._engine = sa.create_engine(with_driver(self.url, "psycopg"), poolclass=NullPool)
        self.connection = self.session(self._engine)

    def session(self, engine: sa.Engine) -> Any:
        return orm.Session(engine)

    async def leave_transaction(self) -> None:
        self.connection.rollback()
        self._engine = sa.create_engine(self._engine.url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        self.connection.close()
        self.connection = self.session(self._engine)


class SqlalchemyScopedSession(SqlalchemySession):
    def session(self, engine: sa.Engine) -> Any:
        return orm.scoped_session(orm.sessionmaker(engine))


class SqlalchemyAsyncConnection(User):
    is_async = True
    driver = "psycopg"

    def engine(self, **options: Any) -> aio.AsyncEngine:
        return aio.create_async_engine(with_driver(self.url, self.driver), poolclass=NullPool, **options)

    async def open(self) -> None:
        self.connection = await self.engine().connect()

    async def execute(self, sql: str) -> Any:
        result = await self.connection.execute(sa.text(sql))
        return first(result.all()) if result.returns_rows else None

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def leave_transaction(self) -> None:
        await self.connection.rollback()
        await self.connection.execution_options(isolation_level="AUTOCOMMIT")

    async def close(self) -> None:
        await self.connection.close()


class SqlalchemyAsyncpgConnection(SqlalchemyAsyncConnection):
    driver = "asyncpg"


class SqlalchemyAsyncSession(SqlalchemyAsyncConnection):
    driver = "asyncpg"

    async def open(self) -> None:
        self.connection = self.session(self.engine())

    def session(self, engine: aio.AsyncEngine) -> Any:
        return aio.AsyncSession(engine)

    async def leave_transaction(self) -> None:
        await self.connection.close()
        self.connection = self.session(self.engine(isolation_level="AUTOCOMMIT"))


class SqlalchemyAsyncScopedSession(SqlalchemyAsyncSession):
    driver = "psycopg"

    def session(self, engine: aio.AsyncEngine) -> Any:
        return aio.async_scoped_session(aio.async_sessionmaker(engine), scopefunc=asyncio.current_task)


KINDS: list[type[User]] = [
    Psycopg,
    PsycopgTransaction,
    AsyncPsycopg,
    Asyncpg,
    AsyncpgPool,
    Django,
    DjangoWrapper,
    SqlalchemyConnection,
    SqlalchemySession,
    SqlalchemyScopedSession,
    SqlalchemyAsyncConnection,
    SqlalchemyAsyncpgConnection,
    SqlalchemyAsyncSession,
    SqlalchemyAsyncScopedSession,
]


class Peer(AbstractContextManager["Peer"]):
    """Another session, which writes its own SQL: it shares no code with what is tested but the keys."""

    def __init__(self, url: str) -> None:
        self._holding = psycopg.connect(url, autocommit=True, application_name="the peer")
        self._looking = psycopg.connect(url, autocommit=True)
        self.pid = self._holding.info.backend_pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._holding.close()
        self._looking.close()

    def hold(self, name: Name, *, shared: bool = False) -> None:
        self._holding.execute(f"SELECT pg_advisory_lock{'_shared' if shared else ''}({advisory_key(name).sql})")

    def release(self) -> None:
        self._holding.execute("SELECT pg_advisory_unlock_all()")

    def terminate(self, pid: int) -> None:
        self._looking.execute("SELECT pg_terminate_backend(%s)", (pid,))

    @contextmanager
    def waiting_for(self, name: Name) -> Iterator[None]:
        """Wait for a lock beside the block, in which it must come free; never give up as the victim of a deadlock."""
        self._holding.execute("SET deadlock_timeout = '1h'")
        thread = threading.Thread(target=self.hold, args=(name,))
        thread.start()
        try:
            eventually(lambda: self.waited(name), f"the peer waits for {name!r}")
            yield
        except BaseException:
            self.terminate(self.pid)
            raise
        finally:
            thread.join()

    def could_take(self, name: Name, *, shared: bool = False) -> bool:
        suffix, key = "_shared" if shared else "", advisory_key(name).sql
        return bool(first(self._looking.execute(f"SELECT pg_try_advisory_xact_lock{suffix}({key})").fetchall()))

    def modes(self, name: Name, *, granted: bool = True) -> list[str]:
        """List the modes in which others hold a lock, or wait for it."""
        rows = self._looking.execute(
            "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND granted = %s AND pid <> %s"
            " AND (classid::bigint, objid::bigint, objsubid) = (%s, %s, %s)",
            (granted, self.pid, *advisory_key(name).pg_locks),
        )
        return [mode for (mode,) in rows]

    def waited(self, name: Name) -> float:
        """Return for how many seconds a session has been waiting for a lock."""
        rows = self._looking.execute(
            "SELECT extract(epoch FROM clock_timestamp() - min(waitstart))::float FROM pg_locks"
            " WHERE locktype = 'advisory' AND NOT granted"
            " AND (classid::bigint, objid::bigint, objsubid) = (%s, %s, %s)",
            advisory_key(name).pg_locks,
        )
        return float(first(rows.fetchall()) or 0)

    @contextmanager
    def when_waited_for(self, name: Name, action: Callable[[], object], seconds: float = 0.0) -> Iterator[None]:
        """Act beside the block, as soon as a session has been waiting for a lock for that long."""
        failures: list[BaseException] = []

        def act() -> None:
            try:
                eventually(lambda: self.waited(name) > seconds, f"a session waits for {name!r}")
                action()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=act)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        assert failures == []


def with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql:", f"postgresql+{driver}:")


def first(rows: Any) -> Any:
    return rows[0][0] if rows else None
