"""Deliberate bugs. Each breaks one thing the protocol rests on; the simulation must notice every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstead.core import keeper, multi_lock, rule
from lockstead.core import lease as leases_of_core
from lockstead.core.engine import Engine
from lockstead.core.keeper import Keeper
from lockstead.core.lease import Lease, LeaseState
from lockstead.core.model import Place, PlaceState, Refusal, Standing
from lockstead.core.refusals import Busy
from lockstead.primitives import plans
from lockstead.stores.memory import MemoryServer, _MemoryLine
from lockstead.testing.simulation.network import SimulatedStore
from tests.simulation.mutation import Patch

MUTANTS: dict[str, Callable[[Patch], None]] = {}


def mutant(install: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[install.__name__] = install
    return install


@mutant
def one_more_fits(patch: Patch) -> None:
    def settle(ledger, now):
        head = original(ledger, now)
        if head.waiting is not None and head.waiting.acquired_at is None:
            head.waiting.acquired_at = now
            ledger.update(head.waiting)
            head.woken.append(head.waiting)
        return head

    original = rule.settle
    patch.setattr(rule, "settle", settle)


@mutant
def newcomers_overtake(patch: Patch) -> None:
    def join(ledger, ask, now):
        return original(_HidesWaiters(ledger), ask, now)

    class _HidesWaiters:
        def __init__(self, ledger) -> None:
            self._ledger = ledger

        def places(self):
            return (place for place in self._ledger.places() if place.acquired_at is not None)

        def __getattr__(self, attribute):
            return getattr(self._ledger, attribute)

    original = rule.join
    patch.setattr(rule, "join", join)


@mutant
def any_owner_may_leave_for_the_holder(patch: Patch) -> None:
    def leave(ledger, owner, now, tombstone):
        holder = next(ledger.places(), None)
        return original(ledger, holder.owner if holder else owner, now, tombstone)

    original = rule.leave
    patch.setattr(rule, "leave", leave)


@mutant
def any_owner_may_renew_for_the_holder(patch: Patch) -> None:
    def find(ledger, head, owner, now):
        return original(ledger, head, owner, now) or (head.holders[0] if head.holders else None)

    original = rule._find
    patch.setattr(rule, "_find", find)


@mutant
def renewals_resurrect(patch: Patch) -> None:
    def renew(ledger, renewal, now):
        standing, woken = original(ledger, renewal, now)
        if standing.state is PlaceState.GONE:
            place = Place(0, renewal.owner, 1, 1, now + renewal.ttl, now, "{}")
            ledger.append(place)
            standing = Standing(PlaceState.HELD, place.ticket, now)
        return standing, woken

    original = rule.renew
    patch.setattr(rule, "renew", renew)


@mutant
def a_repeated_join_does_not_refresh(patch: Patch) -> None:
    """A repeated join must refresh."""

    def join(ledger, ask, now):
        own = ledger.find(ask.owner)
        before = own.expires_at if own else None
        outcome = original(ledger, ask, now)
        if own is not None:
            own.expires_at = before
            ledger.update(own)
        return outcome

    original = rule.join
    patch.setattr(rule, "join", join)


@mutant
def renewals_shorten(patch: Patch) -> None:
    """Only `leave` may shorten."""

    def refresh(ledger, head, own, request, now, *, claim):
        own.expires_at = now
        return original(ledger, head, own, request, now, claim=claim)

    original = rule._refresh
    patch.setattr(rule, "_refresh", refresh)


@mutant
def waiting_places_never_claim_their_ttl(patch: Patch) -> None:
    """A place that holds must last for the ttl its client trusts in."""

    def refresh(ledger, head, own, request, now, *, claim):
        return original(ledger, head, own, request, now, claim=False)

    original = rule._refresh
    patch.setattr(rule, "_refresh", refresh)
    patch.setattr("lockstead.core.timing.HEARTBEAT", 0.5)


@mutant
def late_requests_are_accepted(patch: Patch) -> None:
    """A join may arrive after its owner left."""
    patch.setattr(_MemoryLine, "add_tombstone", lambda self, owner, until: None)


@mutant
def any_owner_may_leave_for_the_only_holder(patch: Patch) -> None:
    patch.setattr(_MemoryLine, "has_only", lambda self, owner: len(self._places) == 1 and not self._tombstones)


@mutant
def a_clock_set_back_is_ignored(patch: Patch) -> None:
    """The dead would outlive it."""
    patch.setattr(_MemoryLine, "behind", lambda self, now: 0.0)


@mutant
def the_dead_hold_for_ever(patch: Patch) -> None:
    def settle(ledger, now):
        return original(ledger, min([now, *(place.expires_at - 0.001 for place in ledger.places())]))

    original = rule.settle
    patch.setattr(rule, "settle", settle)


@mutant
def tickets_start_over(patch: Patch) -> None:
    def next_ticket(self, requested):
        self._ticket = self._ticket % 3 + 1
        return self._ticket

    patch.setattr(MemoryServer, "_next_ticket", next_ticket)


@mutant
def the_trust_window_starts_at_the_reply(patch: Patch) -> None:
    def apply(self, standing, sent, duration, now, *rest, **options):
        return original(self, standing, now, duration, now, *rest, **options)

    original = Lease.apply
    patch.setattr(Lease, "apply", apply)


@mutant
def the_trust_window_of_a_renewal_starts_at_the_reply(patch: Patch) -> None:
    def apply_all(leases, renewals, standings, *, sent, now, pace):
        return original(leases, renewals, standings, sent=now, now=now, pace=pace)

    original = Lease.apply_all
    patch.setattr(Lease, "apply_all", staticmethod(apply_all))


@mutant
def there_is_no_margin(patch: Patch) -> None:
    for module in (leases_of_core,):
        patch.setattr(module, "margin", lambda duration: 0.0)


@mutant
def unknown_counts_as_renewed(patch: Patch) -> None:
    async def renew(self, leases):
        sent = self.runtime.now()
        try:
            await original(self, leases)
        except Exception:
            for lease in leases:
                if lease.state is LeaseState.HELD:
                    lease._trust(sent, lease.ask.ttl, 0.0)
            raise

    original = Keeper._renew
    patch.setattr(Keeper, "_renew", renew)


@mutant
def no_keeper_watches_the_trust_window(patch: Patch) -> None:
    patch.setattr(Keeper, "check_trust_window", lambda self, lease: None)


@mutant
def answers_for_released_leases_count(patch: Patch) -> None:
    """A late answer must not bring a lease back."""

    def release(self, now, due=None) -> None:
        was = self.state
        original(self, now, due)
        self.state = was

    original = Lease.release
    patch.setattr(Lease, "release", release)


@mutant
def a_cancelled_acquire_is_forgotten(patch: Patch) -> None:
    """As other libraries did; see docs/protocol.md."""

    async def abandon(self, lease, interruption=None):
        self.keeper.forget(lease)

    patch.setattr(Engine, "abandon", abandon)


@mutant
def a_failed_release_is_forgotten(patch: Patch) -> None:
    """As other libraries did; see docs/protocol.md."""
    patch.setattr(Keeper, "release_in_background", lambda self, lease, grace=0.0: self.forget(lease))


@mutant
def the_keeper_gives_up_after_one_error(patch: Patch) -> None:
    """As other libraries did; see docs/protocol.md."""

    async def attempt(self, request, renewing=(), releasing=()):
        try:
            await request
        except Exception:
            keeper.log.warning("and that was it")

    patch.setattr(Keeper, "_attempt", attempt)


@mutant
def the_keeper_waits_for_answers(patch: Patch) -> None:
    """A slow answer then holds up the clock, and with it the signal of a loss."""

    async def tick(self):
        spawned: list[Any] = []
        self.runtime = _Collects(self.runtime, spawned)
        try:
            goes_on = await original(self)
        finally:
            self.runtime = self.runtime.inner
        for work in spawned:
            await work()
        return goes_on

    class _Collects:
        def __init__(self, inner, spawned) -> None:
            self.inner = inner
            self._spawned = spawned

        def spawn(self, work, name, if_cancelled=None) -> None:
            self._spawned.append(work)

        def __getattr__(self, attribute):
            return getattr(self.inner, attribute)

    original = Keeper._tick
    patch.setattr(Keeper, "_tick", tick)


@mutant
def dropped_handles_are_renewed_for_ever(patch: Patch) -> None:
    """They could never be released."""
    original = Lease.__init__

    def init(self, ask, claim, renew_for, grace) -> None:
        original(self, ask, claim, renew_for, grace)
        kept = claim()
        self.claim = lambda: kept

    patch.setattr(Lease, "__init__", init)


@mutant
def a_grant_that_was_pushed_counts_for_the_whole_ttl(patch: Patch) -> None:
    def accept_push(lease, now):
        is_held = original(lease, now)
        if is_held:
            lease.trusted_until = now + lease.ask.ttl
        return is_held

    original = Lease.accept_push
    patch.setattr(Lease, "accept_push", accept_push)


@mutant
def a_wake_up_says_nothing_but_its_owner(patch: Patch) -> None:
    """Any client that may publish could send it."""
    patch.setattr(SimulatedStore, "make_message", lambda store, owner: owner)


@mutant
def several_names_are_waited_for_in_the_order_they_were_given_in(patch: Patch) -> None:
    """Two clients that wait for each other wait for ever."""
    patch.setattr(plans, "in_order", lambda names: list(dict.fromkeys(names)))


@mutant
def the_first_of_several_lasts_for_its_ttl_while_the_others_are_waited_for(patch: Patch) -> None:
    """A client that dies waiting would keep it for that long."""

    async def acquire_in_order(engine, request):
        leases: list[Lease] = []
        try:
            for ask in request.asks:
                left = max(request.deadline - engine.runtime.now(), 0.0)
                outcome = await engine.acquire(ask, request.claim, timeout=left, retry=request.retry)
                if isinstance(outcome, Busy):
                    await multi_lock._abandon(engine, leases)
                    return outcome
                leases.append(outcome)
        except BaseException as error:
            await multi_lock._abandon(engine, leases, error)
            raise
        return leases

    patch.setattr(multi_lock, "_acquire_in_order", acquire_in_order)


@mutant
def a_refusal_of_several_leaves_the_first_behind(patch: Patch) -> None:
    def join_all(lines, now):
        to_wake = []
        standings = []
        for ledger, ask in lines:
            outcome, woken = rule.join(ledger, ask, now)
            to_wake += woken
            if isinstance(outcome, Refusal):
                return outcome._replace(name=ask.name), to_wake
            standings.append(outcome)
        return standings, to_wake

    patch.setattr(rule, "join_all", join_all)


@mutant
def what_may_be_left_of_several_is_forgotten(patch: Patch) -> None:
    """A refusal says nothing of the attempts before it whose outcome is unknown."""

    async def abandon(engine, leases, interruption=None):
        await original(engine, leases, interruption)
        for lease in leases:
            engine.keeper.forget(lease)

    original = multi_lock._abandon
    patch.setattr(multi_lock, "_abandon", abandon)


@mutant
def several_are_held_whatever_became_of_each(patch: Patch) -> None:
    async def claim_ttls(engine, request, leases):
        await original(engine, request, leases)
        return True

    original = multi_lock._claim_ttls
    patch.setattr(multi_lock, "_claim_ttls", claim_ttls)


@mutant
def a_reservation_keeps_its_owner(patch: Patch) -> None:
    """A late renewal would prolong it."""
    patch.setattr(_MemoryLine, "rename", lambda self, place, owner: None)


@mutant
def a_reservation_is_released(patch: Patch) -> None:
    patch.setattr(
        rule,
        "reserve",
        lambda ledger, reservation, now: rule.leave(ledger, reservation.owner, now, reservation.tombstone),
    )


@mutant
def a_reservation_wakes_the_next(patch: Patch) -> None:
    def reserve(ledger, reservation, now):
        was_there, woken = original(ledger, reservation, now)
        waiting = rule.settle(ledger, now).waiting
        return was_there, woken if waiting is None else [*woken, waiting]

    original = rule.reserve
    patch.setattr(rule, "reserve", reserve)


@mutant
def the_capacity_of_the_dead_counts(patch: Patch) -> None:
    def join(ledger, ask, now):
        first = next(ledger.places(), None)
        if first is not None and first.capacity != ask.capacity:
            return Refusal(first.owner, capacity=first.capacity), []
        return original(ledger, ask, now)

    original = rule.join
    patch.setattr(rule, "join", join)
