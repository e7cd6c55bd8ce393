"""Leader election: the holder of a name's lock is the leader.

An election is a lock and a name: campaign, resign, ask for the leader, observe who leads. Callbacks, and candidates in
the background, are built on that: see `candidate`.

A leader's trust window ends `grace` seconds before its lease does. So the loss is signalled that long before another
candidate can be elected, and the leader has time to stop.

Not promised: anything while a process is paused (SIGSTOP, a frozen machine). It detects the loss as soon as it resumes,
but may first complete what it was about to do; then only the fence protects. The same holds if the store's clock steps
forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Generic, TypeVar

from lockstead.core import inspection
from lockstead.core.checks import Seconds, check_seconds
from lockstead.core.engine import Engine
from lockstead.core.lease import Lease
from lockstead.core.refusals import Busy
from lockstead.errors import InvalidInputError, StoreError
from lockstead.primitives import info
from lockstead.primitives.handle import Single, acquired
from lockstead.primitives.pickling import NotPickled
from lockstead.primitives.plans import Defaults, Plan, plan

Seen = tuple[str, int] | None
"""Distinguishes one term from another; None if there is no leader."""
NOT_SEEN_YET: Seen = ("", -1)
"""Differs from every leader, and from none."""
DEFAULT_GRACE = 1 / 5
"""The default grace, as a fraction of the ttl: how long a leader has to stop."""
MAX_GRACE = 1 / 2
"""The largest grace, as a fraction of the ttl: with more, a leader would stop while renewals are still on time."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader at the moment of the request. By the time you read it, it may be outdated."""

    holder_id: str
    """The client that leads: host:pid:random."""
    since: datetime
    """When it was elected, on this machine's wall clock."""
    fence: int
    """The fencing token; 0 if only the leader can read it, as with advisory locks."""
    metadata: dict[str, Any]
    is_me: bool
    """Whether the leader is the client that made this request."""


class Leading(Single):
    """A leader's handle: that of a lock. To release it is to resign."""

    since: datetime
    """When it was elected, on this machine's wall clock."""

    @property
    def is_leader(self) -> bool:
        """Whether this client is surely still the leader, judged by the local clock alone: no round trip."""
        return self.is_held

    async def _acquire(self, plan: Plan, *, is_scoped: bool = False) -> Lease | Busy | None:
        outcome = await super()._acquire(plan, is_scoped=is_scoped)
        if not isinstance(outcome, Busy):
            self.since = datetime.now(UTC)
        return outcome

    async def _release(self) -> None:
        try:
            await super()._release()
        finally:
            for lease in self._leases:
                if lease.loss is not None:  # the leader has stopped: do not wait for the rest of its grace
                    self._engine.release_in_background(lease)


L = TypeVar("L", bound=Leading)


class BaseElection(NotPickled, Generic[L]):
    """An election from the view of one client."""

    def __init__(self, engine: Engine, new: Callable[[Engine], L], plan: Plan) -> None:
        self._engine = engine
        self._new = new
        self._plan = plan

    @property
    def name(self) -> str:
        return self._plan.asks[0].name

    async def _campaign(self, timeout: Seconds | None) -> L:
        return await acquired(self._new(self._engine), self._plan_within(timeout))

    def _plan_within(self, timeout: Seconds | None) -> Plan:
        return self._plan if timeout is None else self._plan.within(timeout)

    async def _leader(self) -> Leader | None:
        line = await inspection.find(self._engine, self.name)
        holders = () if line is None else info.describe(line).holders
        if not holders or holders[0].reserved:
            return None
        head = holders[0]
        is_me = head.holder_id == self._engine.holder_id
        return Leader(head.holder_id, head.acquired_at, head.fence, head.metadata, is_me)

    async def _next_leader(self, seen: Seen, interval: float) -> Leader | None:
        """Poll every `interval` seconds until the leader differs from the one seen last."""
        while True:
            try:
                leader = await self._leader()
            except StoreError as error:
                if not error.transient:
                    raise
            else:
                if identify(leader) != seen:
                    return leader
            await self._engine.runtime.sleep(interval)


def identify(leader: Leader | None) -> Seen:
    """Return what distinguishes one term from another; where fences are not shown, one leader from another."""
    return None if leader is None else (leader.holder_id, leader.fence)


def check_interval(interval: Seconds) -> float:
    """Accept a polling interval that is positive and finite."""
    seconds = check_seconds(interval, "interval")
    if not 0 < seconds < inf:
        msg = f"interval must be above 0 and finite, got {seconds:g}"
        raise InvalidInputError(msg)
    return seconds


def plan_election(
    name: str, defaults: Defaults, ttl: Seconds | None, grace: Seconds | None, metadata: Mapping[str, Any] | None
) -> Plan:
    """Plan a campaign: a lock whose holder is notified `grace` seconds before its lease ends."""
    planned = plan(name, defaults, ttl=ttl, metadata=metadata)
    lease_ttl = planned.asks[0].ttl
    seconds = lease_ttl * DEFAULT_GRACE if grace is None else check_seconds(grace, "grace")
    if seconds > lease_ttl * MAX_GRACE:
        msg = (
            f"grace must be at most half of the ttl of {lease_ttl:g} s, got {seconds:g} s: with more, a leader would "
            "stop while renewals are still on time; raise the ttl to have more grace"
        )
        raise InvalidInputError(msg, name=name)
    return planned._replace(grace=seconds)
