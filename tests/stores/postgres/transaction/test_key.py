"""The numbers that locks are known by: the same for us, for SQL, and in pg_locks."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from lockstead import InvalidInputError
from lockstead.stores.postgres.key import Key, Name, advisory_key

HASH = "('x' || encode(substring(sha256(convert_to(%s, 'UTF8')) from 1 for 8), 'hex'))::bit(64)::bigint"
NUMERIC: list[Name] = [
    *(0, 1, -1, 2**31, -(2**31), 2**63 - 1, -(2**63)),
    *((0, 0), (7, 42), (-1, -1), (3, -5), (-5, 3), (2**31 - 1, -(2**31)), (-(2**31), 2**31 - 1)),
]


@pytest.mark.parametrize("name", ["a", "account:42", "κλειδί 🗝", "x" * 512, "pg:", "pg:1,2,3", "pg: 7", "PG:7", "pg:٣"])
def test_sql_computes_the_same_hash(name: str, shared_url: str) -> None:
    with psycopg.connect(shared_url) as connection:
        row = connection.execute(f"SELECT {HASH}", (name,)).fetchone()
        assert row == (advisory_key(name).number,)
    assert not advisory_key(name).is_pair


def test_the_hash_never_changes() -> None:
    assert advisory_key("account:42") == Key(False, 4097093253131737194)


@pytest.mark.parametrize("name", [*NUMERIC, "a", "account:42"], ids=str)
def test_a_key_is_written_as_in_pg_locks_and_can_be_used_as_a_name(name: Name, shared_url: str) -> None:
    key = advisory_key(name)
    with psycopg.connect(shared_url) as connection:
        connection.execute(f"SELECT pg_advisory_xact_lock({key.sql})")
        row = connection.execute(
            "SELECT classid::bigint, objid::bigint, objsubid FROM pg_locks"
            " WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
    assert row == key.pg_locks
    assert Key.from_pg_locks(*key.pg_locks) == key
    assert advisory_key(str(key)) == key
    if not isinstance(name, str):
        assert key.arguments == (name if isinstance(name, tuple) else (name,))


def test_a_number_or_pair_and_its_pg_string_are_the_same_key() -> None:
    assert str(advisory_key(-5)) == "pg:-5"
    assert str(advisory_key((7, 42))) == "pg:7,42"
    assert advisory_key("pg:7,-42") == advisory_key((7, -42))
    assert advisory_key("pg:7") != advisory_key((0, 7))


@pytest.mark.parametrize(
    "name",
    [
        *("", "a\n", "x" * 513, "pg:9223372036854775808", "pg:2147483648,0"),
        *(2**63, -(2**63) - 1, (2**31, 0), (0, -(2**31) - 1), True, (1, False)),
        *((), (1,), (1, 2, 3), ("1", "2"), 1.5, None, b"a"),
    ],
    ids=repr,
)
def test_an_invalid_advisory_key_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInputError):
        advisory_key(name)
