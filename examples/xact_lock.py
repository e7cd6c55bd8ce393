"""Transfers between accounts in both directions, each in one transaction that locks both accounts.

Run it: python examples/xact_lock.py [postgresql://localhost]
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg

from lockstead.transactions import xact_lock

URL = sys.argv[1] if len(sys.argv) > 1 else "postgresql://localhost"


def read_balances(connection: psycopg.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, balance FROM lockstead_example").fetchall())


def transfer(giver: str, taker: str) -> None:
    with psycopg.connect(URL) as connection, xact_lock(connection, f"account:{giver}", f"account:{taker}", timeout=30):
        balances = read_balances(connection)
        for name, balance in ((giver, balances[giver] - 1), (taker, balances[taker] + 1)):
            connection.execute("UPDATE lockstead_example SET balance = %s WHERE name = %s", (balance, name))


with psycopg.connect(URL, autocommit=True) as setup:
    setup.execute(
        "CREATE TABLE lockstead_example AS SELECT name, 100 AS balance FROM unnest(ARRAY['ann', 'bob']) AS name"
    )
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(transfer, ["ann", "bob"] * 10, ["bob", "ann"] * 10))
        balances = read_balances(setup)
    finally:
        setup.execute("DROP TABLE lockstead_example")
print("after ten transfers in each direction:", balances)
assert balances == {"ann": 100, "bob": 100}
