"""A role that may create in the schema public, and shadows there whatever our SQL might find by its bare name."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import lockstead
from tests.servers.postgres import PostgresServer, query

SOURCES = Path(lockstead.__file__).parent
OPERATORS = ["+", "-", "*", "/", "<", "<=", ">", ">=", "=", "<>", "||", "->", "->>", "~", "~~"]
NUMBERS = ["smallint", "integer", "bigint", "numeric", "double precision"]
TYPES = [
    "text",
    "jsonb",
    "timestamptz",
    "inet",
    "int4",
    "int8",
    "float8",
    "bool",
    "regclass",
    "regproc",
    "pg_lsn",
    "name",
]
POLYMORPHIC = {
    "unnest": ("text[]", "SETOF text"),
    "array_agg": ("text", "text"),
    "format": ("text, text", "text"),
    "concat_ws": ("text, oid, oid, smallint", "text"),
    "concat": ("text, text", "text"),
    "to_jsonb": ("record", "jsonb"),
    "host": ("text", "text"),
    "length": ("integer", "integer"),
    "greatest": ("integer, integer", "integer"),
}
"""Better matches for calls of functions that take any type; RAISE LOG is all they do."""


class Hostile:
    """What the role has planted, and which of it has run: said in the server's log, which no rollback undoes."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.url = url
        self.database = url.rpartition("/")[2]
        self._token = secrets.token_hex(6)
        self._read = 0
        suffix = secrets.token_hex(3)
        self.role, self.owner, self.app = (f"{kind}_{suffix}" for kind in ("hostile", "owner", "app"))

    def as_role(self, role: str) -> str:
        return self.url.replace("postgres@", f"{role}@")

    def caught(self) -> list[str]:
        """List what has run since this was last called, and as which role."""
        log = self.server.log
        fresh, self._read = log[self._read :], len(log)
        return sorted({found[1] for found in re.finditer(rf"LOG:  {self._token} (.*)", fresh)})

    def plant(self) -> None:
        """Shadow all operators, and the functions, relations and types that our sources mention."""
        for role in (self.role, self.owner, self.app):
            query(self.url, f"CREATE ROLE {role} LOGIN")
        for role in (self.owner, self.app):  # where public comes first, an exact match is enough
            query(self.url, f"ALTER ROLE {role} IN DATABASE {self.database} SET search_path = public, pg_catalog")
        query(self.url, f"GRANT CREATE ON DATABASE {self.database} TO {self.owner}")
        query(self.url, f"GRANT CREATE ON SCHEMA public TO {self.role}")
        with psycopg.connect(self.as_role(self.role), options="-c search_path=pg_catalog") as connection:
            statements = [*self._functions(connection), *self._operators(connection), *self._aggregates()]
            statements += [*self._casts(), *self._relations(connection, "public"), *self._types("public")]
            # One of the server's own functions has two parameters of one name: its shadow fails when it is called.
            connection.execute("SET check_function_bodies = off")
            connection.execute("; ".join(statements).encode())

    def temporary(self) -> list[str]:
        """Give what shadows relations and types in a session itself: temporary ones come before the server's own."""
        with psycopg.connect(self.url) as connection:
            return [*self._relations(connection, "pg_temp"), *self._types("pg_temp")]

    def plant_temporary(self, connection: psycopg.Connection) -> None:
        connection.execute("; ".join(self.temporary()).encode())

    def remove(self) -> None:
        for role in (self.role, self.owner, self.app):
            query(self.url, f"DROP OWNED BY {role} CASCADE")
            query(self.url, f"DROP ROLE {role}")

    def _spy(self, what: str, then: str) -> str:
        return f"LANGUAGE plpgsql AS $$BEGIN RAISE LOG '{self._token} {what} ran as %', current_user; {then} END$$"

    def _functions(self, connection: psycopg.Connection) -> Iterator[str]:
        found = connection.execute(
            "SELECT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.pronargs, p.proretset"
            " FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f'"
            " AND p.proname = ANY (%s) AND p.provariadic = 0 AND NOT EXISTS ("
            "   SELECT FROM pg_type t WHERE t.typtype = 'p' AND t.typname NOT IN ('record', 'void')"
            "   AND (t.oid = ANY (p.proargtypes) OR t.oid = p.prorettype))",
            [words(r"\b([a-z_0-9]+)\(")],
        ).fetchall()
        for name, arguments, result, count, is_set in found:
            call = f"pg_catalog.{name}({', '.join(f'${number + 1}' for number in range(count))})"
            then = f"RETURN QUERY SELECT * FROM {call};" if is_set else f"RETURN {call};"
            if result == "void":
                then = f"PERFORM {call};"
            yield f"CREATE FUNCTION public.{name}({arguments}) RETURNS {result} {self._spy(f'function {name}', then)}"
        for name, (arguments, result) in POLYMORPHIC.items():
            then = "RETURN;" if result.startswith("SETOF") else "RETURN NULL;"
            yield f'CREATE FUNCTION public."{name}"({arguments}) RETURNS {result} {self._spy(f"function {name}", then)}'

    def _operators(self, connection: psycopg.Connection) -> Iterator[str]:
        found = connection.execute(
            "SELECT o.oprname, format_type(l.oid, NULL), format_type(r.oid, NULL), format_type(o.oprresult, NULL)"
            " FROM pg_operator o JOIN pg_type l ON l.oid = o.oprleft JOIN pg_type r ON r.oid = o.oprright"
            " WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprname = ANY (%s)"
            " AND l.typtype = 'b' AND r.typtype = 'b'",
            [OPERATORS],
        ).fetchall()
        there = {(name, left, right) for name, left, right, _ in found}
        mixed = [
            (name, left, right, "boolean" if name in "<=>=<>" else "numeric")
            for name in ("+", "-", "*", "/", "<", "<=", ">", ">=", "=", "<>")
            for left in NUMBERS
            for right in NUMBERS
            if (name, left, right) not in there
        ]
        for number, (name, left, right, result) in enumerate([*found, *mixed]):
            cast = "::numeric" if number >= len(found) else ""
            spy = self._spy(
                f"operator {name}({left},{right})", f"RETURN $1{cast} OPERATOR(pg_catalog.{name}) $2{cast};"
            )
            function = f"public.operator_{number}"
            yield f"CREATE FUNCTION {function}({left}, {right}) RETURNS {result} {spy}"
            yield f"CREATE OPERATOR public.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {function})"

    def _aggregates(self) -> Iterator[str]:
        for name, kind in (
            ("sum", "integer"),
            ("max", "text"),
            ("max", "bigint"),
            ("min", "bigint"),
            ("bool_and", "boolean"),
        ):
            spy = self._spy(f"aggregate {name}", "RETURN $2;")
            yield f"CREATE FUNCTION public.{name}_{kind}({kind}, {kind}) RETURNS {kind} {spy}"
            yield f"CREATE AGGREGATE public.{name}({kind}) (SFUNC = public.{name}_{kind}, STYPE = {kind})"
        yield f"CREATE FUNCTION public.count_step(bigint) RETURNS bigint {self._spy('aggregate count', 'RETURN $1;')}"
        yield "CREATE AGGREGATE public.count(*) (SFUNC = public.count_step, STYPE = bigint, INITCOND = '0')"

    def _casts(self) -> Iterator[str]:
        """Make a type that every text turns into by itself, and functions that take it."""
        yield "CREATE TYPE public.trap AS (content text)"
        spy = self._spy("cast from text", "RETURN ROW($1)::public.trap;")
        yield f"CREATE FUNCTION public.to_trap(text) RETURNS public.trap {spy}"
        yield "CREATE CAST (text AS public.trap) WITH FUNCTION public.to_trap(text) AS IMPLICIT"
        for name in ("host", "starts_with", "to_regclass", "concat"):
            spy = self._spy(f"function {name} of a cast", "RETURN NULL;")
            yield f"CREATE FUNCTION public.{name}(public.trap, public.trap) RETURNS text {spy}"

    def _relations(self, connection: psycopg.Connection, schema: str) -> Iterator[str]:
        found = connection.execute(
            "SELECT c.relname, string_agg(quote_ident(a.attname), ', ')"
            " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
            " WHERE c.relnamespace = 'pg_catalog'::pg_catalog.regnamespace AND c.relkind IN ('r', 'v')"
            " AND c.relname = ANY (%s) AND a.attname <> 'attmissingval' GROUP BY c.relname",
            [words(r"\b(pg_[a-z_]+)\b")],
        ).fetchall()
        for name, columns in found:
            spy = f"{schema}.spy_on_{name}"
            yield f"CREATE FUNCTION {spy}() RETURNS boolean {self._spy(f'relation {schema}.{name}', 'RETURN true;')}"
            yield f"CREATE VIEW {schema}.{name} AS SELECT {columns} FROM pg_catalog.{name} WHERE {spy}()"
            yield f"GRANT SELECT ON {schema}.{name} TO PUBLIC"

    def _types(self, schema: str) -> Iterator[str]:
        for name in TYPES:
            spy = self._spy(f"type {schema}.{name}", "RETURN true;")
            yield f"CREATE FUNCTION {schema}.spy_on_{name}(pg_catalog.{name}) RETURNS boolean {spy}"
            yield f"CREATE DOMAIN {schema}.{name} AS pg_catalog.{name} CHECK ({schema}.spy_on_{name}(VALUE))"


def words(pattern: str) -> list[str]:
    """Find what our sources, SQL and Python alike, might mean something of the server's by."""
    files = [*SOURCES.glob("stores/postgres/**/*.sql"), *SOURCES.glob("stores/postgres/**/*.py")]
    return sorted({word for file in files for word in re.findall(pattern, file.read_text("utf-8"))})


@contextmanager
def hostile_database(server: PostgresServer) -> Iterator[Hostile]:
    """Create a database in which everything is planted."""
    with server.database() as url:
        hostile = Hostile(server, url)
        try:
            hostile.plant()
            yield hostile
        finally:
            hostile.remove()
