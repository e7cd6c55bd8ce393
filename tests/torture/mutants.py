"""Deliberate bugs in the engine, the scripts and the SQL, which only the workers have that a test names; src has none.

Each is for one arena, and the harness must find it there. Those of the engine are shared with the simulation. A bug may
name the circumstances in which it shows, so that it need not be waited for: the harm that is done, and how long ttls
and heartbeats are. That is all that differs from any other torture.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from lockstead.core import gcra, timing
from lockstead.core.engine import Engine
from lockstead.core.keeper import Keeper
from lockstead.core.model import Wake
from lockstead.primitives import once
from lockstead.stores.postgres.advisory import statements
from lockstead.stores.postgres.advisory.store import LockRequest
from lockstead.stores.redis import commands
from lockstead.stores.sqlite.liveness import Liveness
from lockstead.testing.torture import worker
from lockstead.testing.torture.arena import PAUSE, TTL, Arena
from lockstead.testing.torture.history import KILL
from lockstead.testing.torture.runner import ArenaMaker
from tests.simulation import mutants as engine
from tests.simulation import quorum_mutants as quorum
from tests.simulation import test_election_histories as elections
from tests.torture.arenas import ARENAS

Install = Callable[[pytest.MonkeyPatch, str], None]
"""Puts the bug in, given the store's URL."""


class Mutant(NamedTuple):
    arena: str
    install: Install
    rules: frozenset[str]
    """Of which checkers any may find it; or else that workers hang."""
    faults: frozenset[str] | None = None
    """The only harm that is done; None: any."""
    workloads: frozenset[str] | None = None
    """All that workers do; None: everything."""
    ttl: float = TTL
    """The longest ttl of leases."""
    heartbeat: float = timing.HEARTBEAT
    """The longest heartbeat of a waiting place."""
    renewed: float = worker.RENEWED
    lasting: float = worker.LASTING

    @property
    def maker(self) -> ArenaMaker:
        """Prepare the arena for the circumstances in which it shows."""
        original = ARENAS[self.arena]

        @contextmanager
        def make(directory: Path) -> Iterator[Arena]:
            with original(directory) as arena:
                yield self._narrowed(arena)

        make.__name__ = original.__name__
        return make

    def _narrowed(self, arena: Arena) -> Arena:
        if self.faults is not None:
            kinds = {*arena.faults, *arena.client_faults}
            assert self.faults <= kinds, f"there is no {self.faults - kinds} on {self.arena}"
            faults = {kind: fault for kind, fault in arena.faults.items() if kind in self.faults}
            arena = replace(arena, faults=faults, client_faults=arena.client_faults & self.faults)
        if self.workloads is not None:
            assert self.workloads <= arena.workloads
            arena = replace(arena, workloads=self.workloads)
        if self.ttl != TTL:  # the end of what was left behind is not waited for
            promises = replace(arena.promises, longest_ttl=inf)
            arena = replace(arena, options={**arena.options, "ttl": self.ttl}, promises=promises)
        return arena


MUTANTS: dict[str, Mutant] = {}
HANGS = "hangs"
Kinds = tuple[str, ...]

CALM: Kinds = ()
FORGED: Kinds = ("forge messages",)
OF_THE_NETWORK: Kinds = ("cut network", "hold network", "black hole")
SILENCE: Kinds = ("stall server", *OF_THE_NETWORK)
"""For a while no request is answered."""
SEVERAL: Kinds = ("multi",)
SHARED: Kinds = ("readwrite", "semaphore")
LEFT: Kinds = ("lock", "at_least", "singleton")
LONG_LIVED: dict[str, Any] = {"ttl": 60.0, "heartbeat": 60.0}
"""What is left behind does not end before all waiters have timed out, nor is there another way to be woken."""


def program(name: str) -> tuple[str, ...]:
    """Say what workers run that have a bug."""
    return "tests.torture.mutants", name


def mutant(
    arena: str, *rules: str, faults: Kinds | None = None, workloads: Kinds | None = None, **circumstances: float
) -> Callable[[Install], Install]:
    kinds, works = (None if words is None else frozenset(words) for words in (faults, workloads))

    def keep(install: Install) -> Install:
        bug = Mutant(arena, install, frozenset(rules), kinds, works, **circumstances)
        MUTANTS[f"{arena}: {install.__name__}"] = bug
        return install

    return keep


def _shared(arena: str, bug: Callable[[pytest.MonkeyPatch], None], *rules: str, **circumstances: Any) -> None:
    """Have a bug of the engine's tried on a store."""

    def install(patch: pytest.MonkeyPatch, _: str) -> None:
        bug(patch)

    install.__name__ = bug.__name__
    mutant(arena, *rules, **circumstances)(install)


def _rewrite(script: commands.Script, old: str, new: str) -> None:
    """Change a script's text; and its digest, so that the server is sent the new one."""
    text = script._text.decode()
    assert old in text, f"{old!r} is not there any more"
    script._text = text.replace(old, new).encode()
    script.digest = hashlib.sha1(script._text, usedforsecurity=False).hexdigest().encode()


def _rewrite_line(old: str, new: str) -> None:
    """Change what all scripts about lines include."""
    for script in (commands.JOIN, commands.JOIN_ALL, commands.RENEW, commands.LEAVE):
        _rewrite(script, old, new)


def _rewrite_function(url: str, name: str, old: str, new: str) -> None:
    """Change a function in the database; later clients find it changed."""
    address = url.partition("?")[0]
    marked = f"{new}/* for {old} */"
    while True:
        with suppress(psycopg.OperationalError), psycopg.connect(address) as connection:  # it is being harmed already
            connection.execute("SELECT pg_advisory_xact_lock(4711)")
            row = connection.execute(
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (name,)
            ).fetchone()
            assert row is not None
            assert old in row[0], f"{old!r} is not there any more"
            if marked not in row[0]:
                connection.execute(row[0].replace(old, marked))
            return
        time.sleep(0.1)


_shared("memory", engine.one_more_fits, "exclusion")
_shared("sqlite", engine.newcomers_overtake, "exclusion", "fifo", workloads=SHARED)
_shared("sqlite", engine.any_owner_may_leave_for_the_holder, "exclusion", "retractions")
_shared("sqlite", engine.any_owner_may_renew_for_the_holder, "exclusion", "wake_ups", "nothing_left", "fences")
_shared("sqlite", engine.renewals_shorten, "exclusion", "retractions", workloads=("lock",), lasting=0.5)
_shared("sqlite", engine.renewals_resurrect, "exclusion", "retractions", faults=(PAUSE,), heartbeat=0.5)
_shared("sqlite", engine.waiting_places_never_claim_their_ttl, "exclusion", "retractions")
_shared(
    "sqlite",
    engine.a_refusal_of_several_leaves_the_first_behind,
    "wake_ups",
    HANGS,
    faults=CALM,
    workloads=SEVERAL,
    **LONG_LIVED,
)
_shared("sqlite", engine.a_reservation_is_released, "reservations", workloads=LEFT)
_shared(
    "redis",
    engine.the_trust_window_starts_at_the_reply,
    "exclusion",
    "retractions",
    faults=("unsteady network", "delay network", "hold network"),
    renewed=0.0,
    lasting=0.5,
)
_shared(
    "redis",
    engine.unknown_counts_as_renewed,
    "exclusion",
    "retractions",
    "losses",
    faults=SILENCE,
    renewed=1.0,
    lasting=0.5,
)
_shared("redis", engine.no_keeper_watches_the_trust_window, "losses", "exclusion", faults=CALM, renewed=0.0)
_shared(
    "redis",
    engine.a_grant_that_was_pushed_counts_for_the_whole_ttl,
    "exclusion",
    "retractions",
    faults=(KILL, PAUSE),
    workloads=("lock",),
    ttl=8.0,
    heartbeat=2.0,
    renewed=1.0,
    lasting=0.0,
)
_shared("redis", engine.a_cancelled_acquire_is_forgotten, "wake_ups", HANGS, faults=CALM, **LONG_LIVED)
_shared("redis", elections.a_resigned_lock_is_given_up_before_on_lost_has_ended, "elections")
_shared("redlock", quorum.the_fence_is_the_maximum_only, "fences", faults=OF_THE_NETWORK)
_shared("redlock", quorum.half_is_a_majority, "exclusion", "fences")
_shared("redlock", quorum.a_refused_join_keeps_what_it_was_given, "retractions", "wake_ups", "nothing_left")
_shared(
    "redlock",
    engine.unknown_counts_as_renewed,
    "exclusion",
    "retractions",
    faults=("stall all nodes",),
    renewed=1.0,
    lasting=0.5,
)


@mutant("redis", "wake_ups", HANGS, faults=CALM, **LONG_LIVED)
def what_was_cancelled_goes_on(patch: pytest.MonkeyPatch, _: str) -> None:
    """The place is not released, and the keeper renews it until it holds."""

    async def abandon(self, lease, interruption=None):
        pass

    patch.setattr(Engine, "abandon", abandon)


@mutant("sqlite", "losses", "elections", faults=CALM, renewed=0.0)
def a_loss_is_signalled_to_no_client(patch: pytest.MonkeyPatch, _: str) -> None:
    patch.setattr(Keeper, "signal_loss", lambda self, lease: None)


@mutant("sqlite", "wake_ups", "nothing_left", HANGS, faults=(KILL,))
def the_dead_hold_for_ever_and_no_death_is_proven(patch: pytest.MonkeyPatch, _: str) -> None:
    engine.the_dead_hold_for_ever(patch)
    patch.setattr(Liveness, "is_dead", lambda self, address: False)


@mutant("sqlite", "exclusion", "retractions")
def every_other_process_counts_as_dead(patch: pytest.MonkeyPatch, _: str) -> None:
    patch.setattr(Liveness, "is_dead", Liveness.can_judge)


@mutant("sqlite", "rates")
def rate_limit_levels_are_halved(patch: pytest.MonkeyPatch, _: str) -> None:
    original = gcra.level_at
    patch.setattr(gcra, "level_at", lambda state, now: original(state, now) / 2)


@mutant("sqlite", "outcomes")
def what_failed_counts_as_done(patch: pytest.MonkeyPatch, _: str) -> None:
    async def begin(engine, acquire, plan):
        handle = await original(engine, acquire, plan)
        if not isinstance(handle, once.Outcome):
            handle._reserve_name(1.0, once.encode("nothing", handle.name))
        return handle

    original = once.begin
    patch.setattr(once, "begin", begin)


@mutant("redis", "exclusion", "retractions")
def an_owner_may_leave_for_another(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(commands.LEAVE, " and size == #owner and string.sub(record, 31, 30 + size) == owner then", " then")


@mutant("redis", "exclusion", "retractions", "fences", "forced_releases", faults=(PAUSE, *SILENCE), heartbeat=0.5)
def a_renewal_resurrects(patch: pytest.MonkeyPatch, _: str) -> None:
    """It says that a place is there which is gone."""
    _rewrite(commands.RENEW, "reply[i] = 0", "reply[i] = server_time")
    _rewrite(commands.RENEW, "local answer = 0", "local answer = server_time")


@mutant("redis", "exclusion", "retractions", "fences", faults=(PAUSE, *SILENCE), heartbeat=0.5)
def any_owner_may_renew(patch: pytest.MonkeyPatch, _: str) -> None:
    own = "string.sub(record, 25, 3 + #packed) == '\\0\\0\\0\\0' .. string.sub(packed, 26)"
    _rewrite(commands.RENEW, own, "#record >= 16")
    found = "local own = find_live(line, owner)\n"
    _rewrite(commands.RENEW, found, "local own = find_live(line, owner) or line.holders[1]\n")


@mutant("redis", "exclusion")
def a_line_counts_places_not_weights(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("line.spent = line.spent + place.weight", "line.spent = line.spent + 1")


@mutant("redis", "fifo")
def newcomers_ignore_waiters(patch: pytest.MonkeyPatch, _: str) -> None:
    for script in (commands.JOIN, commands.JOIN_ALL):
        _rewrite(script, "line.fits = not line.waiting and ", "line.fits = ")


@mutant("redis", "fences", "linearizability", "stale_writes")
def tickets_start_over(patch: pytest.MonkeyPatch, _: str) -> None:
    for script in (commands.JOIN, commands.JOIN_ALL):
        _rewrite(script, "ticket = math.max(ticket + 1, now)", "ticket = ticket % 7 + 1")


@mutant("redis", "wake_ups", "nothing_left", HANGS, faults=(KILL,))
def the_dead_are_not_dropped(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("if place.expires <= now then\n      remove(line, place)", "if false then\n      remove(line, place)")


@mutant("redis", "exclusion", "retractions", "losses", "wake_ups")
def woken_but_not_granted(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("        place.acquired = now\n", "")
    _rewrite(commands.LEAVE, "ends, ticket, now, 0)", "ends, ticket, 0, 0)")


@mutant("redis", "rates")
def consumed_levels_are_halved(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(commands.CONSUME, "struct.pack('<dd', level, now), 'PXAT'", "struct.pack('<dd', level / 2, now), 'PXAT'")


@mutant("redis", "wake_ups", HANGS, faults=CALM, **LONG_LIVED)
def no_waiter_is_woken(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("redis.pcall('PUBLISH', place.channel, place.secret)", "")
    _rewrite(commands.LEAVE, "redis.pcall('PUBLISH', channel, secret)", "")


@mutant("redis", "exclusion", "fences", faults=FORGED)
def a_message_is_the_name_of_its_owner(patch: pytest.MonkeyPatch, _: str) -> None:
    """Any client can guess it."""
    patch.setattr("lockstead.stores.redis.store._secret", str.encode)


@mutant("redis", "retractions", "wake_ups", HANGS, faults=CALM, workloads=SEVERAL, **LONG_LIVED)
def several_names_are_taken_one_by_one(patch: pytest.MonkeyPatch, _: str) -> None:
    """A refusal leaves behind what was taken before."""
    old = "  lines[i], places[i] = line, place\n"
    taken = "enter(line, place, struct.unpack('<ddd', packed))\n  save(line, {'\\0', packed_bucket()})\n"
    _rewrite(commands.JOIN_ALL, old, f"{old}  {taken}")


@mutant("redis", "exclusion", "fences", workloads=SEVERAL)
def of_several_names_only_the_first_is_looked_at(patch: pytest.MonkeyPatch, _: str) -> None:
    old = "  if reply then\n    reply[6]"
    new = "  line.fits = line.fits or i > 1\n  if reply and i == 1 then\n    reply[6]"
    _rewrite(commands.JOIN_ALL, old, new)


@mutant("redis", "wake_ups", "nothing_left", HANGS, faults=(KILL, "clock back"), ttl=8.0, heartbeat=8.0)
def a_clock_that_is_set_back_is_believed(patch: pytest.MonkeyPatch, _: str) -> None:
    for script in (commands.JOIN, commands.JOIN_ALL, commands.RENEW, commands.RESERVE):
        _rewrite(script, "local stepped_back = now < last", "local stepped_back = false")


@mutant("redis", "reservations", workloads=LEFT)
def a_reservation_is_shorter_than_was_asked(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(commands.RESERVE, "own.expires = now + ARGV[4]", "own.expires = now + ARGV[4] / 4")


@mutant("redlock", "fences", faults=OF_THE_NETWORK)
def the_fence_is_not_written_to_the_counter(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(commands.RENEW, "      ticket = math.max(ticket, floor)\n", "")


@mutant("postgres", "exclusion", "retractions")
def the_sql_lets_any_owner_leave(patch: pytest.MonkeyPatch, url: str) -> None:
    old = "l.name = _name AND l.holder = _owner\n    RETURNING"
    _rewrite_function(url, "line_leave", old, old.replace("l.holder = _owner", "l.acquired_at IS NOT NULL"))


@mutant("postgres", "exclusion")
def the_sql_lets_one_more_in(patch: pytest.MonkeyPatch, url: str) -> None:
    old = "fits := head.waiting IS NULL AND head.spent + _weight <= _capacity;"
    _rewrite_function(url, "line_join", old, "fits := head.waiting IS NULL AND head.spent <= _capacity;")


@mutant("postgres", "rates")
def the_sql_halves_rate_limit_levels(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "consume_rate", "SET level = consume_rate.level,", "SET level = consume_rate.level / 2,")


@mutant("postgres", "exclusion", "retractions")
def the_sql_renews_for_less_than_it_says(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_renew", "IS NOT NULL THEN f.ttl ELSE", "IS NOT NULL THEN f.ttl / 4 ELSE")


@mutant("postgres", "exclusion", "retractions", "fences", faults=(PAUSE,), heartbeat=1.0)
def the_sql_resurrects(patch: pytest.MonkeyPatch, url: str) -> None:
    """It says that a place is there which is gone."""
    _rewrite_function(
        url,
        "line_renew",
        "a.claim, r.fence, r.held",
        "a.claim, coalesce(r.fence, 1) AS fence, coalesce(r.held, true) AS held",
    )
    _rewrite_function(url, "line_renew", "WHERE r.n IS NOT NULL OR EXISTS", "WHERE true OR EXISTS")


@mutant("postgres", "exclusion", "retractions", "losses", "wake_ups")
def the_sql_wakes_but_does_not_grant(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_settle", "SET acquired_at = _now", "SET acquired_at = NULL")
    _rewrite_function(url, "line_leave", "SET acquired_at = moment", "SET acquired_at = NULL")


@mutant("postgres", "wake_ups", HANGS, faults=CALM, **LONG_LIVED)
def the_sql_wakes_no_waiter(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_settle", "PERFORM pg_notify(place.channel, place.holder);", "NULL;")
    _rewrite_function(url, "line_leave", "PERFORM pg_notify(head.channel, head.holder);", "NULL;")


@mutant("postgres", "wake_ups", HANGS, faults=CALM, workloads=SEVERAL, **LONG_LIVED)
def the_sql_keeps_the_first_of_several(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_join_all", "EXIT WHEN head.unsettled", "EXIT WHEN true")
    _rewrite_function(url, "line_join_all", "(name, owner, n) WHERE a.n < ask.n", "(name, owner, n) WHERE false")


@mutant("postgres", "fifo", "exclusion", workloads=SHARED)
def the_sql_lets_newcomers_overtake(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_join", "fits := head.waiting IS NULL AND", "fits := true AND")


@mutant("postgres", "wake_ups", "nothing_left", HANGS, faults=(KILL,))
def the_sql_does_not_drop_the_dead(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_head", "IF place.expires_at <= _now", "IF false")
    _rewrite_function(url, "line_settle", "IF place.expires_at <= _now", "IF false")
    _rewrite_function(url, "line_leave", "OR head.expires_at <= moment OR", "OR")


@mutant("postgres", "wake_ups", "nothing_left", HANGS, faults=(KILL, "clock back"), ttl=8.0, heartbeat=8.0)
def the_sql_believes_a_clock_that_is_set_back(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_settle", "IF place.renewed_at > clock_timestamp()", "IF false")
    _rewrite_function(url, "line_renew", "- greatest(l.renewed_at - clock_timestamp(), interval '0')", "")


@mutant("postgres", "exclusion", "fences", faults=FORGED)
def a_notification_counts_as_a_grant(patch: pytest.MonkeyPatch, _: str) -> None:
    """Any role can send it."""
    patch.setattr("lockstead.stores.postgres.table.store.MESSAGE", Wake.GRANT)


@mutant("postgres", "fences", "linearizability")
def the_sql_draws_fences_at_random(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_draw", "RETURN drawn", "RETURN drawn + 5000000 * random()")


@mutant("postgres", "reservations", workloads=LEFT)
def the_sql_reserves_for_less_than_was_asked(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_reserve", "make_interval(secs => _seconds)", "make_interval(secs => _seconds / 4)")


@mutant("advisory", "exclusion", "retractions")
def a_release_unlocks_everything(patch: pytest.MonkeyPatch, _: str) -> None:
    """Also what others hold by the same session."""
    patch.setattr(statements, "unlock", lambda key, *, shared: statements.UNLOCK_ALL)


@mutant("advisory", "exclusion", workloads=("readwrite",))
def writers_only_read(patch: pytest.MonkeyPatch, _: str) -> None:
    def init(self, ask):
        original(self, ask)
        self.shared = ask.capacity > 1

    original = LockRequest.__init__
    patch.setattr(LockRequest, "__init__", init)


def main() -> None:
    """Break something, and work on."""
    name, orders = sys.argv[1:]
    bug = MUTANTS[name]
    timing.HEARTBEAT, worker.RENEWED, worker.LASTING = bug.heartbeat, bug.renewed, bug.lasting
    bug.install(pytest.MonkeyPatch(), json.loads(orders)["url"])
    sys.argv[1:] = [orders]
    worker.main()


if __name__ == "__main__":
    main()
