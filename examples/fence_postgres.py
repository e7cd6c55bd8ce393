"""A worker is paused while it holds a lock; its late write to PostgreSQL is refused inside its own transaction.

Run it: python examples/fence_postgres.py postgresql://localhost      (or set LOCKSTEAD_URL)

The database must have been migrated: lockstead migrate --url postgresql://localhost
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg

from lockstead import DistributedLock

LEDGER = """
CREATE TABLE IF NOT EXISTS fence_ledger (account text PRIMARY KEY, balance integer NOT NULL, written_by text);
INSERT INTO fence_ledger VALUES ('alice', 100, 'setup')
ON CONFLICT (account) DO UPDATE SET balance = 100, written_by = 'setup';
"""


def write(url: str, fence: int, who: str, balance: int) -> str:
    """Write under a fence: if a newer fence was checked before, it is refused, and nothing is written."""
    with psycopg.connect(url) as connection:
        try:
            connection.execute("SELECT lockstead.check_fence('ledger:alice', %s)", [fence])
            connection.execute("UPDATE fence_ledger SET balance = %s, written_by = %s", [balance, who])
        except psycopg.Error as error:
            if error.sqlstate != "LS001":
                raise
            connection.rollback()
            return f"refused: {error.diag.message_primary}"
    return "written"


def work(url: str) -> None:
    """Run as the worker: acquire, read, be paused, and write a balance that was right before the pause."""
    with DistributedLock(url) as locks:
        fence = locks.acquire("ledger:alice", ttl=1).fence
        with psycopg.connect(url) as connection:
            (balance,) = connection.execute("SELECT balance FROM fence_ledger").fetchone() or (0,)
        print(fence, flush=True)
        input()  # paused by SIGSTOP here, between reading and writing
        print(write(url, fence, "the worker that was paused", balance - 10), flush=True)


def main(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(LEDGER)
    command = [sys.executable, __file__, url, "--worker"]
    with (
        DistributedLock(url) as locks,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        old = int(worker.stdout.readline())
        print("the worker holds fence", old, "and has read the balance, 100; now it is paused")
        os.kill(worker.pid, signal.SIGSTOP)

        with locks.lock("ledger:alice", timeout=30) as successor:
            print("its lease expired; the next holder has fence", successor.fence, "and writes 50")
            assert write(url, successor.fence, "the next holder", 50) == "written"

        os.kill(worker.pid, signal.SIGCONT)
        worker.stdin.write("\n")
        worker.stdin.flush()
        answer = worker.stdout.readline().strip()
        print("the worker is resumed, and its late write of 90 is", answer)

    with psycopg.connect(url) as connection:
        balance, by = connection.execute("SELECT balance, written_by FROM fence_ledger").fetchone() or (0, "")
    print("the balance is", balance, "as written by", by)
    if not answer.startswith("refused") or balance != 50:
        raise SystemExit("the late write was accepted")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--worker"]
    where = arguments[0] if arguments else os.environ.get("LOCKSTEAD_URL", "")
    if not where.startswith("postgres"):
        raise SystemExit(f"usage: {sys.argv[0]} postgresql://…, or set LOCKSTEAD_URL")
    if "--worker" in sys.argv:
        work(where)
    else:
        main(where)
