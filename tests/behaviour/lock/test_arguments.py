"""What is no name, ttl, timeout, metadata or option is refused at once, by both façades."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstead import InvalidInputError
from lockstead.testing.contract.rigs import Rig, ask

pytestmark = [pytest.mark.every_store, pytest.mark.one_version]

BAD_NAMES: dict[str, Any] = {
    "empty": "",
    "too-long": "x" * 513,
    "far-too-long": "x" * 10_000,
    "newline": "a\nb",
    "nul": "a\0b",
    "tab": "tab\t",
    "delete": "\x7f",
    "surrogate": "\ud800",
    "none": None,
    "number": 7,
    "bytes": b"bytes",
}


@pytest.mark.no_store
@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_bad_name_is_refused_at_once(rig: Rig, name: Any) -> None:
    async def test() -> None:
        client = rig.client()
        for attempt in (client.acquire, client.try_acquire, client.info, client.is_locked, client.force_release):
            with pytest.raises(InvalidInputError, match="name"):
                await ask(attempt(name))
        assert await ask(client.inspect()) == []

    rig.run(test())


BAD_TTLS: dict[str, Any] = {
    "zero": 0,
    "negative": -1,
    "below-margin": 0.11,
    "nan": float("nan"),
    "infinite": float("inf"),
    "over-a-year": 366 * 86400,
    "huge": 10**400,
    "text": "5",
    "bool": True,
    "no-time": timedelta(0),
}


@pytest.mark.no_store
@pytest.mark.parametrize("ttl", BAD_TTLS.values(), ids=BAD_TTLS)
def test_a_bad_ttl_is_refused_at_once(rig: Rig, ttl: Any) -> None:
    async def test() -> None:
        client = rig.client()
        with pytest.raises(InvalidInputError, match="ttl"):
            await ask(client.acquire("x", ttl=ttl))
        with pytest.raises(InvalidInputError, match="ttl"):
            rig.client(ttl=ttl)
        handle = await ask(client.acquire("x"))
        with pytest.raises(InvalidInputError, match="extension"):
            await ask(handle.extend(ttl))
        assert handle.is_held
        with pytest.raises(InvalidInputError, match="max_hold"):
            await ask(client.acquire("y", max_hold=ttl))
        assert [info.name for info in await ask(client.inspect())] == ["x"]

    rig.run(test())


@pytest.mark.no_store
@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True, timedelta(seconds=-1)], ids=repr)
def test_a_bad_timeout_is_refused_at_once(rig: Rig, timeout: Any) -> None:
    async def test() -> None:
        client = rig.client()
        with pytest.raises(InvalidInputError, match="timeout"):
            await ask(client.acquire("x", timeout=timeout))
        assert await ask(client.inspect()) == []

    rig.run(test())


BAD_METADATA: dict[str, Any] = {
    "object": {"a": object()},
    "nan": {"a": float("nan")},
    "too-large": {"a": "x" * 5000},
    "surrogate": {"a": "\ud800"},
    "number": 7,
    "text": "text",
    "tuple-key": {(1, 2): 3},
}


@pytest.mark.no_store
@pytest.mark.parametrize("metadata", BAD_METADATA.values(), ids=BAD_METADATA)
def test_bad_metadata_is_refused_at_once(rig: Rig, metadata: Any) -> None:
    async def test() -> None:
        client = rig.client()
        with pytest.raises(InvalidInputError, match="metadata"):
            await ask(client.acquire("x", metadata=metadata))
        assert await ask(client.inspect()) == []

    rig.run(test())


def test_an_unknown_option_is_refused(rig: Rig) -> None:
    async def test() -> None:
        with pytest.raises(TypeError):
            await ask(rig.client().acquire("x", tll=5))

    rig.run(test())
