"""What a type checker makes of decorated functions: mypy reads this, pytest runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

from lockstead import AsyncDistributedLock, DistributedLock, InvalidInputError, LockHandle, UnknownOptionError


def test_a_decorated_function_keeps_its_type() -> None:
    with DistributedLock("memory://typing") as locks:

        @locks.rate_limiter("rate", 100, 1)
        @locks.once("once", 60)
        @locks.lock("lock")
        def work(number: int) -> int:
            return number

        @locks.singleton("job", at_most=60)
        def job() -> int:
            return 2

        assert_type(work(1), int)
        assert_type(job(), int | None)
        assert (work(1), job()) == (1, 2)


def test_a_decorated_coroutine_function_makes_coroutines() -> None:
    async def scenario() -> None:
        async with AsyncDistributedLock("memory://typing") as locks, asyncio.TaskGroup() as group:

            @locks.rate_limiter("async rate", 100, 1)
            @locks.once("async once", 60)
            @locks.lock("async lock")
            async def work(number: int) -> int:
                return number

            @locks.singleton("async job", at_most=60)
            async def job() -> int:
                return 2

            first: Callable[[int], Coroutine[Any, Any, int]] = work
            tasks = group.create_task(first(1)), group.create_task(job())
            assert_type(tasks, tuple[asyncio.Task[int], asyncio.Task[int | None]])
            assert (await tasks[0], await tasks[1]) == (1, 2)

    asyncio.run(scenario())


def test_what_is_no_store_is_a_type_error() -> None:
    """Each `type: ignore` is needed, or mypy reports it as unused."""
    with pytest.raises(InvalidInputError, match=r"store must be a URL.*redis-py.*psycopg.*SQLAlchemy.*got int"):
        DistributedLock(42)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="got dict"):
        DistributedLock({"host": "localhost"})  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="got int in a list"):
        AsyncDistributedLock([1, 2])  # type: ignore[list-item]


def test_an_option_that_there_is_not_or_of_another_type_is_a_type_error() -> None:
    with DistributedLock("memory://typing") as locks:
        with pytest.raises(UnknownOptionError):
            locks.acquire("x", blocking_timeout=5)  # type: ignore[arg-type]
        with pytest.raises(UnknownOptionError):
            locks.lock("x", expire=5)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            locks.lock("x", retry=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            locks.lock("x", renew="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            locks.election("x", on_lost=5)  # type: ignore[arg-type]


def test_a_callback_is_given_a_handle() -> None:
    with DistributedLock("memory://typing") as locks:
        locks.lock("x", on_lost=lambda handle: assert_type(handle, LockHandle))
