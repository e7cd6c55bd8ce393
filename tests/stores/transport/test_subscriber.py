"""How threads that wait listen for each other, and what is logged when no message can arrive."""

from __future__ import annotations

import asyncio
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import sleep

import pytest

from lockstead.core.model import Wake
from lockstead.core.runtime import drive
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.transport.subscriber import BlockingSubscriber, LoopSubscriber, OnLost, OnMessage, _Waiter


class Channel:
    """Wakes the owners that a test names."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[bytes] = SimpleQueue()

    def receive(self, timeout: float) -> list[bytes]:
        return [self.messages.get(timeout=30.0)]

    def ping(self) -> None: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def test_the_longest_waiting_thread_listens_next_and_no_other_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    appointed: list[bool] = []

    def wake_up(waiter: _Waiter) -> None:
        appointed.append(subscriber._listener is waiter)
        original(waiter)

    original = _Waiter.notify
    monkeypatch.setattr(_Waiter, "notify", wake_up)

    async def subscribe(timeout: float) -> Channel:
        return channel

    subscriber = BlockingSubscriber(ThreadRuntime(), "test://server", subscribe, str.encode, Wake.GRANT)
    subscriber._connection = channel  # else all waiters would be woken to ask again
    subscriber._liveness.start(ThreadRuntime.now())
    owners = [f"me/{number}" for number in range(4)]
    with ThreadPoolExecutor(len(owners)) as threads:
        waits = []
        for number, owner in enumerate(owners):
            subscriber.expect(owner)
            waits.append(threads.submit(drive, subscriber.wait(owner, 60.0)))
            while subscriber._listener is None or len(subscriber._followers) < number:
                sleep(0.001)
        for number, owner in enumerate(owners):
            assert owner not in subscriber._followers, "it listens"
            channel.messages.put(owner.encode())
            assert waits[number].result(30.0) is Wake.GRANT
    assert subscriber._listener is None
    assert all(appointed)


class Broken(Channel):
    is_good = True

    def receive(self, timeout: float) -> list[bytes]:
        msg = "the server closed the connection"
        raise ConnectionResetError(msg)

    def retire(self) -> None: ...


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "subscription" in record.getMessage()]


RESTORED = r"test://server: subscription restored after \d+\.\d s: waiters are woken again"


def test_a_lost_subscription_is_logged_once_and_once_when_it_is_restored(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstead")
    channel = Channel()
    attempts: list[Channel | Exception] = [Broken(), OSError("refused"), OSError("refused"), channel]

    async def subscribe(timeout: float) -> Channel:
        attempt = attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        return attempt

    subscriber = BlockingSubscriber(ThreadRuntime(), "test://server", subscribe, str.encode, Wake.GRANT)
    subscriber.expect("me/1")
    while attempts:
        assert drive(subscriber.wait("me/1", 60.0)) is Wake.HINT
    lost, restored = lines_of(caplog)
    assert lost == (
        "test://server: subscription lost (the server closed the connection): waiters poll until it is restored"
    )
    assert re.fullmatch(RESTORED, restored)


def test_tasks_log_a_lost_subscription_in_the_same_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstead")
    first = Broken()
    attempts: list[Broken | Exception] = [first, OSError("refused"), OSError("refused"), Broken()]
    losses: list[OnLost] = []

    async def subscribe(timeout: float, on_message: OnMessage, on_lost: OnLost) -> Broken:
        attempt = attempts.pop(0)
        if isinstance(attempt, Exception):
            raise attempt
        losses.append(on_lost)
        return attempt

    async def main() -> None:
        subscriber = LoopSubscriber(AsyncRuntime(), "test://server", subscribe, str.encode, Wake.GRANT)
        subscriber.expect("me/1")
        await subscriber.wait("me/1", 0.01)
        assert lines_of(caplog) == []
        first.is_good = False
        losses[0]()
        assert len(lines_of(caplog)) == 1, "at once, not when the next one waits"
        while attempts:
            await subscriber.wait("me/1", 0.01)

    asyncio.run(main())
    lost, restored = lines_of(caplog)
    assert lost == "test://server: subscription lost (the connection was closed): waiters poll until it is restored"
    assert re.fullmatch(RESTORED, restored)


def test_a_subscription_that_is_lost_while_no_task_waits_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lockstead")
    losses: list[OnLost] = []

    async def subscribe(timeout: float, on_message: OnMessage, on_lost: OnLost) -> Broken:
        losses.append(on_lost)
        return Broken()

    async def main() -> None:
        subscriber = LoopSubscriber(AsyncRuntime(), "test://server", subscribe, str.encode, Wake.GRANT)
        subscriber.expect("me/1")
        await subscriber.wait("me/1", 0.01)
        subscriber.forget("me/1")
        losses[0]()

    asyncio.run(main())
    assert lines_of(caplog) == []
