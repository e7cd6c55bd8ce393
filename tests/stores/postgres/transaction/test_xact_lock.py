"""Locks that end with the user's transaction, on every kind of connection there is."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import django.core.cache
import django.db
import psycopg
import pytest
import sqlalchemy as sa
import sqlalchemy.ext.asyncio as aio
from sqlalchemy import orm

import lockstead
from lockstead import DistributedLock, InvalidInputError, LockAcquisitionError, LockError
from lockstead.stores.postgres.key import Name, advisory_key
from lockstead.stores.postgres.transaction.connections import sqlstate
from lockstead.transactions import xact_lock
from tests.stores.postgres.transaction.users import Asyncpg, AsyncPsycopg, Django, Peer, Psycopg, User, with_driver

EXCLUSIVE, SHARED = "ExclusiveLock", "ShareLock"

only_psycopg = pytest.mark.parametrize("user", [Psycopg], indirect=True, ids=["Psycopg"])


async def test_a_lock_excludes_every_other_client(user: User, peer: Peer, prefix: str) -> None:
    async with user.lock(prefix):
        assert peer.modes(prefix) == [EXCLUSIVE]
        assert not peer.could_take(prefix)
        assert not peer.could_take(prefix, shared=True)
        assert peer.could_take(prefix + "another")


async def test_a_shared_lock_excludes_exclusive_locks(user: User, peer: Peer, prefix: str) -> None:
    peer.hold(prefix, shared=True)
    for timeout in (None, 0, 5):
        async with user.lock(prefix, shared=True, timeout=timeout):
            assert peer.modes(prefix) == [SHARED]
            assert peer.could_take(prefix, shared=True)
            assert not peer.could_take(prefix)
        await user.rollback()
        await user.begin()


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_several_names_are_all_held(user: User, peer: Peer, prefix: str, timeout: float | None) -> None:
    number, pair = random.randrange(2**40, 2**63), (random.randrange(2**31), -random.randrange(2**31))
    names: list[Name] = [prefix + "b", prefix + "a", number, pair, prefix + "b", f"pg:{number}"]
    async with user.lock(*names, timeout=timeout):
        for name in names:
            assert peer.modes(name) == [EXCLUSIVE]
    for name in names:
        assert not peer.could_take(name)
    await user.commit()
    for name in names:
        assert peer.could_take(name)


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_leaving_the_block_leaves_the_lock_to_the_commit(
    user: User, peer: Peer, prefix: str, timeout: float | None
) -> None:
    transaction = await user.execute("SELECT pg_current_xact_id()::text")
    async with user.lock(prefix, timeout=timeout):
        pass
    with pytest.raises(ZeroDivisionError):
        async with user.lock(prefix + "failing", timeout=timeout):
            raise ZeroDivisionError
    assert not peer.could_take(prefix)
    assert not peer.could_take(prefix + "failing")
    assert await user.execute("SELECT pg_current_xact_id()::text") == transaction
    await user.commit()
    assert peer.could_take(prefix)
    assert peer.could_take(prefix + "failing")


async def test_a_rollback_ends_the_lock(user: User, peer: Peer, prefix: str) -> None:
    async with user.lock(prefix):
        assert not peer.could_take(prefix)
        await user.rollback()
        assert peer.could_take(prefix)


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_a_rollback_to_a_savepoint_ends_the_locks_taken_after_it(
    user: User, peer: Peer, prefix: str, timeout: float | None
) -> None:
    async with user.lock(prefix + "before", timeout=timeout):
        await user.execute("SAVEPOINT mine")
        async with user.lock(prefix + "before", prefix + "after", timeout=timeout):
            assert not peer.could_take(prefix + "after")
        await user.execute("ROLLBACK TO SAVEPOINT mine")
        assert peer.could_take(prefix + "after")
        assert not peer.could_take(prefix + "before")


async def test_a_second_lock_of_the_same_name_in_one_transaction_succeeds(user: User, peer: Peer, prefix: str) -> None:
    async with user.lock(prefix), user.lock(prefix, timeout=0), user.lock(prefix, shared=True):
        assert sorted(peer.modes(prefix)) == [EXCLUSIVE, SHARED]


async def test_a_wait_ends_when_the_holder_releases(user: User, peer: Peer, prefix: str) -> None:
    peer.hold(prefix)
    with peer.when_waited_for(prefix, peer.release):
        async with user.lock(prefix):
            assert peer.modes(prefix) == [EXCLUSIVE]


async def test_waiting_with_a_timeout_resets_the_lock_timeout(user: User, peer: Peer, prefix: str) -> None:
    await user.execute("SET LOCAL lock_timeout = '12345ms'")
    peer.hold(prefix + "b")
    with peer.when_waited_for(prefix + "b", peer.release):
        async with user.lock(prefix + "a", prefix + "b", timeout=timedelta(seconds=60)):
            assert peer.modes(prefix + "a") == peer.modes(prefix + "b") == [EXCLUSIVE]
            assert await user.execute("SHOW lock_timeout") == "12345ms"
    await user.commit()
    await user.begin()
    assert await user.execute("SHOW lock_timeout") == "0"


@pytest.mark.parametrize("timeout", [0, 0.0001, 0.05])
@pytest.mark.parametrize("others", [[], ["a", "c"]], ids=["one", "several"])
async def test_after_a_timeout_the_transaction_goes_on_as_before(
    user: User, peer: Peer, prefix: str, timeout: float, others: list[str]
) -> None:
    peer.hold(prefix)
    names = [prefix, *(prefix + other for other in others)]
    transaction = await user.execute("SELECT pg_current_xact_id()::text")
    await user.execute("SET LOCAL lock_timeout = '12345ms'")
    with pytest.raises(LockAcquisitionError) as caught:
        async with user.lock(*names, timeout=timeout):
            pytest.fail("two hold")
    error = caught.value
    assert sorted(error.name.split(", ")) == sorted(names)
    assert error.waited >= timeout
    assert error.holder == f"the peer (pid {peer.pid})"
    assert f"{prefix!r} is held by the peer" in str(error)
    for name in names:
        assert peer.modes(name) == []
    assert await user.execute("SHOW lock_timeout") == "12345ms"
    assert await user.execute("SELECT pg_current_xact_id()::text") == transaction
    await user.commit()


@only_psycopg
async def test_the_holder_is_named_for_pairs_too_and_another_shared_holder_is_no_obstacle(
    user: User, peer: Peer
) -> None:
    pair = (-random.randrange(1, 2**31), random.randrange(2**31))
    peer.hold(pair)
    with pytest.raises(LockAcquisitionError) as caught:
        async with user.lock(pair, timeout=0, shared=True):
            pytest.fail("two hold")
    assert caught.value.name == f"pg:{pair[0]},{pair[1]}"
    assert caught.value.holder == f"the peer (pid {peer.pid})"


@only_psycopg
async def test_the_timeout_is_for_all_names_together(user: User, peer: Peer, prefix: str, shared_url: str) -> None:
    """A plain lock_timeout would begin anew with the second lock."""
    early, late = in_order(prefix + "a", prefix + "b")
    with Peer(shared_url) as stubborn:
        peer.hold(early)
        stubborn.hold(late)
        with (
            peer.when_waited_for(early, peer.release, seconds=0.8),
            pytest.raises(LockAcquisitionError) as caught,
        ):
            async with user.lock(early, late, timeout=1):
                pytest.fail("two hold")
    assert 1 <= caught.value.waited < 1.7
    assert caught.value.holder == f"the peer (pid {stubborn.pid})"


@only_psycopg
async def test_locks_are_taken_in_one_order_whichever_way_they_are_given(user: User, peer: Peer, prefix: str) -> None:
    pair = (random.randrange(2**31), random.randrange(2**31))
    names = in_order(*(f"{prefix}{number}" for number in range(6)), -random.randrange(2**63), pair)
    assert names[-1] == pair
    for given in (names, names[::-1], random.sample(names, len(names))):
        for timeout in (None, 60):
            held: list[Name] = []
            peer.hold(names[4])

            def look(held: list[Name] = held) -> None:
                held += [name for name in names if peer.modes(name)]
                peer.release()

            with peer.when_waited_for(names[4], look):
                async with user.lock(*given, timeout=timeout):
                    assert held == names[:4]
            await user.rollback()


@pytest.mark.parametrize("timeout", [None, 5])
def test_overlapping_sets_never_wait_in_a_circle(shared_url: str, prefix: str, timeout: float | None) -> None:
    names: list[Name] = [f"{prefix}{number}" for number in range(3)]
    names += [random.randrange(2**31), (random.randrange(2**31), 1), (random.randrange(2**31), 2)]
    holders: dict[Name, int] = dict.fromkeys(names, 0)
    failures: list[BaseException] = []

    def contend(seed: int) -> None:
        draw = random.Random(seed)
        try:
            with psycopg.connect(shared_url) as connection:
                for _ in range(40):
                    chosen = draw.sample(names, draw.randint(2, 4))
                    with connection.transaction(), xact_lock(connection, *chosen, timeout=timeout):
                        for name in chosen:
                            holders[name] += 1
                            assert holders[name] == 1
                        for name in chosen:
                            holders[name] -= 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=contend, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_without_a_transaction_nothing_is_taken(
    user: User, peer: Peer, prefix: str, timeout: float | None
) -> None:
    await user.leave_transaction()
    with pytest.raises(InvalidInputError, match=r"no transaction .* open one first"):
        async with user.lock(prefix, timeout=timeout):
            pytest.fail("a lock for no time at all")
    assert peer.could_take(prefix)
    assert await user.execute("SELECT 1") == 1


def test_a_pipeline_is_refused_since_it_does_not_wait(shared_url: str) -> None:
    with (
        psycopg.connect(shared_url) as connection,
        connection.pipeline(),
        pytest.raises(InvalidInputError, match="outside of it"),
        xact_lock(connection, "a"),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize("timeout", [None, 0, 5])
async def test_a_failed_transaction_raises_the_drivers_error(user: User, prefix: str, timeout: float | None) -> None:
    with pytest.raises(Exception, match="division by zero"):
        await user.execute("SELECT 1 / 0")
    with pytest.raises(Exception, match="transaction is aborted") as caught:
        async with user.lock(prefix, prefix + "b", timeout=timeout):
            pytest.fail("no statement can succeed")
    assert not isinstance(caught.value, LockError)


@only_psycopg
async def test_a_closed_connection_raises_the_drivers_error(user: User, prefix: str) -> None:
    await user.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        async with user.lock(prefix):
            pytest.fail("no statement can succeed")


def test_a_closed_connection_of_sqlalchemy_or_asyncpg_raises_its_librarys_error(shared_url: str) -> None:
    engine = sa.create_engine(with_driver(shared_url, "psycopg"))
    connection = engine.connect()
    connection.close()
    engine.dispose()
    with pytest.raises(sa.exc.ResourceClosedError), xact_lock(connection, "a"):
        pytest.fail("no statement can succeed")

    async def use_asyncpg() -> None:
        connection = await asyncpg.connect(shared_url)
        await connection.close()
        async with xact_lock(connection, "a"):
            pytest.fail("no statement can succeed")

    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        asyncio.run(use_asyncpg())


async def test_a_connection_lost_while_waiting_raises_the_drivers_error(user: User, peer: Peer, prefix: str) -> None:
    peer.hold(prefix)
    pid = await user.execute("SELECT pg_backend_pid()")
    with (
        peer.when_waited_for(prefix, lambda: peer.terminate(pid)),
        pytest.raises(Exception) as caught,  # noqa: PT011
    ):
        async with user.lock(prefix, timeout=60):
            pytest.fail("two hold")
    assert not isinstance(caught.value, LockError | AssertionError)


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_deadlock_raises_the_drivers_error(user: User, peer: Peer, prefix: str, timeout: float | None) -> None:
    peer.hold(prefix + "theirs")
    async with user.lock(prefix + "ours"):
        await user.execute("SET LOCAL deadlock_timeout = '10ms'")
        with peer.waiting_for(prefix + "ours"):
            with pytest.raises(Exception, match="deadlock detected") as caught:
                async with user.lock(prefix + "theirs", timeout=timeout):
                    pytest.fail("two hold")
            assert sqlstate(caught.value) == "40P01"
            if timeout:
                assert await user.execute("SELECT 1") == 1
                assert not peer.could_take(prefix + "ours")
            await user.rollback()


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_lock_or_statement_timeout_of_the_user_raises_the_drivers_error(
    user: User, peer: Peer, prefix: str, setting: str
) -> None:
    peer.hold(prefix)
    await user.execute(f"SET LOCAL {setting} = '300ms'")
    with pytest.raises(Exception, match=r"due to (lock|statement) timeout") as caught:
        async with user.lock(prefix, timeout=None if setting == "lock_timeout" else 60):
            pytest.fail("two hold")
    assert not isinstance(caught.value, LockError)
    if setting == "statement_timeout":
        assert await user.execute("SHOW lock_timeout") == "0"


@pytest.mark.parametrize("user", [AsyncPsycopg, Asyncpg], indirect=True, ids=["AsyncPsycopg", "Asyncpg"])
async def test_a_cancelled_wait_leaves_the_transaction_as_it_was(user: User, peer: Peer, prefix: str) -> None:
    early, late = in_order(prefix + "a", prefix + "b")
    peer.hold(late)

    async def wait() -> None:
        async with user.lock(early, late, timeout=60):
            pytest.fail("two hold")

    waiting = asyncio.create_task(wait())
    while not peer.waited(late):  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert peer.could_take(early)
    assert await user.execute("SHOW lock_timeout") == "0"
    await user.commit()


async def test_the_wrong_kind_of_with_is_refused_and_the_right_one_named(user: User, peer: Peer, prefix: str) -> None:
    lock = xact_lock(user.connection, prefix)
    right = "'async with" if user.is_async else "'with"
    with pytest.raises(InvalidInputError, match=right):
        if user.is_async:
            with lock:
                pytest.fail("entered")
        else:
            async with lock:
                pytest.fail("entered")
    assert peer.could_take(prefix)


@only_psycopg
async def test_objects_are_held_to_their_session_without_being_flushed_or_expired(user: User, prefix: str) -> None:
    class Base(orm.DeclarativeBase):
        pass

    class Account(Base):
        __tablename__ = "account"
        __table_args__ = {"prefixes": ["TEMPORARY"]}  # noqa: RUF012
        id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
        note: orm.Mapped[str]

    with Peer(user.url) as peer, orm.Session(sa.create_engine(with_driver(user.url, "psycopg"))) as session:
        Base.metadata.create_all(session.connection())
        known = Account(id=1, note="known")
        session.add(known)
        session.flush()
        pending = Account(id=2, note="pending")
        session.add(pending)
        peer.hold(prefix)
        with pytest.raises(LockAcquisitionError), xact_lock(session, prefix, timeout=0.01):
            pytest.fail("two hold")
        assert pending in session.new
        assert not sa.inspect(known).expired
        with xact_lock(session, prefix + "free"):
            assert pending in session.new
        session.rollback()
        session.get_bind().dispose()  # type: ignore[union-attr]


def test_an_object_that_is_no_connection_is_refused_with_advice(shared_url: str) -> None:
    class Pool:
        pass

    connection = psycopg.connect(shared_url)
    engine = sa.create_engine(with_driver(shared_url, "psycopg"))
    for wrong, advice in [
        (connection.cursor(), "the cursor's connection"),
        (engine, r"engine.begin\(\)"),
        (aio.create_async_engine(with_driver(shared_url, "psycopg")), r"engine.begin\(\)"),
        (orm.sessionmaker(engine), "a session that it made"),
        (Pool(), "a connection from the pool"),
        (shared_url, "not its address"),
        (None, "pass a session or connection of SQLAlchemy"),
        (DistributedLock("memory://"), r"DistributedLock$"),
    ]:
        with pytest.raises(InvalidInputError, match=advice):
            xact_lock(wrong, "a")
    connection.close()


def test_other_databases_are_refused() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(InvalidInputError, match="this connection is to sqlite"):
        xact_lock(connection, "a").__enter__()
    engine.dispose()


@pytest.mark.parametrize("user", [Django], indirect=True, ids=["Django"])
async def test_djangos_other_databases_and_caches_are_refused(user: User) -> None:
    with (
        pytest.raises(InvalidInputError, match="this connection is to sqlite"),
        xact_lock(django.db.connections["sqlite"], "a"),
    ):
        pytest.fail("entered")
    with (
        pytest.raises(InvalidInputError, match="this connection is to no database"),
        xact_lock(django.core.cache.cache, "a"),
    ):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("names", "options"),
    [((), {}), (("",), {}), ((2**63,), {}), (("a",), {"timeout": -1}), (("a",), {"timeout": "1"})],
    ids=repr,
)
def test_invalid_names_and_timeouts_are_refused(names: Any, options: Any, shared_url: str) -> None:
    with psycopg.connect(shared_url) as connection, pytest.raises(InvalidInputError):
        xact_lock(connection, *names, **options)


@only_psycopg
@pytest.mark.parametrize("timeout", [float("inf"), 10**9])
async def test_very_long_and_infinite_timeouts_are_accepted(
    user: User, peer: Peer, prefix: str, timeout: float
) -> None:
    peer.hold(prefix)
    with peer.when_waited_for(prefix, peer.release):
        async with user.lock(prefix, timeout=timeout):
            assert peer.modes(prefix) == [EXCLUSIVE]


def test_importing_lockstead_transactions_imports_no_driver() -> None:
    program = (
        "import sys; before = set(sys.modules); import lockstead.transactions;"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    source = Path(lockstead.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(source)},
    )
    assert done.stdout.strip() == "{'lockstead'}", done.stderr


def in_order(*names: Name) -> list[Name]:
    return sorted(names, key=advisory_key)


async def test_an_xact_lock_never_entered_warns(user: User, peer: Peer, prefix: str) -> None:
    with pytest.warns(RuntimeWarning, match=rf"{prefix}x.*never entered.*nothing is locked.*with") as caught:
        xact_lock(user.connection, prefix + "x", prefix + "y")
    assert [warning.filename for warning in caught] == [__file__]
    assert peer.could_take(prefix + "x")
    async with user.lock(prefix + "x"):
        assert not peer.could_take(prefix + "x")


def test_an_xact_lock_that_was_refused_does_not_warn(shared_url: str, prefix: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInputError, match="at least one"):
            xact_lock(object())
        with psycopg.connect(shared_url, autocommit=True) as connection:
            with pytest.raises(InvalidInputError, match="no transaction"), xact_lock(connection, prefix):
                pass
            gc.collect()
