"""Names made of parts: other parts, another name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from enum import Enum, IntEnum, StrEnum
from urllib.parse import unquote
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from lockstead import InvalidInputError, lock_name
from lockstead.core.checks import check_name

TEXT = st.text(st.characters() | st.sampled_from(":%\0 A3"), min_size=1, max_size=8)


class Kind(Enum):
    INVOICE = "invoice"


class Shade(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Legacy(str, Enum):  # noqa: UP042 - there are many
    OLD = "old"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("invoice", 42, "send"), "invoice:42:send"),
        (("cron", "nightly report"), "cron:nightly report"),
        (("file", "a:b%c\n"), "file:a%3Ab%25c%0A"),
        (("straße", -7), "straße:-7"),
        ((Kind.INVOICE, Shade.RED, Level.HIGH, Legacy.OLD), "invoice:red:3:old"),
        (("report", date(2026, 11, 5)), "report:2026-11-05"),
        (("job", UUID(int=7)), "job:00000000-0000-0000-0000-000000000007"),
        (("\ud800",), "%ED%A0%80"),
    ],
)
def test_parts_are_joined_by_colons(parts: tuple[str, ...], name: str) -> None:
    assert lock_name(*parts) == name


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_the_parts_can_be_recovered_from_the_name(parts: list[str]) -> None:
    name = lock_name(*parts)
    assert check_name(name) == name
    assert [unquote(part, errors="surrogatepass") for part in name.split(":")] == parts


@pytest.mark.parametrize("part", [None, True, 1.0, b"x", datetime(2026, 11, 5, tzinfo=UTC), ["x"]])
def test_a_part_without_unambiguous_text_is_refused(part: str) -> None:
    with pytest.raises(InvalidInputError, match=f"got {type(part).__name__}"):
        lock_name("job", part)


def test_an_empty_part_or_a_too_long_name_is_refused_with_advice() -> None:
    with pytest.raises(InvalidInputError, match="leave it out"):
        lock_name("job", "")
    with pytest.raises(InvalidInputError, match="must not be empty"):
        lock_name()
    with pytest.raises(InvalidInputError, match="got 604: hash the long part"):
        lock_name("job", ":" * 200)
