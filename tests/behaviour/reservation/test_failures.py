"""A store that cannot reserve a name when it is asked to."""

from __future__ import annotations

import pytest

from lockstead import (
    DistributedLock,
    StoreError,
)
from lockstead.core.model import Reservation
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.memory import MemoryServer, MemoryStore


@pytest.mark.parametrize("transient", [False, True])
def test_a_name_that_cannot_be_reserved_is_released_and_its_holder_gets_the_error(
    server: MemoryServer, operator: DistributedLock, transient: bool
) -> None:
    class CannotReserve(MemoryStore):
        async def reserve(self, reservation: Reservation, timeout: float) -> bool:
            raise StoreError("too old", transient=transient)

    with DistributedLock(CannotReserve(ThreadRuntime(), server)) as locks:
        handle = locks.acquire("x", at_least=30)
        with pytest.raises(StoreError, match="too old"):
            handle.release()
        assert operator.is_locked("x") == transient
        assert bool(locks._engine.keeper.leases) == transient, "only what may yet succeed is tried again"
