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
    """Says whom it wakes when it is told to."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[bytes] = SimpleQueue()

    def hear(self, timeout: float) -> list[bytes]:
        return [self.messages.get(timeout=30.0)]

    def probe(self) -> None: ...

    def shut_down(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


def test_the_longest_waiting_thread_listens_next_and_no_other_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Channel()
    appointed: list[bool] = []

    def wake_up(waiter: _Waiter) -> None:
        appointed.append(ear._listener is waiter)
        original(waiter)

    original = _Waiter.open
    monkeypatch.setattr(_Waiter, "open", wake_up)

    async def subscribe(timeout: float) -> Channel:
        return channel

    ear = BlockingSubscriber(ThreadRuntime(), subscribe, str.encode, Wake.GRANT)
    ear._connection = channel  # else everybody would be told to ask again
    ear._liveness.begin(ThreadRuntime.now())
    owners = [f"me/{number}" for number in range(4)]
    with ThreadPoolExecutor(len(owners)) as threads:
        waits = []
        for number, owner in enumerate(owners):
            ear.expect(owner)
            waits.append(threads.submit(drive, ear.wait(owner, 60.0)))
            while ear._listener is None or len(ear._followers) < number:
                sleep(0.001)
        for number, owner in enumerate(owners):
            assert ear._listener is ear._waiters[owner]
            channel.messages.put(owner.encode())
            assert waits[number].result(30.0) is Wake.GRANT
    assert ear._listener is None
    assert all(appointed)
