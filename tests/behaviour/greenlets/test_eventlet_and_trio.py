"""eventlet is refused, and an error names what users of trio can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstead import AsyncDistributedLock, UnsupportedError
from lockstead.core.runtime import drive
from tests.behaviour.greenlets.running import run
from tests.harness.sqlite import url_of


@pytest.mark.parametrize("order", ["patched-first", "imported-first"])
def test_eventlet_is_refused_when_a_client_is_made(order: str) -> None:
    run("unpatched", "in_eventlet", order)


def test_an_error_names_threads_to_users_of_trio_and_they_work(tmp_path: Path) -> None:
    run("unpatched", "in_trio", url_of(tmp_path / "locks.db"))


@pytest.mark.parametrize("url", ["memory://", "redis://localhost", "postgresql://localhost"])
def test_a_client_for_asyncio_without_a_loop_says_what_it_needs(url: str) -> None:
    locks = AsyncDistributedLock(url)
    for use in (locks.acquire, locks.try_acquire, locks.info, locks.is_locked):
        with pytest.raises(UnsupportedError, match=r"needs a running asyncio event loop.*asyncio\.run"):
            drive(use("job"))
