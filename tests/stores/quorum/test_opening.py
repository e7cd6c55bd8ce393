"""Which servers may be the nodes of a quorum."""

from __future__ import annotations

import pytest
import redis

from lockstead import DistributedLock
from lockstead.errors import InvalidInputError


@pytest.mark.parametrize("url", ["redlock://:secret@a,b:6379,a:6379/0", "redlock://a,a,b"])
def test_a_server_cannot_be_two_nodes_of_a_quorum(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"redis://a:6379 is named 2 times: .* different servers") as refused:
        DistributedLock(url)
    assert "secret" not in str(refused.value)


def test_a_server_cannot_be_two_nodes_by_two_databases() -> None:
    clients = [redis.Redis(host, db=number) for number, host in enumerate("aba")]
    with pytest.raises(InvalidInputError, match="redis://a:6379 is named 2 times"):
        DistributedLock(clients)


def test_different_servers_may_be_nodes() -> None:
    DistributedLock("redlock://a,b,a:6380").close()
