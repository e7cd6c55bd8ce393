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
        self._start_afresh()
        lifecycle.at_fork(self, in_child="_forked")

    def _start_afresh(self) -> None:
        self._mutex = self.runtime.mutex()
        self._stakes: dict[str, LockRequest] = {}
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
        self._start_afresh()

    def watch(self, doubt: Callable[[str], None]) -> None:
        self._on_suspect.append(doubt)

    def _lost(self, session: Session) -> None:
        self._sessions.discard(session)
        for stake in list(session.taken.values()):
            for doubt in self._on_suspect:
                doubt(stake.ask.owner)

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
            stake = self._stakes.get(ask.owner)
            if stake is None or stake.is_gone():
                stake = self._stakes[ask.owner] = LockRequest(ask)
        try:
            return await self._advance(stake, deadline)
        except FAILURES as error:
            if not isinstance(error, TimeoutError) or stake.session is None:
                self._forget(stake)
            raise unanswered(self._address, error) from error
        except StoreError:
            if stake.session is None:
                self._forget(stake)
            raise

    async def _advance(self, stake: LockRequest, deadline: float) -> Standing | Refusal:
        """Go on from wherever an earlier join of the same owner has come to."""
        self._apply_wait_result(stake)
        if stake.state is State.WAITING:
            return _waiting_standing(stake)
        if stake.state is State.HELD:
            session = cast("Session", stake.session)
            with self._mutex:
                reply = self._send(session, sql.PING)
            now = _number(await self._rows(session, reply, deadline))
            return Standing(stake.ticket, True, now)
        for _ in range(MAX_TRIES):
            if stake.state is State.LEAVING:
                return Refusal()
            outcome = await self._try_lock(stake, deadline)
            if isinstance(outcome, Standing) or outcome.holder:
                return outcome
        self._forget(stake)
        return Refusal("somebody/0")

    async def _try_lock(self, stake: LockRequest, deadline: float) -> Standing | Refusal:
        """Ask for the lock where that can be answered at once, and see to what follows from the answer."""
        if stake.session is None:
            outcome = await self._send_try_lock(stake, deadline)
            if outcome is not None:
                return outcome
        session, reply = stake.session, stake.reply
        if session is None or reply is None:
            return UNKNOWN
        try:
            ((fence, now),) = await self._rows(session, reply, deadline)
        except StoreError:
            self._discard_failed(stake)
            raise
        with self._mutex:
            if not self._is_current(stake):
                return UNKNOWN
            if fence is not None:
                return self._granted(stake, fence, now)
            session.taken.pop(stake.key, None)
            stake.session = stake.reply = None
        return await self._lose(stake, session, deadline)

    async def _send_try_lock(self, stake: LockRequest, deadline: float) -> Standing | Refusal | None:
        """Send the question, on the common session unless the lock is taken for somebody there: it would seem free."""
        session = await self._common(deadline)
        statement = sql.try_lock(stake.key, shared=stake.shared)
        with self._mutex:
            conflicting: LockRequest | None = session.taken.get(stake.key)
            if conflicting is None:
                return self._take(stake, session, statement)
        if conflicting.excludes(stake):
            if stake.ask.queue:
                return await self._queue(stake, await self._own(deadline), deadline)
            self._forget(stake)
            return Refusal(conflicting.ask.owner)
        session = await self._own(deadline)
        with self._mutex:
            outcome = self._take(stake, session, statement)
        if outcome is not None:
            self._return_session(session)
        return outcome

    async def _lose(self, stake: LockRequest, session: Session, deadline: float) -> Standing | Refusal:
        """Go into the queue, or tell who was quicker."""
        if stake.ask.queue:
            return await self._queue(stake, session if session.is_dedicated else await self._own(deadline), deadline)
        if session.is_dedicated:
            self._return_session(session)
        holder = await self._holder(stake, deadline)
        if holder:
            self._forget(stake)
        return Refusal(holder)

    async def _queue(self, stake: LockRequest, session: Session, deadline: float) -> Standing:
        """Wait in the server's queue, and make sure that we are in it."""
        with self._mutex:
            outcome = self._take(stake, session, sql.await_lock(stake.key, shared=stake.shared))
            if outcome is None:
                stake.state = State.WAITING
        if outcome is not None:
            self._return_session(session)
            return outcome
        reply = cast("Reply", stake.reply)
        with suppress(StoreError, *FAILURES):
            while not reply.is_over:
                look = await self._look([stake.key], deadline)
                stake.ticket = max(look.ticket, 1)
                stake.holder = _holder_of(look.sights, stake.key)
                if any(sight.pid == session.pid for sight in look.sights):
                    break
                await session.arrives(reply, PAUSE)
        stake.ticket = stake.ticket or 1
        self._apply_wait_result(stake)
        return Standing(stake.ticket, True, stake.since) if stake.state is State.HELD else _waiting_standing(stake)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        """Ask every session concerned for a sign of life; the server keeps a lock for as long as its session lives."""
        with self._step():
            return await self._renew(renewals, timeout)

    async def _renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        deadline = self.runtime.now() + timeout
        stakes = [self._find(renewal.name, renewal.owner) for renewal in renewals]
        waiting = [stake for stake in stakes if stake and stake.state is State.WAITING]
        sessions = {stake.session for stake in stakes if stake and stake.session and stake.state is State.HELD}
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
        moments |= await self._look_around(waiting, deadline)
        standings = [_standing(stake, moments) for stake in stakes]
        if failure is not None and all(standing == UNKNOWN for standing in standings):
            raise failure if isinstance(failure, StoreError) else unanswered(self._address, failure)
        return standings

    async def _look_around(self, waiting: Sequence[LockRequest], deadline: float) -> dict[Session, float]:
        """Learn for whom we wait, and who no longer does: the server knows that before its answer is here.

        Returns the sessions that were seen to hold, and when.
        """
        moments: dict[Session, float] = {}
        if not waiting:
            return moments
        with suppress(StoreError, *FAILURES):
            look = await self._look({stake.key for stake in waiting}, deadline)
            granted = {(sight.pid, sight.key) for sight in look.sights if sight.granted}
            for stake in waiting:
                session, reply = stake.session, stake.reply
                stake.holder = _holder_of(look.sights, stake.key) or stake.holder
                if session is not None and reply is not None and (session.pid, stake.key) in granted:
                    await session.arrives(reply, self._left(deadline))
                    self._apply_wait_result(stake)
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
            stake = self._stakes.get(owner)
        try:
            if stake is None or stake.ask.name != name:
                return not self._is_closed and await self._evict(name, owner, deadline)
            return await self._give_up(stake, deadline)
        except FAILURES as error:
            if stake is not None and stake.is_gone():
                self._forget(stake)
                return False
            raise unanswered(self._address, error) from error

    async def _give_up(self, stake: LockRequest, deadline: float) -> bool:
        self._apply_wait_result(stake)
        session = stake.session
        if session is None or session.is_lost:
            self._forget(stake)
            return False
        if not self._driver.is_running():  # the interpreter exits
            self._forget(stake)
            session.close()
            return True
        with self._mutex:
            state, awaited = stake.state, stake.reply
            if state is State.GONE:  # it was absorbed meanwhile
                raise ConnectionResetError
            if state is State.WAITING:
                stake.reply = None
            elif state is not State.LEAVING:
                session.taken.pop(stake.key, None)
                unlock = sql.unlock if state is State.HELD else sql.unlock_if_held
                stake.reply = self._send(session, unlock(stake.key, shared=stake.shared))
            stake.state = State.LEAVING
            reply = stake.reply
        if state is State.WAITING:
            return await self._withdraw(stake, session, cast("Reply", awaited), deadline)
        if reply is None:  # somebody else is just withdrawing it
            return True
        return await self._await_unlock(stake, session, reply, deadline)

    async def _await_unlock(self, stake: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
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
                self._resend_unlock(stake, session)
                raise
            was_there = True
            session.close()
        self._part(stake, session)
        return was_there

    def _resend_unlock(self, stake: LockRequest, session: Session) -> None:
        """Send another request to unlock for the one that failed, to be awaited by whoever tries next."""
        with suppress(*FAILURES), self._mutex:
            is_taken = stake.key in session.taken  # by a rival of ours, for whom the server counts on
            unlock = sql.unlock if is_taken else sql.unlock_if_held
            stake.reply = self._send(session, unlock(stake.key, shared=stake.shared))

    def _unlock_all(self, session: Session) -> Reply:
        """Give back whatever a session of one's own holds.

        Its statement may have been cancelled after it was granted: a lock that was waited for outlives the error.
        """
        with self._mutex:
            session.taken.clear()
            return self._send(session, sql.UNLOCK_ALL)

    def _part(self, stake: LockRequest, session: Session) -> None:
        """Forget what was given up, and find something else for its session to do."""
        if self._forget(stake) and session.is_dedicated:
            self._return_session(session)
        elif not session.is_dedicated and session is not self._shared and session.is_idle():
            session.close()  # it had fallen silent, and was replaced
            self._sessions.discard(session)

    async def _withdraw(self, stake: LockRequest, session: Session, reply: Reply, deadline: float) -> bool:
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
            self._part(stake, session)
        return True

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        with self._step():
            return await self._wait(owner, timeout)

    async def _wait(self, owner: str, timeout: float) -> Wake:
        stake = self._stakes.get(owner)
        session, reply = (stake.session, stake.reply) if stake else (None, None)
        if stake is None or session is None or reply is None or stake.state is not State.WAITING:
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
        in_order = sorted(look.sights, key=lambda sight: sight.key)
        for key, of_key in groupby(in_order, key=lambda sight: sight.key):
            sights = list(of_key)
            names = (known[sight.pid, key].ask.name if (sight.pid, key) in known else sight.name for sight in sights)
            name = prefix if exact else min(names, key=lambda name: name == str(key))
            if name.startswith(prefix):
                places = tuple(_place(sight, known.get((sight.pid, key))) for sight in sights)
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
        sight = next((each for each in look.sights if each.owner == owner and each.pid not in ours), None)
        if sight is None:
            return False
        log.warning("ending the session of %s (process %d of the server) to free %r", owner, sight.pid, name)
        session = await self._common(deadline)
        with self._mutex:
            reply = self._send(session, sql.terminate(sight.pid))
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
        while any(each.pid == sight.pid for each in (await self._look([key], deadline)).sights):
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

    def _take(self, stake: LockRequest, session: Session, statement: str | Prepared) -> Standing | None:
        """Ask for a lock on a session, unless the stake was given up meanwhile."""
        if not self._is_current(stake):
            return UNKNOWN
        session.taken[stake.key] = stake
        stake.session = session
        stake.reply = self._send(session, statement)
        return None

    def _discard_failed(self, stake: LockRequest) -> None:
        """Give back a lock that was refused by an error, for the error may have come after it was taken."""
        session = stake.session
        if session is not None and session.taken.get(stake.key) is stake:
            with suppress(*FAILURES), self._mutex:
                del session.taken[stake.key]
                self._send(session, sql.unlock_if_held(stake.key, shared=stake.shared))
            if session.is_dedicated:
                self._return_session(session)
        self._forget(stake)

    def _send(self, session: Session, statement: str | Prepared) -> Reply:
        """Send a statement, and tell with it what its session holds, newest first. Raises what ends a session."""
        comment = sql.comment(stake.label for stake in reversed(session.taken.values()))
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

    async def _holder(self, stake: LockRequest, deadline: float) -> str:
        look = await self._look([stake.key], deadline)
        known = self._own_requests()
        sights = [sight for sight in look.sights if sight.granted] or look.sights
        owners = [known[sight.pid, sight.key].ask.owner for sight in sights if (sight.pid, sight.key) in known]
        return next(iter(owners or [sight.owner for sight in sights]), "")

    def _own_requests(self) -> dict[tuple[int, Key], LockRequest]:
        """Tell what we know better than the server: our own."""
        stakes = list(self._stakes.values())
        return {(stake.session.pid, stake.key): stake for stake in stakes if stake.session is not None}

    def _find(self, name: str, owner: str) -> LockRequest | None:
        """Find a stake as it is by now; None if it is gone."""
        stake = self._stakes.get(owner)
        if stake is None or stake.ask.name != name:
            return None
        self._apply_wait_result(stake)
        return None if stake.is_gone() else stake

    def _apply_wait_result(self, stake: LockRequest) -> None:
        """Take in that a wait has ended."""
        session, reply = stake.session, stake.reply
        if stake.state is not State.WAITING or session is None or reply is None:
            return
        if not reply.is_over:
            session.read_available()
        with self._mutex:
            if stake.state is not State.WAITING or reply.result is None:
                return
            is_granted = reply.result.status not in ERRORS
            if is_granted:
                ((fence, now),) = libpq.rows(reply.result)
                self._granted(stake, fence, now)
            else:  # somebody has cancelled it
                stake.state, stake.session = State.GONE, None
        if not is_granted:
            with suppress(*FAILURES):
                self._unlock_all(session)
            self._return_session(session)

    def _granted(self, stake: LockRequest, fence: bytes | None, now: bytes | None) -> Standing:
        stake.state = State.HELD
        stake.ticket = int(fence or 0)
        stake.since = float(now or 0)
        return Standing(stake.ticket, True, stake.since)

    def _is_current(self, stake: LockRequest) -> bool:
        """Tell whether nobody has given the stake up meanwhile."""
        return self._stakes.get(stake.ask.owner) is stake and stake.state is State.ASKED

    def _forget(self, stake: LockRequest) -> bool:
        with self._mutex:
            if self._stakes.get(stake.ask.owner) is not stake:
                return False
            del self._stakes[stake.ask.owner]
            return True

    def _has_tombstone(self, owner: str) -> bool:
        return self._tombstones.get(owner, -inf) > self.runtime.now()

    def _add_tombstone(self, owner: str, seconds: float) -> None:
        now = self.runtime.now()
        self._tombstones = {each: until for each, until in self._tombstones.items() if until > now}
        self._tombstones[owner] = now + seconds

    def _left(self, deadline: float) -> float:
        return max(deadline - self.runtime.now(), 0.0)


def _standing(stake: LockRequest | None, moments: dict[Session, float]) -> Standing | None:
    if stake is None or stake.is_gone():
        return None
    if stake.state is State.WAITING:
        return _waiting_standing(stake)
    if stake.state is State.HELD and stake.session in moments:
        return Standing(stake.ticket, True, moments[stake.session])
    return UNKNOWN


def _waiting_standing(stake: LockRequest) -> Standing:
    return Standing(stake.ticket, False, 0.0, stake.holder)


def _holder_of(sights: Iterable[SessionLock], key: Key) -> str:
    return next((sight.owner for sight in sights if sight.granted and sight.key == key), "")


def _place(sight: SessionLock, stake: LockRequest | None) -> Place:
    acquired_at = sight.since if sight.granted else None
    capacity, weight = (WHOLE, 1) if sight.shared else (1, 1)
    if stake is None:
        return Place(0, sight.owner, capacity, weight, inf, acquired_at, "{}", session=sight.client)
    ask = stake.ask
    if stake.state is State.HELD:
        acquired_at = stake.since
    return Place(
        stake.ticket, ask.owner, ask.capacity, ask.weight, inf, acquired_at, ask.metadata, session=sight.client
    )


def _number(rows: list[Row]) -> float:
    return float(rows[0][0] or 0)
