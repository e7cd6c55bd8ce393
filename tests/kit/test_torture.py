"""The few lines that torture a store of one's own; and that they find what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples import own_store
from lockstead.port import Capabilities, Runtime
from lockstead.stores import register
from lockstead.testing.torture import Arena, Report, torture

SECONDS = 4.0
SEED = 1


@contextmanager
def file_store(directory: Path) -> Iterator[Arena]:
    yield Arena(name="file", url=f"file://{directory}", module="examples.own_store")


@contextmanager
def leaky_store(directory: Path) -> Iterator[Arena]:
    yield Arena(name="leaky", url=f"leaky://{directory}", module=__name__)


class UnfairStore(own_store.FileStore):
    capabilities = Capabilities(fifo=False, push=False)


class LeakyStore(own_store.FileStore):
    """A leave removes the next place as well."""

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        was_there = await super().leave(name, owner, timeout, tombstone)
        for line in await self.inspect(name, exact=True):
            await super().leave(name, line.places[0].owner, timeout)
        return was_there


def open_leaky(url: str, runtime: Runtime) -> LeakyStore:
    return LeakyStore(runtime, url.removeprefix("leaky://"))


register("leaky", open_leaky)
register("unfair", lambda url, runtime: UnfairStore(runtime, url.removeprefix("unfair://")))


@pytest.fixture(scope="module")
def reports() -> Iterator[list[Report]]:
    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(lambda arena: torture(arena, SECONDS, SEED), (file_store, leaky_store)))
    yield reports
    for report in reports:
        report.discard()


def test_a_third_party_store_passes_the_torture(reports: list[Report]) -> None:
    assert reports[0].is_good, str(reports[0])


def test_the_torture_requests_only_what_a_store_supports(reports: list[Report]) -> None:
    assert {"lock granted", "read granted", "permit granted", "leader granted"} <= {*reports[0].operations}
    assert "rate requests allowed" not in reports[0].operations


def test_violations_of_a_wrong_store_are_reported(reports: list[Report]) -> None:
    assert reports[1].findings & {"exclusion", "retractions"}, str(reports[1])


def test_a_store_without_fifo_is_not_checked_for_fifo(tmp_path: Path) -> None:
    assert Arena(name="file", url=f"file://{tmp_path}").kept().fifo
    assert not Arena(name="unfair", url=f"unfair://{tmp_path}").kept().fifo
