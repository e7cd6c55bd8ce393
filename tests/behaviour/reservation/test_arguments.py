"""Periods that make no sense are refused at once, of `at_least`, `singleton` and `once`."""

from __future__ import annotations

import pytest

from lockstead import InvalidInputError
from lockstead.testing.contract.rigs import Rig, ask

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]


def test_bad_periods_are_refused_at_once(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        with pytest.raises(InvalidInputError, match="at_least must not be longer"):
            client.singleton("x", at_most=1, at_least=2)
        with pytest.raises(InvalidInputError, match="period"):
            client.once("x", 0)
        with pytest.raises(InvalidInputError, match="at_least is for locks"):
            client.once("x", 60, at_least=5)
        with pytest.raises(InvalidInputError, match="at_least"):
            await ask(client.acquire("x", at_least=-1))

    rig.run(test())
