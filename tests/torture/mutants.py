"""Deliberate bugs in the engine, the scripts and the SQL. Workers have them that are told to; nothing in src knows.

Each is for one arena, and the harness must find it there. Those of the engine are shared with the simulation.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psycopg
import pytest

from leasehold import _once, _rate
from leasehold.stores.postgres.advisory import Stake
from leasehold.stores.redis import _scripts
from leasehold.testing.torture import worker
from tests.simulation import mutants as engine
from tests.simulation import quorum_mutants as quorum
from tests.simulation import test_election_histories as elections

Install = Callable[[pytest.MonkeyPatch, str], None]
"""Puts the bug in; it is told the store's URL."""


class Mutant(NamedTuple):
    arena: str
    install: Install
    rules: frozenset[str]
    """Of which checkers any may find it; or else by "troubles", say that workers never finish."""


MUTANTS: dict[str, Mutant] = {}


def program(name: str) -> tuple[str, ...]:
    """Say what workers run that have a bug."""
    return "tests.torture.mutants", name


def mutant(arena: str, *rules: str) -> Callable[[Install], Install]:
    def keep(install: Install) -> Install:
        MUTANTS[f"{arena}: {install.__name__}"] = Mutant(arena, install, frozenset(rules))
        return install

    return keep


def _shared(arena: str, install: Callable[[pytest.MonkeyPatch], None], *rules: str) -> None:
    MUTANTS[f"{arena}: {install.__name__}"] = Mutant(arena, lambda patch, _: install(patch), frozenset(rules))


def _rewrite(script: _scripts.Script, old: str, new: str) -> None:
    """Change a script's text; and its digest, so that the server learns the new one."""
    text = script._text.decode()
    assert old in text, f"{old!r} is not there any more"
    script._text = text.replace(old, new).encode()
    script._digest = hashlib.sha1(script._text, usedforsecurity=False).hexdigest().encode()


def _rewrite_line(old: str, new: str) -> None:
    """Change what all scripts about lines include."""
    for script in (_scripts.JOIN, _scripts.JOIN_ALL, _scripts.RENEW, _scripts.LEAVE):
        _rewrite(script, old, new)


def _rewrite_function(url: str, name: str, old: str, new: str) -> None:
    """Change a function in the database; whoever comes later finds it changed."""
    address = url.partition("?")[0]
    while True:
        with suppress(psycopg.OperationalError), psycopg.connect(address) as connection:  # it is being harmed already
            connection.execute("SELECT pg_advisory_xact_lock(4711)")
            row = connection.execute(
                "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = %s", (name,)
            ).fetchone()
            assert row is not None
            assert old in row[0] or new in row[0], f"{old!r} is not there any more"
            if new not in row[0]:
                connection.execute(row[0].replace(old, new))
            return
        time.sleep(0.1)


for _arena, _bug, _rules in (
    ("memory", engine.one_more_fits, ("exclusion",)),
    ("sqlite", engine.newcomers_overtake, ("exclusion", "fifo")),
    ("sqlite", engine.anybody_may_leave_for_the_holder, ("exclusion", "retractions")),
    ("sqlite", engine.anybody_may_renew_for_the_holder, ("exclusion", "wake_ups", "nothing_left", "fences")),
    ("sqlite", engine.renewals_shorten, ("exclusion", "retractions")),
    ("sqlite", engine.the_dead_hold_for_ever, ("wake_ups", "nothing_left")),
    ("redis", engine.the_window_starts_at_the_reply, ("exclusion", "retractions")),
    ("redis", engine.unknown_counts_as_renewed, ("exclusion", "retractions", "losses")),
    ("redis", engine.nobody_watches_the_window, ("losses", "exclusion")),
    ("sqlite", engine.waiting_places_never_buy_their_ttl, ("exclusion", "retractions")),
    ("sqlite", engine.a_name_that_should_stay_taken_is_left, ("left_taken",)),
    ("redis", elections.a_resigned_lock_is_given_up_before_on_lost_has_ended, ("elections",)),
    ("redlock", quorum.the_fence_is_the_maximum_only, ("fences",)),
    ("redlock", quorum.half_is_a_majority, ("exclusion", "fences")),
    ("redlock", quorum.a_refused_join_keeps_what_it_was_given, ("retractions", "wake_ups", "nothing_left")),
):
    _shared(_arena, _bug, *_rules)


@mutant("sqlite", "rates")
def debts_are_forgotten(patch: pytest.MonkeyPatch, _: str) -> None:
    original = _rate.debt_at
    patch.setattr(_rate, "debt_at", lambda debt, now: original(debt, now) / 2)


@mutant("sqlite", "outcomes")
def what_failed_counts_as_done(patch: pytest.MonkeyPatch, _: str) -> None:
    async def begin(engine, acquire, plan):
        handle = await original(engine, acquire, plan)
        if not isinstance(handle, _once.Outcome):
            handle._leave_taken(1.0, _once.encode("nothing", handle.name))
        return handle

    original = _once.begin
    patch.setattr(_once, "begin", begin)


@mutant("redis", "exclusion", "retractions")
def whoever_leaves_need_not_be_the_owner(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(_scripts.LEAVE, "if holder == owner then", "if true then")


@mutant("redis", "exclusion", "retractions", "fences", "losses", "evictions")
def a_renewal_resurrects(patch: pytest.MonkeyPatch, _: str) -> None:
    """It says that a place is there which is gone."""
    _rewrite(
        _scripts.RENEW, "  elseif not record then\n    reply[i] = 0", "  elseif not record then\n    reply[i] = now"
    )


@mutant("redis", "exclusion", "retractions")
def a_renewal_is_anybodys(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(_scripts.RENEW, "expires and holder == owner and", "expires and")


@mutant("redis", "exclusion")
def a_line_does_not_add_up(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("line.spent = line.spent + place.weight", "line.spent = line.spent + 1")


@mutant("redis", "fifo")
def newcomers_do_not_look_who_waits(patch: pytest.MonkeyPatch, _: str) -> None:
    for script in (_scripts.JOIN, _scripts.JOIN_ALL):
        _rewrite(script, "line.fits = not line.waiting and ", "line.fits = ")


@mutant("redis", "fences", "linearizability", "stale_writes")
def tickets_start_over(patch: pytest.MonkeyPatch, _: str) -> None:
    for script in (_scripts.JOIN, _scripts.JOIN_ALL):
        _rewrite(script, "ticket = math.max(ticket + 1, now)", "ticket = ticket % 7 + 1")


@mutant("redis", "wake_ups", "nothing_left", "troubles")
def the_dead_are_not_dropped(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("if place.expires <= now then\n      remove(line, place)", "if false then\n      remove(line, place)")


@mutant("redis", "exclusion", "retractions", "losses", "wake_ups")
def woken_but_not_granted(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite_line("        place.acquired = now\n", "")


@mutant("redis", "rates")
def what_is_spent_is_not_kept(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(_scripts.SPEND, "struct.pack('<dd', debt, now), 'PXAT'", "struct.pack('<dd', debt / 2, now), 'PXAT'")


@mutant("redlock", "fences")
def the_fence_is_not_written_to_the_counter(patch: pytest.MonkeyPatch, _: str) -> None:
    _rewrite(_scripts.RENEW, "        ticket = math.max(ticket, floor)\n", "")


@mutant("postgres", "exclusion", "retractions")
def the_sql_lets_anybody_leave(patch: pytest.MonkeyPatch, url: str) -> None:
    old = "l.name = _name AND l.holder = _owner\n    RETURNING"
    _rewrite_function(url, "line_leave", old, old.replace("l.holder = _owner", "l.acquired_at IS NOT NULL"))


@mutant("postgres", "exclusion")
def the_sql_lets_one_more_in(patch: pytest.MonkeyPatch, url: str) -> None:
    old = "fits := head.waiting IS NULL AND head.spent + _weight <= _capacity;"
    _rewrite_function(url, "line_join", old, "fits := head.waiting IS NULL AND head.spent <= _capacity;")


@mutant("postgres", "rates")
def the_sql_forgets_what_was_spent(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "spend_rate", "SET debt = spend_rate.debt,", "SET debt = spend_rate.debt / 2,")


@mutant("postgres", "exclusion", "retractions")
def the_sql_renews_for_less_than_it_says(patch: pytest.MonkeyPatch, url: str) -> None:
    _rewrite_function(url, "line_renew", "IS NOT NULL THEN f.ttl ELSE", "IS NOT NULL THEN f.ttl / 4 ELSE")


@mutant("advisory", "exclusion")
def writers_only_read(patch: pytest.MonkeyPatch, _: str) -> None:
    def init(self, ask):
        original(self, ask)
        self.shared = ask.capacity > 1

    original = Stake.__init__
    patch.setattr(Stake, "__init__", init)


def main() -> None:
    """Break something, and work on."""
    name, orders = sys.argv[1:]
    MUTANTS[name].install(pytest.MonkeyPatch(), json.loads(orders)["url"])
    sys.argv[1:] = [orders]
    worker.main()


if __name__ == "__main__":
    main()
