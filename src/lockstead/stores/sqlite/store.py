"""`sqlite:///path`: the embedded default, shared by the processes of one machine.

Every step is one immediate transaction on a WAL database, so a process killed anywhere leaves either the
whole step or nothing. A datagram to its process's socket wakes a waiter.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakMethod

from lockstead.core import gcra, lifecycle, rule
from lockstead.core.model import (
    Ask,
    Capabilities,
    Line,
    Place,
    PlaceState,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.quoting import command_for, escaped
from lockstead.core.runtime import Runtime
from lockstead.core.timing import INSPECTION_TIMEOUT
from lockstead.errors import DamagedError, NestedCallError, StoreError
from lockstead.runtimes import nesting
from lockstead.stores.sqlite import machine
from lockstead.stores.sqlite.death_watch import LOOK_EVERY, DeathWatch
from lockstead.stores.sqlite.liveness import Liveness, create_empty
from lockstead.stores.sqlite.notify import HAS_ABSTRACT_SOCKETS, NotifySocket
from lockstead.stores.statements import load
from lockstead.stores.tickets import ticket_floor

T = TypeVar("T")
_Step = Callable[[sqlite3.Cursor, float], tuple[T, list[Place]]]
_Statement = Callable[[sqlite3.Cursor, float], T | None]
"""A step's common case in one statement, which wakes no place. None: it changed nothing, and the step is needed."""

APPLICATION_ID = 0x4C4F434B  # "LOCK"
SCHEMA_VERSION = 1
SWEEP_EVERY = 64
"""How many joins and rate requests a client makes between two sweeps of a few more rows."""
SWEEP_ROWS = 200
"""How many rows one sweep searches: it delays the request it is a part of."""
WATCHED_PLACES = 16
"""How many places ahead of a waiter are watched for the death of their processes. The rest are found dead by the next
step, or by the waiters between."""
LARGEST_TICKET = 2**53 - 1
"""The largest integer that a double holds exactly."""
MAX_TIME = 1e12
"""Seconds. No clock reaches them, so that a larger time in a row is damage."""
MIN_BUSY_DELAY, MAX_BUSY_DELAY = 0.0002, 0.001
"""Seconds before a step is retried because another process has the file locked: random in between, so that waiting
processes do not retry at the same time."""

_SQL = load("lockstead.stores.sqlite")
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_TRANSIENT = {*_BUSY, sqlite3.SQLITE_IOERR}
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program keeps it locked: find it with lsof, and end its transaction",
    sqlite3.SQLITE_LOCKED: "another program keeps it locked: find it with lsof, and end its transaction",
    sqlite3.SQLITE_CANTOPEN: "its directory must exist and be writable; --url or LOCKSTEAD_URL chooses another file",
    sqlite3.SQLITE_READONLY: "the file and its directory must be writable; LOCKSTEAD_URL chooses another file",
    sqlite3.SQLITE_NOTADB: "it is not a lockstead database; move it away, or choose another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged; stop its users and move it away: held locks end with their processes",
    sqlite3.SQLITE_FULL: "the disk is full: free space on its file system",
    sqlite3.SQLITE_IOERR: "the disk failed, or its -wal or -shm file was removed: check the disk",
}


def default_path() -> Path:
    """Return the path of the user's own database, in the directory where the system keeps such state."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "lockstead" / "lockstead.db"


@dataclass(slots=True)
class _Row(Place):
    address: str


class _SqliteLine:
    """The rule's `Ledger` of one name, within an open transaction. A dead process's places have expired."""

    __slots__ = ("_address", "_execute", "_floor", "_living", "_name", "_now")

    def __init__(
        self,
        cursor: sqlite3.Cursor,
        name: str,
        now: float,
        *,
        address: str,
        floor: Callable[[], int],
        living: Callable[[_Row], _Row],
    ) -> None:
        """`living` returns a place, expired if its process is dead."""
        self._execute = cursor.execute
        self._name = name
        self._now = now
        self._address = address
        self._floor = floor
        self._living = living

    def places(self) -> Iterator[Place]:
        living = self._living
        return (living(_checked(self._name, row)) for row in self._execute(_SQL["places"], (self._name,)))

    def find(self, owner: str) -> Place | None:
        row = self._execute(_SQL["find_place"], (owner, self._name)).fetchone()
        return _checked(self._name, row) if row else None

    def append(self, place: Place) -> bool:
        last, has_tombstone = self._execute(_SQL["last_ticket"], (place.owner, self._now)).fetchone()
        if has_tombstone:
            return False
        if not _is_ticket(last):
            raise _damaged_counter(last)
        place.ticket = max(last + 1, self._floor())
        self._execute(
            _SQL["append_place"],
            (
                self._name,
                place.ticket,
                place.owner,
                place.capacity,
                place.weight,
                place.expires_at,
                place.acquired_at,
                place.metadata,
                self._address,
            ),
        )
        return True

    def update(self, place: Place) -> None:
        self._execute(
            _SQL["update_place"],
            (place.expires_at, place.acquired_at, place.metadata, self._name, place.ticket),
        )

    def rename(self, place: Place, owner: str) -> None:
        place.owner = owner
        self._execute(_SQL["rename_place"], (owner, self._name, place.ticket))

    def remove(self, owner: str) -> float:
        row = self._execute(_SQL["remove_place"], (owner, self._name)).fetchone()
        return row[0] if row else -inf

    def add_tombstone(self, owner: str, until: float) -> None:
        self._execute(_SQL["add_tombstone"], (owner, until))


class SqliteStore:
    """One client's connection to a database file.

    Not promised: anything across machines (a file that another machine used is refused), or while a process is
    stopped in the middle of a transaction, which locks out all others until it continues or ends.
    """

    def __init__(
        self,
        runtime: Runtime,
        path: str | Path | None = None,
        *,
        push: bool = HAS_ABSTRACT_SOCKETS,
        clock: Callable[[], float] | None = None,
        floor: Callable[[], int] = ticket_floor,
    ) -> None:
        self.runtime = runtime
        self.path = Path(path or default_path()).absolute()
        self._path = str(self.path)  # os.stat of a str is faster
        self.address = escaped(f"sqlite:///{self.path}")
        self.capabilities = Capabilities(push=push)
        self._private = path is None
        self._clock = clock or machine.shared_clock()
        self._clock_may_step = clock is not None or not machine.boot_id()
        self._is_alone = True
        """Whether the last join was granted at once: then the next step is likely to be a `_Statement`. Where names are
        contended, statements that change nothing would cost a tenth of each hand-over."""
        self._floor = floor
        self._notify_socket = NotifySocket(runtime, listens=push)
        self._liveness = Liveness()
        self._watch_for_deaths()
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._inode = 0
        self._joins = random.randrange(SWEEP_EVERY)  # many short-lived clients together sweep as often as one
        self._closed = False
        lifecycle.at_fork(self, before="_before_fork", in_parent="_after_fork", in_child="_forked")

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[Standing | Refusal, list[Place]]:
            swept = self._sweep(cursor, now)
            outcome, woken = rule.join(self._line(cursor, ask.name, now), ask, now)
            self._is_alone = isinstance(outcome, Standing) and outcome.held
            return outcome, swept + woken

        def join_empty_line(cursor: sqlite3.Cursor, now: float) -> Standing | None:
            name, owner, ttl, _, capacity, weight, _, metadata, _ = ask
            if weight > capacity or (self._joins + 1) % SWEEP_EVERY == 0:
                return None
            ticket, address = self._floor(), self._notify_socket.address
            values = name, ticket, owner, capacity, weight, now + ttl, now, metadata, address
            if cursor.execute(_SQL["join_empty_line"], values).rowcount != 1:
                return None
            self._joins += 1
            return Standing(PlaceState.HELD, ticket, now)

        self._notify_socket.expect(ask.owner)
        try:
            outcome = await self.runtime.offload(partial(self._transact, step, timeout, join_empty_line))
        except StoreError as error:
            if not error.transient:
                self._notify_socket.forget(ask.owner)
            raise
        if isinstance(outcome, Refusal):
            self._notify_socket.forget(ask.owner)
        return outcome

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Standing], list[Place]]:
            standings = []
            to_wake = []
            for renewal in renewals:
                standing, woken = rule.renew(self._line(cursor, renewal.name, now), renewal, now)
                standings.append(standing)
                to_wake += woken
            return standings, to_wake

        return await self.runtime.offload(partial(self._transact, step, timeout))

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[bool, list[Place]]:
            return rule.leave(self._line(cursor, name, now), owner, now, tombstone)

        def leave_only_place(cursor: sqlite3.Cursor, now: float) -> bool | None:
            if tombstone:
                return None
            return cursor.execute(_SQL["leave_only_place"], (owner, name, now, MAX_TIME)).rowcount == 1 or None

        was_there = await self.runtime.offload(
            partial(self._transact, step, timeout, leave_only_place, check_file=False)
        )
        self._notify_socket.forget(owner)
        return was_there

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[bool, list[Place]]:
            return rule.reserve(self._line(cursor, reservation.name, now), reservation, now)

        was_there = await self.runtime.offload(partial(self._transact, step, timeout, check_file=not self._closed))
        self._notify_socket.forget(reservation.owner)
        return was_there

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Standing] | Refusal, list[Place]]:
            swept = self._sweep(cursor, now)
            outcome, woken = rule.join_all([(self._line(cursor, ask.name, now), ask) for ask in asks], now)
            return outcome, swept + woken

        for ask in asks:
            self._notify_socket.expect(ask.owner)
        try:
            outcome = await self.runtime.offload(partial(self._transact, step, timeout))
        except StoreError as error:
            if not error.transient:
                self._forget(asks)
            raise
        if isinstance(outcome, Refusal):
            self._forget(asks)
        return outcome

    def _forget(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._notify_socket.forget(ask.owner)

    async def consume(self, request: RateRequest, timeout: float) -> RateResult:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[RateResult, list[Place]]:
            row = cursor.execute(_SQL["rate_limit"], (request.name,)).fetchone()
            if row and not all(isinstance(number, float) and 0 <= number < MAX_TIME for number in row):
                msg = f"the rate limit {request.name!r} is damaged: {row!r} (delete its row from the table rate_limit)"
                raise DamagedError(msg, name=request.name, key="rate_limit")
            result, state = gcra.consume(gcra.RateState(*row) if row else None, request, now)
            if state is not None:
                cursor.execute(_SQL["save_rate_limit"], (request.name, *state))
            return result, self._sweep(cursor, now)

        return await self.runtime.offload(partial(self._transact, step, timeout))

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        soon = min(timeout, LOOK_EVERY)
        if await self._notify_socket.wait(owner, soon):
            return Wake.HINT
        if timeout <= soon:
            return Wake.TIMEOUT
        addresses = await self._addresses_ahead(name, owner)
        self._deaths.add(name, owner, addresses)
        try:
            return Wake(await self._notify_socket.wait(owner, timeout - soon))
        finally:
            self._deaths.discard(owner, addresses)

    async def _addresses_ahead(self, name: str, owner: str) -> list[str]:
        """Find the processes whose death may let this place hold, as far as they can be judged."""

        def step(cursor: sqlite3.Cursor, _now: float) -> tuple[list[str], list[Place]]:
            rows = cursor.execute(_SQL["addresses_ahead"], (name, owner, WATCHED_PLACES)).fetchall()
            return [address for (address,) in rows if self._liveness.can_judge(address)], []

        try:
            return await self.runtime.offload(partial(self._transact, step, LOOK_EVERY))
        except StoreError:  # it waits all the same
            return []

    async def _remove_dead(self, name: str) -> None:
        """Remove what has expired, and the places of dead processes, also where no step of the rule would look."""

        def step(cursor: sqlite3.Cursor, now: float) -> tuple[None, list[Place]]:
            line = self._line(cursor, name, now)
            for place in [place for place in line.places() if place.expires_at <= now]:
                line.remove(place.owner)
            return None, rule.settle(line, now).woken

        await self.runtime.offload(partial(self._transact, step, LOOK_EVERY))

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Line], list[Place]]:
            select = _SQL["inspect_name" if exact else "inspect_prefix"]
            assert self._connection is not None
            self._connection.text_factory = bytes  # to read texts that are not UTF-8
            try:
                rows = cursor.execute(select, {"prefix": prefix}).fetchall()
            finally:
                self._connection.text_factory = str
            lines = [self._read(name, list(of_name), now) for name, of_name in groupby(rows, key=lambda row: row[0])]
            found = [line for line in lines if line.places or line.damage]
            (last,) = cursor.execute(_SQL["inspect_counter"]).fetchone()
            if not _is_ticket(last):
                line = found.pop() if exact and found else Line(prefix if exact else "", now, ())
                found.append(line._replace(damage=line.damage or self._with_path(_damaged_counter(last))))
            return found, []

        return await self.runtime.offload(partial(self._transact, step, INSPECTION_TIMEOUT))

    def _read(self, name: bytes, rows: Sequence[tuple[Any, ...]], now: float) -> Line:
        shown = name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
        try:
            texts = [[value.decode() if isinstance(value, bytes) else value for value in row] for row in rows]
            return Line(shown, now, rule.live((self._living(_checked(shown, row[1:])) for row in texts), now))
        except (DamagedError, UnicodeDecodeError) as error:
            damage = error if isinstance(error, DamagedError) else _damaged(shown, str(error))
            return Line(shown, now, (), self._with_path(damage))

    async def repair(self, name: str, timeout: float) -> None:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[None, list[Place]]:
            try:
                for _ in self._line(cursor, name, now).places():
                    pass
            except (DamagedError, sqlite3.OperationalError) as error:
                if not _is_damage(error):
                    raise
                cursor.execute(_SQL["remove_line"], (name,))
            cursor.execute(_SQL["repair_counter"], (LARGEST_TICKET - 1,))
            return None, []

        await self.runtime.offload(partial(self._transact, step, timeout))

    async def close(self) -> None:
        def close() -> None:
            self._closed = True
            with suppress(NestedCallError), nesting.step(), self._mutex:  # else the interrupted step disconnects
                self._disconnect()

        await self.runtime.offload(close)
        self._notify_socket.close()

    def _line(self, cursor: sqlite3.Cursor, name: str, now: float) -> _SqliteLine:
        address = self._notify_socket.address
        return _SqliteLine(cursor, name, now, address=address, floor=self._floor, living=self._living)

    def _living(self, place: _Row) -> _Row:
        """Let a place expire whose process is dead: it relies on nothing any more. A reservation stays."""
        address = place.address
        if address != self._notify_socket.address and not place.reserved and self._liveness.is_dead(address):
            place.expires_at = -inf
        return place

    def _watch_for_deaths(self) -> None:
        remove_dead = WeakMethod(self._remove_dead)  # weak: a waiter has the store, and its watch must not

        async def remove(name: str) -> None:
            if (call := remove_dead()) is not None:
                await call(name)

        self._deaths = DeathWatch(self.runtime, self._liveness.is_dead, remove)

    def _transact(
        self, step: _Step[T], timeout: float, statement: _Statement[T] | None = None, *, check_file: bool = True
    ) -> T:
        """Run one atomic step, as soon as the file is not locked, then notify the places it reports.

        Without `check_file`, a file that was replaced stays in use: removing a place from the old one is enough.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                with nesting.step(), self._mutex:  # never held while waiting: other threads and forks need it
                    result, woken = self._attempt(step, statement, check_file=check_file)
            except DamagedError as error:
                raise self._with_path(error) from None
            except sqlite3.Error as error:
                if _code(error) not in _BUSY or time.monotonic() >= deadline:
                    raise self._explain(error) from error
            except (TypeError, ValueError) as error:
                msg = f"{self.path}: {error} ({_ADVICE[sqlite3.SQLITE_CORRUPT]})"
                raise StoreError(msg) from error
            except OSError as error:
                msg = f"{self.path}: {error.strerror} ({_ADVICE[sqlite3.SQLITE_CANTOPEN]})"
                raise StoreError(msg) from error
            else:
                for place in woken:
                    self._notify_socket.notify(place.owner, place.address if isinstance(place, _Row) else "")
                return result
            time.sleep(random.uniform(MIN_BUSY_DELAY, MAX_BUSY_DELAY))

    def _attempt(
        self, step: _Step[T], statement: _Statement[T] | None, *, check_file: bool
    ) -> tuple[T, Sequence[Place]]:
        """Run the statement as a transaction by itself, which saves a quarter of the time, or else the whole step.

        Its `now` is read before the file is locked. An earlier `now` is safe: what it gives expires sooner, and a
        place that is still there has had no successor.
        """
        try:
            cursor = self._connected(check_file=check_file)
            result = None
            if statement is not None and self._is_alone and not self._clock_may_step:
                if not cursor.connection.in_transaction:  # else an interrupt has left one open, and `_run` fails
                    result = statement(cursor, self._clock())
                self._is_alone = result is not None
            outcome = self._run(cursor, step, statement) if result is None else (result, ())
            if self._closed:
                self._disconnect()
        except BaseException as error:
            self._recover(error)
            raise
        return outcome

    def _run(
        self, cursor: sqlite3.Cursor, step: _Step[T], statement: _Statement[T] | None
    ) -> tuple[T, Sequence[Place]]:
        cursor.execute("BEGIN IMMEDIATE")
        now = self._clock()
        result = None
        if self._clock_may_step:
            self._follow_clock(cursor, now)
            if statement is not None and self._is_alone:
                result = statement(cursor, now)
                self._is_alone = result is not None
        outcome = step(cursor, now) if result is None else (result, ())
        cursor.execute("COMMIT")
        return outcome

    def _recover(self, error: BaseException) -> None:
        """Roll back a failed step; disconnect unless the file was only locked."""
        if self._connection is not None and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        if self._closed or (isinstance(error, sqlite3.Error) and _code(error) not in _BUSY):
            self._disconnect()

    def _with_path(self, error: DamagedError) -> DamagedError:
        return DamagedError(f"{self.path}: {error}", name=error.name, key=error.key, field=error.field)

    def _explain(self, error: sqlite3.Error) -> StoreError:
        code = _code(error)
        if _is_damage(error):
            remedy = "`lockstead ls` names its lock, `lockstead release NAME --force` clears it"
            return DamagedError(f"{self.path}: {error} ({remedy})", key="place")
        advice = _ADVICE.get(code, "")
        return StoreError(f"{self.path}: {error}{advice and f' ({advice})'}", transient=code in _TRANSIENT)

    def _follow_clock(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Subtract a backward step of the clock from every expiry, else places of dead clients would last longer."""
        (last,) = cursor.execute(_SQL["last_time"]).fetchone()
        if now < last:
            cursor.execute(_SQL["shift_places"], (last - now,))
            cursor.execute(_SQL["shift_tombstones"], (last - now,))
        if now < last or now > last + 1:
            cursor.execute(_SQL["save_time"], (now,))

    def _sweep(self, cursor: sqlite3.Cursor, now: float) -> list[Place]:
        """Every `SWEEP_EVERY` calls, search a few more rows for expired places of names that are no longer used."""
        self._joins += 1
        if self._joins % SWEEP_EVERY:
            return []
        execute = cursor.execute
        execute(_SQL["sweep_tombstones"], (now,))
        execute(_SQL["sweep_rate_limits"], (now,))
        rows = execute(_SQL["next_places_to_sweep"], (now, SWEEP_ROWS)).fetchall()
        execute(_SQL["save_swept_to"], (rows[-1][0] if len(rows) == SWEEP_ROWS else "",))
        woken = []
        for name in {name for name, is_expired in rows if is_expired}:
            try:
                woken += rule.settle(self._line(cursor, name, now), now).woken
            except (
                DamagedError,
                sqlite3.OperationalError,
            ) as error:  # another name's damage must not fail this request
                if not _is_damage(error):
                    raise
        return woken

    def _connected(self, *, check_file: bool) -> sqlite3.Cursor:
        """Connect, and reconnect if the file was deleted or replaced: other processes would use the new one."""
        if self._closed and check_file:  # a place can still be released
            msg = f"{self.path}: this store is closed: create a new client"
            raise StoreError(msg)
        if self._cursor is not None:
            if not check_file:
                return self._cursor
            try:
                if os.stat(self._path).st_ino == self._inode:
                    return self._cursor
            except OSError:
                pass
            self._disconnect()
        if self._private:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path.exists():
            create_empty(self.path)
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        try:
            self._prepare(connection)
            if not self._closed:  # else it only releases places
                self._liveness.announce(self._path)
            self._notify_socket.bind(self._liveness.evidence)
            self._inode = os.stat(self.path).st_ino
        except BaseException:
            connection.close()
            raise
        cursor = connection.cursor()  # one for all: to make one costs as much as a small statement
        self._connection, self._cursor = connection, cursor
        return cursor

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create or check the schema, and delete what an earlier boot left behind."""
        identity = connection.execute(_SQL["identify_file"]).fetchone()
        if identity[0] != APPLICATION_ID and any(identity):
            msg = f"{self.path}: this database belongs to another program; choose a file of lockstead's own"
            raise StoreError(msg)
        connection.execute("PRAGMA page_size = 1024")  # a commit writes, and checksums, whole pages
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            msg = f"{self.path}: made by a newer lockstead (schema {version}); upgrade this one"
            raise StoreError(msg)
        if not connection.execute(_SQL["has_newest_table"]).fetchone():
            for statement in files("lockstead.stores.sqlite").joinpath("schema.sql").read_text("utf-8").split(";\n\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if version == 0:
                identity = machine.machine_id(), machine.boot_id()
                connection.execute(_SQL["create_state"], identity)
        self._check_machine(connection)
        connection.execute("COMMIT")

    def _check_machine(self, connection: sqlite3.Connection) -> None:
        used_on, boot = connection.execute(_SQL["machine_and_boot"]).fetchone()
        if boot and boot == machine.boot_id():
            return
        if used_on != machine.machine_id():
            msg = (
                f"{self.path}: this file was used on another machine ({used_on}), and SQLite cannot lock "
                "across machines; use a server for that, or delete the file if that machine is gone"
            )
            raise StoreError(msg)
        if boot != machine.boot_id():
            connection.execute(_SQL["remove_places"])
            connection.execute(_SQL["remove_tombstones"])
            connection.execute(_SQL["remove_rate_limits"])
            connection.execute(_SQL["save_boot"], (machine.boot_id(),))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._cursor = None
        if self._closed:
            self._liveness.drop(has_places=self._notify_socket.has_places())

    def __del__(self) -> None:
        """Close the file of a store that was dropped: the connection is in a reference cycle, and would stay open."""
        if (liveness := getattr(self, "_liveness", None)) is not None:
            liveness.drop(has_places=self._notify_socket.has_places())
        if (connection := getattr(self, "_connection", None)) is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _before_fork(self) -> None:
        """Close the file: SQLite's record of its locks must not be copied into a child, which does not have them."""
        self._mutex.acquire()
        self._disconnect()

    def _after_fork(self) -> None:
        self._mutex.release()

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._notify_socket.reset()
        self._liveness = Liveness()
        self._deaths.clear()
        self._watch_for_deaths()


class _Connection(sqlite3.Connection):
    """Closed with its store, not sooner: at exit, daemon threads may still be using it."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # it was never opened
            self.close()  # Python 3.13 warns of connections that are not closed


def _checked(name: str, row: Sequence[Any]) -> _Row:
    """Make a place of a row. Raises DamagedError for values that this store does not write."""
    place = _Row(*row)
    if (
        isinstance(place.ticket, int)
        and 0 < place.ticket <= LARGEST_TICKET
        and isinstance(place.capacity, int)
        and isinstance(place.weight, int)
        and 0 < place.weight <= place.capacity
        and isinstance(place.expires_at, float)
        and -MAX_TIME < place.expires_at < MAX_TIME
        and (place.acquired_at is None or (isinstance(place.acquired_at, float) and 0 <= place.acquired_at < MAX_TIME))
        and isinstance(place.owner, str)
        and isinstance(place.metadata, str)
        and isinstance(place.address, str)
    ):
        return place
    raise _damaged(name, "it holds impossible values")


def _is_ticket(last: object) -> bool:
    """Return whether this is a last ticket that another may follow."""
    return isinstance(last, int) and 0 <= last < LARGEST_TICKET


def _damaged_counter(last: object) -> DamagedError:
    msg = (
        f"the counter of tickets of all names is damaged: {last!r} "
        "(`lockstead release NAME --force`, with a name that nothing holds, resets it: fences continue from the clock)"
    )
    return DamagedError(msg, key="state", field="ticket")


def _damaged(name: str, what: str) -> DamagedError:
    msg = f"a row of {name!r} is damaged: {what} (`{command_for(name, 'release', '--force')}` clears it)"
    return DamagedError(msg, name=name, key="place")


def _is_damage(error: Exception) -> bool:
    """Tell damage, also a text that is not UTF-8, which only Python's module detects, from other errors of SQLite."""
    return isinstance(error, DamagedError) or (isinstance(error, sqlite3.Error) and "decode to UTF-8" in str(error))


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for an error that Python's module raises by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
