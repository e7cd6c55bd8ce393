"""A store of your own: the lines of all names in one JSON file, shared by the processes of one machine.

lockstead's own rule decides which places hold and which wait. The store keeps the places, and makes every step atomic:
one process at a time reads the file, applies the step, and replaces the file.

Run it: python examples/own_store.py
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from lockstead import DistributedLock, StoreError
from lockstead.port import (
    Ask,
    Capabilities,
    Line,
    Place,
    Refusal,
    Renewal,
    Reservation,
    Runtime,
    Standing,
    Wake,
    boot_id,
    rule,
    shared_clock,
)
from lockstead.stores import register

T = TypeVar("T")


class Book:
    """The contents of the file, as one step reads them, without what has expired."""

    def __init__(self, path: Path, now: float) -> None:
        kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.now = now
        self.ticket: int = kept.get("ticket", 0)
        self.tombstones = {owner: until for owner, until in kept.get("tombstones", {}).items() if now < until}
        self.lines = {
            name: [Place(**place) for place in places if now < place["expires_at"]]
            for name, places in kept.get("lines", {}).items()
        }

    def line(self, name: str) -> FileLine:
        return FileLine(self, self.lines.setdefault(name, []))

    def as_json(self) -> str:
        lines = {name: [asdict(place) for place in places] for name, places in self.lines.items() if places}
        return json.dumps({"ticket": self.ticket, "tombstones": self.tombstones, "lines": lines})


class FileLine:
    """One name's places in the order of their tickets: the `Ledger` that the rule works on."""

    def __init__(self, book: Book, places: list[Place]) -> None:
        self._book = book
        self._places = places

    def places(self) -> Iterator[Place]:
        return iter(self._places)

    def find(self, owner: str) -> Place | None:
        return next((place for place in self._places if place.owner == owner), None)

    def append(self, place: Place) -> bool:
        if place.owner in self._book.tombstones:
            return False
        # A ticket is a fence: it must keep growing, even if the file with the last one is gone.
        self._book.ticket = place.ticket = max(self._book.ticket + 1, time.time_ns() // 1000)
        self._places.append(place)
        return True

    def update(self, place: Place) -> None:
        """Do nothing: the rule has changed the place in memory, which is written at the end of the step."""

    def rename(self, place: Place, owner: str) -> None:
        place.owner = owner

    def remove(self, owner: str) -> float:
        place = self.find(owner)
        if place is None:
            return -inf
        self._places.remove(place)
        return place.expires_at

    def add_tombstone(self, owner: str, until: float) -> None:
        self._book.tombstones[owner] = until


class FileStore:
    """Lines in a file of `folder`, a new one after each boot: no holder outlives the machine.

    Not promised: anything across machines, or after its files were removed. A process that is stopped in the middle of
    a step blocks all others until it is resumed or killed.
    """

    capabilities = Capabilities(push=False)  # waiters are not woken: the engine polls, with growing pauses

    def __init__(self, runtime: Runtime, folder: str | Path, clock: Callable[[], float] | None = None) -> None:
        self.runtime = runtime
        self._path = Path(folder, f"locks-{boot_id()}.json").absolute()
        self.address = f"file://{self._path.parent}"  # for log lines
        self._clock = clock or shared_clock()  # the same in all processes, and it cannot be set

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        return await self._step(lambda book: rule.join(book.line(ask.name), ask, book.now)[0], timeout)

    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        return await self._step(
            lambda book: [rule.renew(book.line(each.name), each, book.now)[0] for each in renewals], timeout
        )

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        return await self._step(lambda book: rule.leave(book.line(name), owner, book.now, tombstone)[0], timeout)

    async def wait(self, name: str, owner: str, timeout: float) -> Wake:
        await self.runtime.sleep(timeout)
        return Wake.TIMEOUT

    async def inspect(self, prefix: str = "", *, exact: bool = False) -> list[Line]:
        def look() -> list[Line]:
            book = Book(self._path, self._clock())  # the file is replaced atomically: no lock is needed
            names = sorted(name for name in book.lines if (name == prefix if exact else name.startswith(prefix)))
            lines = [Line(name, book.now, rule.live(book.lines[name], book.now)) for name in names]
            return [line for line in lines if line.places]

        return await self.runtime.offload(look)

    async def close(self) -> None:
        """Do nothing: between steps, nothing is open."""

    async def reserve(self, reservation: Reservation, timeout: float) -> bool:
        """Keep a released name reserved: an optional ability of a store."""
        return await self._step(
            lambda book: rule.reserve(book.line(reservation.name), reservation, book.now)[0], timeout
        )

    async def _step(self, step: Callable[[Book], T], timeout: float) -> T:
        def apply() -> T:
            try:
                with self._exclusively(timeout):
                    book = Book(self._path, self._clock())
                    result = step(book)
                    new = self._path.with_suffix(".new")
                    new.write_text(book.as_json(), "utf-8")
                    new.replace(self._path)  # a process killed before this has changed nothing
                    return result
            except OSError as error:
                raise StoreError(f"{self._path}: {error.strerror}") from error

        return await self.runtime.offload(apply)  # so that waiting for the disk does not block the event loop

    @contextmanager
    def _exclusively(self, timeout: float) -> Iterator[None]:
        """Exclude all other threads and processes. The lock is on a separate file, which is never replaced."""
        deadline = time.monotonic() + timeout
        with self._path.with_suffix(".lock").open("a") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        raise StoreError(f"{self._path} is locked", transient=True) from error
                time.sleep(0.0005)
            try:
                yield
            finally:
                fcntl.flock(
                    lock, fcntl.LOCK_UN
                )  # closing is not enough: a child forked meanwhile has the file open too


def open_file(url: str, runtime: Runtime) -> FileStore:
    """Open `file:///var/lib/app`: a store in that folder."""
    return FileStore(runtime, unquote(urlsplit(url).path))


register("file", open_file)


def work(url: str, journal: Path) -> None:
    """Run as one of several processes that append to a journal, one at a time."""
    with DistributedLock(url) as locks:
        for _ in range(5):
            with locks.lock("journal", timeout=30) as handle:
                written = journal.read_text("utf-8")
                journal.write_text(f"{written}{handle.fence}\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder, "journal")
            journal.touch()
            command = [sys.executable, __file__, f"file://{folder}", str(journal)]
            workers = [subprocess.Popen(command) for _ in range(4)]
            assert [worker.wait() for worker in workers] == [0] * 4
            fences = [int(line) for line in journal.read_text("utf-8").split()]
        print(f"{len(fences)} entries by {len(workers)} processes; fences grow: {fences == sorted(set(fences))}")
        assert len(fences) == 20
        assert fences == sorted(set(fences))
