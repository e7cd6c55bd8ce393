"""Five processes are candidates of one election, while the leader is killed, paused, cut off, or asked to resign.

LOCKSTEAD_ELECTION_ROUNDS says how often; LOCKSTEAD_ELECTION_TTL, for which ttl.
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from lockstead import DistributedLock
from tests.harness.conditions import eventually
from tests.harness.processes import Worker, boottime
from tests.harness.sqlite import stop_outside_a_transaction, url_of
from tests.servers.binaries import VALKEY9
from tests.servers.proxy import FaultProxy

ROUNDS = int(os.environ.get("LOCKSTEAD_ELECTION_ROUNDS", "4"))
TTL = float(os.environ.get("LOCKSTEAD_ELECTION_TTL", "1"))
CANDIDATES = 5
SLACK = 2.0
"""What a loaded machine may add to a take-over."""


class Candidate:
    def __init__(self, number: int, worker: Worker, journal: Path, proxy: FaultProxy | None) -> None:
        self.number = number
        self.worker = worker
        self.journal = journal
        self.proxy = proxy

    def beliefs(self) -> dict[int, tuple[float, float]]:
        """Of each fence, from when until when it believed to lead."""
        seen: dict[int, tuple[float, float]] = {}
        text = self.journal.read_text() if self.journal.exists() else ""
        for line in text.rpartition("\n")[0].splitlines():
            fence, moment = line.split()
            first, _ = seen.get(int(fence), (float(moment), 0.0))
            seen[int(fence)] = first, float(moment)
        return seen


class Office:
    """One election, and all candidates it ever had."""

    def __init__(self, locks: DistributedLock, new: Callable[[int], Candidate]) -> None:
        self._election = locks.election("chief")
        self._new = new
        self.candidates = [new(number) for number in range(CANDIDATES)]

    def replace(self, gone: Candidate) -> None:
        gone.worker.wait()
        self.candidates.append(self._new(len(self.candidates)))

    def leader(self, after: int = 0) -> tuple[Candidate, int, float]:
        """Wait until a candidate leads with a greater fence; return it, its fence, and since when it leads."""

        def look() -> tuple[Candidate, int, float] | None:
            leader = self._election.leader()
            if leader is None or leader.fence <= after:
                return None
            candidate = next(one for one in self.candidates if str(one.journal) == leader.metadata["journal"])
            first, _ = candidate.beliefs().get(leader.fence, (None, None))
            return None if first is None else (candidate, leader.fence, first)

        return eventually(look, f"a candidate leads after {after}")  # type: ignore[no-any-return]


@pytest.fixture(params=["sqlite", "redis"])
def office(
    request: pytest.FixtureRequest, tmp_path: Path, start_worker: Callable[..., Worker], key_prefix: str
) -> Iterator[Office]:
    with ExitStack() as stack:
        server = request.getfixturevalue("shared_servers")(VALKEY9) if request.param == "redis" else None
        options: dict[str, Any] = {"key_prefix": key_prefix} if server else {}
        url = server.url if server else url_of(tmp_path / "locks.db")

        def new(number: int) -> Candidate:
            journal = tmp_path / f"journal-{number}"
            proxy = stack.enter_context(FaultProxy(server)) if server else None
            pairs = [f"{key}={value}" for key, value in options.items()]
            worker = start_worker(
                "behaviour/election/programs/candidate.py", journal, TTL, proxy.url if proxy else url, *pairs
            )
            return Candidate(number, worker, journal, proxy)

        yield Office(stack.enter_context(DistributedLock(url, **options)), new)


@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_no_two_candidates_ever_lead_at_once(office: Office, tmp_path: Path) -> None:
    harms = (
        ["kill", "pause", "resign"] if office.candidates[0].proxy is None else ["kill", "pause", "cut off", "resign"]
    )
    took: dict[str, list[float]] = {harm: [] for harm in harms}
    fence = 0
    for harm in islice(cycle(harms), ROUNDS):
        victim, fence, _ = office.leader(after=fence)
        if harm == "kill":
            at = victim.worker.kill()
        elif harm == "resign":
            at = victim.worker.signal(signal.SIGTERM)
        elif harm == "cut off":
            assert victim.proxy is not None
            victim.proxy.black_hole()
            at = boottime()
        elif victim.proxy is None:
            at = stop_outside_a_transaction(victim.worker, tmp_path / "locks.db")
        else:
            at = victim.worker.signal(signal.SIGSTOP)
        _, _, since = office.leader(after=fence)
        took[harm].append(since - at)
        if harm in {"kill", "resign"}:
            office.replace(victim)
        elif harm == "cut off":
            assert victim.proxy is not None
            victim.proxy.heal()
        else:
            victim.worker.signal(signal.SIGCONT)
    office.leader()
    believed = sorted((fence, *span) for one in office.candidates for fence, span in one.beliefs().items())
    report(took, len(believed))
    assert len(believed) > ROUNDS
    for (fence, _, until), (later, since, _) in pairwise(believed):
        assert until < since, f"{fence} was believed to lead {until - since:.6f} s into the term of {later}"
    for harm, times in took.items():
        assert max(times, default=0.0) < TTL + SLACK, harm


def report(took: dict[str, list[float]], terms: int) -> None:
    for harm, times in took.items():
        if times:
            middle, most = statistics.median(times), max(times)
            print(f"{harm}: {len(times)} take-overs in {middle:.3f} s (median), {most:.3f} s (longest), ttl {TTL:g} s")
    print(f"{terms} terms")
