"""The numbers that identify PostgreSQL's advisory locks."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, Self

from lockstead.core.checks import check_name
from lockstead.errors import InvalidInputError

Name = str | int | tuple[int, int]

_NUMERIC = re.compile(r"pg:(-?[0-9]+)(?:,(-?[0-9]+))?")
_INT4 = 32
_BIGINT = 64


class Key(NamedTuple):
    """One bigint or a pair of int4: two separate key spaces. Keys have one order, in which pairs are last."""

    is_pair: bool
    number: int
    """The bigint. Of a pair, the first number is the high half and the second the low half."""

    @classmethod
    def from_pg_locks(cls, classid: int, objid: int, objsubid: int) -> Self:
        """Make the key of an advisory lock that pg_locks shows; the server's oids are unsigned."""
        return cls(objsubid == 2, _signed(classid << _INT4 | objid, _BIGINT))  # noqa: PLR2004 (as pg_locks marks a pair)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments of pg_advisory_lock and the other lock functions."""
        if self.is_pair:
            return self.number >> _INT4, _signed(self.number, _INT4)
        return (self.number,)

    @property
    def sql(self) -> str:
        """The arguments as SQL literals; a bare -2147483648 would be a bigint, and no function takes two of these."""
        kind = "integer" if self.is_pair else "bigint"  # keywords, so that no other type can have these names
        return ", ".join(f"'{argument}'::{kind}" for argument in self.arguments)

    @property
    def pg_locks(self) -> tuple[int, int, int]:
        """Its classid, objid and objsubid in pg_locks."""
        unsigned = self.number % 2**_BIGINT
        return unsigned >> _INT4, unsigned % 2**_INT4, 2 if self.is_pair else 1

    def __str__(self) -> str:
        """Return the lock's name that stands for exactly this key."""
        return "pg:" + ",".join(map(str, self.arguments))


def advisory_key(name: Name) -> Key:
    """Turn a lock's name into its key: a number or a pair as it is, a string by its hash.

    The hash is the first eight bytes of the SHA-256 of its UTF-8, so that any client can compute it, in SQL too::

        ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) from 1 for 8), 'hex'))::bit(64)::bigint

    The names ``pg:7`` and ``pg:7,42`` are not hashed: they stand for the number and the pair. Two names may share a
    hash, and then exclude each other: among a million names that happens once in some 37 million cases.
    Raises InvalidInputError for what is no name and for numbers that do not fit.
    """
    return _from_numbers(name) if isinstance(name, int | tuple) else _from_text(check_name(name))


@lru_cache(1024)
def _from_text(name: str) -> Key:
    if numeric := _NUMERIC.fullmatch(name):
        first, second = numeric.groups()
        return _from_numbers(int(first) if second is None else (int(first), int(second)))
    return Key(False, int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True))


def _from_numbers(numbers: int | tuple[int, int]) -> Key:
    match numbers:
        case int(number) if _fits(number, _BIGINT):
            return Key(False, number)
        case (int(first), int(second)) if _fits(first, _INT4) and _fits(second, _INT4):
            return Key(True, first << _INT4 | second % 2**_INT4)
    msg = f"a numeric lock is one integer of 64 bits or a pair of 32 bits each, all signed; got {numbers!r}"
    raise InvalidInputError(msg, name=str(numbers)[:40])


def _fits(number: int, bits: int) -> bool:
    return not isinstance(number, bool) and number == _signed(number, bits)


def _signed(number: int, bits: int) -> int:
    """Keep the lowest bits, the topmost of them as the sign."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half
