"""Many sessions on few names: nothing escapes, no client is granted too much, none waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from math import inf

import psycopg
import pytest

from lockstead.core.model import GONE, UNKNOWN, Ask, Refusal, Renewal, Reservation, Standing, Wake
from lockstead.core.runtime import drive
from lockstead.errors import StoreError
from tests.harness.conditions import eventually
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.table import Table

SECONDS = 1.5
TTL = 0.6
"""Short, so that what is abandoned expires again and again while others are at work."""
HEARTBEAT = 0.3
NAMES = {"lock": 1, "pair": 2, "five": 5}


@pytest.fixture
def table(postgres_server: PostgresServer, postgres_schema: str) -> Iterator[Table]:
    with Table(postgres_server, postgres_schema) as table:
        yield table


class Worker(threading.Thread):
    """Joins, waits, renews all it has in one batch, leaves or walks away; remembers what broke a promise."""

    def __init__(self, table: Table, number: int, chance: random.Random, until: float) -> None:
        super().__init__(name=f"worker-{number}")
        self._store = table.store()
        self._number = number
        self._chance = chance
        self._until = until
        self._sequence = 0
        self._own: dict[str, tuple[str, float]] = {}
        """Where each owner of ours holds, and until when that is promised."""
        self.acquired = 0
        self.woken = Counter[Wake]()
        """How waiters were notified that they hold."""
        self.longest_wait = 0.0
        self.failures: list[str] = []

    def run(self) -> None:
        try:
            while time.monotonic() < self._until:
                self._act()
            for owner, (name, _) in self._own.items():
                drive(self._store.leave(name, owner, 5.0))
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error} ({error.__cause__!r})")

    def _act(self) -> None:
        kind = self._chance.random()
        # In the order of names, or two workers could wait for each other.
        free = list(NAMES)[max((list(NAMES).index(name) + 1 for name, _ in self._own.values()), default=0) :]
        if not self._own or (free and kind < 0.35):
            self._acquire(self._chance.choice(free))
        elif kind < 0.5:
            self._renew()
        elif kind < 0.86:
            owner = self._chance.choice(list(self._own))
            drive(self._store.leave(self._own.pop(owner)[0], owner, 5.0))
        elif kind < 0.96:
            owner = self._chance.choice(list(self._own))
            self._reserve(*self._own.pop(owner), owner)
        elif kind < 0.98:
            self._own.pop(self._chance.choice(list(self._own)))  # dies
        else:
            drive(self._store._server.ask(self._store._statements.sweep, (), 5.0))

    def _acquire(self, name: str) -> None:
        self._sequence += 1
        owner = f"{self.name}/{self._sequence}"
        weight = self._chance.randint(1, NAMES[name])
        began = sent = time.monotonic()
        answer = drive(self._store.join(Ask(name, owner, TTL, HEARTBEAT, NAMES[name], weight), 5.0))
        assert isinstance(answer, Standing), answer
        while not answer.held:
            if time.monotonic() > began + 12:
                self.failures.append(f"{owner} waited for {name} and got {answer}")
                return
            pause = min(HEARTBEAT / 3, answer.recheck if answer.recheck != inf else HEARTBEAT)
            woken = drive(self._store.wait(name, owner, max(pause, 0.0)))
            sent = time.monotonic()
            others = [Renewal(where, each, TTL, HEARTBEAT) for each, (where, _) in self._own.items()]
            first, *rest = drive(self._store.renew([Renewal(name, owner, TTL, HEARTBEAT), *others], 5.0))
            self._take(others, rest, sent)
            if first == GONE:  # a machine under load may be too slow for its heartbeat
                return
            if first is UNKNOWN or first.ticket == 0:
                continue
            if woken is Wake.GRANT and not first.held:
                self.failures.append(f"{owner} was granted {name}, and does not hold: {first}")
            answer = first
            self.woken[woken] += answer.held
        self._own[owner] = (name, sent + TTL)
        self.acquired += 1
        self.longest_wait = max(self.longest_wait, time.monotonic() - began)

    def _reserve(self, name: str, promised: float, owner: str) -> None:
        reservation = Reservation(name, owner, self._chance.choice((0.01, 0.1)))
        if not drive(self._store.reserve(reservation, 5.0)) and time.monotonic() < promised:
            self.failures.append(f"{owner} lost {name} too early to reserve it")
        if drive(self._store.renew([Renewal(name, owner, TTL, HEARTBEAT)], 5.0)) != [GONE]:
            self.failures.append(f"{owner} reserves {name}, and is renewed")

    def _renew(self) -> None:
        sent = time.monotonic()
        renewals = [Renewal(name, owner, TTL, HEARTBEAT) for owner, (name, _) in self._own.items()]
        self._take(renewals, drive(self._store.renew(renewals, 5.0)), sent)

    def _take(self, renewals: list[Renewal], answers: list[Standing], sent: float) -> None:
        for renewal, answer in zip(renewals, answers, strict=True):
            name, promised = self._own[renewal.owner]
            if answer == GONE:
                if time.monotonic() < promised:
                    self.failures.append(f"{renewal.owner} lost {name} {promised - time.monotonic():.3f} s too early")
                del self._own[renewal.owner]
            elif answer.held:
                self._own[renewal.owner] = (name, sent + TTL)
            elif answer.ticket:
                self.failures.append(f"{renewal.owner} held {name}, and now waits: {answer}")


def test_eight_concurrent_clients_exclude_each_other_and_keep_their_order(table: Table, seed: int) -> None:
    chance = random.Random(seed)
    until = time.monotonic() + SECONDS
    workers = [Worker(table, number, random.Random(chance.random()), until) for number in range(8)]
    for worker in workers:
        worker.start()
    looks = 0
    while any(worker.is_alive() for worker in workers):
        overfull = table.rows(
            "SELECT name, capacity, sum(weight) FROM {s}.distributed_locks"
            " WHERE acquired_at IS NOT NULL AND expires_at > clock_timestamp() GROUP BY name, capacity"
            " HAVING sum(weight) > capacity"
        )
        assert overfull == []
        overtaken = table.rows(
            "SELECT w.name, w.holder, h.holder FROM {s}.distributed_locks w JOIN {s}.distributed_locks h"
            " ON h.name = w.name AND h.fence > w.fence WHERE w.acquired_at IS NULL AND h.acquired_at IS NOT NULL"
            " AND w.expires_at > clock_timestamp() AND h.expires_at > clock_timestamp()"
        )
        assert overtaken == []
        looks += 1
        time.sleep(0.01)
    failures = [failure for worker in workers for failure in worker.failures]
    assert failures == []
    acquired = sum(worker.acquired for worker in workers)
    woken = sum((worker.woken for worker in workers), Counter[Wake]())
    longest = max(worker.longest_wait for worker in workers)
    print(f"{acquired} acquired, woken by {dict(woken)}, longest wait {longest:.2f} s, {looks} looks")
    assert acquired > 30


def test_six_clients_that_take_several_names_each_get_all_or_none_and_never_deadlock(
    table: Table,
    seed: int,
) -> None:
    holders: dict[str, str] = {}
    failures: list[str] = []
    counts = Counter[str]()
    until = time.monotonic() + SECONDS / 2

    def proves_nothing() -> bool:
        """Return whether the machine was too slow so far for all four to have been taken a few times."""
        return counts["took 4"] <= 2 and time.monotonic() < until + 20

    def work(client: str, chance: random.Random) -> None:
        store, own = table.store(), table.connect()
        sequence = 0
        while not failures and (time.monotonic() < until or proves_nothing()):
            sequence += 1
            names = chance.sample("abcd", chance.randint(1, 4))
            owner = f"{client}/{sequence}"
            asks = [Ask(name, owner, 30.0, 10.0, queue=False) for name in names]
            single = len(asks) == 1 and chance.random() < 0.5
            answer = drive(store.join(asks[0], 5.0)) if single else drive(store.join_all(asks, 5.0))
            count = table.sql("SELECT count(*) FROM {s}.distributed_locks WHERE holder = %s", owner, on=own)
            if isinstance(answer, Refusal):
                counts["refused"] += 1
                if count:
                    failures.append(f"{owner} was refused {names}, and has {count}")
                continue
            counts[f"took {len(names)}"] += 1
            if count != len(names) or any(holders.setdefault(name, owner) != owner for name in names):
                failures.append(f"{owner} took {count} of {names} beside {holders}")
            for name in names:
                del holders[name]
                drive(store.leave(name, owner, 5.0))

    def attempt(client: str, chance: random.Random) -> None:
        try:
            work(client, chance)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error} ({error.__cause__!r})")

    chance = random.Random(seed)
    threads = [
        threading.Thread(target=attempt, args=(f"worker-{number}", random.Random(chance.random())))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    print(dict(counts))
    assert failures == []
    assert counts["refused"] > 10
    assert counts["took 4"] > 2


def test_names_are_locked_in_one_order_whichever_they_are_asked_for_in(table: Table) -> None:
    """A waiter has nothing yet that the others wait for."""
    first, second, keeper = (table.connect(autocommit=False) for _ in range(3))
    table.sql("SELECT {s}.acquire_lock('a', 'sql', 30)", on=keeper)
    statement = (
        "SELECT count(ticket) FROM {s}.line_join_all(%s, '{{me,me}}', '{{9,9}}', '{{9,9}}', '{{1,1}}', '{{1,1}}',"
        " ARRAY['{{}}', '{{}}']::jsonb[], '')"
    )
    waiting = threading.Thread(target=table.sql, args=(statement, ["b", "a"]), kwargs={"on": first})
    waiting.start()
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    eventually(lambda: table.sql(blocked, f"%{table.schema}.line_join_all%"), "it waits")
    second.execute("SET lock_timeout = '1s'")
    assert table.sql("SELECT {s}.acquire_lock('b', 'sql', 30)", on=second) > 0
    second.rollback()
    keeper.rollback()
    waiting.join(10)
    first.rollback()


def test_the_timeout_of_a_request_for_several_names_is_for_all_of_them(table: Table) -> None:
    store = table.store()
    users = [table.connect(autocommit=False) for _ in "abc"]
    for user, name in zip(users, "abc", strict=True):
        table.sql("SELECT {s}.acquire_lock(%s, 'sql', 30)", name, on=user)
    asks = [Ask(name, "me", 30.0, 10.0, queue=False) for name in "abc"]
    letting_go = threading.Timer(0.4, users[0].rollback)
    letting_go.start()
    with pytest.raises(StoreError, match="a transaction that is still open") as caught:
        drive(store.join_all(asks, 0.6))
    assert caught.value.transient
    letting_go.join()
    for user in users[1:]:
        user.rollback()
    answer = drive(store.join_all(asks, 5.0))
    assert isinstance(answer, list)
    assert all(standing.held for standing in answer)


def test_a_reservation_waits_for_a_renewal_and_is_applied_last(table: Table) -> None:
    """Its time is counted from when it had its turn, and what others promised the place is void."""
    store = table.store()
    drive(store.join(Ask("x", "me", 30.0, 10.0), 5.0))
    user = table.connect(autocommit=False)
    assert table.sql("SELECT {s}.extend_lock('x', 'me', 3600)", on=user)
    answers: list[bool] = []
    reserving = threading.Thread(target=lambda: answers.append(drive(store.reserve(Reservation("x", "me", 7.0), 5.0))))
    reserving.start()
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    eventually(lambda: table.sql(blocked, f'%"{table.schema}".line_reserve%'), "it waits")
    (renewed,) = drive(table.store().renew([Renewal("x", "me", 60.0, 10.0)], 5.0))
    assert renewed == UNKNOWN
    before = table.sql("SELECT clock_timestamp()")
    user.commit()
    reserving.join(10)
    assert answers == [True]
    ((holder, is_full, is_short),) = table.rows(
        "SELECT holder, expires_at >= %s + interval '7 s', expires_at < now() + interval '8 s' FROM {s}.locks", before
    )
    assert (holder, is_full, is_short) == ("me+", True, True)
    assert drive(store.renew([Renewal("x", "me", 60.0, 10.0)], 5.0)) == [GONE]
    assert table.sql("SELECT {s}.extend_lock('x', 'me', 3600)") is False
    assert drive(store.leave("x", "me", 5.0)) is False
    assert table.sql("SELECT {s}.acquire_lock('x', 'sql', 30)") is None


def test_transactions_that_lock_names_in_opposite_order_do_not_break_renewals(table: Table) -> None:
    """Two users take two names each, one this way and one that: one of them fails, and no renewal with it."""
    store = table.store()
    names = ("a", "b")
    for name in names:
        drive(store.join(Ask(name, f"python/{name}", 30.0, 10.0), 5.0))
    users = [table.connect(autocommit=False) for _ in names]
    for user, name in zip(users, names, strict=True):
        table.sql("SELECT {s}.acquire_lock(%s, 'sql', 30, queue => true)", name, on=user)
    other = threading.Thread(target=_tolerantly, args=(table, users[0], "b"))
    other.start()
    renewals = [Renewal(name, f"python/{name}", 30.0, 10.0) for name in names]
    began = time.monotonic()
    while other.is_alive() and time.monotonic() < began + 0.3:
        assert all(answer.held for answer in drive(store.renew(renewals, 5.0)))
    _tolerantly(table, users[1], "a")
    other.join(10)
    for user in users:
        user.rollback()


def _tolerantly(table: Table, user: psycopg.Connection, name: str) -> None:
    with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
        table.sql("SELECT {s}.acquire_lock(%s, 'sql', 30, queue => true)", name, on=user)


def test_a_leave_blocked_by_a_transaction_is_a_transient_error(table: Table) -> None:
    store = table.store()
    drive(store.join(Ask("x", "python/1", 30.0, 10.0), 5.0))
    user = table.connect(autocommit=False)
    table.sql("SELECT {s}.acquire_lock('x', 'sql', 30, queue => true)", on=user)
    with pytest.raises(StoreError) as caught:
        drive(store.leave("x", "python/1", 0.3))
    assert caught.value.transient
    user.commit()
    drive(store.leave("x", "python/1", 5.0))
    assert table.sql("SELECT {s}.acquire_lock('x', 'sql', 30)") > 0
