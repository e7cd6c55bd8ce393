"""How threads that wait listen for each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import sleep

import pytest

from lockstead.core.model import Wake
from lockstead.core.runtime import drive
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.transport.subscriber import BlockingSubscriber, _Waiter


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

    subscriber = BlockingSubscriber(ThreadRuntime(), subscribe, str.encode, Wake.GRANT)
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
            assert subscriber._listener is subscriber._waiters[owner]
            channel.messages.put(owner.encode())
            assert waits[number].result(30.0) is Wake.GRANT
    assert subscriber._listener is None
    assert all(appointed)
