"""What log lines call a store, and the commands that errors advise."""

from __future__ import annotations

from typing import Any

import pytest

from lockstead import DistributedLock, InvalidInputError, LockAcquisitionError


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


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("localhost", "redis://localhost"),
        ("localhost:6379", "redis://localhost:6379"),
        ("127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("sentinel-1:26379", "redis+sentinel://sentinel-1:26379"),
        ("db.example.org:5432/app", "postgresql://db.example.org:5432/app"),
        ("redis:/localhost", "redis://localhost"),
        ("redis:localhost:6379", "redis://localhost:6379"),
        ("rediss:/user:word@localhost", "rediss://…"),
        ("postgres:/h/db", "postgres://h/db"),
        ("reddis://localhost", "redis://…"),
        ("sqlite:/x", "sqlite:////x"),
        ("sqlite:x.db", "sqlite:///x.db"),
        ("sqlite", "sqlite://"),
        ("sqlite3:///x.db", "sqlite://…"),
        ("locks.db", "sqlite:///locks.db"),
        ("/var/lib/locks.db", "sqlite:////var/lib/locks.db"),
        ("memory", "memory://"),
        (":memory:", "memory://"),
    ],
)
def test_a_text_that_is_almost_a_url_is_refused_with_the_one_that_is_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        DistributedLock(text)
    assert f"; did you mean {meant!r}? there are memory://, " in str(caught.value)
    assert str(caught.value).startswith("store: ")
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql+asyncpg://u:word@h/db", "does not name the driver asyncpg: write postgresql://…"),
        ("sqlite+aiosqlite:///x.db", "does not name the driver aiosqlite: write sqlite://…"),
        ("sqlite:///:memory:", "memory://"),
        ("http://localhost:6379", "no store has this scheme; there are memory://"),
    ],
)
def test_a_url_of_another_library_is_refused_with_what_to_write(url: str, advice: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        DistributedLock(url)
    assert advice in str(caught.value)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("memory://", {"ttl": "5"}, "ttl"),
        ("memory://", {"retry": 3}, "retry"),
        ("redis://h", {"key_prefix": 5}, "key_prefix"),
        ("redis://h", {"min_replicas": "a"}, "min_replicas"),
        ("redis://h?min_replicas=a", {}, "redis://…: min_replicas"),
        ("redis://h", {"confirm_grants": "no"}, "confirm_grants"),
        ("redis://h", {"strict": 1}, "strict"),
        ("redis://h?strict=maybe", {}, "redis://…: strict"),
        ("redlock://a,b,c", {"node_timeout": "1"}, "node_timeout"),
        ("redlock://a,b,c?node_timeout=x", {}, "redlock://…: node_timeout"),
        ("postgresql://h", {"schema": 5}, "schema"),
        ("postgresql://h", {"push": "no"}, "push"),
        ("postgresql://h", {"advisory": 1}, "advisory"),
        ("postgresql://h", {"listen": 5}, "listen"),
        ("postgresql://h", {"listen": "h:5432"}, "listen"),
        ("postgresql://h", {"pooler": "transaction"}, "pooler"),
        (5, {}, "store"),
        (["redis://a", "redis://b"], {}, "store"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_argument(url: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{named} (must|may only) be "):
        DistributedLock(url, **options)
