"""Terms of an election that cannot work are refused at once."""

from __future__ import annotations

import pytest

from lockstead import DistributedLock, InvalidInputError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ttl": 10, "grace": 5.1}, "half of the ttl of 10 s"),
        ({"grace": -1}, "grace must not be negative"),
        ({"ttl": 0.01}, "ttl must be at least"),
    ],
)
def test_an_invalid_ttl_or_grace_is_refused(options: dict[str, float], words: str) -> None:
    with DistributedLock("memory://") as locks, pytest.raises(InvalidInputError, match=words):
        locks.election("x", **options)  # type: ignore[arg-type]
