"""`postgresql+advisory://`: the server's own advisory locks, held by sessions. Nothing has to be migrated.

One session carries everything that is free when it is asked for. Whoever has to wait does so on a session of his own,
in the server's queue, and holds on it what he waited for.

What is different from the lease table:

- A lock ends with its session, not with a ttl. The ttl is only how long a client trusts in what it last heard. A
  process that dies frees its locks at once; a host that vanishes, within half a minute; one that is stopped (SIGSTOP,
  a frozen VM) keeps them for as long as its kernel answers for it.
- Fences are positions in the server's write-ahead log. They grow, but for one gap: after a crash of the server, or a
  fail-over to an asynchronous standby, positions that had not been written out may be given again. Fences of readers
  are no use to a guard, here as elsewhere.
- An exclusive lock and a writer are the same to the server, so a name used with two capacities is not noticed.
- Only a holder knows his fence and metadata. Others see who holds by a comment before the session's last statement,
  which names as many locks as fit.
- To take a lock away from somebody is to end his session, with whatever else it holds.
- Whoever waits is in the middle of a statement, and like any long one that holds back VACUUM.
- A name is known to the server by 64 bits of its hash; see `_key`.
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
from lockstead.core.model import UNKNOWN, WHOLE, Ask, Capabilities, Line, Place, Refusal, Renewal, Standing, Wake
from lockstead.core.runtime import Runtime
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
    WorkerRuntime,
)
from lockstead.stores.postgres.advisory.statements import LockSnapshot, Prepared, SessionLock
from lockstead.stores.postgres.errors import FAILURES, refused, unanswered
from lockstead.stores.postgres.key import Key, advisory_key
from lockstead.stores.postgres.libpq import ERRORS, Row

log = logging.getLogger("lockstead")

MAX_SPARE_SESSIONS = 4
"""How many sessions that nobody waits on any more are kept for the next to wait."""
INSPECTION_TIMEOUT = 5.0
PAUSE = 0.002
"""Between two looks whether a statement has reached the server's queue."""
MAX_TRIES = 3
"""How often to try a lock that was busy but then had no holder to name."""


class State(Enum):
    ASKED = auto()
    WAITING = auto()
    HELD = auto()
    LEAVING = auto()
    GONE = auto()


class LockRequest:
    """One owner's lock, or wait for it."""

    __slots__ = ("ask", "holder", "key", "label", "reply", "session", "shared", "since", "state", "ticket")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.key = advisory_key(ask.name)
        self.label = sql.label(ask.name, ask.owner)
        self.shared = ask.weight < ask.capacity
        self.state = State.ASKED
        self.session: Session | None = None
        self.reply: Reply | None = None
        self.ticket = 0
        self.since = 0.0
        self.holder = ""

    def excludes(self, other: LockRequest) -> bool:
        return self.state is State.HELD and not (self.shared and other.shared)

    def is_gone(self) -> bool:
        return self.state is State.GONE or (self.session is not None and self.session.is_lost)


class AdvisoryStore:
    """One client's sessions, and what it holds on them."""

    capabilities = Capabilities(semaphore=False, expiry=False, records=False)

    def __init__(self, runtime: Runtime, address: Address) -> None:
        self.runtime = runtime
        self._address = address
        self._on_suspect: list[Callable[[str], None]] = []
        self._is_closed = False
        lost = WeakMethod(self._lost)  # the thread that watches must not keep us alive

        def on_lost(session: Session) -> None:
            if (call := lost()) is not None:
                call(session)

        self._driver: WorkerRuntime
        self._step: Callable[[], AbstractContextManager[Any]] = step
        """What keeps calls apart of which one has interrupted the other, in the same thread."""
        if isinstance(runtime, AsyncRuntime):
            self._step = nullcontext
            self._driver = LoopSessionFactory(runtime, address, on_lost)
        else:
            self._driver = BlockingSessionFactory(cast("ThreadRuntime", runtime), address, on_lost)
        self._reset()
        lifecycle.at_fork(self, in_child="_forked")

    def _reset(self) -> None:
        self._mutex = self.runtime.mutex()
        self._requests: dict[str, LockRequest] = {}
        self._tombstones: dict[str, float] = {}
        self._shared: Session | None = None
        self._spares: list[Session] = []
        self._sessions: set[Session] = set()

    def __del__(self) -> None:
        """End the sessions of a store that was dropped: a loop keeps those that it reads from."""
        if isinstance(self.runtime, AsyncRuntime):
            for session in self._sessions:
                with suppress(RuntimeError):  # the loop is closed
                    self.runtime.call_in_owner(session.close)

    def _forked(self) -> None:
        for session in self._sessions:
            session.abandon()
        self._driver.forked()
        self._reset()

    def watch(self, doubt: Callable[[str], None]) -> None:
        self._on_suspect.append(doubt)

    def _lost(self, session: Session) -> None:
        self._sessions.discard(session)
        for request in list(session.taken.values()):
            for doubt in self._on_suspect:
                doubt(request.ask.owner)

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        """Take the lock, wait for it, or be refused.

        A queued join has reached the server's queue when this returns, so that whoever joins later comes later.
        """
        with self._step():
            return await self._join(ask, timeout)

    async def _join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        if not self.capabilities.carry(ask.capacity, ask.weight):
            msg = f"advisory locks are exclusive, or for readers and writers, but have no capacity of {ask.capacity}"
            raise UnsupportedError(msg, name=ask.name)
        deadline = self.runtime.now() + timeout
        with self._mutex:
            if self._has_tombstone(ask.owner):
                return Refusal()
            request = self._requests.get(ask.owner)
            if request is None or request.is_gone():
                request = self._requests[ask.owner] = LockRequest(ask)
        try:
            return await self._advance(request, deadline)
        except FAILURES as error:
            if not isinstance(error, TimeoutError) or request.session is None:
                self._forget(request)
            raise unanswered(self._address, error) from error
        except StoreError:
            if request.session is None:
                self._forget(request)
            raise

    async def _advance(self, request: LockRequest, deadline: float) -> Standing | Refusal:
        """Go on from wherever an earlier join of the same owner has come to."""
        self._apply_wait_result(request)
        if request.state is State.WAITING:
            return _waiting_standing(request)
        if request.state is State.HELD:
            session = cast("Session", request.session)
            with self._mutex:
                reply = self._send(session, sql.PING)
            now = _number(await self._rows(session, reply, deadline))
            return Standing(request.ticket, True, now)
        for _ in range(MAX_TRIES):
            if request.state is State.LEAVING:
                return Refusal()
            outcome = await self._try_lock(request, deadline)
            if isinstance(outcome, Standing) or outcome.holder:
                return outcome
        self._forget(request)
        return Refusal("somebody/0")

    async def _try_lock(self, request: LockRequest, deadline: float) -> Standing | Refusal:
        """Ask for the lock where that can be answered at once, and see to what follows from the answer."""
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
                return self._granted(request, fence, now)
            session.taken.pop(request.key, None)
            request.session = request.reply = None
        return await self._lose(request, session, deadline)

    async def _send_try_lock(self, request: LockRequest, deadline: float) -> Standing | Refusal | None:
        """Send the question, on the common session unless the lock is taken for somebody there: it would seem free."""
        session = await self._common(deadline)
        statement = sql.try_lock(request.key, shared=request.shared)
        with self._mutex:
            conflicting: LockRequest | None = session.taken.get(request.key)
            if conflicting is None:
                return self._take(request, session, statement)
        if conflicting.excludes(request):
            if request.ask.queue:
                return await self._queue(request, await self._own(deadline), deadline)
            self._forget(request)
            return Refusal(conflicting.ask.owner)
        session = await self._own(deadline)
        with self._mutex:
            outcome = self._take(request, session, statement)
        if outcome is not None:
            self._return_session(session)
        return outcome

    async def _lose(self, request: LockRequest, session: Session, deadline: float) -> Standing | Refusal:
        """Go into the queue, or tell who was quicker."""
        if request.ask.queue:
            return await self._queue(request, session if session.is_dedicated else await self._own(deadline), deadline)
        if session.is_dedicated:
            self._return_session(session)
        holder = await self._holder(request, deadline)
        if holder:
            self._forget(request)
        return Refusal(holder)

    async def _queue(self, request: LockRequest, session: Session, deadline: float) -> Standing:
        """Wait in the server's queue, and make sure that we are in it."""
        with self._mutex:
            outcome = self._take(request, session, sql.await_lock(request.key, shared=request.shared))
            if outcome is None:
                request.state = State.WAITING
        if outcome is not None:
            self._return_session(session)
            return outcome
        reply = cast("Reply", request.reply)
        with suppress(StoreError, *FAILURES):
            while not reply.is_over:
                look = await self._look([request.key], deadline)
                request.ticket = max(look.ticket, 1)
                request.holder = _holder_of(look.locks, request.key)
                if any(lock.pid == session.pid for lock in look.locks):
                    break
                await session.arrives(reply, PAUSE)
        request.ticket = request.ticket or 1
        self._apply_wait_result(request)
        return (
            Standing(request.ticket, True, request.since) if request.state is State.HELD else _waiting_standing(request)
        )

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        """Ask every session concerned for a sign of life; the server keeps a lock for as long as its session lives."""
        with self._step():
            return await self._renew(renewals, timeout)

    async def _renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        deadline = self.runtime.now() + timeout
        requests = [self._find(renewal.name, renewal.owner) for renewal in renewals]
        waiting = [request for request in requests if request and request.state is State.WAITING]
        sessions = {
            request.session for request in requests if request and request.session and request.state is State.HELD
        }
        asked: dict[Session, Reply] = {}
        for session in sessions:
            with suppress(*FAILURES), self._mutex:
                asked[session] = self._send(session, sql.PING)
        moments: dict[Session, float] = {}
        failure: Exception | None = None
        for session, reply in asked.items():
            try:
                moments[session] = _number(await self._rows(session, reply, deadline))
            except (StoreError, *FAILURES) as error:
                failure = error
        moments |= await self._check_waiting(waiting, deadline)
        standings = [_standing(request, moments) for request in requests]
        if failure is not None and all(standing == UNKNOWN for standing in standings):
            raise failure if isinstance(failure, StoreError) else unanswered(self._address, failure)
        return standings

    async def _check_waiting(self, waiting: Sequence[LockRequest], deadline: float) -> dict[Session, float]:
        """Learn for whom we wait, and who no longer does: the server knows that before its answer is here.

        Returns the sessions that were seen to hold, and when.
        """
        moments: dict[Session, float] = {}
        if not waiting:
            return moments
        with suppress(StoreError, *FAILURES):
            look = await self._look({request.key for request in waiting}, deadline)
            granted = {(lock.pid, lock.key) for lock in look.locks if lock.granted}
            for request in waiting:
                session, reply = request.session, request.reply
                request.holder = _holder_of(look.locks, request.key) or request.holder
                if session is not None and reply is not None and (session.pid, request.key) in granted:
                    await session.arrives(reply, self._left(deadline))
                    self._apply_wait_result(request)
                    moments[session] = look.now
        return moments

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        """Give a lock or a wait up. Somebody else's is taken away by ending his session.

        Raises StoreError if we may not, that is if his role is another's.
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
                return not self._is_closed and await self._evict(name, owner, deadline)
            return await self._give_up(request, deadline)
        except FAILURES as error:
            if request is not None and request.is_gone():
                self._forget(request)
                return False
            raise unanswered(self._address, error) from error

    async def _give_up(self, request: LockRequest, deadline: float) -> bool:
        self._apply_wait_result(request)
        session = request.session
        if session is None or session.is_lost:
            self._forget(request)
            return False
        if not self._driver.is_running():  # the interpreter exits
            self._forget(request)
            session.close()
            return True
        with self._mutex:
            state, awaited = request.state, request.reply
            if state is State.GONE:  # it was absorbed meanwhile
                raise ConnectionResetError
            if state is State.WAITING:
                request.reply = None
            elif state is not State.LEAVING:
                session.taken.pop(request.key, None)
                unlock = sql.unlock if state is State.HELD else sql.unlock_if_held
                request.reply = self._send(session, unlock(request.key, shared=request.shared))
            request.state = State.LEAVING
            reply = request.reply
        if state is State.WAITING:
            return await self._withdraw(request, session, cast("Reply", awaited), deadline)
        if reply is None:  # somebody else is just withdrawing it
            return True
        return await self._await_unlock(request, session, reply, deadline)

    async def _await_unlock(self, request: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
        try:
            was_there = (await self._rows(session, reply, deadline)) == [[b"t"]]
        except TimeoutError:
            if not session.is_dedicated:
                raise  # but it is on its way
            was_there = True
            session.close()
        except FAILURES:
            was_there = session.is_closed  # which gives it up as well
        except StoreError:
            if not session.is_dedicated:
                self._resend_unlock(request, session)
                raise
            was_there = True
            session.close()
        self._part(request, session)
        return was_there

    def _resend_unlock(self, request: LockRequest, session: Session) -> None:
        """Send another request to unlock for the one that failed, to be awaited by whoever tries next."""
        with suppress(*FAILURES), self._mutex:
            is_taken = request.key in session.taken  # by a rival of ours, for whom the server counts on
            unlock = sql.unlock if is_taken else sql.unlock_if_held
            request.reply = self._send(session, unlock(request.key, shared=request.shared))

    def _unlock_all(self, session: Session) -> Reply:
        """Give back whatever a session of one's own holds.

        Its statement may have been cancelled after it was granted: a lock that was waited for outlives the error.
        """
        with self._mutex:
            session.taken.clear()
            return self._send(session, sql.UNLOCK_ALL)

    def _part(self, request: LockRequest, session: Session) -> None:
        """Forget what was given up, and find something else for its session to do."""
        if self._forget(request) and session.is_dedicated:
            self._return_session(session)
        elif not session.is_dedicated and session is not self._shared and session.is_idle():
            session.close()  # it had fallen silent, and was replaced
            self._sessions.discard(session)

    async def _withdraw(self, request: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
        """Stop waiting, and give back what may be granted in this very moment.

        Where that cannot be made sure by asking, it is by ending the session.
        """
        try:
            pause = PAUSE
            while not reply.is_over and self._left(deadline):
                common = await self._common(deadline)
                with self._mutex:
                    cancelling = self._send(common, sql.cancel(session.pid))
                await self._rows(common, cancelling, deadline)
                await session.arrives(reply, pause)  # it is in vain until the statement has begun
                pause *= 2
            await session.answer(reply, self._left(deadline))
            await self._rows(session, self._unlock_all(session), deadline)
        except (StoreError, *FAILURES):
            session.close()
        except BaseException:
            session.close()
            raise
        finally:
            self._part(request, session)
        return True

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        with self._step():
            return await self._wait(owner, timeout)

    async def _wait(self, owner: str, timeout: float) -> Wake:
        request = self._requests.get(owner)
        session, reply = (request.session, request.reply) if request else (None, None)
        if request is None or session is None or reply is None or request.state is not State.WAITING:
            await self.runtime.sleep(min(timeout, PAUSE))
            return Wake.HINT
        return Wake.HINT if await session.arrives(reply, timeout) else Wake.SILENCE

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        """Report what the server shows. A lock of which nobody tells the name goes by its key: `pg:…`."""
        with self._step():
            return await self._inspect(prefix, exact=exact)

    async def _inspect(self, prefix: str, *, exact: bool) -> list[Line]:
        keys = [advisory_key(prefix)] if exact else None
        try:
            look = await self._look(keys, self.runtime.now() + INSPECTION_TIMEOUT)
        except FAILURES as error:
            raise unanswered(self._address, error) from error
        known = self._own_requests()
        lines = []
        in_order = sorted(look.locks, key=lambda lock: lock.key)
        for key, of_key in groupby(in_order, key=lambda lock: lock.key):
            locks = list(of_key)
            names = (known[lock.pid, key].ask.name if (lock.pid, key) in known else lock.name for lock in locks)
            name = prefix if exact else min(names, key=lambda name: name == str(key))
            if name.startswith(prefix):
                places = tuple(_place(lock, known.get((lock.pid, key))) for lock in locks)
                lines.append(Line(name, look.now, places))
        return sorted(lines, key=lambda line: line.name)

    async def close(self) -> None:
        """End every session, and with them what they hold."""
        self._is_closed = True
        try:
            with self._step():
                self._end_sessions()
        except NestedCallError:  # the call that was interrupted is perhaps about to use one
            self.runtime.spawn(self._close_later, "lockstead-close")

    async def _close_later(self) -> None:
        with self._mutex:  # not while the interrupted call is sending
            self._end_sessions()

    def _end_sessions(self) -> None:
        for session in list(self._sessions):
            session.close()
        self._sessions.clear()
        self._spares.clear()
        self._shared = None

    async def _evict(self, name: str, owner: str, deadline: float) -> bool:
        """End the session of whoever holds it under another client's name."""
        if not self._driver.is_running():
            return False
        key = advisory_key(name)
        look = await self._look([key], deadline)
        ours = {session.pid for session in list(self._sessions)}
        lock = next((each for each in look.locks if each.owner == owner and each.pid not in ours), None)
        if lock is None:
            return False
        log.warning("ending the session of %s (process %d of the server) to free %r", owner, lock.pid, name)
        session = await self._common(deadline)
        with self._mutex:
            reply = self._send(session, sql.terminate(lock.pid))
        try:
            await self._rows(session, reply, deadline)
        except StoreError as error:
            if error.transient:
                raise
            msg = (
                f"{name!r} is held by {owner}, whose session this role may not end: be that role, or have "
                "pg_signal_backend"
            )
            raise StoreError(msg, name=name) from error
        pause = PAUSE
        while any(each.pid == lock.pid for each in (await self._look([key], deadline)).locks):
            if self._left(deadline) <= pause:
                msg = f"the session that holds {name!r} has not ended yet"
                raise StoreError(msg, name=name, transient=True)
            await self.runtime.sleep(pause)
            pause = min(2 * pause, 0.1)
        return True

    async def _common(self, deadline: float) -> Session:
        """Find the session for everything that is free, or open one; one that has fallen silent gets no more to do."""
        session = self._find_common()
        return session or await self._driver.once(self._find_common, self._set_common, self._left(deadline))

    def _find_common(self) -> Session | None:
        session = self._shared
        if session is None or session.is_lost:
            return None
        if session.is_overdue:
            session.read_available()
        return None if session.is_lost or session.is_overdue else session

    def _set_common(self, session: Session) -> None:
        self._keep(session)
        with self._mutex:
            former, self._shared = self._shared, session
        if former is not None and not former.taken:
            former.close()
            self._sessions.discard(former)

    async def _own(self, deadline: float) -> Session:
        """Take a spare session, or open one."""
        while True:
            try:
                session = self._spares.pop()
            except IndexError:
                session = await self._driver.open(self._left(deadline))
                self._keep(session)
                session.is_dedicated = True
            if not session.is_lost:
                return session

    def _keep(self, session: Session) -> None:
        self._sessions.add(session)
        if self._is_closed:
            session.close()

    def _return_session(self, session: Session) -> None:
        """Keep a session that nobody uses any more for the next to wait, or let it go."""
        if not session.is_lost and not self._is_closed and len(self._spares) < MAX_SPARE_SESSIONS:
            self._spares.append(session)
        else:
            session.close()
            self._sessions.discard(session)

    def _take(self, request: LockRequest, session: Session, statement: str | Prepared) -> Standing | None:
        """Ask for a lock on a session, unless the stake was given up meanwhile."""
        if not self._is_current(request):
            return UNKNOWN
        session.taken[request.key] = request
        request.session = session
        request.reply = self._send(session, statement)
        return None

    def _discard_failed(self, request: LockRequest) -> None:
        """Give back a lock that was refused by an error, for the error may have come after it was taken."""
        session = request.session
        if session is not None and session.taken.get(request.key) is request:
            with suppress(*FAILURES), self._mutex:
                del session.taken[request.key]
                self._send(session, sql.unlock_if_held(request.key, shared=request.shared))
            if session.is_dedicated:
                self._return_session(session)
        self._forget(request)

    def _send(self, session: Session, statement: str | Prepared) -> Reply:
        """Send a statement, and tell with it what its session holds, newest first. Raises what ends a session."""
        comment = sql.comment(request.label for request in reversed(session.taken.values()))
        if isinstance(statement, Prepared):
            return session.execute(statement.text, statement.params, comment + statement.remark)
        return session.send((comment + statement).encode())

    async def _rows(self, session: Session, reply: Reply, deadline: float) -> list[Row]:
        result: PGresult = await session.answer(reply, self._left(deadline))
        if result.status in ERRORS:
            raise refused(self._address, result)
        return libpq.rows(result)

    async def _look(self, keys: Iterable[Key] | None, deadline: float) -> LockSnapshot:
        session = await self._common(deadline)
        with self._mutex:
            reply = self._send(session, sql.look(keys))
        return sql.read_snapshot(await self._rows(session, reply, deadline))

    async def _holder(self, request: LockRequest, deadline: float) -> str:
        look = await self._look([request.key], deadline)
        known = self._own_requests()
        locks = [lock for lock in look.locks if lock.granted] or look.locks
        owners = [known[lock.pid, lock.key].ask.owner for lock in locks if (lock.pid, lock.key) in known]
        return next(iter(owners or [lock.owner for lock in locks]), "")

    def _own_requests(self) -> dict[tuple[int, Key], LockRequest]:
        """Tell what we know better than the server: our own."""
        requests = list(self._requests.values())
        return {(request.session.pid, request.key): request for request in requests if request.session is not None}

    def _find(self, name: str, owner: str) -> LockRequest | None:
        """Find a stake as it is by now; None if it is gone."""
        request = self._requests.get(owner)
        if request is None or request.ask.name != name:
            return None
        self._apply_wait_result(request)
        return None if request.is_gone() else request

    def _apply_wait_result(self, request: LockRequest) -> None:
        """Take in that a wait has ended."""
        session, reply = request.session, request.reply
        if request.state is not State.WAITING or session is None or reply is None:
            return
        if not reply.is_over:
            session.read_available()
        with self._mutex:
            if request.state is not State.WAITING or reply.result is None:
                return
            is_granted = reply.result.status not in ERRORS
            if is_granted:
                ((fence, now),) = libpq.rows(reply.result)
                self._granted(request, fence, now)
            else:  # somebody has cancelled it
                request.state, request.session = State.GONE, None
        if not is_granted:
            with suppress(*FAILURES):
                self._unlock_all(session)
            self._return_session(session)

    def _granted(self, request: LockRequest, fence: bytes | None, now: bytes | None) -> Standing:
        request.state = State.HELD
        request.ticket = int(fence or 0)
        request.since = float(now or 0)
        return Standing(request.ticket, True, request.since)

    def _is_current(self, request: LockRequest) -> bool:
        """Tell whether nobody has given the stake up meanwhile."""
        return self._requests.get(request.ask.owner) is request and request.state is State.ASKED

    def _forget(self, request: LockRequest) -> bool:
        with self._mutex:
            if self._requests.get(request.ask.owner) is not request:
                return False
            del self._requests[request.ask.owner]
            return True

    def _has_tombstone(self, owner: str) -> bool:
        return self._tombstones.get(owner, -inf) > self.runtime.now()

    def _add_tombstone(self, owner: str, seconds: float) -> None:
        now = self.runtime.now()
        self._tombstones = {each: until for each, until in self._tombstones.items() if until > now}
        self._tombstones[owner] = now + seconds

    def _left(self, deadline: float) -> float:
        return max(deadline - self.runtime.now(), 0.0)


def _standing(request: LockRequest | None, moments: dict[Session, float]) -> Standing | None:
    if request is None or request.is_gone():
        return None
    if request.state is State.WAITING:
        return _waiting_standing(request)
    if request.state is State.HELD and request.session in moments:
        return Standing(request.ticket, True, moments[request.session])
    return UNKNOWN


def _waiting_standing(request: LockRequest) -> Standing:
    return Standing(request.ticket, False, 0.0, request.holder)


def _holder_of(locks: Iterable[SessionLock], key: Key) -> str:
    return next((lock.owner for lock in locks if lock.granted and lock.key == key), "")


def _place(lock: SessionLock, request: LockRequest | None) -> Place:
    acquired_at = lock.since if lock.granted else None
    capacity, weight = (WHOLE, 1) if lock.shared else (1, 1)
    if request is None:
        return Place(0, lock.owner, capacity, weight, inf, acquired_at, "{}", session=lock.client)
    ask = request.ask
    if request.state is State.HELD:
        acquired_at = request.since
    return Place(
        request.ticket, ask.owner, ask.capacity, ask.weight, inf, acquired_at, ask.metadata, session=lock.client
    )


def _number(rows: list[Row]) -> float:
    return float(rows[0][0] or 0)
