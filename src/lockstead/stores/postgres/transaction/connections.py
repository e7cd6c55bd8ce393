"""The user's own connection to PostgreSQL, of any supported library.

Only the library that the connection belongs to is imported. Parameters are written ``$1`` and ``$2``, as the server has
them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from lockstead.errors import InvalidInputError

Rows = Sequence[Sequence[Any]]

_PARAMETER = re.compile(r"\$(\d)")
_ADVICE = {
    "cursor": "pass the cursor's connection",
    "pool": "pass a connection from the pool",
    "engine": "pass a connection: with engine.begin() as connection",
    "sessionmaker": "pass a session that it made",
    "str": "pass an open connection, not its address",
}


class UserConnection(ABC):
    """Runs statements on a connection of the user's. The coroutines of a blocking one never suspend."""

    is_async: ClassVar[bool]

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def kind(self) -> str:
        return type(self._connection).__name__

    async def check_transaction(self) -> None:
        """Raise InvalidInputError if a statement would be a transaction of its own, or not be sent to PostgreSQL.

        A closed connection or a failed transaction passes: the next statement raises the library's own error.
        """
        if obstacle := await self._obstacle():
            raise InvalidInputError(obstacle)

    @abstractmethod
    async def _obstacle(self) -> str: ...

    @abstractmethod
    async def fetch(self, sql: str, *args: Any) -> Rows: ...


class _Psycopg(UserConnection):
    is_async = False

    async def _obstacle(self) -> str:
        from psycopg.pq import PipelineStatus, TransactionStatus  # noqa: PLC0415 (the user may not have it)

        if self._connection.info.pipeline_status != PipelineStatus.OFF:
            return (
                "a pipeline continues before it has a reply, so before the lock is held: acquire the lock outside of it"
            )
        status = self._connection.info.transaction_status
        if self._connection.autocommit and status in {TransactionStatus.IDLE, TransactionStatus.ACTIVE}:
            return _no_transaction("this connection is in autocommit mode", "'with connection.transaction()'")
        return ""

    async def fetch(self, sql: str, *args: Any) -> Rows:
        from psycopg import Cursor, rows  # noqa: PLC0415 (the user may not have it)

        # Not connection.cursor(): the user may have configured rows as dictionaries, or another style of parameters.
        with Cursor(self._connection, row_factory=rows.tuple_row) as cursor:
            cursor.execute(*_named(sql, args, r"%(p\1)s"))
            return cursor.fetchall() if cursor.description else ()


class _AsyncPsycopg(_Psycopg):
    is_async = True

    async def fetch(self, sql: str, *args: Any) -> Rows:
        from psycopg import AsyncCursor, rows  # noqa: PLC0415 (the user may not have it)

        async with AsyncCursor(self._connection, row_factory=rows.tuple_row) as cursor:
            await cursor.execute(*_named(sql, args, r"%(p\1)s"))
            return await cursor.fetchall() if cursor.description else ()


class _Asyncpg(UserConnection):
    is_async = True

    async def _obstacle(self) -> str:
        if not self._connection.is_closed() and not self._connection.is_in_transaction():
            return _no_transaction("asyncpg opens none by itself", "'async with connection.transaction()'")
        return ""

    async def fetch(self, sql: str, *args: Any) -> Rows:
        return await self._connection.fetch(sql, *args)  # type: ignore[no-any-return]


class _Django(UserConnection):
    is_async = False

    async def _obstacle(self) -> str:
        vendor = getattr(self._connection, "vendor", "no database")
        if vendor != "postgresql":
            return _not_postgresql(vendor)
        if self._connection.get_autocommit():
            return _no_transaction("Django is in autocommit mode here", "'with transaction.atomic()'")
        return ""

    async def fetch(self, sql: str, *args: Any) -> Rows:
        with self._connection.cursor() as cursor:
            cursor.execute(*_named(sql, args, r"%(p\1)s"))
            return cursor.fetchall() if cursor.description else ()


class _Sqlalchemy(UserConnection):
    is_async = False

    async def _obstacle(self) -> str:
        connection = await self._connect()
        if connection.dialect.name != "postgresql":
            return _not_postgresql(connection.dialect.name)
        # Every driver has this attribute, and unlike SQLAlchemy's options it shows the state of this connection.
        if getattr(await self._driver(connection), "autocommit", False):
            return _no_transaction("its isolation level is AUTOCOMMIT", "choosing another")
        return ""

    async def fetch(self, sql: str, *args: Any) -> Rows:
        from sqlalchemy import text  # noqa: PLC0415 (the user may not have it)

        sql, values = _named(sql, args, r":p\1")
        result = await self._execute(await self._connect(), text(sql), values)
        return result.all() if result.returns_rows else ()

    async def _connect(self) -> Any:
        return self._connection

    async def _driver(self, connection: Any) -> Any:
        return connection.connection.dbapi_connection

    async def _execute(self, connection: Any, statement: Any, values: Any) -> Any:
        return connection.execute(statement, values)


class _SqlalchemySession(_Sqlalchemy):
    async def _connect(self) -> Any:
        # The session's own execute and begin_nested would flush it, and expire its objects on a rollback.
        return self._connection.connection()


class _AsyncSqlalchemy(_Sqlalchemy):
    is_async = True

    async def _driver(self, connection: Any) -> Any:
        return (await connection.get_raw_connection()).dbapi_connection

    async def _execute(self, connection: Any, statement: Any, values: Any) -> Any:
        return await connection.execute(statement, values)


class _AsyncSqlalchemySession(_AsyncSqlalchemy):
    async def _connect(self) -> Any:
        return await self._connection.connection()


_KINDS: dict[str, type[UserConnection]] = {
    "asyncpg.connection.Connection": _Asyncpg,
    "asyncpg.pool.PoolConnectionProxy": _Asyncpg,
    "django.db.backends.base.base.BaseDatabaseWrapper": _Django,
    "django.utils.connection.ConnectionProxy": _Django,
    "psycopg.AsyncConnection": _AsyncPsycopg,
    "psycopg.Connection": _Psycopg,
    "sqlalchemy.engine.base.Connection": _Sqlalchemy,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _AsyncSqlalchemy,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _AsyncSqlalchemySession,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _AsyncSqlalchemySession,
    "sqlalchemy.orm.scoping.scoped_session": _SqlalchemySession,
    "sqlalchemy.orm.session.Session": _SqlalchemySession,
}


def wrap(connection: object) -> UserConnection:
    """Recognise a connection, or a subclass of one, by the module and name of its class.

    Raises InvalidInputError for anything else.
    """
    kind = type(connection)
    for base in kind.__mro__:
        if known := _KINDS.get(f"{base.__module__}.{base.__qualname__}"):
            return known(connection)
    title = kind.__name__.lower()
    advice = next((advice for word, advice in _ADVICE.items() if title.endswith(word)), "")
    msg = (
        "pass a session or connection of SQLAlchemy, a connection of psycopg 3 or asyncpg, or Django's connection; "
        f"got {kind.__module__}.{kind.__qualname__}{advice and f': {advice}'}"
    )
    raise InvalidInputError(msg)


def sqlstate(error: BaseException | None) -> str:
    """Find the server's code of an error, however many libraries have wrapped it."""
    while error is not None:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if code:
            return str(code)
        error = getattr(error, "orig", None) or error.__cause__
    return ""


def _named(sql: str, args: Sequence[Any], style: str) -> tuple[str, dict[str, Any]]:
    return _PARAMETER.sub(style, sql), {f"p{place}": arg for place, arg in enumerate(args, 1)}


def _no_transaction(why: str, remedy: str) -> str:
    return f"there is no transaction ({why}), so the lock would end with its own statement: open one first, by {remedy}"


def _not_postgresql(what: str) -> str:
    return f"only PostgreSQL has advisory locks, and this connection is to {what}"
