"""A batch of answers has the effect that each of them has on its own."""

from __future__ import annotations

import random
from copy import copy
from math import inf
from weakref import ref

from lockstead.core.lease import HELD, Claim, Lease
from lockstead.core.model import GONE, UNKNOWN, Ask, PlaceState, Standing

CLAIM = Claim()
BATCHES = 1000


def some_lease(chance: random.Random) -> Lease:
    ttl = chance.choice((6.0, 6.0, 6.0, 30.0))
    lease = Lease(
        Ask("x", "me/1", ttl, 3.0),
        ref(CLAIM),
        chance.choice((inf, inf, inf, 20.0, 8.0, 4.0)),
        chance.choice((0.0, 0.0, 1.0)),
    )
    held = Standing(PlaceState.HELD, 7, 1.0)
    lease.apply(
        chance.choice((held, held, held, Standing(PlaceState.WAITING, 7, 1.0, "b/1"))), 0.0, ttl, 0.1, 0.5, is_join=True
    )
    if chance.random() < 0.5:
        lease.renewal(ttl)  # it was renewed before
    if chance.random() < 0.1:
        lease.release(1.0)
    if chance.random() < 0.2:
        lease.suspect(chance.choice((1.5, 2.0, 2.5)))
    if chance.random() < 0.2:
        lease.extend(1.0, 60.0)
        lease.apply(held, 1.0, 60.0, 1.1, 0.5)
    if chance.random() < 0.1:
        lease.change_ttl(9.0, 1.0, inf)
    if chance.random() < 0.1:
        lease.stop_renewing()
    return lease


def test_a_batch_of_answers_has_the_effect_of_each_on_its_own(seed: int) -> None:
    chance = random.Random(seed)
    changed = 0
    for _ in range(BATCHES):
        leases = [some_lease(chance) for _ in range(4)]
        sent, now = 2.0, chance.choice((2.1, 2.1, 2.1, 5.0, 5.95))
        renewals = Lease.renewals(leases, sent)
        assert renewals == [lease.renewal(min(lease.ask.ttl, max(lease.renew_until - sent, 0.0))) for lease in leases]
        held = Standing(PlaceState.HELD, 7, 2.0)
        others = (GONE, UNKNOWN, Standing(PlaceState.WAITING, 7, 2.0, "b/1"))
        standings = [chance.choice((held, held, held, *others)) for _ in leases]
        if chance.random() < 0.1:
            leases[0].change_ttl(12.0, sent, inf)  # while the request is out
        singly = [copy(lease) for lease in leases]
        losses = [
            (number, loss)
            for number, (lease, renewal, standing) in enumerate(zip(singly, renewals, standings, strict=True))
            if (loss := lease.apply(standing, sent, renewal.ttl, now, 0.5)) is not None
        ]
        lost, first_due = Lease.apply_all(leases, renewals, standings, sent=sent, now=now, pace=0.5)
        assert [(leases.index(lease), loss) for lease, loss in lost] == losses
        assert [vars(lease) for lease in leases] == [vars(lease) for lease in singly]
        kept = [lease.wakes_keeper_at() for number, lease in enumerate(singly) if number not in dict(losses)]
        assert first_due == min(kept, default=inf)
        changed += sum(lease.state is HELD and lease.due is not None and lease.due > now for lease in leases)
    assert changed > BATCHES, "most leases are renewed"
