"""`postgresql+advisory://`: the server's own advisory locks, held by sessions. Needs no migration.

A client's common session carries every lock that is free when it is requested. A request that has to wait does so on a
dedicated session, in the server's queue, and holds its lock there.

Differences from the lease table:

- A lock ends with its session, not with a ttl. The ttl is only how long a client trusts the server's last reply. The
  locks of a process that dies are free at once; those of a host that vanishes, within half a minute; those of a process
  that is stopped (SIGSTOP, a frozen VM) stay held for as long as its kernel answers for it.
- Fences are positions in the server's write-ahead log. They grow, with one gap: after a crash of the server, or a
  failover to an asynchronous standby, positions that had not been written out may be drawn again. A fence check must
  not use fences of readers, here as elsewhere.
- An exclusive lock and a writer are the same to the server, so a name used with two capacities is not detected.
- Only the holder's client has its fence and metadata. Others see the holder in a comment before the session's last
  statement, which names as many locks as fit.
- To release another client's lock is to end its session, with whatever else that holds.
- A waiter is in the middle of a statement, which holds back VACUUM as any long statement does.
- The server identifies a name by 64 bits of its hash; see `key.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import Enum, auto
from itertools import groupby
from math import inf
from typing import Any, cast
from weakref import WeakMethod

from psycopg.pq.abc import PGresult

from lockstead.core import lifecycle
from lockstead.core.model import (
    GONE,
    UNKNOWN,
    WHOLE,
    Ask,
    Capabilities,
    Line,
    Place,
    PlaceState,
    Refusal,
    Renewal,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime
from lockstead.core.timing import INSPECTION_TIMEOUT
from lockstead.errors import NestedCallError, StoreError, UnsupportedError
from lockstead.runtimes.aio import AsyncRuntime
from lockstead.runtimes.nesting import step
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.postgres import libpq
from lockstead.stores.postgres.address import Address
from lockstead.stores.postgres.advisory import statements as sql
from lockstead.stores.postgres.advisory.session import (
    BlockingSessionFactory,
    LoopSessionFactory,
    Reply,
    Session,
    SessionFactory,
)
from lockstead.stores.postgres.advisory.statements import LockSnapshot, Prepared, SessionLock
from lockstead.stores.postgres.errors import FAILURES, connection_failure, server_error
from lockstead.stores.postgres.key import Key, advisory_key
from lockstead.stores.postgres.libpq import ERRORS, Row

log = logging.getLogger("lockstead")

MAX_SPARE_SESSIONS = 4
"""How many idle dedicated sessions are kept for the next requests that wait: they are slow to open, but the server has
few."""
QUEUE_CHECK_DELAY = 0.01
"""Seconds that a statement has to reach the server's queue before the server is asked whether it has. That query costs
more than the wait itself, and a lock that is handed over sooner makes it needless."""
CONTENTION_MEMORY = 0.5
"""Seconds for which the next request for a lock that was busy goes to the server's queue without trying it first."""
MAX_CONTENDED = 1000
"""How many busy locks are remembered before those whose time is over are dropped."""
QUEUE_POLL_INTERVAL = 0.002
"""Seconds between two checks whether a statement has reached the server's queue. Also the first pause between two
attempts to cancel a wait, or two checks whether a session has ended; these pauses double."""
MAX_POLL_INTERVAL = 0.1
"""Seconds that a pause before the next check whether a session has ended grows to."""
MAX_TRIES = 3
"""How often to try a lock that was busy, but whose holder had released it when the server was asked for its name."""


class RequestState(Enum):
    """The states of a request. Any release enters RELEASING; a wait that the server cancels enters GONE."""

    JOINING = auto()
    WAITING = auto()
    HELD = auto()
    RELEASING = auto()
    GONE = auto()


class LockRequest:
    """One owner's request for a lock: joining, waiting in the server's queue, or held."""

    __slots__ = ("ask", "holder", "key", "label", "reply", "session", "shared", "since", "state", "ticket")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.key = advisory_key(ask.name)
        self.label = sql.label(ask.name, ask.owner)
        self.shared = ask.weight < ask.capacity
        self.state = RequestState.JOINING
        self.session: Session | None = None
        self.reply: Reply | None = None
        self.ticket = 0
        self.since = 0.0
        self.holder = ""

    def excludes(self, other: LockRequest) -> bool:
        return self.state is RequestState.HELD and not (self.shared and other.shared)

    def is_gone(self) -> bool:
        return self.state is RequestState.GONE or (self.session is not None and self.session.is_lost)


class AdvisoryStore:
    """One client's sessions, and its requests on them.

    Not promised: that a lock is free once its ttl is over, or that fences grow across a crash of the server.
    """

    capabilities = Capabilities(semaphore=False, expiry=False, records=False)

    def __init__(self, runtime: Runtime, address: Address) -> None:
        self.runtime = runtime
        self.address = f"postgresql+advisory://{address}"
        self._address = address
        self._on_suspect: list[Callable[[str], None]] = []
        self._is_closed = False
        lost = WeakMethod(self._on_session_lost)  # the watcher's thread must not keep the store alive

        def on_lost(session: Session) -> None:
            if (call := lost()) is not None:
                call(session)

        self._session_factory: SessionFactory
        self._step: Callable[[], AbstractContextManager[Any]] = step
        """Refuses a call that has interrupted another in the same thread."""
        if isinstance(runtime, AsyncRuntime):
            self._step = nullcontext
            self._session_factory = LoopSessionFactory(runtime, address, on_lost)
        else:
            self._session_factory = BlockingSessionFactory(cast("ThreadRuntime", runtime), address, on_lost)
        self._reset()
        lifecycle.at_fork(self, in_child="_forked")

    def _reset(self) -> None:
        self._mutex = self.runtime.mutex()
        self._requests: dict[str, LockRequest] = {}
        self._tombstones: dict[str, float] = {}
        self._contended: dict[Key, float] = {}
        """Until when a lock that was busy is expected to be busy."""
        self._common: Session | None = None
        self._spares: list[Session] = []
        self._sessions: set[Session] = set()

    def __del__(self) -> None:
        """Close the sessions of a store that was dropped: the loop keeps references to those it reads from."""
        if isinstance(self.runtime, AsyncRuntime):
            for session in self._sessions:
                with suppress(RuntimeError):  # the loop is closed
                    self.runtime.call_in_owner(session.close)

    def _forked(self) -> None:
        for session in self._sessions:
            session.abandon()
        self._session_factory.forked()
        self._reset()

    def watch(self, on_suspect: Callable[[str], None]) -> None:
        self._on_suspect.append(on_suspect)

    def _on_session_lost(self, session: Session) -> None:
        self._sessions.discard(session)
        for request in list(session.locks.values()):
            for on_suspect in self._on_suspect:
                on_suspect(request.ask.owner)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        """Acquire the lock, wait for it, or be refused.

        When this returns, a queued join has reached the server's queue, so that later joins are behind it.
        """
        with self._step():
            return await self._join(ask, timeout)

    async def _join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if not self.capabilities.supports(ask.capacity, ask.weight):
            msg = (
                f"advisory locks are exclusive, or for readers and writers, but have no capacity of {ask.capacity}: "
                "use the lease table, postgresql://…"
            )
            raise UnsupportedError(msg, name=ask.name)
        deadline = self.runtime.now() + timeout
        with self._mutex:
            if self._has_tombstone(ask.owner):
                return Refusal()
            request = self._requests.get(ask.owner)
            is_repeated = request is not None
            if request is None or request.is_gone():
                request = self._requests[ask.owner] = LockRequest(ask)
        try:
            return await self._continue_join(request, deadline)
        except FAILURES as error:
            if not isinstance(error, TimeoutError) or request.session is None:
                self._forget(request)
            raise connection_failure(self._address, error) from error
        except StoreError as error:
            error.was_sent |= is_repeated  # an earlier join of this owner was
            if request.session is None:
                self._forget(request)
            raise

    async def _continue_join(self, request: LockRequest, deadline: float) -> Standing | Refusal:
        """Continue where an earlier join of the same owner stopped."""
        self._apply_wait_result(request)
        if request.state is RequestState.WAITING:
            return _waiting_standing(request)
        if request.state is RequestState.HELD:
            session = cast("Session", request.session)
            with self._mutex:
                reply = self._send(session, sql.PING)
            now = _number(await self._rows(session, reply, deadline))
            return Standing(PlaceState.HELD, request.ticket, now)
        if request.session is None and self._is_contended(request):
            return await self._enqueue(request, await self._dedicated_session(deadline), deadline)
        for _ in range(MAX_TRIES):
            if request.state is RequestState.RELEASING:
                return Refusal()
            outcome = await self._try_lock(request, deadline)
            if isinstance(outcome, Standing) or outcome.holder:
                return outcome
        self._forget(request)
        return Refusal("unknown/0")

    async def _try_lock(self, request: LockRequest, deadline: float) -> Standing | Refusal:
        """Request the lock without waiting for it, and apply the reply."""
        if request.session is None:
            outcome = await self._send_try_lock(request, deadline)
            if outcome is not None:
                return outcome
        session, reply = request.session, request.reply
        if session is None or reply is None:
            return UNKNOWN
        try:
            ((fence, now),) = await self._rows(session, reply, deadline)
        except StoreError:
            self._discard_failed(request)
            raise
        with self._mutex:
            if not self._is_current(request):
                return UNKNOWN
            if fence is not None:
                return self._mark_held(request, fence, now)
            session.locks.pop(request.key, None)
            request.session = request.reply = None
        return await self._handle_busy(request, session, deadline)

    async def _send_try_lock(self, request: LockRequest, deadline: float) -> Standing | Refusal | None:
        """Send the request on the common session, unless the lock is in use there: a session would get it twice."""
        session = await self._common_session(deadline)
        statement = sql.try_lock(request.key, shared=request.shared)
        with self._mutex:
            conflicting: LockRequest | None = session.locks.get(request.key)
            if conflicting is None:
                return self._send_lock(request, session, statement)
        if conflicting.excludes(request):
            if request.ask.queue:
                return await self._enqueue(request, await self._dedicated_session(deadline), deadline)
            self._forget(request)
            return Refusal(conflicting.ask.owner)
        session = await self._dedicated_session(deadline)
        with self._mutex:
            outcome = self._send_lock(request, session, statement)
        if outcome is not None:
            self._return_session(session)
        return outcome

    async def _handle_busy(self, request: LockRequest, session: Session, deadline: float) -> Standing | Refusal:
        """Join the server's queue, or find the holder of the lock."""
        if request.ask.queue:
            self._note_contention(request.key)
            return await self._enqueue(
                request, session if session.is_dedicated else await self._dedicated_session(deadline), deadline
            )
        if session.is_dedicated:
            self._return_session(session)
        holder = await self._holder(request, deadline)
        if holder:
            self._forget(request)
        return Refusal(holder)

    async def _enqueue(self, request: LockRequest, session: Session, deadline: float) -> Standing:
        """Join the server's queue, and return once the server shows that the request is in it."""
        with self._mutex:
            outcome = self._send_lock(request, session, sql.await_lock(request.key, shared=request.shared))
            if outcome is None:
                request.state = RequestState.WAITING
        if outcome is not None:
            self._return_session(session)
            return outcome
        reply = cast("Reply", request.reply)
        with suppress(StoreError, *FAILURES):
            await session.wait_for(reply, min(QUEUE_CHECK_DELAY, self._remaining(deadline) / 4))
            while not reply.is_done:
                snapshot = await self._list_locks([request.key], deadline)
                request.ticket = max(snapshot.ticket, 1)
                request.holder = _holder_of(snapshot.locks, request.key)
                if any(lock.pid == session.pid for lock in snapshot.locks):
                    break
                await session.wait_for(reply, QUEUE_POLL_INTERVAL)
        request.ticket = request.ticket or 1
        self._apply_wait_result(request)
        if request.state is RequestState.HELD:
            return Standing(PlaceState.HELD, request.ticket, request.since)
        return _waiting_standing(request)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        """Ping every session concerned: the server keeps a lock for as long as its session exists."""
        with self._step():
            return await self._renew(renewals, timeout)

    async def _renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        deadline = self.runtime.now() + timeout
        requests = [self._find(renewal.name, renewal.owner) for renewal in renewals]
        waiting = [request for request in requests if request and request.state is RequestState.WAITING]
        sessions = {
            request.session
            for request in requests
            if request and request.session and request.state is RequestState.HELD
        }
        asked: dict[Session, Reply] = {}
        for session in sessions:
            with suppress(*FAILURES), self._mutex:
                asked[session] = self._send(session, sql.PING)
        server_times: dict[Session, float] = {}
        failure: Exception | None = None
        for session, reply in asked.items():
            try:
                server_times[session] = _number(await self._rows(session, reply, deadline))
            except (StoreError, *FAILURES) as error:
                failure = error
        server_times |= await self._check_waiting(waiting, deadline)
        standings = [_standing(request, server_times) for request in requests]
        if failure is not None and all(standing == UNKNOWN for standing in standings):
            raise failure if isinstance(failure, StoreError) else connection_failure(self._address, failure)
        return standings

    async def _check_waiting(self, waiting: Sequence[LockRequest], deadline: float) -> dict[Session, float]:
        """Read the holder of each lock waited for, and which waits have ended: the server shows this before it replies.

        Returns the sessions that hold by now, each with the server's time.
        """
        server_times: dict[Session, float] = {}
        if not waiting:
            return server_times
        with suppress(StoreError, *FAILURES):
            snapshot = await self._list_locks({request.key for request in waiting}, deadline)
            granted = {(lock.pid, lock.key) for lock in snapshot.locks if lock.granted}
            for request in waiting:
                session, reply = request.session, request.reply
                request.holder = _holder_of(snapshot.locks, request.key) or request.holder
                if session is not None and reply is not None and (session.pid, request.key) in granted:
                    await session.wait_for(reply, self._remaining(deadline))
                    self._apply_wait_result(request)
                    server_times[session] = snapshot.now
        return server_times

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        """Release a lock, or cancel a wait. Another client's lock is released by ending its session.

        Raises StoreError if this role may not end it, that is if the session has another role.
        """
        with self._step():
            return await self._leave(name, owner, timeout, tombstone)

    async def _leave(self, name: str, owner: str, timeout: float, tombstone: float) -> bool:
        deadline = self.runtime.now() + timeout
        with self._mutex:
            if tombstone:
                self._add_tombstone(owner, tombstone)
            request = self._requests.get(owner)
        try:
            if request is None or request.ask.name != name:
                return not self._is_closed and await self._terminate_holder(name, owner, deadline)
            return await self._release(request, deadline)
        except FAILURES as error:
            if request is not None and request.is_gone():
                self._forget(request)
                return False
            raise connection_failure(self._address, error) from error

    async def _release(self, request: LockRequest, deadline: float) -> bool:
        self._apply_wait_result(request)
        session = request.session
        if session is None or session.is_lost:
            self._forget(request)
            return False
        if not self._session_factory.is_running():  # the interpreter exits
            self._forget(request)
            session.close()
            return True
        with self._mutex:
            state, awaited = request.state, request.reply
            if state is RequestState.GONE:  # its wait was cancelled meanwhile
                raise ConnectionResetError
            if state is RequestState.WAITING:
                request.reply = None
            elif state is not RequestState.RELEASING:
                session.locks.pop(request.key, None)
                unlock = sql.unlock if state is RequestState.HELD else sql.unlock_if_held
                request.reply = self._send(session, unlock(request.key, shared=request.shared))
            request.state = RequestState.RELEASING
            reply = request.reply
        if state is RequestState.WAITING:
            return await self._cancel_wait(request, session, cast("Reply", awaited), deadline)
        if reply is None:  # another call is cancelling the wait
            return True
        return await self._await_unlock(request, session, reply, deadline)

    async def _await_unlock(self, request: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
        try:
            was_there = (await self._rows(session, reply, deadline)) == [[b"t"]]
        except TimeoutError:
            if not session.is_dedicated:
                raise  # the unlock is on its way; the caller repeats `leave`
            was_there = True
            session.close()
        except FAILURES:
            was_there = session.is_closed  # which releases it as well
        except StoreError:
            if not session.is_dedicated:
                self._resend_unlock(request, session)
                raise
            was_there = True
            session.close()
        self._finish_release(request, session)
        return was_there

    def _resend_unlock(self, request: LockRequest, session: Session) -> None:
        """Send an unlock again after the server refused it. The next `leave` awaits its reply."""
        with suppress(*FAILURES), self._mutex:
            is_in_use = request.key in session.locks  # by another owner: the server counts this session's acquisitions
            unlock = sql.unlock if is_in_use else sql.unlock_if_held
            request.reply = self._send(session, unlock(request.key, shared=request.shared))

    def _unlock_all(self, session: Session) -> Reply:
        """Release whatever a dedicated session holds.

        A statement may be cancelled after the lock was granted: the lock then stays held in spite of the error.
        """
        with self._mutex:
            session.locks.clear()
            return self._send(session, sql.UNLOCK_ALL)

    def _finish_release(self, request: LockRequest, session: Session) -> None:
        """Forget a released request, and reuse or close its session."""
        if self._forget(request) and session.is_dedicated:
            self._return_session(session)
        elif not session.is_dedicated and session is not self._common and session.is_idle():
            session.close()  # it was replaced when a reply of it was overdue
            self._sessions.discard(session)

    async def _cancel_wait(self, request: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
        """Cancel a wait, and release the lock if it was granted meanwhile.

        If the server does not confirm that in time, the session is closed.
        """
        try:
            pause = QUEUE_POLL_INTERVAL
            while not reply.is_done and self._remaining(deadline):
                common = await self._common_session(deadline)
                with self._mutex:
                    cancelling = self._send(common, sql.cancel(session.pid))
                await self._rows(common, cancelling, deadline)
                await session.wait_for(reply, pause)  # a cancel before the statement has begun has no effect
                pause *= 2
            await session.result_of(reply, self._remaining(deadline))
            await self._rows(session, self._unlock_all(session), deadline)
        except (StoreError, *FAILURES):
            session.close()
        except BaseException:
            session.close()
            raise
        finally:
            self._finish_release(request, session)
        return True

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        with self._step():
            return await self._wait(owner, timeout)

    async def _wait(self, owner: str, timeout: float) -> Wake:
        request = self._requests.get(owner)
        session, reply = (request.session, request.reply) if request else (None, None)
        if request is None or session is None or reply is None or request.state is not RequestState.WAITING:
            await self.runtime.sleep(min(timeout, QUEUE_POLL_INTERVAL))
            return Wake.HINT
        return Wake.HINT if await session.wait_for(reply, timeout) else Wake.TIMEOUT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report what the server shows. A lock whose name no comment shows is named after its key: `pg:…`."""
        with self._step():
            return await self._inspect(prefix, exact=exact)

    async def _inspect(self, prefix: str, *, exact: bool) -> list[Line]:
        keys = [advisory_key(prefix)] if exact else None
        try:
            snapshot = await self._list_locks(keys, self.runtime.now() + INSPECTION_TIMEOUT)
        except FAILURES as error:
            raise connection_failure(self._address, error) from error
        known = self._own_requests()
        lines = []
        in_order = sorted(snapshot.locks, key=lambda lock: lock.key)
        for key, of_key in groupby(in_order, key=lambda lock: lock.key):
            locks = list(of_key)
            names = (known[lock.pid, key].ask.name if (lock.pid, key) in known else lock.name for lock in locks)
            name = prefix if exact else min(names, key=lambda name: name == str(key))
            if name.startswith(prefix):
                places = tuple(_place(lock, known.get((lock.pid, key))) for lock in locks)
                lines.append(Line(name, snapshot.now, places))
        return sorted(lines, key=lambda line: line.name)

    async def close(self) -> None:
        """Close every session, and with them what they hold."""
        self._is_closed = True
        try:
            with self._step():
                self._end_sessions()
        except NestedCallError:  # the interrupted call may be about to use a session
            self.runtime.spawn(self._close_later, "lockstead-close")

    async def _close_later(self) -> None:
        with self._mutex:  # not while the interrupted call is sending
            self._end_sessions()

    def _end_sessions(self) -> None:
        for session in list(self._sessions):
            session.close()
        self._sessions.clear()
        self._spares.clear()
        self._common = None

    async def _terminate_holder(self, name: str, owner: str, deadline: float) -> bool:
        """End the session of another client that holds the lock, or waits for it, under this owner."""
        if not self._session_factory.is_running():
            return False
        key = advisory_key(name)
        snapshot = await self._list_locks([key], deadline)
        ours = {session.pid for session in list(self._sessions)}
        lock = next((each for each in snapshot.locks if each.owner == owner and each.pid not in ours), None)
        if lock is None:
            return False
        log.warning(
            "%s: %r is held by %s: ending its session (server process %d), with every other lock that it holds",
            self.address,
            name,
            owner,
            lock.pid,
        )
        session = await self._common_session(deadline)
        with self._mutex:
            reply = self._send(session, sql.terminate(lock.pid))
        try:
            await self._rows(session, reply, deadline)
        except StoreError as error:
            if error.transient:
                raise
            msg = (
                f"{name!r} is held by {owner}, and this role may not end that session: connect as the role that holds "
                "it, or as a member of pg_signal_backend"
            )
            raise StoreError(msg, name=name) from error
        pause = QUEUE_POLL_INTERVAL
        while any(each.pid == lock.pid for each in (await self._list_locks([key], deadline)).locks):
            if self._remaining(deadline) <= pause:
                msg = f"the session that holds {name!r} has not ended yet: try again"
                raise StoreError(msg, name=name, transient=True)
            await self.runtime.sleep(pause)
            pause = min(2 * pause, MAX_POLL_INTERVAL)
        return True

    async def _common_session(self, deadline: float) -> Session:
        """Return the common session, or open one. One with an overdue reply gets no more requests."""
        session = self._find_common()
        return session or await self._session_factory.open_shared(
            self._find_common, self._set_common, self._remaining(deadline)
        )

    def _find_common(self) -> Session | None:
        session = self._common
        if session is None or session.is_lost:
            return None
        if session.is_overdue:
            session.read_available()
        return None if session.is_lost or session.is_overdue else session

    def _set_common(self, session: Session) -> None:
        self._register(session)
        with self._mutex:
            former, self._common = self._common, session
        if former is not None and not former.locks:
            former.close()
            self._sessions.discard(former)

    async def _dedicated_session(self, deadline: float) -> Session:
        """Take a spare dedicated session, or open one."""
        while True:
            try:
                session = self._spares.pop()
            except IndexError:
                session = await self._session_factory.open(self._remaining(deadline))
                self._register(session)
                session.is_dedicated = True
            if not session.is_lost:
                return session

    def _register(self, session: Session) -> None:
        self._sessions.add(session)
        if self._is_closed:
            session.close()

    def _return_session(self, session: Session) -> None:
        """Keep an idle dedicated session for the next request that waits, or close it."""
        if not session.is_lost and not self._is_closed and len(self._spares) < MAX_SPARE_SESSIONS:
            self._spares.append(session)
        else:
            session.close()
            self._sessions.discard(session)

    def _send_lock(self, request: LockRequest, session: Session, statement: str | Prepared) -> Standing | None:
        """Send a request for a lock on a session, unless it was released meanwhile."""
        if not self._is_current(request):
            return UNKNOWN
        session.locks[request.key] = request
        request.session = session
        request.reply = self._send(session, statement)
        return None

    def _discard_failed(self, request: LockRequest) -> None:
        """Release a lock whose request failed: the error may have been raised after it was acquired."""
        session = request.session
        if session is not None and session.locks.get(request.key) is request:
            with suppress(*FAILURES), self._mutex:
                del session.locks[request.key]
                self._send(session, sql.unlock_if_held(request.key, shared=request.shared))
            if session.is_dedicated:
                self._return_session(session)
        self._forget(request)

    def _send(self, session: Session, statement: str | Prepared) -> Reply:
        """Send a statement, with a comment that names its session's locks, newest first. Raises what ends a session."""
        comment = sql.comment(request.label for request in reversed(session.locks.values()))
        if isinstance(statement, Prepared):
            return session.execute(statement.text, statement.params, comment + statement.remark)
        return session.send((comment + statement).encode())

    async def _rows(self, session: Session, reply: Reply, deadline: float) -> list[Row]:
        result: PGresult = await session.result_of(reply, self._remaining(deadline))
        if result.status in ERRORS:
            raise server_error(self._address, result)
        return libpq.rows(result)

    async def _list_locks(self, keys: Iterable[Key] | None, deadline: float) -> LockSnapshot:
        session = await self._common_session(deadline)
        with self._mutex:
            reply = self._send(session, sql.list_locks(keys))
        return sql.read_snapshot(await self._rows(session, reply, deadline))

    async def _holder(self, request: LockRequest, deadline: float) -> str:
        snapshot = await self._list_locks([request.key], deadline)
        known = self._own_requests()
        locks = [lock for lock in snapshot.locks if lock.granted] or snapshot.locks
        owners = [known[lock.pid, lock.key].ask.owner for lock in locks if (lock.pid, lock.key) in known]
        return next(iter(owners or [lock.owner for lock in locks]), "")

    def _own_requests(self) -> dict[tuple[int, Key], LockRequest]:
        """Return this client's requests, of which it has more than the server shows."""
        requests = list(self._requests.values())
        return {(request.session.pid, request.key): request for request in requests if request.session is not None}

    def _find(self, name: str, owner: str) -> LockRequest | None:
        """Find a request, with the result of its wait applied; None if it is gone."""
        request = self._requests.get(owner)
        if request is None or request.ask.name != name:
            return None
        self._apply_wait_result(request)
        return None if request.is_gone() else request

    def _apply_wait_result(self, request: LockRequest) -> None:
        """Update a waiting request whose reply has arrived."""
        session, reply = request.session, request.reply
        if request.state is not RequestState.WAITING or session is None or reply is None:
            return
        if not reply.is_done:
            session.read_available()
        with self._mutex:
            if request.state is not RequestState.WAITING or reply.result is None:
                return
            is_granted = reply.result.status not in ERRORS
            if is_granted:
                ((fence, now),) = libpq.rows(reply.result)
                self._mark_held(request, fence, now)
            else:  # it was cancelled, by this client or another
                request.state, request.session = RequestState.GONE, None
        if not is_granted:
            with suppress(*FAILURES):
                self._unlock_all(session)
            self._return_session(session)

    def _mark_held(self, request: LockRequest, fence: bytes | None, now: bytes | None) -> Standing:
        request.state = RequestState.HELD
        request.ticket = int(fence or 0)
        request.since = float(now or 0)
        return Standing(PlaceState.HELD, request.ticket, request.since)

    def _is_current(self, request: LockRequest) -> bool:
        """Return whether the request was neither released nor replaced meanwhile."""
        return self._requests.get(request.ask.owner) is request and request.state is RequestState.JOINING

    def _forget(self, request: LockRequest) -> bool:
        with self._mutex:
            if self._requests.get(request.ask.owner) is not request:
                return False
            del self._requests[request.ask.owner]
            return True

    def _is_contended(self, request: LockRequest) -> bool:
        """Return whether to queue at once. Only on a spare session: a lock that may be free is not worth a new one."""
        return request.ask.queue and bool(self._spares) and self._contended.get(request.key, -inf) > self.runtime.now()

    def _note_contention(self, key: Key) -> None:
        now = self.runtime.now()
        if len(self._contended) >= MAX_CONTENDED:
            self._contended = {each: until for each, until in self._contended.items() if until > now}
        self._contended[key] = now + CONTENTION_MEMORY

    def _has_tombstone(self, owner: str) -> bool:
        return self._tombstones.get(owner, -inf) > self.runtime.now()

    def _add_tombstone(self, owner: str, seconds: float) -> None:
        now = self.runtime.now()
        self._tombstones = {each: until for each, until in self._tombstones.items() if until > now}
        self._tombstones[owner] = now + seconds

    def _remaining(self, deadline: float) -> float:
        return max(deadline - self.runtime.now(), 0.0)


def _standing(request: LockRequest | None, server_times: dict[Session, float]) -> Standing:
    if request is None or request.is_gone():
        return GONE
    if request.state is RequestState.WAITING:
        return _waiting_standing(request)
    if request.state is RequestState.HELD and request.session in server_times:
        return Standing(PlaceState.HELD, request.ticket, server_times[request.session])
    return UNKNOWN


def _waiting_standing(request: LockRequest) -> Standing:
    return Standing(PlaceState.WAITING, request.ticket, 0.0, request.holder)


def _holder_of(locks: Iterable[SessionLock], key: Key) -> str:
    return next((lock.owner for lock in locks if lock.granted and lock.key == key), "")


def _place(lock: SessionLock, request: LockRequest | None) -> Place:
    acquired_at = lock.since if lock.granted else None
    capacity, weight = (WHOLE, 1) if lock.shared else (1, 1)
    if request is None:
        return Place(0, lock.owner, capacity, weight, inf, acquired_at, "{}", session=lock.client)
    ask = request.ask
    if request.state is RequestState.HELD:
        acquired_at = request.since
    return Place(
        request.ticket, ask.owner, ask.capacity, ask.weight, inf, acquired_at, ask.metadata, session=lock.client
    )


def _number(rows: list[Row]) -> float:
    return float(rows[0][0] or 0)
