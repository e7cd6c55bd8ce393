"""Eight processes that take the same names in every way there is. Clients of one kind of lock exclude each other."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.processes import Program
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.programs.mixture import NAMES, TABLE

SECONDS = float(os.environ.get("LOCKSTEAD_MIXTURE_SECONDS", "6"))
CREW = ("lease", "lease", "lease-async", "functions", "psql", "advisory", "advisory", "transactions")


@pytest.mark.timeout(SECONDS + 60)
def test_clients_of_one_kind_of_lock_never_hold_at_the_same_time(
    shared_postgres: Callable[[PostgresFlavour], PostgresServer],
    lease_schemas: Callable[[PostgresServer], str],
    start_program: Callable[..., Program],
    tmp_path: Path,
    seed: int,
) -> None:
    server = shared_postgres(POSTGRES18)
    url = f"{server.url}?schema={lease_schemas(server)}"
    logs = [tmp_path / f"{number}-{way}" for number, way in enumerate(CREW)]
    environment = {"PSQL": str(POSTGRES18.program.path.with_name("psql"))}
    workers = [
        start_program("stores/postgres/programs/mixture.py", way, url, log, seed + number, env=environment)
        for number, (way, log) in enumerate(zip(CREW, logs, strict=True))
    ]
    try:
        time.sleep(SECONDS)
        assert [worker.status for worker in workers] == [None] * len(CREW), "a worker failed"
    finally:
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for worker, log in zip(workers, logs, strict=True):
            _, errors = worker.communicate(within=20)
            print(log.name, errors[-2000:])

    held = {log: [json.loads(line) for line in log.read_text().splitlines()] for log in logs}
    print({log.name: len(holds) for log, holds in held.items()})
    assert all(held.values()), "every worker had a turn"
    for is_table in (True, False):
        for name in NAMES:
            holds = sorted(
                (entered, left, fence, log.name)
                for log, of_log in held.items()
                if (log.name.partition("-")[2] in TABLE) is is_table
                for held_name, fence, entered, left in of_log
                if held_name == name
            )
            for before, after in pairwise(holds):
                assert before[1] <= after[0], f"two held {name!r} at once: {before} {after}"
            fences = [fence for _, _, fence, _ in holds if fence]
            assert fences == sorted(set(fences)), f"a fence of {name!r} went back"
