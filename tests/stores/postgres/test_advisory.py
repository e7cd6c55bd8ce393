"""Advisory locks: sessions that end, processes that die, and what other people see."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockstead import (
    AsyncDistributedLock,
    DistributedLock,
    InvalidInputError,
    LockAcquisitionError,
    LockLostError,
    StoreError,
)
from lockstead.cli import main
from lockstead.core.model import WHOLE, Ask, Refusal, Renewal
from lockstead.core.runtime import drive
from lockstead.core.store import Store
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store
from lockstead.stores.postgres.advisory.statements import MAX_COMMENT, comment, label, read_comment
from lockstead.stores.postgres.advisory.store import AdvisoryStore, RequestState
from lockstead.stores.postgres.key import advisory_key
from lockstead.testing.contract.rigs import RUNTIME_NAMES, Rig, ask
from tests.harness.conditions import eventually
from tests.harness.forks import in_child, succeeds
from tests.harness.processes import Worker, boottime
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy

AT_ONCE = 1.0
"""Well below any ttl here, and enough for a busy machine."""
HOSTILE = ["a */ SELECT pg_sleep(60) /*", "/*", "*/", "'; --", '"', "%2A/", "a b", "ü日本", "\\", "$1", "--", "%"]


def advisory(url: str) -> str:
    return url.replace("postgresql://", "postgresql+advisory://")


def held(server: PostgresServer, *, granted: bool = True) -> list[int]:
    """List the server's processes that hold advisory locks, or wait for them."""
    found = server.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted = %s", [granted])
    return [pid for (pid,) in found]


def is_clean(server: PostgresServer) -> bool:
    return not held(server) and not held(server, granted=False)


@pytest.fixture
def server(shared_postgres: Callable[[PostgresFlavour], PostgresServer]) -> PostgresServer:
    server = shared_postgres(POSTGRES18)
    eventually(lambda: is_clean(server), "the sessions of the test before have ended")
    return server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return advisory(server.url)


@pytest.fixture(params=RUNTIME_NAMES)
def rig(request: pytest.FixtureRequest, url: str) -> Rig:
    return Rig(request.param, lambda runtime: open_store(url, runtime))


@pytest.fixture
def locks(url: str) -> Iterator[DistributedLock]:
    with DistributedLock(url) as locks:
        yield locks


@pytest.fixture
def start_peer(start_worker: Callable[..., Worker], url: str) -> Callable[..., Worker]:
    """Start another process with a client of its own, which takes requests."""

    def start(runtime_name: str = "threads", at: str = url) -> Worker:
        worker = start_worker("stores/postgres/programs/advisory.py", at, runtime_name)
        assert worker.answer() == {"ready": True}
        return worker

    return start


@contextmanager
def stores(url: str, count: int = 1) -> Iterator[list[Store]]:
    opened = [open_store(url, ThreadRuntime()) for _ in range(count)]
    try:
        yield opened
    finally:
        for store in opened:
            drive(store.close())


def make_ask(owner: str, name: str = "x", **changes: Any) -> Ask:
    return Ask(name, f"{owner}/1", ttl=30.0, heartbeat=3.0)._replace(**changes)


def join(store: Store, ask_: Ask) -> Any:
    return drive(store.join(ask_, 5.0))


def test_a_holder_whose_session_ends_is_notified_at_once(rig: Rig, server: PostgresServer) -> None:
    async def test() -> None:
        notified: list[Any] = []
        handle = await ask(rig.client().acquire("x", ttl=30, on_lost=notified.append))
        (pid,) = held(server)
        server.terminate(pid)
        assert await rig.until(lambda: not handle.is_held) < AT_ONCE
        assert await rig.until(lambda: notified) < AT_ONCE
        with pytest.raises(LockLostError):
            handle.check()

    rig.run(test())


def test_a_waiter_is_notified_as_well_when_its_session_ends(rig: Rig, server: PostgresServer) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        first = await ask(alice.acquire("x"))
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.acquire("x")))

        rig.start(wait)
        await rig.until(lambda: held(server, granted=False))
        await ask(first.release())
        await rig.until(lambda: got)
        (pid,) = held(server)
        server.terminate(pid)
        assert await rig.until(lambda: not got[0].is_held) < AT_ONCE

    rig.run(test())


def test_the_body_of_an_async_with_is_cancelled_when_the_session_ends(url: str, server: PostgresServer) -> None:
    async def test() -> float:
        async with AsyncDistributedLock(url) as locks:
            with pytest.raises(LockLostError):
                async with locks.lock("x", ttl=30):
                    server.terminate(held(server)[0])
                    ended = time.monotonic()
                    await asyncio.sleep(20)
            return time.monotonic() - ended

    assert asyncio.run(test()) < AT_ONCE


@pytest.mark.parametrize("blow", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_waiter_whose_wait_is_ended_waits_in_line_again(rig: Rig, server: PostgresServer, blow: str) -> None:
    async def test() -> None:
        alice, bob = rig.client(), rig.client()
        first = await ask(alice.acquire("x"))
        got: list[Any] = []

        async def wait() -> None:
            got.append(await ask(bob.acquire("x", timeout=20)))

        rig.start(wait)
        await rig.until(lambda: held(server, granted=False))
        (pid,) = held(server, granted=False)
        before = waits_since(server)
        server.sql(f"SELECT {blow}({pid})")
        await rig.until(lambda: waits_since(server) not in (before, None))
        await ask(first.release())
        await rig.until(lambda: got)
        assert got[0].fence > first.fence

    rig.run(test())


def waits_since(server: PostgresServer) -> Any:
    rows = server.sql("SELECT waitstart FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    return rows[0][0] if rows else None


def test_a_server_that_crashes_ends_the_locks_and_the_loss_is_signalled(rig: Rig) -> None:
    with PostgresServer(POSTGRES18) as server:
        rig._open_store = lambda runtime: open_store(advisory(server.url), runtime)

        async def test() -> None:
            client = rig.client()
            handle = await ask(client.acquire("x", ttl=30))
            server.stop("immediate")
            assert await rig.until(lambda: not handle.is_held) < AT_ONCE
            server.restart()
            again = await ask(client.acquire("x", timeout=10))
            assert again.is_held
            assert len(held(server)) == 1

        rig.run(test())


def test_a_server_that_falls_silent_ends_the_trust_window_and_not_the_session(rig: Rig) -> None:
    with PostgresServer(POSTGRES18, fsync="off") as server:
        rig._open_store = lambda runtime: open_store(advisory(server.url), runtime)

        async def test() -> None:
            client = rig.client()
            short = await ask(client.acquire("x", ttl=0.8))
            long = await ask(client.acquire("y", ttl=60))
            (pid, _) = held(server)
            server.pause()
            try:
                assert await rig.until(lambda: not short.is_held) < 0.8 + AT_ONCE
            finally:
                server.resume()
            await rig.until(lambda: len(held(server)) == 1, 15)
            assert long.is_held
            assert held(server) == [pid], "it is still the session it was"
            assert (await ask(client.acquire("x", timeout=10))).is_held

        rig.run(test())


def test_a_release_on_a_session_that_is_replaced_meanwhile_is_no_loss(server: PostgresServer) -> None:
    outcomes: list[bool] = []
    with FaultProxy(server) as proxy, stores(advisory(proxy.url)) as (store,):
        assert isinstance(store, AdvisoryStore)
        join(store, make_ask("holder"))
        proxy.freeze()
        leaving = threading.Thread(target=lambda: outcomes.append(drive(store.leave("x", "holder/1", 10.0))))
        leaving.start()
        eventually(lambda: store._requests["holder/1"].state is RequestState.RELEASING, "the release is on its way")
        with pytest.raises(StoreError):
            drive(store.leave("y", "no-client/1", 0.1))  # it finds the session silent
        assert join(store, make_ask("patient", "z")).held, "there is no other session"
        leaving.join()
        proxy.heal()
    assert outcomes == [True]


@pytest.mark.parametrize("runtime_name", RUNTIME_NAMES)
def test_a_holder_that_is_killed_holds_no_longer(
    start_peer: Callable[..., Worker], locks: DistributedLock, runtime_name: str
) -> None:
    worker = start_peer(runtime_name)
    worker.ask("acquire", "x")
    assert locks.try_acquire("x") is None
    worker.kill()
    assert locks.acquire("x", timeout=AT_ONCE).is_held


def test_a_waiter_that_is_killed_is_passed_over(
    start_peer: Callable[..., Worker], locks: DistributedLock, server: PostgresServer
) -> None:
    handle = locks.acquire("x")
    worker = start_peer()
    worker.send("acquire", "x")
    eventually(lambda: held(server, granted=False), "it waits")
    worker.kill()
    eventually(lambda: not held(server, granted=False), "the server has noticed")
    handle.release()
    assert locks.try_acquire("x") is not None


def test_a_stopped_holder_keeps_its_advisory_lock_but_detects_that_its_trust_window_ended(
    start_peer: Callable[..., Worker], locks: DistributedLock
) -> None:
    worker = start_peer()
    worker.ask("acquire", "x", ttl=0.5)
    stopped = worker.signal(signal.SIGSTOP)
    eventually(lambda: boottime() > stopped + 0.6, "its ttl is over")
    assert locks.try_acquire("x") is None
    worker.signal(signal.SIGCONT)
    assert worker.ask("state")["held"] is False
    assert locks.acquire("x", timeout=5).is_held


@pytest.mark.parametrize(
    ("runtime_name", "how"), [("threads", "exit"), ("threads", "exit-hard"), ("asyncio", "exit-hard")]
)
def test_a_forked_child_that_ends_takes_nothing_from_its_parent(
    start_peer: Callable[..., Worker], locks: DistributedLock, server: PostgresServer, runtime_name: str, how: str
) -> None:
    worker = start_peer(runtime_name)
    worker.ask("acquire", "x", ttl=30)
    pids = held(server)
    worker.ask("fork", how)
    assert worker.ask("extend", 60) == {"error": None}
    assert held(server) == pids
    assert worker.ask("state") == {"held": True, "lost": False}


@pytest.mark.parametrize("runtime_name", RUNTIME_NAMES)
def test_the_lock_of_a_dead_parent_is_free_although_its_child_runs(
    start_peer: Callable[..., Worker], locks: DistributedLock, runtime_name: str
) -> None:
    worker = start_peer(runtime_name)
    worker.ask("acquire", "x")
    child = worker.ask("fork", "live")["pid"]
    assert locks.try_acquire("x") is None
    worker.kill()
    assert locks.acquire("x", timeout=AT_ONCE).is_held
    assert Path(f"/proc/{child}").exists()


@pytest.mark.parametrize("runtime_name", RUNTIME_NAMES)
def test_an_exit_without_a_release_is_quiet_and_frees(
    start_peer: Callable[..., Worker], locks: DistributedLock, runtime_name: str
) -> None:
    worker = start_peer(runtime_name)
    worker.ask("acquire", "x")
    worker.ask("acquire", "y")
    worker.send("return")
    assert worker.wait() == 0
    assert worker.errors == ""
    assert locks.acquire("x", timeout=AT_ONCE).is_held


def test_cancelling_at_any_moment_leaves_nothing_behind(url: str, server: PostgresServer) -> None:
    async def test() -> None:
        draw = random.Random(7)
        async with AsyncDistributedLock(url) as locks:

            async def contend() -> None:
                async with locks.lock("x"):
                    await asyncio.sleep(draw.random() * 0.002)

            for _ in range(12):
                tasks = [asyncio.create_task(contend()) for _ in range(8)]
                for task in tasks:
                    await asyncio.sleep(draw.random() * 0.003)
                    if draw.random() < 0.7:
                        task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() or task.exception() is None for task in tasks)
            await asyncio.to_thread(eventually, lambda: is_clean(server), "nothing is held")
            assert (await locks.acquire("x", timeout=5)).is_held

    asyncio.run(test())


def test_timeouts_at_any_moment_leave_nothing_behind(locks: DistributedLock, server: PostgresServer) -> None:
    draw = random.Random(11)
    inside = threading.Lock()

    def contend() -> None:
        for _ in range(15):
            with suppress(LockAcquisitionError), locks.lock("x", timeout=draw.random() * 0.02):
                assert inside.acquire(blocking=False)
                time.sleep(draw.random() * 0.002)
                inside.release()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: is_clean(server), "nothing is held")
    assert locks.try_acquire("x") is not None


def test_fences_grow_from_holder_to_holder(start_peer: Callable[..., Worker], tmp_path: Path) -> None:
    workers = [start_peer(runtime_name) for runtime_name in (*RUNTIME_NAMES, *RUNTIME_NAMES)]
    journal = tmp_path / "fences"
    for worker in workers:
        worker.send("hand_over", "x", 50, str(journal))
    for worker in workers:
        assert worker.answer(30) == {"error": None}
    fences = [int(line) for line in journal.read_text().splitlines()]
    assert len(fences) == 200
    assert fences == sorted(set(fences))


def test_a_fence_is_drawn_when_the_wait_is_over_not_when_it_begins(url: str) -> None:
    with stores(url, 2) as (one, two):
        join(one, make_ask("alice"))
        join(two, make_ask("bob"))
        between = join(one, make_ask("carol", "y")).ticket
        drive(one.leave("x", "alice/1", 5.0))
        (standing,) = drive(two.renew([Renewal("x", "bob/1", 30.0, 3.0)], 5.0))
        assert standing.held
        assert standing.ticket > between


def test_a_key_in_use_is_not_taken_twice_on_the_session_that_has_it(url: str, server: PostgresServer) -> None:
    with stores(url) as (store,):
        assert join(store, make_ask("alice")).held
        refusal = join(store, make_ask("bob", queue=False))
        assert isinstance(refusal, Refusal)
        assert refusal.holder == "alice/1"
        assert not join(store, make_ask("carol")).held
        assert len(set(held(server))) == 1
        assert drive(store.leave("x", "alice/1", 5.0))
        (standing,) = drive(store.renew([Renewal("x", "carol/1", 30.0, 3.0)], 5.0))
        assert standing.held


def test_a_writer_is_not_starved_by_readers(url: str) -> None:
    with stores(url, 3) as (one, two, third):
        readers = [make_ask(f"reader-{number}", capacity=WHOLE) for number in range(6)]
        for number, reader in enumerate(readers[:4]):
            assert join((one, two)[number % 2], reader).held
        assert not join(third, make_ask("writer", capacity=WHOLE, weight=WHOLE)).held
        assert not join(one, readers[4]).held
        assert isinstance(join(two, readers[5]._replace(queue=False)), Refusal)
        for number, reader in enumerate(readers[:4]):
            drive((one, two)[number % 2].leave("x", reader.owner, 5.0))
        (standing,) = drive(third.renew([Renewal("x", "writer/1", 30.0, 3.0)], 5.0))
        assert standing.held


def test_hundreds_of_locks_are_held_by_one_session_and_renewed_by_one_round_trip(
    locks: DistributedLock, server: PostgresServer
) -> None:
    handles = [locks.acquire(f"name-{number}") for number in range(400)]
    assert len(set(held(server))) == 1
    store = locks._engine.store
    session = store._common  # type: ignore[attr-defined]
    sent: list[Any] = []
    send = session._send

    def spy(put: Any) -> Any:
        sent.append(put)
        return send(put)

    session._send = spy
    renewals = [Renewal(handle.name, handle._leases[0].ask.owner, 30.0, 3.0) for handle in handles]
    assert all(standing.held for standing in drive(store.renew(renewals, 5.0)))
    assert len(sent) == 1
    assert locks.release_all() == 400
    assert is_clean(server)


def test_sessions_that_waited_are_kept_for_others_but_not_too_many(url: str, server: PostgresServer) -> None:
    with DistributedLock(f"{url}?application_name=many") as locks:
        first = locks.acquire("x")
        threads = [threading.Thread(target=lambda: locks.acquire("x").release()) for _ in range(8)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(held(server, granted=False)) == 8, "all wait")
        first.release()
        for thread in threads:
            thread.join()
        eventually(lambda: server.connections("many") == 5, "four spare ones and the common one are left")
    eventually(lambda: server.connections("many") == 0, "all are closed")


def test_a_session_is_never_left_in_a_transaction_and_keeps_to_its_own_timeouts(server: PostgresServer) -> None:
    with server.database() as database, ExitStack() as stack:
        for setting in ("statement_timeout", "lock_timeout", "idle_session_timeout", "transaction_timeout"):
            server.sql(f"ALTER DATABASE {database.rpartition('/')[2]} SET {setting} = '100ms'")
        locks = stack.enter_context(DistributedLock(advisory(database)))
        handle = locks.acquire("x")
        waiter = threading.Thread(target=lambda: locks.acquire("x").release())
        waiter.start()
        began = eventually(lambda: waits_since(server), "it waits")
        eventually(lambda: server.sql("SELECT now() > %s + interval '300 ms'", [began]) == [(True,)], "it waited long")
        assert waits_since(server) == began
        states = server.sql("SELECT state FROM pg_stat_activity WHERE application_name = 'lockstead'")
        assert sorted(states) == [("active",), ("idle",)]
        handle.release()
        waiter.join()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(locks: DistributedLock, url: str, server: PostgresServer, name: str) -> None:
    handle = locks.acquire(name)
    with DistributedLock(url) as another:
        assert [info.name for info in another.inspect()] == [name]
        info = another.info(name)
        assert info is not None
        assert info.holder_id == handle.holder_id
        with pytest.raises(LockAcquisitionError):
            another.acquire(name, timeout=0.05)


def test_a_comment_carries_what_it_was_given_and_cannot_be_broken_out_of() -> None:
    labels = [label(name, f"{name}/1") for name in HOSTILE]
    text = comment(labels) + "SELECT 1"
    assert text.count("*/") == text.count("/*") == 1
    assert text.isascii()
    assert text.isprintable()
    assert read_comment(text) == [(name, f"{name}/1") for name in HOSTILE]
    cut = text[: text.index(labels[1]) + len(labels[1]) - 1]
    assert read_comment(cut) == [(HOSTILE[0], f"{HOSTILE[0]}/1")], "cut off in the second"
    long = comment([label("ü" * 250, "o/1"), *(label(f"n-{number}", "o/1") for number in range(500))])
    assert len(long) < MAX_COMMENT + 50
    assert "n-0 o/1 n-1 o/1" in long
    assert read_comment("SELECT 1 /* lockstead a b */") == []
    assert read_comment("") == []


def test_the_server_shows_the_names_of_what_a_session_holds(locks: DistributedLock, server: PostgresServer) -> None:
    handles = {name: locks.acquire(name) for name in ("account:1", "account:2", "account:3")}
    handles["account:2"].release()
    (query,) = server.sql("SELECT query FROM pg_stat_activity WHERE pid = %s", [held(server)[0]])[0]
    shown = [(name, handles[name]._leases[0].ask.owner) for name in ("account:3", "account:1")]
    assert read_comment(query) == shown


def test_locks_of_other_programs_are_seen_and_respected(
    locks: DistributedLock, server: PostgresServer, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    with psycopg.connect(server.url, autocommit=True, application_name="billing") as other_session:
        other_session.execute(
            "SELECT pg_advisory_lock(42), pg_advisory_lock(7, 8), pg_advisory_lock(%s)", [key_of("job")]
        )
        holder = f"billing:{other_session.info.backend_pid}"
        for name in ("pg:42", "pg:7,8", "job"):
            assert locks.try_acquire(name) is None
            info = locks.info(name)
            assert info is not None
            assert (info.name, info.holder_id, info.fence, info.expires_at) == (name, holder, 0, None)
        assert sorted(info.name for info in locks.inspect("pg:")) == sorted(["pg:42", "pg:7,8", f"pg:{key_of('job')}"])
        assert main(["ls", "--url", url]) == 0
        assert "with its session" in (shown := capsys.readouterr().out)
        assert " - " in shown
        assert main(["show", "pg:42", "--url", url]) == 0
        assert main(["ls", "--url", url, "--json", "pg:42"]) == 0
        assert json.loads(capsys.readouterr().out.partition("\n[")[2].join(["[", ""]))[0]["expires_at"] is None
        taken = locks.force_release("pg:42")
        assert taken is not None
        assert taken.holder_id == holder
        assert locks.try_acquire("job") is not None, "its session ended, and with it everything it held"


def key_of(name: str) -> int:
    return advisory_key(name).number


def test_an_ordinary_role_can_hold_but_not_end_another_roles_session(locks: DistributedLock, url: str) -> None:
    server_url = url.replace("+advisory", "")
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS weak")
        admin.execute("CREATE ROLE weak LOGIN")
    try:
        with DistributedLock(url.replace("postgres@", "weak@")) as weak:
            assert weak.acquire("mine").fence > 0
            handle = locks.acquire("x")
            assert weak.try_acquire("x") is None
            assert weak.try_acquire("mine") is None
            with pytest.raises(StoreError, match="pg_signal_backend"):
                weak.force_release("x")
            assert handle.is_held
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute("DROP ROLE weak")


def test_a_role_that_may_draw_no_fences_holds_nothing(server: PostgresServer, url: str) -> None:
    signature = "pg_logical_emit_message(boolean, text, text, boolean)"
    server.sql("DROP ROLE IF EXISTS weaker")
    server.sql(f"CREATE ROLE weaker LOGIN; REVOKE EXECUTE ON FUNCTION {signature} FROM PUBLIC")
    try:
        with (
            DistributedLock(url.replace("postgres@", "weaker@")) as weak,
            pytest.raises(StoreError, match="GRANT EXECUTE ON FUNCTION pg_logical_emit_message"),
        ):
            weak.acquire("x")
        assert is_clean(server)
    finally:
        server.sql(f"GRANT EXECUTE ON FUNCTION {signature} TO PUBLIC; DROP ROLE weaker")


def test_a_standby_is_refused_and_a_log_that_is_kept_minimal_is_no_harm() -> None:
    with PostgresServer(POSTGRES18, wal_level="minimal", max_wal_senders="0", fsync="off") as server:
        with DistributedLock(advisory(server.url)) as locks:
            first = locks.acquire("x")
            first.release()
            assert locks.acquire("x").fence > first.fence
        server.settings = {"fsync": "off"}
        server.restart()
        server.restart()  # so that its log no longer has what was written at the minimal level
        (server._data / "standby.signal").touch()
        server.restart()
        with DistributedLock(advisory(server.url)) as locks, pytest.raises(StoreError, match="standby"):
            locks.acquire("x", timeout=0.1)


def test_too_many_connections_are_an_error_and_leave_nothing_behind() -> None:
    settings = {"max_connections": "5", "superuser_reserved_connections": "0", "max_wal_senders": "0", "fsync": "off"}
    with PostgresServer(POSTGRES18, **settings) as server, ExitStack() as stack:
        locks = stack.enter_context(DistributedLock(advisory(server.url)))
        handle = locks.acquire("x")
        for _ in range(4):
            stack.enter_context(psycopg.connect(server.url))
        with pytest.raises(StoreError, match="max_connections"):
            locks.acquire("x", timeout=1)
        assert handle.is_held
        assert locks.acquire("y").is_held, "what needs no session of its own goes on"
        handle.release()
        assert locks.acquire("x", timeout=1).is_held


@pytest.mark.parametrize("option", ["schema=mine", "push=no", "listen=postgresql://elsewhere"])
def test_options_of_the_lease_table_are_refused(url: str, option: str) -> None:
    with pytest.raises(InvalidInputError, match="lease table"):
        DistributedLock(f"{url}?{option}")


def test_a_connection_object_with_advisory_true_opens_advisory_locks(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection, DistributedLock(connection, advisory=True) as locks:
        assert locks.acquire("x").is_held
        assert len(held(server)) == 1


def test_an_unlock_that_fails_is_repeated(locks: DistributedLock, server: PostgresServer) -> None:
    """It is cancelled before it could even be planned: nothing of it may count as prepared, and the lock must go."""
    handle = locks.acquire("x")
    session = locks._engine.store._common  # type: ignore[attr-defined]
    with psycopg.connect(server.url) as vacuum:
        vacuum.execute("LOCK TABLE pg_catalog.pg_proc IN ACCESS EXCLUSIVE MODE")
        releasing = threading.Thread(target=_release_that_fails, args=(handle,))
        releasing.start()
        blocked = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        eventually(lambda: vacuum.execute(blocked, [session.pid]).fetchone(), "the unlock is stuck")
        vacuum.execute("SELECT pg_cancel_backend(%s)", [session.pid])
        releasing.join(10)
    eventually(lambda: is_clean(server), "the lock is given back")
    locks.acquire("x", timeout=5).release()
    assert is_clean(server)


def _release_that_fails(handle: Any) -> None:
    with suppress(StoreError):
        handle.release()


def test_a_refusal_leaves_nothing_behind_even_if_no_holder_can_be_named(
    locks: DistributedLock, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_holder(*_: object) -> str:
        return ""

    store: Any = locks._engine.store
    monkeypatch.setattr(store, "_holder", no_holder)
    with DistributedLock(server.url.replace("postgresql:", "postgresql+advisory:")) as other, other.lock("x"):
        assert locks.try_acquire("x") is None
    assert not store._requests


def test_an_imitated_comment_with_control_characters_is_ignored() -> None:
    assert read_comment("/* lockstead a%1B b/1 c d/1 */") == [("c", "d/1")]


def test_a_forked_child_ends_though_its_parent_was_just_looking_at_its_sessions(locks: DistributedLock) -> None:
    """The mutex of the parent's watcher is copied as it is, and whichever thread held it has not come along."""
    factory: Any = locks._engine.store._session_factory  # type: ignore[attr-defined]
    finalizer = factory._finalizer
    with locks.lock("x"), factory._watcher._mutex:
        child = in_child(lambda: os._exit(finalizer.alive))
    succeeds(child)
    assert finalizer.alive
