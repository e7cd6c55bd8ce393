"""Five hosts start the same cron job, each by its own clock; exactly one runs it.

Run it: python examples/singleton.py
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time

from lockstead import DistributedLock

HOSTS = 5
SKEW = 0.3


def fire(url: str) -> None:
    """Run as one host's cron: late by its clock's error, with a short job."""
    time.sleep(random.uniform(0, SKEW))
    with DistributedLock(url) as locks:

        @locks.singleton("cron:nightly-report", at_most=3600, at_least=30)
        def report() -> str:
            return "ran"

        print(report() or "skipped: another host runs it, or has run it")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fire(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, f"sqlite:///{folder}/locks.db"]
            hosts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(HOSTS)]
            said = sorted(host.communicate()[0].strip() for host in hosts)
        print(*said, sep="\n")
        assert said.count("ran") == 1
        assert len(said) == HOSTS
