"""What log lines call a store, and the commands that errors advise."""

from __future__ import annotations

import pytest

from lockstead import DistributedLock, LockAcquisitionError


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://[::1]:7/2", "redis://[::1]:7/2"),
        ("unix:///run/a%0Ab.sock", r"unix:///run/a\nb.sock"),
        ("redis+sentinel://h:1/my%0Aservice", r"redis+sentinel://h:1/my\nservice"),
        ("postgresql://[::1]:7/db", "postgresql://[::1]:7/db"),
        ("postgresql://127.0.0.1:1,[::1]:2/db", "postgresql://127.0.0.1,[::1]:1,2/db"),
        ("postgresql://h/d%0Ab", r"postgresql://h/d\nb"),
        ("postgresql+advisory://h/d%0Ab", r"postgresql+advisory://h/d\nb"),
    ],
)
def test_an_address_is_one_line_with_ipv6_hosts_in_brackets(url: str, address: str) -> None:
    with DistributedLock(url) as locks:
        assert locks._engine.store.address == address


@pytest.mark.parametrize(
    ("name", "command"),
    [("a", "lockstead show a"), ("a b", "lockstead show 'a b'"), ("--json", "lockstead show -- --json")],
)
def test_the_advised_command_takes_any_name_for_a_name(name: str, command: str) -> None:
    with DistributedLock("memory://advice") as locks, DistributedLock("memory://advice") as other, locks.lock(name):
        with pytest.raises(LockAcquisitionError) as caught:
            other.acquire(name, timeout=0)
        assert f"`{command}`" in str(caught.value)
