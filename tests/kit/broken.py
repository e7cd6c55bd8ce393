"""Copies of the example's store, each with something broken that contract and simulation must find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from examples.own_store import Book, FileLine, FileStore
from lockstead.port import Ask, Place, Refusal, Renewal, Standing, rule


class AnyOwnerLeaves(FileStore):
    """A leave removes the first place of the line as well."""

    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        lines = await self.inspect(name, exact=True)
        return await super().leave(name, lines[0].places[0].owner if lines else owner, timeout, tombstone)


class RenewalsResurrect(FileStore):
    async def renew(self, renewals: Sequence[Renewal], timeout: float) -> list[Standing]:
        for each in renewals:
            await self.join(Ask(each.name, each.owner, each.ttl, each.heartbeat), timeout)
        return await super().renew(renewals, timeout)


class NewcomersOvertake(FileStore):
    """A newcomer sees only the places that hold."""

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        class Holders(FileLine):
            def places(self) -> Iterator[Place]:
                return (place for place in super().places() if place.acquired_at is not None)

        def step(book: Book) -> Standing | Refusal:
            return rule.join(Holders(book, book.lines.setdefault(ask.name, [])), ask, book.now)[0]

        return await self._step(step, timeout)


class TicketsRepeat(FileStore):
    """In an empty line the tickets start again."""

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        class RepeatingLine(FileLine):
            def append(self, place: Place) -> bool:
                is_in = super().append(place)
                place.ticket = sum(1 for _ in self.places())
                return is_in

        return await self._step(
            lambda book: rule.join(RepeatingLine(book, book.lines.setdefault(ask.name, [])), ask, book.now)[0], timeout
        )


class TombstonesAreForgotten(FileStore):
    async def leave(self, name: str, owner: str, timeout: float, tombstone: float = 0.0) -> bool:
        return await super().leave(name, owner, timeout)


class WaitersLastTooLong(FileStore):
    """A waiting place gets the ttl of a holding one."""

    async def join(self, ask: Ask, timeout: float) -> Standing | Refusal:
        return await super().join(ask._replace(heartbeat=ask.ttl), timeout)


class StepsMix(FileStore):
    """Steps of several clients are not kept apart."""

    @contextmanager
    def _exclusively(self, timeout: float) -> Iterator[None]:
        yield
