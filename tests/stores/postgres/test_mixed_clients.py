"""Eight processes that take the same names in every way there is. Who shares a way of locking excludes each other."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.programs.mixture import NAMES, TABLE

SECONDS = float(os.environ.get("LOCKSTEAD_MIXTURE_SECONDS", "6"))
CREW = ("lease", "lease", "lease-async", "functions", "psql", "advisory", "advisory", "transactions")


@pytest.mark.timeout(SECONDS + 60)
def test_clients_of_one_kind_of_lock_never_hold_at_the_same_time(
    shared_postgres: Callable[[PostgresFlavour], PostgresServer],
    lease_schemas: Callable[[PostgresServer], str],
    tmp_path: Path,
) -> None:
    server = shared_postgres(POSTGRES18)
    url = f"{server.url}?schema={lease_schemas(server)}"
    seed = int(os.environ.get("LOCKSTEAD_SEED") or secrets.randbelow(2**32))
    print(f"LOCKSTEAD_SEED={seed}")
    logs = [tmp_path / f"{number}-{way}" for number, way in enumerate(CREW)]
    environment = os.environ | {"PSQL": str(POSTGRES18.program.path.with_name("psql"))}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.stores.postgres.programs.mixture", way, url, str(log), str(seed + number)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number, (way, log) in enumerate(zip(CREW, logs, strict=True))
    ]
    try:
        time.sleep(SECONDS)
        assert [worker.poll() for worker in workers] == [None] * len(CREW), "a worker failed"
    finally:
        for worker in workers:
            worker.terminate()
        for worker, log in zip(workers, logs, strict=True):
            _, errors = worker.communicate(timeout=20)
            print(log.name, errors[-2000:])

    held = {log: [json.loads(line) for line in log.read_text().splitlines()] for log in logs}
    print({log.name: len(holds) for log, holds in held.items()})
    assert all(held.values()), "everybody had a turn"
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
