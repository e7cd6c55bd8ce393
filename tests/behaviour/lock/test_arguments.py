"""What is no name, ttl, timeout, metadata or option is refused at once, by both façades."""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta
from typing import Any

import pytest

from lockstead import InvalidInputError, UnknownOptionError
from lockstead.testing.contract.rigs import Rig, as_function, ask, cannot_reserve

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


BAD_OPTIONS: dict[str, tuple[str, Any, str]] = {
    "retry-number": ("retry", 3, r"RetryPolicy\(max_retries=3\), got 3"),
    "retry-true": ("retry", True, "RetryPolicy"),
    "on_lost-number": ("on_lost", 5, "on_lost must be a function, or None, got 5"),
    "on_lost-text": ("on_lost", "log", "on_lost must be a function"),
    "renew-text": ("renew", "no", "renew must be True or False, got 'no'"),
    "renew-none": ("renew", None, "renew must be True or False"),
    "renew-number": ("renew", 1, "renew must be True or False"),
    "reentrant-text": ("reentrant", "yes", "reentrant must be True or False, got 'yes'"),
    "reentrant-none": ("reentrant", None, "reentrant must be True or False"),
    "metadata-list": ("metadata", [], "metadata must be a mapping that JSON can express, got list"),
    "metadata-pairs": ("metadata", [("a", 1)], "metadata must be a mapping"),
    "metadata-no": ("metadata", False, "metadata must be a mapping"),
    "timeout-text": ("timeout", "5", "timeout must be seconds or a timedelta, got str"),
    "timeout-no": ("timeout", False, "timeout must be seconds or a timedelta, got bool"),
    "at_least-none": ("at_least", None, "at_least must be seconds or a timedelta, got NoneType"),
    "at_least-no": ("at_least", False, "at_least must be seconds or a timedelta, got bool"),
    "at_least-nan": ("at_least", float("nan"), "at_least must not be negative or NaN"),
    "at_least-long": ("at_least", 10**10, "at_least must be at most a year"),
}


@pytest.mark.no_store
@pytest.mark.parametrize(("option", "value", "problem"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_a_bad_value_of_an_option_is_refused_at_the_call(rig: Rig, option: str, value: Any, problem: str) -> None:
    """A guard checks when it is made: a decorator at import, not at the first call."""

    async def test() -> None:
        client = rig.client()

        def work() -> None:
            raise AssertionError

        given = {option: value}
        calls: dict[str, Any] = {
            "acquire": lambda: client.acquire("x", **given),
            "try_acquire": lambda: client.try_acquire("x", **given),
            "with_lock": lambda: client.with_lock("x", as_function(rig, work), **given),
            "lock": lambda: client.lock("x", **given),
            "locked": lambda: client.locked("x", **given),
            "read_lock": lambda: client.read_lock("x", **given),
            "write_lock": lambda: client.write_lock("x", **given),
            "semaphore": lambda: client.semaphore("x", 3, **given),
            "multi_lock": lambda: client.multi_lock(["x", "y"], **given),
            "once": lambda: client.once("x", 60, **given),
        }
        for name, call in calls.items():
            if option in inspect.signature(getattr(client, name)).parameters:
                with pytest.raises(InvalidInputError, match=problem):
                    await ask(call())
        assert await ask(client.inspect()) == []

    rig.run(test())


@pytest.mark.no_store
def test_a_bad_value_of_an_option_of_a_client_or_an_election_is_refused(rig: Rig) -> None:
    async def test() -> None:
        with pytest.raises(InvalidInputError, match="retry must be a RetryPolicy"):
            rig.client(retry=3)
        client = rig.client()
        for option in ("on_elected", "on_lost"):
            with pytest.raises(InvalidInputError, match=f"{option} must be a function, or None, got 5"):
                client.election("x", **{option: 5})
        with pytest.raises(InvalidInputError, match="metadata must be a mapping"):
            client.election("x", metadata=[])
        with pytest.raises(InvalidInputError, match="grace must be seconds"):
            client.election("x", grace="1")
        with pytest.raises(InvalidInputError, match="metadata must be a mapping"):
            client.singleton("x", at_most=60, metadata=[])

    rig.run(test())


@pytest.mark.no_store
def test_a_coroutine_function_as_a_callback_is_for_asyncio_only(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()

        async def on_lost(_: object) -> None:
            raise AssertionError

        calls: list[Any] = [
            lambda: client.lock("x", on_lost=on_lost),
            lambda: client.multi_lock(["x"], on_lost=on_lost),
            lambda: client.once("x", 60, on_lost=on_lost),
            lambda: client.election("x", on_lost=on_lost),
            lambda: client.election("x", on_elected=on_lost),
        ]
        for call in calls:
            if rig.runtime_name == "asyncio":
                call()
                continue
            with pytest.raises(InvalidInputError, match=r"on_lost is a coroutine function.*use AsyncDistributedLock"):
                call()

    rig.run(test())


@pytest.mark.no_store
def test_work_of_the_other_kind_is_refused_before_anything_is_held(rig: Rig) -> None:
    """A blocking client would release the lock, or mark the key as done, before the work has begun."""

    async def test() -> None:
        client = rig.client()

        async def coroutine() -> None:
            raise AssertionError

        def plain() -> None:
            raise AssertionError

        def generator() -> Any:
            yield AssertionError

        is_blocking = rig.runtime_name == "threads"
        other = coroutine if is_blocking else plain
        problem = "use AsyncDistributedLock" if is_blocking else "is not a coroutine function: use DistributedLock"
        for work, why in ((other, problem), (functools.partial(other), problem), (generator, "generator"), (5, "call")):
            for call in (client.once("x", 60).run, functools.partial(client.with_lock, "x")):
                with pytest.raises(InvalidInputError, match=why):
                    await ask(call(work))
        assert await ask(client.inspect()) == []

    rig.run(test())


def test_a_lambda_that_returns_a_coroutine_is_for_asyncio_only(rig: Rig) -> None:
    async def test() -> None:
        client = rig.client()
        ran: list[str] = []

        async def work(name: str) -> str:
            ran.append(name)
            return name

        calls: list[Any] = [lambda: client.with_lock("x", lambda: work("x"))]
        if not cannot_reserve(client):
            calls.append(lambda: client.once("x", 60).run(lambda: work("x")))
        for call in calls:
            if rig.runtime_name == "asyncio":
                await ask(call())
                continue
            with pytest.raises(InvalidInputError, match=r"returned a coroutine, .*work.*use AsyncDistributedLock"):
                await ask(call())
            assert await ask(client.info("x")) is None
        assert len(ran) == (len(calls) if rig.runtime_name == "asyncio" else 0)

    rig.run(test())


UNKNOWN: dict[str, str] = {
    "acquire tll": "did you mean 'ttl'?",
    "acquire timout": "did you mean 'timeout'?",
    "acquire blocking_timeout": "did you mean 'timeout'?",
    "acquire blocking": "blocking=False is try_acquire(…)",
    "acquire expire": "did you mean 'ttl'?",
    "acquire lock_timeout": "did you mean 'ttl'?",
    "acquire auto_renewal": "did you mean 'renew'?",
    "acquire poll_interval": "does not poll: leave it out",
    "acquire sleep": "does not poll: leave it out",
    "acquire thread_local": "any thread may release it: leave it out",
    "acquire id": "see as holder_id: leave it out",
    "acquire max_retries": "did you mean 'retry'?",
    "acquire nothing_like_it": "it has ttl, timeout, metadata, max_hold, at_least, renew, reentrant, on_lost, retry",
    "try_acquire timeout": "it never waits; acquire(…, timeout=…) does",
    "try_acquire blocking_timeout": "it never waits; acquire(…, timeout=…) does",
    "lock expire": "did you mean 'ttl'?",
    "locked recursive": "did you mean 'reentrant'?",
    "read_lock blocking_timeout": "did you mean 'timeout'?",
    "write_lock metdata": "did you mean 'metadata'?",
    "multi_lock reentrant": "a multi-lock is not re-entrant",
    "once at_least": "at_least is for locks",
    "once reentrant": "reentrant is for locks",
    "once expire": "did you mean 'ttl'?",
    "semaphore timout": "did you mean 'timeout'?",
    "singleton at_leest": "did you mean 'at_least'?",
    "election timeout": "it is an option of campaign(…) and lead(…)",
    "election on_elect": "did you mean 'on_elected'?",
    "rate_limiter timeout": "it is an option of the limiter's acquire(…)",
    "rate_limiter max_burst": "did you mean 'burst'?",
    "with_lock wait": "did you mean 'timeout'?",
}
POSITIONAL: dict[str, tuple[Any, ...]] = {
    "multi_lock": (["x"],),
    "once": ("x", 60),
    "rate_limiter": ("x", 1, 1),
    "semaphore": ("x", 1),
    "with_lock": ("x", None),
}


@pytest.mark.no_store
@pytest.mark.parametrize(("call", "advice"), UNKNOWN.items(), ids=UNKNOWN)
def test_an_unknown_option_names_the_right_one(rig: Rig, call: str, advice: str) -> None:
    """Also the words of redis-py, python-redis-lock, filelock and threading."""

    async def test() -> None:
        method, option = call.split()
        client = rig.client()
        required = {"at_most": 60} if method == "singleton" else {}
        with pytest.raises(UnknownOptionError) as refusal:
            await ask(getattr(client, method)(*POSITIONAL.get(method, ("x",)), **required, **{option: 5}))
        assert str(refusal.value).startswith(f"{method}() has no option '{option}': ")
        assert advice in str(refusal.value)
        assert isinstance(refusal.value, TypeError)
        assert isinstance(refusal.value, InvalidInputError)
        assert (refusal.value.option, option in refusal.value.accepted) == (option, False)
        assert await ask(client.inspect()) == []

    rig.run(test())


@pytest.mark.no_store
def test_an_unknown_option_of_a_client_names_the_right_one(rig: Rig) -> None:
    async def test() -> None:
        title = "DistributedLock" if rig.runtime_name == "threads" else "AsyncDistributedLock"
        for option, advice in {"tll": "did you mean 'ttl'", "expire": "did you mean 'ttl'", "foo": "the store"}.items():
            with pytest.raises(UnknownOptionError, match=rf"^{title}\(\) has no option '{option}': .*{advice}"):
                rig.client(**{option: 5})

    rig.run(test())
