"""`sqlite:///path`: the embedded default, shared by the processes of one machine.

Every step is one immediate transaction on a WAL database, so a process killed anywhere leaves either the
whole step or nothing. Waiting processes are woken by a datagram to their own socket.
"""

from __future__ import annotations

import os
import random
import shlex
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from lockstead.core import gcra, lifecycle, rule
from lockstead.core.model import (
    Ask,
    Capabilities,
    Line,
    Place,
    RateRequest,
    RateResult,
    Refusal,
    Renewal,
    Reservation,
    Standing,
    Wake,
)
from lockstead.core.runtime import Runtime
from lockstead.errors import DamagedError, NestedCallError, StoreError
from lockstead.runtimes import nesting
from lockstead.stores.memory import microseconds
from lockstead.stores.sqlite import machine as _machine
from lockstead.stores.sqlite.notify import HAS_ABSTRACT_SOCKETS, NotifySocket

T = TypeVar("T")
_Step = Callable[[sqlite3.Cursor, float], tuple[T, list[Place]]]

APPLICATION_ID = 0x4C454153  # "LEAS"
SCHEMA_VERSION = 1
SWEEP_EVERY = 64
SWEEP_ROWS = 200
LARGEST_TICKET = 2**53 - 1
MAX_TIME = 1e12
"""Seconds on any clock that no time of ours reaches."""

_PLACE = "ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address"
_WALK = f"SELECT {_PLACE} FROM place WHERE name = ? ORDER BY ticket"
_FIND = f"SELECT {_PLACE} FROM place WHERE owner = ? AND name = ?"
_DRAW = "SELECT ticket, EXISTS (SELECT 1 FROM refused WHERE owner = ? AND until > ?) FROM state"
_APPEND = "INSERT INTO place VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_TRANSIENT = {*_BUSY, sqlite3.SQLITE_IOERR}
_ADVICE = {
    sqlite3.SQLITE_BUSY: "another program keeps it locked",
    sqlite3.SQLITE_LOCKED: "another program keeps it locked",
    sqlite3.SQLITE_CANTOPEN: "its directory must exist and be writable; --url or LOCKSTEAD_URL chooses another file",
    sqlite3.SQLITE_READONLY: "the file and its directory must be writable; LOCKSTEAD_URL chooses another file",
    sqlite3.SQLITE_NOTADB: "it is no lockstead database; move it away, or choose another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged; stop its users and move it away: no lock outlives its users",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk failed, or somebody removed its -wal or -shm file",
}


def default_path() -> Path:
    """Find the user's own database, in the directory where the system keeps such state."""
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
    """One name's ledger inside an open transaction."""

    __slots__ = ("_address", "_execute", "_floor", "_name", "_now")

    def __init__(self, cursor: sqlite3.Cursor, name: str, now: float, address: str, floor: Callable[[], int]) -> None:
        self._execute = cursor.execute
        self._name = name
        self._now = now
        self._address = address
        self._floor = floor

    def places(self) -> Iterator[Place]:
        return (_checked(self._name, row) for row in self._execute(_WALK, (self._name,)))

    def find(self, owner: str) -> Place | None:
        row = self._execute(_FIND, (owner, self._name)).fetchone()
        return _checked(self._name, row) if row else None

    def append(self, place: Place) -> bool:
        last, has_tombstone = self._execute(_DRAW, (place.owner, self._now)).fetchone()
        if has_tombstone:
            return False
        if not _is_ticket(last):
            raise _damaged_counter(last)
        place.ticket = max(last + 1, self._floor())
        self._execute(
            _APPEND,
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
            "UPDATE place SET expires_at = ?, acquired_at = ?, metadata = ? WHERE name = ? AND ticket = ?",
            (place.expires_at, place.acquired_at, place.metadata, self._name, place.ticket),
        )

    def rename(self, place: Place, owner: str) -> None:
        place.owner = owner
        self._execute("UPDATE place SET owner = ? WHERE name = ? AND ticket = ?", (owner, self._name, place.ticket))

    def remove(self, owner: str) -> float:
        row = self._execute(
            "DELETE FROM place WHERE owner = ? AND name = ? RETURNING expires_at", (owner, self._name)
        ).fetchone()
        return row[0] if row else -inf

    def refuse(self, owner: str, until: float) -> None:
        self._execute("INSERT OR REPLACE INTO refused VALUES (?, ?)", (owner, until))


class SqliteStore:
    """One client's connection to a database file.

    Not promised: anything across machines (a file that another one used is refused), or while a process is
    stopped in the middle of a transaction, which locks everybody out until it goes on or ends.
    """

    def __init__(
        self,
        runtime: Runtime,
        path: str | Path | None = None,
        *,
        push: bool = HAS_ABSTRACT_SOCKETS,
        clock: Callable[[], float] | None = None,
        floor: Callable[[], int] = microseconds,
    ) -> None:
        self.runtime = runtime
        self.path = Path(path or default_path()).absolute()
        self._path = str(self.path)  # which is quicker to look at
        self.capabilities = Capabilities(push=push)
        self._private = path is None
        self._clock = clock or _machine.shared_clock()
        self._clock_may_step = clock is not None or not _machine.boot_id()
        self._floor = floor
        self._notify_socket = NotifySocket(runtime, listens=push)
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
            return outcome, swept + woken

        if ask.queue:
            self._notify_socket.expect(ask.owner)
        try:
            return await self._do(step, timeout)
        except StoreError as error:
            if not error.transient:
                self._notify_socket.forget(ask.owner)
            raise

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing | None]:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Standing | None], list[Place]]:
            standings = []
            to_wake = []
            for renewal in renewals:
                standing, woken = rule.renew(self._line(cursor, renewal.name, now), renewal, now)
                standings.append(standing)
                to_wake += woken
            return standings, to_wake

        return await self._do(step, timeout)

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[bool, list[Place]]:
            return rule.leave(self._line(cursor, name, now), owner, now, tombstone)

        was_there = await self._do(step, timeout, look=False)
        self._notify_socket.forget(owner)
        return was_there

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[bool, list[Place]]:
            return rule.reserve(self._line(cursor, reservation.name, now), reservation, now)

        was_there = await self._do(step, timeout, look=not self._closed)
        self._notify_socket.forget(reservation.owner)
        return was_there

    async def join_all(self, asks: Sequence[Ask], timeout: float) -> list[Standing] | Refusal | None:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Standing] | Refusal, list[Place]]:
            swept = self._sweep(cursor, now)
            outcome, woken = rule.join_all([(self._line(cursor, ask.name, now), ask) for ask in asks], now)
            return outcome, swept + woken

        return await self._do(step, timeout)

    async def spend(self, charge: RateRequest, timeout: float) -> RateResult:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[RateResult, list[Place]]:
            row = cursor.execute("SELECT amount, at FROM debt WHERE name = ?", (charge.name,)).fetchone()
            if row and not all(isinstance(number, float) and 0 <= number < MAX_TIME for number in row):
                msg = f"the rate {charge.name!r} makes no sense: {row!r} (delete its row from the table debt)"
                raise DamagedError(msg, name=charge.name, key="debt")
            balance, debt = gcra.spend(gcra.RateState(*row) if row else None, charge, now)
            if debt is not None:
                cursor.execute("INSERT OR REPLACE INTO debt VALUES (?, ?, ?)", (charge.name, *debt))
            return balance, self._sweep(cursor, now)

        return await self._do(step, timeout)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        return Wake(await self._notify_socket.wait(owner, timeout))

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        def step(cursor: sqlite3.Cursor, now: float) -> tuple[list[Line], list[Place]]:
            where = "name = :prefix" if exact else "name BETWEEN :prefix AND :prefix || char(1114111)"
            select = f"SELECT name, {_PLACE} FROM place WHERE {where} ORDER BY name, ticket"
            assert self._connection is not None
            self._connection.text_factory = bytes  # to see what is no text
            try:
                rows = cursor.execute(select, {"prefix": prefix}).fetchall()
            finally:
                self._connection.text_factory = str
            lines = [self._read(name, list(of_name), now) for name, of_name in groupby(rows, key=lambda row: row[0])]
            found = [line for line in lines if line.places or line.damage]
            (last,) = cursor.execute("SELECT ticket FROM state").fetchone()
            if not _is_ticket(last):
                line = found.pop() if exact and found else Line(prefix if exact else "", now, ())
                found.append(line._replace(damage=line.damage or self._with_path(_damaged_counter(last))))
            return found, []

        return await self._do(step, 5.0)

    def _read(self, name: bytes, rows: Sequence[tuple[Any, ...]], now: float) -> Line:
        shown = name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
        try:
            texts = [[value.decode() if isinstance(value, bytes) else value for value in row] for row in rows]
            return Line(shown, now, rule.live((_checked(shown, row[1:]) for row in texts), now))
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
                cursor.execute("DELETE FROM place WHERE name = ?", (name,))
            cursor.execute(
                "UPDATE state SET ticket = 0 WHERE typeof(ticket) <> 'integer' OR ticket NOT BETWEEN 0 AND ?",
                (LARGEST_TICKET - 1,),
            )
            return None, []

        await self._do(step, timeout)

    async def close(self) -> None:
        def close() -> None:
            self._closed = True
            with suppress(NestedCallError), nesting.step(), self._mutex:  # else the step that goes on disconnects
                self._disconnect()

        await self.runtime.offload(close)
        self._notify_socket.close()

    def _line(self, cursor: sqlite3.Cursor, name: str, now: float) -> _SqliteLine:
        return _SqliteLine(cursor, name, now, self._notify_socket.address, self._floor)

    async def _do(self, step: _Step[T], timeout: float, *, look: bool = True) -> T:
        return await self.runtime.offload(lambda: self._transact(step, timeout, look=look))

    def _transact(self, step: _Step[T], timeout: float, *, look: bool) -> T:
        """Run one atomic step, as soon as other processes let us, then wake the places it reports.

        Without `look`, whether the file was replaced is not looked at: giving up a place in the old one is enough.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                with nesting.step(), self._mutex:  # never held while waiting: other threads and forks need it
                    result, woken = self._attempt(step, look=look)
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
                    self._notify_socket.ring(place.owner, place.address if isinstance(place, _Row) else "")
                return result
            time.sleep(0.0002 + 0.0008 * random.random())

    def _attempt(self, step: _Step[T], *, look: bool) -> tuple[T, list[Place]]:
        try:
            cursor = self._connected(look=look)
            cursor.execute("BEGIN IMMEDIATE")
            now = self._clock()
            if self._clock_may_step:
                self._follow_clock(cursor, now)
            outcome = step(cursor, now)
            cursor.execute("COMMIT")
            if self._closed:
                self._disconnect()
        except BaseException as error:
            self._recover(error)
            raise
        return outcome

    def _recover(self, error: BaseException) -> None:
        """Undo a step that failed; a connection that will not is not used again."""
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
            remedy = "`lockstead ls` tells whose it is, `lockstead release NAME --force` clears it"
            return DamagedError(f"{self.path}: {error} ({remedy})", key="place")
        advice = _ADVICE.get(code, "")
        return StoreError(f"{self.path}: {error}{advice and f' ({advice})'}", transient=code in _TRANSIENT)

    def _follow_clock(self, cursor: sqlite3.Cursor, now: float) -> None:
        """Take a backward step of the clock off everything that ends, else the dead would outlive it."""
        (last,) = cursor.execute("SELECT time FROM state").fetchone()
        if now < last:
            cursor.execute("UPDATE place SET expires_at = expires_at - ?", (last - now,))
            cursor.execute("UPDATE refused SET until = until - ?", (last - now,))
        if now < last or now > last + 1:
            cursor.execute("UPDATE state SET time = ?", (now,))

    def _sweep(self, cursor: sqlite3.Cursor, now: float) -> list[Place]:
        """Now and then, look through a few more rows for names nobody asks for any more."""
        self._joins += 1
        if self._joins % SWEEP_EVERY:
            return []
        execute = cursor.execute
        execute("DELETE FROM refused WHERE until <= ?", (now,))
        execute("DELETE FROM debt WHERE at + amount <= ?", (now,))
        rows = execute(
            "SELECT name, expires_at <= ? AND typeof(expires_at) = 'real' FROM place"
            " WHERE name > (SELECT swept_to FROM state) ORDER BY name LIMIT ?",
            (now, SWEEP_ROWS),
        ).fetchall()
        execute("UPDATE state SET swept_to = ?", (rows[-1][0] if len(rows) == SWEEP_ROWS else "",))
        woken = []
        for name in {name for name, is_expired in rows if is_expired}:
            try:
                woken += rule.settle(self._line(cursor, name, now), now).woken
            except (DamagedError, sqlite3.OperationalError) as error:  # which is no fault of this request
                if not _is_damage(error):
                    raise
        return woken

    def _connected(self, *, look: bool) -> sqlite3.Cursor:
        """Connect, and connect anew where the file was deleted or replaced: others would use the new one."""
        if self._closed and look:  # but what was taken can be given up
            msg = f"{self.path}: this store is closed"
            raise StoreError(msg)
        if self._cursor is not None:
            if not look or self._is_current():
                return self._cursor
            self._disconnect()
        if self._private:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path.exists():
            _create_private(self.path)
        self._notify_socket.hang_up()
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        try:
            self._prepare(connection)
            self._inode = os.stat(self.path).st_ino
        except BaseException:
            connection.close()
            raise
        cursor = connection.cursor()  # one for all: to make one costs as much as a small statement
        self._connection, self._cursor = connection, cursor
        return cursor

    def _is_current(self) -> bool:
        """Tell whether the path still leads to the file we have."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make or check the schema, and forget what another boot left behind."""
        identity = connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id),"
            " (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)"
        ).fetchone()
        if identity[0] != APPLICATION_ID and any(identity):
            msg = f"{self.path}: this database belongs to another program; choose a file of lockstead's own"
            raise StoreError(msg)
        connection.execute("PRAGMA page_size = 1024")  # a commit writes, and sums up, whole pages
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            msg = f"{self.path}: made by a newer lockstead (schema {version}); upgrade this one"
            raise StoreError(msg)
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'debt'").fetchone():  # the newest part
            for statement in files("lockstead.stores.sqlite").joinpath("schema.sql").read_text("utf-8").split(";\n\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            if version == 0:
                identity = _machine.machine_id(), _machine.boot_id()
                connection.execute("INSERT INTO state VALUES (?, ?, 0, 0, '')", identity)
        self._check_machine(connection)
        connection.execute("COMMIT")

    def _check_machine(self, connection: sqlite3.Connection) -> None:
        machine, boot = connection.execute("SELECT machine, boot FROM state").fetchone()
        if boot and boot == _machine.boot_id():
            return
        if machine != _machine.machine_id():
            msg = (
                f"{self.path}: this file was used on another machine ({machine}), and SQLite cannot lock "
                "across machines; use a server for that, or delete the file if that machine is gone"
            )
            raise StoreError(msg)
        if boot != _machine.boot_id():
            connection.execute("DELETE FROM place")
            connection.execute("DELETE FROM refused")
            connection.execute("DELETE FROM debt")
            connection.execute("UPDATE state SET boot = ?, time = 0", (_machine.boot_id(),))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = self._cursor = None

    def __del__(self) -> None:
        """Close the file of a store that was dropped: the connection refers to itself, and would stay for a while."""
        if (connection := getattr(self, "_connection", None)) is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _before_fork(self) -> None:
        """Let go of the file: what SQLite knows of its locks must not be copied into a child that has none."""
        self._mutex.acquire()
        self._disconnect()

    def _after_fork(self) -> None:
        self._mutex.release()

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._notify_socket.reset()


class _Connection(sqlite3.Connection):
    """Ends with its store, not sooner: at exit, daemon threads may still be using it."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # it could not be opened
            self.close()  # or Python 3.13 warns of it


def _checked(name: str, row: Sequence[Any]) -> _Row:
    """Make a place of a row, if something else has not written it."""
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
    """Tell whether there may be a next ticket after this."""
    return isinstance(last, int) and 0 <= last < LARGEST_TICKET


def _damaged_counter(last: object) -> DamagedError:
    msg = (
        f"the last ticket of all names makes no sense: {last!r} "
        "(`lockstead release NAME --force`, with a name that nothing holds, resets it: fences go on from the clock)"
    )
    return DamagedError(msg, key="state", field="ticket")


def _damaged(name: str, what: str) -> DamagedError:
    msg = f"a row of {name!r} is damaged: {what} (`lockstead release {shlex.quote(name)} --force` clears it)"
    return DamagedError(msg, name=name, key="place")


def _is_damage(error: Exception) -> bool:
    """Tell a text that is none, which only Python's module minds, from what SQLite has to say."""
    return isinstance(error, DamagedError) or (isinstance(error, sqlite3.Error) and "decode to UTF-8" in str(error))


def _code(error: sqlite3.Error) -> int:
    """Read SQLite's primary result code; what Python's module raises by itself has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _create_private(path: Path) -> None:
    """Create an empty file that only its user may open.

    Under another name first: to open and close the database itself would drop the locks this process has on it.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
