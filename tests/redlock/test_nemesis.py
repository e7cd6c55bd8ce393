"""Redlock on five real servers, of which any two are killed, paused or emptied, again and again."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from leasehold import DistributedLock, StoreError
from tests.processes.helpers import eventually
from tests.redlock.worker import NAME, TTL
from tests.servers.redis import RedisServer

SECONDS = float(os.environ.get("LEASEHOLD_NEMESIS_SECONDS", "20"))
WORKERS = ("threads", "threads", "asyncio")


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    """Give five servers; what two of them have written is there again after a restart."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(append_only=number < 2)) for number in range(5)]


def url_of(nodes: list[RedisServer]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


class Nemesis:
    """Does harm to two nodes at a time; one that came back empty counts as harmed until it votes again."""

    def __init__(self, nodes: list[RedisServer], chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._nodes = nodes
        self._chance = chance
        self._harmed: dict[int, tuple[float, str]] = {}
        self._doctor = DistributedLock(url_of(nodes))

    def act(self) -> None:
        for number, (until, harm) in list(self._harmed.items()):
            if time.monotonic() >= until and self._mend(number, harm):
                del self._harmed[number]
        if len(self._harmed) < 2 and self._chance.random() < 0.3:
            number = self._chance.choice([n for n in range(5) if n not in self._harmed])
            harm = self._chance.choice(("pause", "kill", "empty"))
            self._harmed[number] = time.monotonic() + self._chance.choice((0.05, 0.5, 1.5 * TTL)), harm
            self.done[harm] += 1
            if harm == "pause":
                self._nodes[number].pause()
            else:
                self._nodes[number].kill()

    def _mend(self, number: int, harm: str) -> bool:
        node = self._nodes[number]
        if harm == "pause":
            node.resume()
        elif not node.is_running:
            node.restart(empty=harm == "empty")
        return self._votes(node)

    def _votes(self, node: RedisServer) -> bool:
        with suppress(StoreError):
            findings = [found for found in self._doctor.examine() if found.subject == f"127.0.0.1:{node.port}"]
            return not any(found.level == "error" or "votes" in found.message.partition(":")[0] for found in findings)
        return False

    def relent(self) -> None:
        eventually(self._is_over, "all nodes vote again", within=60)
        self._doctor.close()

    def _is_over(self) -> bool:
        for number, (_, harm) in list(self._harmed.items()):
            if self._mend(number, harm):
                del self._harmed[number]
        return not self._harmed


@pytest.mark.timeout(SECONDS + 180)
def test_never_two_hold_and_fences_grow_whatever_befalls_any_two_nodes(
    nodes: list[RedisServer], tmp_path: Path
) -> None:
    seed = int(os.environ.get("LEASEHOLD_SEED") or secrets.randbits(32))
    print(f"LEASEHOLD_SEED={seed}")
    chance = random.Random(seed)
    with DistributedLock(url_of(nodes)) as locks:
        locks.acquire("first", ttl=TTL).release()  # nodes are new but once
    logs = [tmp_path / f"log-{number}" for number in range(len(WORKERS))]
    worker = Path(__file__).with_name("worker.py")
    with ExitStack() as stack:
        processes = []
        for driver, log in zip(WORKERS, logs, strict=True):
            errors = stack.enter_context(log.with_suffix(".err").open("w"))
            command = [sys.executable, str(worker), url_of(nodes), driver, str(log), str(chance.randrange(1000))]
            processes.append(subprocess.Popen(command, stderr=errors))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        nemesis = Nemesis(nodes, chance)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            nemesis.act()
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        nemesis.relent()
        before = len(sections(logs))
        eventually(lambda: len(sections(logs)) > before + 5, "work goes on once all is well")
    held = sections(logs)
    print(f"{len(held)} holds; {dict(nemesis.done)}")
    for earlier, later in pairwise(held):
        assert earlier[2] <= later[1], f"two held at once: {earlier}, {later}"
        assert earlier[0] < later[0], f"a fence went back: {earlier}, {later}"
    assert len(held) > SECONDS


def sections(logs: list[Path]) -> list[tuple[int, float, float]]:
    """Read fence, first and last moment of every hold, in the order in which they began."""
    lines = [line for log in logs if log.exists() for line in log.read_text().splitlines(keepends=True)]
    return sorted((tuple(json.loads(line)) for line in lines if line.endswith("\n")), key=lambda held: held[1])


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_with_three_of_five_gone_the_error_is_clear_and_quick(nodes: list[RedisServer], harm: str) -> None:
    with DistributedLock(url_of(nodes)) as locks:
        locks.acquire(NAME).release()
        for node in nodes[:3]:
            getattr(node, harm)()
        began = time.monotonic()
        with pytest.raises(StoreError, match="2 of 5 nodes answered") as caught:
            locks.acquire(NAME)
        took = time.monotonic() - began
        for node in nodes[:3]:
            assert str(node.port) in str(caught.value)
        assert took < 5
        for node in nodes[:3]:
            node.resume() if harm == "pause" else node.restart()
        eventually(lambda: _works(locks), "it works again", within=30)


def _works(locks: DistributedLock) -> bool:
    with suppress(StoreError):
        locks.acquire(NAME, timeout=1).release()
        return True
    return False
