"""Fence checks: a holder that was overtaken writes nothing any more."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given, settings

from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    FenceGate,
    InvalidInputError,
    LockError,
    StaleFenceError,
)
from lockstead.fencing import CHECK_FENCE_LUA, parse_fence
from tests.harness.conditions import DEADLINE, eventually
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.redis import RedisServer


def in_line(gate: FenceGate, resource: str, count: int) -> None:
    eventually(lambda: len(gate._queues.get(resource, ())) == count, f"{count} in line for {resource}")


class Writer:
    """A thread that stays in a checked block until `finish` is set."""

    def __init__(self, pool: ThreadPoolExecutor, gate: FenceGate, fence: int, journal: list[int]) -> None:
        self.entered, self.finish = threading.Event(), threading.Event()
        self.fence = fence
        self.outcome: Future[None] = pool.submit(self._write, gate, journal)

    def _write(self, gate: FenceGate, journal: list[int]) -> None:
        with gate.checked("ledger", self.fence):
            self.entered.set()
            assert self.finish.wait(DEADLINE)
            journal.append(self.fence)


def test_the_same_and_newer_fences_pass_and_an_older_one_does_not() -> None:
    gate = FenceGate()
    for fence in (7, 7, 9):
        gate.check("ledger", fence)
    with pytest.raises(StaleFenceError, match="fence 8 is stale: 'ledger' has seen fence 9 already") as caught:
        gate.check("ledger", 8)
    assert (caught.value.name, caught.value.fence, caught.value.newest) == ("ledger", 8, 9)
    with pytest.raises(StaleFenceError), gate.checked("ledger", 8):
        pytest.fail("a stale writer got in")
    gate.check("ledger", 9)
    gate.check("another", 1)


def test_handles_of_both_facades_are_accepted_for_their_fences() -> None:
    gate = FenceGate()

    async def overtake() -> None:
        async with AsyncDistributedLock("memory://fencing") as locks, locks.lock("ledger") as new:
            gate.check("ledger", new)

    with DistributedLock("memory://fencing") as locks:
        with locks.lock("ledger") as old, gate.checked("ledger", old):
            pass
        asyncio.run(overtake())
        with pytest.raises(StaleFenceError):
            gate.check("ledger", old)


def test_only_exclusive_handles_of_one_name_are_taken() -> None:
    gate = FenceGate()
    with DistributedLock("memory://fencing") as locks:
        for shared in (locks.semaphore("permits", 2).acquire(), locks.read_lock("report").acquire()):
            with pytest.raises(InvalidInputError, match=f"'{shared.name}' is shared"):
                gate.check("x", shared)
        several = locks.multi_lock(["a", "b"]).acquire()
        with pytest.raises(InvalidInputError, match="the handle of one name"):
            gate.check("a", several)  # type: ignore[arg-type]
        gate.check("a", several.fences["a"])
        gate.check("x", locks.write_lock("page").acquire())


@pytest.mark.parametrize(
    ("resource", "fence"), [("x", 0), ("x", -1), ("x", True), ("x", "7"), ("x", 2**63), ("", 7), (b"x", 7)]
)
def test_an_invalid_resource_or_fence_is_refused(resource: str, fence: int) -> None:
    gate = FenceGate()
    with pytest.raises(InvalidInputError):
        gate.check(resource, fence)
    with pytest.raises(InvalidInputError):
        gate.checked(resource, fence)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, float("nan"), "3"])
def test_the_size_of_a_gate_is_a_whole_number(most: int) -> None:
    with pytest.raises(InvalidInputError, match="max_resources must be"):
        FenceGate(max_resources=most)


def test_a_newer_writer_waits_for_the_older_ones_write() -> None:
    gate, journal = FenceGate(), list[int]()
    with ThreadPoolExecutor() as pool:
        old = Writer(pool, gate, 7, journal)
        assert old.entered.wait(DEADLINE)
        new = Writer(pool, gate, 9, journal)
        in_line(gate, "ledger", 2)
        with gate.checked("another", 1):
            pass
        assert not new.entered.is_set()
        new.finish.set()
        old.finish.set()
    old.outcome.result()
    new.outcome.result()
    assert journal == [7, 9]
    assert not gate._queues


def test_a_writer_that_is_overtaken_while_it_waits_is_refused() -> None:
    gate, journal = FenceGate(), list[int]()
    with ThreadPoolExecutor() as pool:
        writers = []
        for count, fence in enumerate((7, 8, 9), 1):
            writers.append(Writer(pool, gate, fence, journal))
            in_line(gate, "ledger", count)
        for writer in writers:
            writer.finish.set()
    with pytest.raises(StaleFenceError):
        writers[1].outcome.result()
    assert journal == [7, 9]
    assert not gate._queues


def test_a_block_that_fails_lets_the_next_one_in_and_its_fence_was_seen() -> None:
    gate = FenceGate()
    with pytest.raises(ZeroDivisionError), gate.checked("ledger", 9):
        raise ZeroDivisionError
    with gate.checked("ledger", 9), pytest.raises(StaleFenceError):
        gate.check("ledger", 8)


def test_tasks_wait_without_stopping_their_loop_and_may_be_cancelled() -> None:
    gate, journal = FenceGate(), list[int]()

    async def write(fence: int, finish: asyncio.Event) -> None:
        async with gate.checked("ledger", fence):
            await finish.wait()
            journal.append(fence)

    async def scenario() -> None:
        finish = asyncio.Event()
        tasks = [asyncio.create_task(write(fence, finish)) for fence in (7, 8, 8, 8)]
        await asyncio.sleep(0)
        assert len(gate._queues["ledger"]) == 4
        tasks[1].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0)
        assert len(gate._queues["ledger"]) == 2
        finish.set()
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False, True]

    asyncio.run(scenario())
    assert journal == [7, 8]
    assert not gate._queues


def test_a_task_cancelled_as_its_turn_comes_passes_it_on() -> None:
    gate = FenceGate()

    async def write(finish: asyncio.Event) -> None:
        async with gate.checked("ledger", 7):
            await finish.wait()

    async def scenario() -> None:
        finish = asyncio.Event()
        finish.set()
        with gate.checked("ledger", 7):
            cancelled, last = (asyncio.create_task(write(finish)) for _ in range(2))
            await asyncio.sleep(0)
        cancelled.cancel()
        async with asyncio.timeout(DEADLINE):
            await last
        assert cancelled.cancelled()

    asyncio.run(scenario())
    assert not gate._queues


def test_a_thread_does_not_wait_for_itself() -> None:
    gate = FenceGate()
    check = gate.checked("ledger", 7)
    with check:
        with pytest.raises(LockError, match="use async with"), check:
            pytest.fail("two are in")
        assert len(gate._queues["ledger"]) == 1
    with check:
        pass


def test_a_task_does_not_wait_for_itself() -> None:
    gate = FenceGate()
    check = gate.checked("ledger", 7)

    async def nest() -> None:
        async with check:
            with pytest.raises(LockError, match="this task would wait"):
                async with check:
                    pytest.fail("two are in")
            assert len(gate._queues["ledger"]) == 1
        with check, pytest.raises(LockError, match="this task would wait"):
            async with check:
                pytest.fail("two are in")

    asyncio.run(asyncio.wait_for(nest(), DEADLINE))
    assert not gate._queues


def test_threads_and_tasks_of_several_loops_write_one_at_a_time_in_order_of_fences() -> None:
    gate, journal, inside = FenceGate(), list[int](), list[int]()
    fences = iter(range(1, 10**9))

    def write(fence: int) -> None:
        inside.append(fence)
        assert inside == [fence]
        time.sleep(0)
        journal.append(fence)
        inside.remove(fence)

    def draw(chance: random.Random) -> int:
        return max(next(fences) - chance.randrange(4), 1)

    def be_a_thread(seed: int) -> int:
        chance, refused = random.Random(seed), 0
        for _ in range(100):
            try:
                with gate.checked("ledger", fence := draw(chance)):
                    write(fence)
            except StaleFenceError:
                refused += 1
        return refused

    async def be_a_task(seed: int) -> int:
        chance, refused = random.Random(seed), 0
        for _ in range(50):
            try:
                async with gate.checked("ledger", fence := draw(chance)):
                    await asyncio.sleep(0)
                    write(fence)
            except StaleFenceError:
                refused += 1
        return refused

    async def be_a_loop() -> int:
        return sum(await asyncio.gather(be_a_task(1), be_a_task(2)))

    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(be_a_thread, seed) for seed in range(2)]
        works += [pool.submit(asyncio.run, be_a_loop()) for _ in range(2)]
    refused = sum(work.result() for work in works)
    assert len(journal) + refused == 400
    assert journal == sorted(journal)
    assert not gate._queues


@settings(deadline=None)
@given(st.none() | st.integers(1, 4), st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 20))))
def test_no_stale_fence_passes_however_small_the_gate_is(most: int | None, asked: list[tuple[str, int]]) -> None:
    gate = FenceGate(max_resources=most)
    newest: dict[str, int] = {}
    for resource, fence in asked:
        try:
            gate.check(resource, fence)
        except StaleFenceError as error:
            assert fence < error.newest <= max(newest.values())  # noqa: PT017 - not every one is stale
            assert most is not None or fence < newest[resource]
        else:
            assert fence >= newest.get(resource, 0)
            newest[resource] = fence
        assert len(gate._newest) <= (inf if most is None else most)


def test_a_gate_evicts_the_least_recently_used_resource() -> None:
    gate = FenceGate(max_resources=2)
    for number in range(4, 9):
        gate.check("leader", 3)
        gate.check(f"job {number}", number)
    with pytest.raises(StaleFenceError, match="'job 6' is not in this gate, which has dropped fences up to 7"):
        gate.check("job 6", 6)
    gate.check("job 7", 7)


def test_a_stale_fence_of_an_evicted_resource_stays_refused() -> None:
    gate = FenceGate(max_resources=2)
    for resource, fence in [("old", 1), ("new", 9), ("old", 1), ("newer", 10), ("newest", 11)]:
        gate.check(resource, fence)
    with pytest.raises(StaleFenceError):
        gate.check("new", 8)


@pytest.mark.parametrize("text", ["7", "007", " 7\t"])
def test_a_fence_is_read_from_a_header(text: str) -> None:
    assert parse_fence(text) == 7
    assert parse_fence(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize("text", [None, "", " ", "0", "-7", "+7", "7.0", "7 8", "1_0", "\u0667", str(2**63), "9" * 99])
def test_an_invalid_fence_in_a_header_is_refused(text: str | None) -> None:
    with pytest.raises(InvalidInputError, match=r"is not a fence|there is no fence"):
        parse_fence(text)


def test_a_lua_script_writes_only_under_the_newest_fence(
    key_prefix: str, shared_servers: Callable[[Flavour], RedisServer]
) -> None:
    write = f"{CHECK_FENCE_LUA}\nif check_fence(KEYS[1], ARGV[1]) then return redis.call('SET', KEYS[2], ARGV[2]) end"
    fence = 1_800_000_000_000_000
    with redis.Redis(port=shared_servers(VALKEY9).port, decode_responses=True) as client:
        keys = (f"{key_prefix}fence", f"{key_prefix}ledger")

        def attempt(number: int, text: str) -> bool:
            return client.eval(write, 2, *keys, str(number), text) is not None

        assert [attempt(fence, "a"), attempt(fence, "b"), attempt(fence + 1, "c")] == [True] * 3
        assert not attempt(fence, "late")
        assert client.get(keys[1]) == "c"
