"""`Runtime.gather` under every runtime: works side by side, and what becomes of the slow ones."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from time import monotonic, sleep
from typing import Any

import pytest

from lockstead.core.runtime import Outcomes, Runtime, drive
from lockstead.errors import StoreError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.gather import ThreadGathering
from lockstead.runtimes.simulated import Cancelled, Process, SimulatedRuntime, World
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.redis.address import parse_url
from lockstead.stores.redis.pipelined import PipelinedNode
from tests.harness.conditions import eventually


def never(results: Any) -> bool:
    return False


def two_ended(results: Any) -> bool:
    return sum(result is not None for result in results) >= 2


class Listed:
    """Coroutines that are gathered until `decided` of the results so far; None for those that have not ended."""

    def __init__(self, works: Sequence[Coroutine[Any, Any, Any]], decided: Callable[[Any], bool]) -> None:
        self.results: list[Any] = [None] * len(works)
        self._works = works
        self._decided = decided

    def send(self, number: int) -> Coroutine[Any, Any, Any]:
        return self._works[number]

    def take(self, number: int, outcome: Any) -> None:
        self.results[number] = outcome

    def is_decided(self) -> bool:
        return self._decided(self.results)


async def gather(
    runtime: Runtime, works: Sequence[Coroutine[Any, Any, Any]], decided: Callable[[Any], bool], grace: float
) -> list[Any]:
    requests = Listed(works, decided)
    await runtime.gather(requests, range(len(works)), grace)
    return requests.results.copy()


def run_simulated(test: Callable[[SimulatedRuntime], Coroutine[Any, Any, None]]) -> None:
    world = World(0)
    process = Process(world, "p")
    task = process.start(test(SimulatedRuntime(process)))
    while not task.finished and world.step():
        pass
    world.end()
    task.outcome()


def run_asyncio(test: Callable[[AsyncRuntime], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(AsyncRuntime())

    asyncio.run(main())


@pytest.mark.parametrize(("run", "unit"), [(run_simulated, 0.01), (run_asyncio, 0.05)])
def test_tasks_overlap_and_the_slow_go_on_after_the_decision(run: Any, unit: float) -> None:
    async def test(runtime: Any) -> None:
        ended: list[int] = []

        async def work(units: int) -> int:
            await runtime.sleep(units * unit)
            ended.append(units)
            return units

        began = runtime.now()
        assert await gather(runtime, [work(3), work(1), work(2)], never, 0.0) == [3, 1, 2]
        assert 3 * unit <= runtime.now() - began < 6 * unit
        ended.clear()
        began = runtime.now()
        results = await gather(runtime, [work(1), work(20), work(2), work(6)], two_ended, unit)
        assert results == [1, None, 2, None]
        assert 3 * unit <= runtime.now() - began < 6 * unit
        await runtime.sleep(25 * unit)
        assert ended == [1, 2, 6, 20]
        assert results == [1, None, 2, None], "what was returned does not change any more"

    run(test)


def test_in_a_simulation_a_cancelled_caller_leaves_its_works_running() -> None:
    async def test(runtime: SimulatedRuntime) -> None:
        ended: list[int] = []

        async def work() -> int:
            await runtime.sleep(1.0)
            ended.append(1)
            return 1

        async def caller() -> None:
            await gather(runtime, [work(), work()], never, 0.0)

        task = runtime._process.start(caller())
        await runtime.sleep(0.5)
        task.cancel()
        await runtime.sleep(0.1)
        assert isinstance(task.error, Cancelled)
        await runtime.sleep(1.0)
        assert ended == [1, 1]

    run_simulated(test)


def test_under_asyncio_a_cancelled_caller_leaves_its_works_running() -> None:
    async def test(runtime: AsyncRuntime) -> None:
        ended: list[int] = []

        async def work() -> int:
            await asyncio.sleep(0.05)
            ended.append(1)
            return 1

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await gather(runtime, [work(), work()], never, 0.0)
        await asyncio.sleep(0.1)
        assert ended == [1, 1]

    run_asyncio(test)


def test_under_asyncio_works_let_others_go_first_and_end_with_what_they_await() -> None:
    async def test(runtime: AsyncRuntime) -> None:
        order: list[str] = []
        lost = asyncio.get_running_loop().create_future()

        async def polite(name: str) -> str:
            for _ in range(2):
                order.append(name)
                await runtime.sleep(0)
            return name

        async def waits() -> str:
            await lost
            return "found"

        asyncio.get_running_loop().call_later(0.01, lost.cancel)
        assert await gather(runtime, [polite("a"), waits(), polite("b")], never, 0.0) == ["a", None, "b"]
        assert order == ["a", "b", "a", "b"]

    run_asyncio(test)


def test_gathered_requests_to_a_closed_node_each_get_a_timeout() -> None:
    """A closed node connects anew for each request, which takes a task: a timeout must not hit the caller's."""

    async def test(runtime: AsyncRuntime) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            (deployment,), _ = parse_url(f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}/0")
            node = PipelinedNode(runtime, deployment.addresses[0])
            node.close()

            async def work() -> str:
                try:
                    await node.ask(b"", 1, 0.05)
                except StoreError as error:
                    return str(error)
                return "answered"

            for error in await gather(runtime, [work(), work()], never, 0.0):
                assert error is not None
                assert error.endswith("no answer in time")

    run_asyncio(test)


async def fail(message: str, after: float, runtime: Runtime) -> str:
    await runtime.sleep(after)
    raise StoreError(message)


def outcomes(found: list[Any]) -> list[str]:
    return [str(outcome) if isinstance(outcome, StoreError) else outcome for outcome in found]


@pytest.mark.parametrize("run", [run_simulated, run_asyncio])
def test_what_ends_with_an_exception_has_it_as_its_outcome(run: Any) -> None:
    async def test(runtime: Any) -> None:
        async def work() -> str:
            await runtime.sleep(0.01)
            return "worked"

        found = await Outcomes([fail("at once", 0.0, runtime), work(), fail("late", 0.02, runtime)]).gather(runtime)
        assert outcomes(found) == ["at once", "worked", "late"]

    run(test)


@pytest.mark.parametrize("runtime", [ThreadRuntime(), AsyncRuntime()], ids=["threads", "no loop"])
def test_without_other_tasks_what_raises_has_its_exception_as_outcome(runtime: Runtime) -> None:
    async def work(number: int) -> int:
        if number == 2:
            raise StoreError("it failed")
        return number

    assert outcomes(drive(Outcomes([work(1), work(2), work(3)]).gather(runtime))) == [1, "it failed", 3]


def test_without_a_loop_works_are_done_inline() -> None:
    async def work(number: int) -> int:
        return number

    assert drive(gather(AsyncRuntime(), [work(1), work(2)], never, 0.0)) == [1, 2]


class Peer:
    """The far ends of socket pairs, which answer in their own time."""

    def __init__(self) -> None:
        self.runtime = ThreadRuntime()
        self.ends: list[socket.socket] = []
        self.ended: list[str] = []

    async def read(self, name: str, answers_after: float, timeout: float = 5.0, messages: int = 1) -> str:
        near, far = socket.socketpair()
        self.ends += [near, far]
        for number in range(messages):
            threading.Timer(answers_after * (number + 1), lambda: far.send(b"x")).start()
        deadline = self.runtime.now() + timeout
        try:
            for _ in range(messages):
                await self.runtime.readable(near, deadline)
                near.settimeout(max(deadline - self.runtime.now(), 0.0001))
                near.recv(1)
        except TimeoutError:
            name += " timed out"
        self.ended.append(name)
        return name

    def close(self) -> None:
        for end in self.ends:
            end.close()


def test_only_the_thread_that_gathers_may_suspend_and_only_in_its_coroutines() -> None:
    runtime = ThreadRuntime()
    answers: list[bool] = []

    async def work() -> str:
        other = threading.Thread(target=lambda: answers.append(runtime.is_gathering()))
        other.start()
        other.join()
        answers.append(runtime.is_gathering())
        return "worked"

    def decided(results: Any) -> bool:
        answers.append(runtime.is_gathering())
        return False

    near, far = socket.socketpair()

    async def wait() -> str:
        far.send(b"x")
        await runtime.readable(near, inf)
        return "waited"

    assert drive(gather(runtime, [work(), wait()], decided, 0.0)) == ["worked", "waited"]
    assert answers == [False, True, False]
    assert not runtime.is_gathering()
    near.close()
    far.close()


def test_one_thread_reads_from_many_sockets_side_by_side() -> None:
    peer = Peer()
    before = threading.active_count()
    began = monotonic()
    works = [peer.read(str(number), 0.1, messages=3) for number in range(5)]
    assert drive(gather(peer.runtime, works, never, 0.0)) == ["0", "1", "2", "3", "4"]
    assert monotonic() - began < 1.0, "one after another would take 1.5 s"
    assert threading.active_count() <= before + 15
    assert not any("stragglers" in thread.name for thread in threading.enumerate())
    peer.close()


def test_one_thread_finishes_the_stragglers() -> None:
    peer = Peer()
    works = [peer.read("slow", 0.3), peer.read("a", 0.01), peer.read("b", 0.02), peer.read("slower", 0.4)]
    assert drive(gather(peer.runtime, works, two_ended, 0.01)) == [None, "a", "b", None]
    assert sum("stragglers" in thread.name for thread in threading.enumerate()) == 1
    eventually(lambda: len(peer.ended) == 4, "all have ended", within=5)
    assert peer.ended == ["a", "b", "slow", "slower"]
    peer.close()


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_silent_request_delays_the_decided_by_no_more_than_the_grace(silent: int) -> None:
    peer = Peer()
    works = [peer.read("silent" if number == silent else "quick", 0.5 * (number == silent)) for number in range(3)]
    began = monotonic()
    results = drive(gather(peer.runtime, works, two_ended, 0.05))
    assert monotonic() - began < 0.25
    assert [number for number, result in enumerate(results) if result is None] == [silent]
    eventually(lambda: len(peer.ended) == 3, "all have ended", within=5)
    peer.close()


def test_what_is_decided_from_the_outset_is_not_waited_for_beyond_the_grace() -> None:
    peer = Peer()
    began = monotonic()
    assert drive(gather(peer.runtime, [peer.read("silent", 0.5)], lambda _: True, 0.01)) == [None]
    assert monotonic() - began < 0.25
    eventually(lambda: len(peer.ended) == 1, "it has ended", within=5)
    peer.close()


def test_a_silent_socket_is_given_up_at_its_deadline() -> None:
    peer = Peer()
    began = monotonic()
    works = [peer.read("silent", 1.0, timeout=0.05), peer.read("a", 0.01)]
    assert drive(gather(peer.runtime, works, never, 0.0)) == ["silent timed out", "a"]
    assert monotonic() - began < 0.5
    sleep(1.0)
    peer.close()


def test_a_socket_closed_by_another_thread_does_not_hang_the_rest() -> None:
    runtime = ThreadRuntime()
    near, far = socket.socketpair()

    async def work() -> str:
        try:
            await runtime.readable(near, runtime.now() + 0.05)
            near.recv(1)
        except OSError:
            return "closed"
        return "read"

    near.close()
    assert drive(gather(runtime, [work()], never, 0.0)) == ["closed"]
    far.close()


def test_what_tls_has_read_ahead_counts_as_readable() -> None:
    class ReadAhead(socket.socket):
        def pending(self) -> int:
            return 3

    runtime = ThreadRuntime()
    with ReadAhead() as sock:

        async def work() -> str:
            await runtime.readable(sock, inf)
            return "went on"

        assert drive(gather(runtime, [work()], never, 0.0)) == ["went on"]


def test_gathered_coroutines_may_block_or_gather_again() -> None:
    peer = Peer()
    runtime = peer.runtime

    async def inner() -> str:
        return str(await gather(runtime, [peer.read("a", 0.02), peer.read("b", 0.01)], never, 0.0))

    async def blocks() -> str:
        await runtime.sleep(0.01)
        return "slept"

    assert drive(gather(runtime, [blocks(), inner(), peer.read("c", 0.01)], never, 0.0)) == ["slept", "['a', 'b']", "c"]
    peer.close()


def test_an_interrupted_caller_leaves_its_works_to_the_background() -> None:
    peer = Peer()

    def interrupted(results: Any) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(gather(peer.runtime, [peer.read("a", 0.02), peer.read("b", 0.03)], interrupted, 0.0))
    eventually(lambda: len(peer.ended) == 2, "both have ended", within=5)
    assert peer.ended == ["a", "b"]
    peer.close()


class Silent:
    """A request whose reply never arrives."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> None:
        raise TimeoutError

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("until", "deadline"), [(-5.0, 60.0), (60.0, 0.05)], ids=["stopped", "deadline"])
def test_the_wait_for_the_last_request_ends_though_the_thread_was_stopped_meanwhile(
    until: float, deadline: float
) -> None:
    runtime = ThreadRuntime()
    request = Silent(runtime.now() + deadline)
    gathering: ThreadGathering[None] = ThreadGathering(runtime, Listed([], never))
    gathering._waiting = {request.fileno(): (0, request)}
    gathering._await_last(runtime.now() + until)
    assert gathering._waiting
    request.close()
