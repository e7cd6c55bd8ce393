"""A server as the member of a quorum, for threads: requests are sent to all members before any reply is received."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from math import inf
from typing import Any, Generic, TypeVar

from lockstead.core.model import Ask, PlaceState, Refusal, Standing
from lockstead.core.runtime import PENDING
from lockstead.errors import StoreError
from lockstead.stores.redis.blocking import BlockingNode, Connection
from lockstead.stores.redis.commands import NO_WAKE_UP, PACKED_CACHE_SIZE, WITH_TWO_ARGS, pack_join
from lockstead.stores.redis.errors import FAILURES, unknown_outcome
from lockstead.stores.redis.store import RedisStore, parse_outcome

T = TypeVar("T")
Parse = Callable[[BlockingNode, Any, float], T | Coroutine[Any, Any, T]]
"""Parses a reply; an error reply leads to a coroutine that sends the request again. Is passed the deadline, too."""
HELD = PlaceState.HELD
_new = tuple.__new__


class BlockingMember(RedisStore):
    """A member that sends a request at once where a checked server has an idle connection."""

    def send_join(self, ask: Ask, timeout: float) -> _InFlight[Standing | Refusal] | None:
        return self._send(_packed_join(self._join_head, ask), timeout, partial(self._joined, ask))

    def send_leave(self, name: str, owner: str, timeout: float) -> _InFlight[bool] | None:
        return self._send(_packed_leave(self._leave_head, name, owner), timeout, partial(self._left, name, owner))

    def _send(self, payload: bytes, timeout: float, parse: Parse[T]) -> _InFlight[T] | None:
        node = self._route.primary
        if type(node) is not BlockingNode or not node.is_checked or self._min_replicas:
            return None
        deadline = self._now() + timeout
        try:
            connection = node.send(payload, timeout)
        except FAILURES as error:
            raise self.note_failure(node, error) from error
        return None if connection is None else _InFlight(self, node, connection, deadline, parse)

    def note_failure(self, node: BlockingNode, error: Exception) -> StoreError:
        """Note that a connection has failed, and return the error that reports it."""
        return self._failed(node, unknown_outcome(node.address, error))

    def _joined(
        self, ask: Ask, node: BlockingNode, reply: Any, deadline: float
    ) -> Standing | Refusal | Coroutine[Any, Any, Standing | Refusal]:
        if type(reply) is not list:
            return self._join_in_full(ask, deadline - self._now(), (node, reply))
        if type(ticket := reply[1]) is int and ticket:
            return _new(Standing, (HELD, ticket, reply[0] / 1e6, "", inf))
        return parse_outcome(reply)

    def _left(
        self, name: str, owner: str, node: BlockingNode, reply: Any, deadline: float
    ) -> bool | Coroutine[Any, Any, bool]:
        if type(reply) is not int:
            return self._leave_in_full(name, owner, deadline - self._now(), refusal=(node, reply))
        return reply == 1


class _InFlight(Generic[T]):
    """A request on a connection that belongs to it until the whole reply was received."""

    __slots__ = ("_connection", "_member", "_node", "_parse", "deadline", "fileno")

    def __init__(
        self, member: BlockingMember, node: BlockingNode, connection: Connection, deadline: float, parse: Parse[T]
    ) -> None:
        self._member = member
        self._node = node
        self._connection = connection
        self._parse = parse
        self.deadline = deadline
        self.fileno = connection.fileno

    def receive(self) -> T | Coroutine[Any, Any, T]:
        node, connection = self._node, self._connection
        try:
            if self._member.runtime.now() >= self.deadline:
                raise TimeoutError  # noqa: TRY301 (handled as that of the socket is)
            reply = connection.receive_part()
        except BaseException as error:
            node.handle_failure(connection, error)
            if isinstance(error, FAILURES):
                raise self._member.note_failure(node, error) from error
            raise
        if reply is False:
            return PENDING  # type: ignore[no-any-return]
        node.give_back(connection)
        return self._parse(node, reply, self.deadline)


@lru_cache(PACKED_CACHE_SIZE)
def _packed_join(head: bytes, ask: Ask) -> bytes:
    """Pack a call of join.lua. Cached for the other members, which are sent the same."""
    name, packed = ask.name.encode(), pack_join(ask, NO_WAKE_UP, is_member=True)
    return WITH_TWO_ARGS % (head, len(name), name, len(packed), packed)


@lru_cache(PACKED_CACHE_SIZE)
def _packed_leave(head: bytes, name: str, owner: str) -> bytes:
    """Pack a call of leave.lua. Cached as above."""
    encoded, encoded_owner = name.encode(), owner.encode()
    return WITH_TWO_ARGS % (head, len(encoded), encoded, len(encoded_owner), encoded_owner)
