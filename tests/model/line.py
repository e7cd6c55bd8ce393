"""A model of one line: clients that join, wait, hold, renew and leave over a network that delays and loses.

`docs/model.md` says what is left out, and which code each step stands for.

Time passes in ticks. Whatever ends is kept as the ticks it has left, and tickets as ranks: so states repeat, and
all runs of any length are looked at. A process may stop between any two of its steps for as long as it likes, for
nothing forces it to take the next; `stop` only separates a holder that could have noticed its loss in time from one
that could not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.model.checker import Step, Violation


class Scope(NamedTuple):
    clients: int = 2
    capacity: int = 1
    ttl: int = 3
    heartbeat: int = 2
    margin: int = 1
    late_request_window: int = 3
    """How long a request without an answer may be under way."""
    awaited: int = 1
    """How many requests of one client may be awaited at a time."""
    unawaited: int = 1
    """How many requests may be under way in all whose replies no client waits for any more."""
    faults: int = 2
    """How many bad things may happen in one run."""
    slow: bool = False
    """Whether renewals whose replies are awaited may be under way for a while before they arrive."""
    clock_steps: int = 0
    """By how much the store's clock may be set back, once."""


NAMES = "ABCDEF"

IDLE, JOINING, WAITING, HELD, STOPPED, LEAVING, LEAVING_TO_REJOIN = range(7)
"""What a client is at. STOPPED is HELD by a process that was stopped."""

BACK, UNAWAITED, OUT = range(3)
"""How far a request is: applied, and its reply on the way; or still on its way, and its client waits
for it no more, or still does."""

STALE = 1000
"""A ticket that does not matter any more."""

NOW, DEAD, GONE, FORMER = range(4)
"""Whose acquisition something belongs to: the client's present one; the last one, of a process that died, or that was
left; one before that."""


class Call(NamedTuple):
    kind: str
    stage: int
    age: int
    """Ticks since the clock was read for it."""
    answer: int = 0
    """The ticket, if the place holds; its negative, if it waits; 0 if there is no place. Of a leave: whether it
    needs a tombstone."""
    whose: int = NOW


JOIN, RENEW, LEAVE = (Call(kind, BACK, 0) for kind in ("join", "renew", "leave"))
Calls = tuple[Call, ...]


class Client(NamedTuple):
    phase: int = IDLE
    trust_window: int = 0
    """For how long it will trust in its lease."""
    alive: int = 0
    """For how long its waiting place surely does not expire."""
    ticket: int = 0
    tombstone: bool = False
    """Whether a join was sent that was not answered."""
    pushed: bool = False
    """Whether a message is on its way to it, that its place holds."""
    calls: Calls = ()


class Owner(NamedTuple):
    client: int
    whose: int = NOW


class Place(NamedTuple):
    ticket: int
    expires_in: int
    """In ticks; from 0 downward it has expired."""
    holds: bool
    notified: bool
    """Whether an answer or a message saying so was sent to its owner."""
    owner: Owner


Line = tuple[Place, ...]
Barred = tuple[tuple[Owner, int], ...]


class Request(NamedTuple):
    kind: str
    owner: Owner
    tombstone: bool = False
    """Of a leave: whether a join of the owner's may yet arrive."""


class Outcome(NamedTuple):
    line: Line
    barred: Barred
    answer: int
    woken: tuple[Owner, ...]


class State(NamedTuple):
    clients: tuple[Client, ...]
    line: Line = ()
    barred: Barred = ()
    """Owners that are refused a place, and for how long."""
    top: int = 0
    """The highest fence that any client ever held under."""
    since: int = 0
    """Ticks since the store last looked at the line; counted only where its clock can be set back."""
    clock_steps: int = 0
    faults: int = 0
    """How many may yet happen."""


class LineModel:
    def __init__(self, scope: Scope = Scope()) -> None:  # noqa: B008
        self.scope = scope
        self.served: dict[tuple[Line, Barred, Request, int], Outcome] = {}
        """All that the store was ever asked, and what came of it."""

    def settle(self, line: Line) -> tuple[Line, tuple[Owner, ...]]:
        """Walk from the head to the first live place that does not fit; drop what had expired; wake new holders."""
        kept: list[Place] = []
        woken = []
        holders = 0
        for number, place in enumerate(line):
            if self.is_expired(place):
                continue
            if holders == self.scope.capacity:
                kept += line[number:]
                break
            holders += 1
            if not place.holds:
                woken.append(place.owner)
            kept.append(place._replace(holds=True, notified=True))
        return tuple(kept), tuple(woken)

    def serve(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        """Do one request's atomic step; `last` is the last ticket that was drawn."""
        key = (line, barred, request, last)
        outcome = self.served.get(key)
        if outcome is None:
            step = {"join": self.join, "renew": self.renew, "leave": self.leave}[request.kind]
            outcome = self.served[key] = step(*key)
        return outcome

    def join(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        line, woken = self.settle(line)
        if self.find(line, request.owner):
            return self.refresh(line, barred, request, woken)
        line = self.without_expired(line, request.owner)
        if request.owner in dict(barred):
            return Outcome(line, barred, 0, woken)
        fits = len(line) < self.scope.capacity
        expires_in = self.scope.ttl if fits else self.ttl_of_waiting()
        ticket = self.draw(line, last)
        line = self.append(line, Place(ticket, expires_in, fits, fits, request.owner))
        return Outcome(line, barred, ticket if fits else -ticket, woken)

    def renew(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        line, woken = self.settle(line)
        if self.find(line, request.owner):
            return self.refresh(line, barred, request, woken)
        return Outcome(self.without_expired(line, request.owner), barred, 0, woken)

    def leave(self, line: Line, barred: Barred, request: Request, last: int) -> Outcome:
        line, woken = self.settle(tuple(place for place in line if place.owner != request.owner))
        if request.tombstone:
            barred = tuple(sorted((dict(barred) | {request.owner: self.scope.late_request_window}).items()))
        return Outcome(line, barred, 0, woken)

    def refresh(self, line: Line, barred: Barred, request: Request, woken: tuple[Owner, ...]) -> Outcome:
        owner = self.find(line, request.owner)
        number, own = next((number, place) for number, place in enumerate(line) if place.owner == owner)
        own = own._replace(expires_in=self.renewed(own, request.kind))
        line = (*line[:number], own, *line[number + 1 :])
        return Outcome(line, barred, own.ticket if own.holds else -own.ticket, woken)

    def find(self, line: Line, owner: Owner) -> Owner | None:
        """Return the owner of the live place that a request of this owner is about: its own, if there is one."""
        return owner if any(place.owner == owner and not self.is_expired(place) for place in line) else None

    def without_expired(self, line: Line, owner: Owner) -> Line:
        return tuple(place for place in line if place.owner != owner or not self.is_expired(place))

    def is_expired(self, place: Place) -> bool:
        return place.expires_in <= 0

    def ttl_of_waiting(self) -> int:
        return self.scope.heartbeat

    def renewed(self, place: Place, kind: str) -> int:
        """Return in how many ticks a place expires after a renewal, or after a repeated join."""
        return max(place.expires_in, self.scope.ttl if place.holds else self.ttl_of_waiting())

    def draw(self, line: Line, last: int) -> int:
        return last + 1

    def append(self, line: Line, place: Place) -> Line:
        return (*line, place)

    def gain(self, since: int, by: int) -> int:
        """Return how much later all places expire if the clock is set back, so long after the line was last read."""
        return min(since, by)

    def believes(self, client: Client) -> bool:
        """Return whether the client would now answer that it holds."""
        return client.phase in (HELD, STOPPED) and client.trust_window > 0

    def trust_window(self, age: int) -> int:
        """Return how long to trust in a reply to a request of that age."""
        return max(self.scope.ttl - self.scope.margin - age, 0)

    def counts_message(self, client: Client) -> bool:
        """Return whether to trust in a message that the place holds: it may be about another that the owner had."""
        return client.alive > 0 and not client.tombstone

    def counts_forged_message(self, client: Client) -> bool:
        """Return whether to trust in a message that another client sent, which can know all but the place's secret."""
        return False

    def trust_window_by_message(self, client: Client) -> int:
        """Return how long to trust in a message that the place holds: until it may expire."""
        return client.alive

    def note(self, client: Client, call: Call) -> Client:
        """Apply the reply to a join or a renewal; too late for a lease that is being released."""
        client = client._replace(calls=_without(client.calls, call))
        if client.phase in (LEAVING, LEAVING_TO_REJOIN):
            return client
        if call.answer == 0:
            return self.note_gone(client)
        if call.answer > 0:
            trust_window = max(client.trust_window, self.trust_window(call.age))
            if client.phase != HELD and trust_window == 0:
                return self.give_up(client, LEAVING_TO_REJOIN)
            fence = client.ticket if client.phase == HELD else call.answer
            return client._replace(phase=HELD, trust_window=trust_window, alive=0, ticket=fence)
        if client.phase == HELD:
            return client
        alive = max(client.alive, self.scope.heartbeat - self.scope.margin - call.age)
        return client._replace(phase=WAITING, alive=alive, ticket=client.ticket or -call.answer)

    def note_gone(self, client: Client) -> Client:
        return self.give_up(client, LEAVING if client.phase == HELD else LEAVING_TO_REJOIN)

    def give_up(self, client: Client, phase: int) -> Client:
        """Begin to leave, and wait for no reply that is still under way."""
        tombstone = client.tombstone or any(call.kind == "join" and call.stage == BACK for call in client.calls)
        return Client(phase, tombstone=tombstone, calls=_unawaited(client.calls))

    def drop_reply(self, client: Client, call: Call) -> Client:
        """Wait no more for a reply, which is lost: nothing is known, and nothing changes."""
        return client._replace(tombstone=client.tombstone or call.kind == "join", calls=_without(client.calls, call))

    def awakes_with(self, client: Client, call: Call) -> Client | None:
        """Return a stopped client after it applies a reply before it checks its trust window: none does so."""
        return None

    def needs_tombstone(self, client: Client) -> bool:
        """Return whether the leave needs a tombstone: a join of the owner may yet arrive."""
        return client.tombstone

    def start(self) -> State:
        return State(
            (Client(),) * self.scope.clients, top=1, clock_steps=self.scope.clock_steps, faults=self.scope.faults
        )

    def steps(self, state: State) -> Iterator[Step[State]]:
        for step in self._all_steps(state):
            if not step.is_fault:
                yield step
            elif state.faults and not isinstance(step.after, Violation):
                yield step._replace(after=step.after._replace(faults=state.faults - 1))
        for by in range(1, state.clock_steps + 1):
            yield Step(f"the store's clock is set back by {by}", self._set_back(state, by), is_fault=True)

    def _all_steps(self, state: State) -> Iterator[Step[State]]:
        for number, client in enumerate(state.clients):
            yield from self._client_steps(state, number, client)
            for call in client.calls:
                yield from self._call_steps(state, number, client, call)
        if not any(client.phase == HELD and client.trust_window == 0 for client in state.clients):
            yield Step("a tick passes", self._tick(state))

    def _client_steps(self, state: State, number: int, client: Client) -> Iterator[Step[State]]:
        name = NAMES[number]

        def become(what: str, after: Client, *, is_fault: bool = False) -> Step[State]:
            return self._become(state, number, f"{name} {what}", after, is_fault=is_fault)

        def send(what: str, call: Call) -> Iterator[Step[State]]:
            if len(client.calls) - len(_unawaited(client.calls)) >= (1 if call is JOIN else self.scope.awaited):
                return
            asking = client._replace(phase=JOINING if call is JOIN else client.phase)
            yield self._deliver(
                state._replace(clients=_put(state.clients, number, asking)), number, call, f"{name} {what}"
            )
            if call is RENEW and self.scope.slow:
                on_its_way = client._replace(calls=_with(client.calls, call._replace(stage=OUT)))
                yield become(f"{what}, which takes a while", on_its_way)
            if state.faults and sum(len(_unawaited(each.calls)) for each in state.clients) < self.scope.unawaited:
                late = call._replace(stage=UNAWAITED)
                asking = asking._replace(tombstone=client.tombstone or call is JOIN, calls=_with(client.calls, late))
                yield become(f"{what}, which takes long, and gives up on it", asking, is_fault=True)

        if client.phase in (IDLE, JOINING):
            yield from send("joins", JOIN)
        elif client.phase == WAITING:
            yield from send("asks for its standing", RENEW)
            held = client._replace(pushed=False, phase=HELD, trust_window=self.trust_window_by_message(client), alive=0)
            if client.pushed:
                after = held if self.counts_message(client) else client._replace(pushed=False)
                yield become("receives the message that it holds", after)
            if self.counts_forged_message(client):
                yield become("receives a forged message that it holds", held, is_fault=True)
        elif client.phase == HELD:
            if client.trust_window == 0:
                yield become("detects that its trust window is closed", self.give_up(client, LEAVING))
            else:
                yield become("releases", self.give_up(client, LEAVING))
                yield from send("renews", RENEW)
                if state.faults:
                    yield become("is stopped", client._replace(phase=STOPPED), is_fault=True)
        elif client.phase == STOPPED:
            if self.believes(client):
                yield become("goes on", client._replace(phase=HELD))
            else:
                yield become("goes on, and detects that its trust window is closed", self.give_up(client, LEAVING))
        else:
            leave = LEAVE._replace(answer=int(self.needs_tombstone(client)))
            left = self._deliver(state, number, leave, f"{name} leaves")
            yield left._replace(label=f"{left.label}, but gets no answer", is_fault=True)
            if not isinstance(left.after, Violation):
                left = left._replace(after=self._retire(left.after, number, GONE))
            yield left
        if not state.faults:
            return
        if client.phase in (JOINING, WAITING):
            yield become("times out", self.give_up(client, LEAVING), is_fault=True)
        if client.pushed:
            yield become("misses its message", client._replace(pushed=False), is_fault=True)
        if client.phase != IDLE:
            yield Step(f"{name} dies", self._retire(state, number, DEAD), is_fault=True)

    def _call_steps(self, state: State, number: int, client: Client, call: Call) -> Iterator[Step[State]]:
        name = NAMES[number]
        if call.stage == UNAWAITED:
            whose = "" if call.whose == NOW else " of an earlier acquisition"
            yield self._deliver(state, number, call, f"{name}'s late {call.kind}{whose} arrives")
        elif call.stage == OUT:
            yield self._deliver(state, number, call, f"{name}'s {call.kind} arrives")
        elif client.phase == STOPPED:
            if awake := self.awakes_with(client, call):
                yield self._become(state, number, f"{name} goes on, and gets the answer to its {call.kind}", awake)
        else:
            noted = self.note(client, call)
            yield self._become(state, number, f"{name} gets the answer to its {call.kind}", noted)
            if state.faults:
                without_reply = self.drop_reply(client, call)
                yield self._become(state, number, f"{name} gives up on its {call.kind}", without_reply, is_fault=True)

    def _become(self, state: State, number: int, label: str, after: Client, *, is_fault: bool = False) -> Step[State]:
        """Put a client's next self in; if it holds now, it must be under a higher fence than any before."""
        top = state.top
        if after.phase == HELD and state.clients[number].phase not in (HELD, STOPPED):
            if after.ticket <= top and self.scope.capacity == 1:
                return Step(label, Violation(f"fence {after.ticket} is given out after fence {top}"))
            top = max(top, after.ticket)
        if after.phase not in (JOINING, WAITING):
            after = after._replace(pushed=False)
        return Step(label, state._replace(clients=_put(state.clients, number, after), top=top), is_fault)

    def _retire(self, state: State, number: int, whose: int) -> State:
        """End an acquisition. What is left of it has no client; requests of the one before came to nothing."""
        client = state.clients[number]
        last, former = Owner(number, whose), Owner(number, FORMER)
        aged = {Owner(number): last, Owner(number, DEAD): former, Owner(number, GONE): former}
        calls = (call for call in _unawaited(client.calls) if call.whose == NOW)
        after = Client(
            phase=JOINING if client.phase == LEAVING_TO_REJOIN and whose == GONE else IDLE,
            calls=tuple(sorted(call._replace(whose=whose) for call in calls)),
        )
        barred = ((aged.get(owner, owner), left) for owner, left in state.barred)
        return state._replace(
            clients=_put(state.clients, number, after),
            line=tuple(place._replace(owner=aged.get(place.owner, place.owner)) for place in state.line),
            barred=tuple(sorted(each for each in barred if each[0] != former)),
        )

    def _deliver(self, state: State, number: int, call: Call, label: str) -> Step[State]:
        """Let the store do what a request asks, and send the answer and the messages that come of it."""
        client = state.clients[number]
        request = Request(call.kind, Owner(number, call.whose), bool(call.answer))
        last = max([state.top, *_tickets(state.clients, state.line)])
        outcome = self.serve(state.line, state.barred, request, last)
        if reason := self._misdeed(state.line, outcome.line, *request[:2]):
            return Step(label, Violation(reason))
        calls = client.calls if call.stage == BACK else _without(client.calls, call)
        if call.stage != UNAWAITED and call.kind != "leave":
            calls = _with(calls, call._replace(stage=BACK, answer=outcome.answer))
        clients = list(_put(state.clients, number, client._replace(calls=calls)))
        for woken in outcome.woken:
            if woken.whose == NOW and clients[woken.client].phase in (JOINING, WAITING):
                clients[woken.client] = clients[woken.client]._replace(pushed=True)
        return Step(label, state._replace(clients=tuple(clients), line=outcome.line, barred=outcome.barred, since=0))

    def _misdeed(self, before: Line, after: Line, kind: str, owner: Owner) -> str:
        """Say what a step of the store did that none may."""
        was_live = {place.ticket: place for place in before if place.expires_in > 0}
        is_live = {place.ticket: place for place in after if place.expires_in > 0}
        for ticket, place in was_live.items():
            expires_in = is_live[ticket].expires_in if ticket in is_live else 0
            if place.owner != owner and expires_in != place.expires_in:
                return f"a {kind} changed another client's place"
            if place.owner == owner and kind != "leave" and expires_in < place.expires_in:
                return f"a {kind} shortened the time of a place"
        if kind == "renew" and any(
            place.owner == owner and ticket not in was_live for ticket, place in is_live.items()
        ):
            return "a renewal brought a place back"
        if any(not place.holds for place in list(is_live.values())[: self.scope.capacity]):
            return "a place fits, and was passed over"
        held = {place.ticket for place in before if place.holds}
        if any(place.holds and place.expires_in <= 0 and place.ticket not in held for place in after):
            return "a place was granted that had expired"
        return ""

    def _tick(self, state: State) -> State:
        least = -self.scope.clock_steps
        clients = tuple(self._age(client) for client in state.clients)
        line = tuple(place._replace(expires_in=max(place.expires_in - 1, least)) for place in state.line)
        barred = tuple((owner, left - 1) for owner, left in state.barred if left > 1)
        since = min(state.since + 1, state.clock_steps)
        return state._replace(clients=clients, line=line, barred=barred, since=since)

    def _age(self, client: Client) -> Client:
        calls = client.calls
        if calls:
            calls = tuple(sorted(older for call in calls if (older := self._aged(call))))
        trust_window, alive = max(client.trust_window - 1, 0), max(client.alive - 1, 0)
        return client._replace(trust_window=trust_window, alive=alive, calls=calls)

    def _forgetful(self, client: Client) -> Client:
        """Forget the tickets that will not be looked at: of answers so late that nothing can be trusted in."""
        if client.phase == WAITING and not client.alive:
            client = client._replace(ticket=0)
        calls = tuple(
            call._replace(answer=STALE if call.answer > 0 else -STALE) if self._is_stale(call) else call
            for call in client.calls
        )
        return client._replace(calls=tuple(sorted(calls))) if calls else client

    def _is_stale(self, call: Call) -> bool:
        duration = self.scope.ttl if call.answer > 0 else self.scope.heartbeat
        return call.stage == BACK and call.answer != 0 and call.age >= duration - self.scope.margin

    def _aged(self, call: Call) -> Call | None:
        if call.stage != UNAWAITED:
            return call._replace(age=min(call.age + 1, self.scope.ttl - self.scope.margin))
        if call.kind == "join":
            return call._replace(age=call.age + 1) if call.age + 1 < self.scope.late_request_window else None
        return call

    def _set_back(self, state: State, by: int) -> State:
        gain = self.gain(state.since, by)
        line = tuple(place._replace(expires_in=place.expires_in + gain) for place in state.line)
        barred = tuple((owner, left + gain) for owner, left in state.barred)
        return state._replace(line=line, barred=barred, clock_steps=0)

    def fault(self, state: State) -> str:
        for number, client in enumerate(state.clients):
            if client.phase == HELD or self.believes(client):
                live = [(place.owner, place.ticket) for place in state.line if place.expires_in > 0]
                if (Owner(number), client.ticket) not in live[: self.scope.capacity]:
                    return "a client has not noticed that it does not hold"
        waits = False
        for place in state.line:
            if place.expires_in > (self.scope.ttl if place.holds else self.scope.heartbeat):
                return "a place expires too late"
            if place.expires_in > 0:
                if place.holds and waits:
                    return "a waiter was overtaken"
                if place.holds and not place.notified:
                    return "a place holds, and its owner was not woken"
                if place.owner.whose == GONE:
                    return "a place is left of a client that has gone"
                waits = waits or not place.holds
        return ""

    def is_at_rest(self, state: State) -> bool:
        return not state.line and all(client.phase == IDLE and not client.calls for client in state.clients)

    def canonical(self, state: State) -> State:
        """Sort clients by all there is to know of them, and make tickets ranks, but for those that do not matter."""
        clients = tuple(self._forgetful(client) for client in state.clients)
        tickets = sorted({0, state.top, *_tickets(clients, state.line)})
        state = state._replace(clients=clients)
        if len(tickets) <= tickets[-1]:
            state = _ranked(state, {ticket: rank for rank, ticket in enumerate(tickets)})
        keys = [
            (
                client,
                tuple((*place[:4], place.owner.whose) for place in state.line if place.owner.client == number),
                tuple((owner.whose, left) for owner, left in state.barred if owner.client == number),
                number,
            )
            for number, client in enumerate(state.clients)
        ]
        order = [key[-1] for key in sorted(keys)]
        if order == sorted(order):
            return state
        now = {number: position for position, number in enumerate(order)}
        return state._replace(
            clients=tuple(state.clients[number] for number in order),
            line=tuple(p._replace(owner=Owner(now[p.owner.client], p.owner.whose)) for p in state.line),
            barred=tuple(sorted((Owner(now[owner.client], owner.whose), left) for owner, left in state.barred)),
        )


def _tickets(clients: Iterable[Client], line: Line) -> Iterator[int]:
    for place in line:
        yield place.ticket
    for client in clients:
        if client.ticket:
            yield client.ticket
        for call in client.calls:
            if call.stage == BACK and abs(call.answer) not in (0, STALE):
                yield abs(call.answer)


def _ranked(state: State, ranks: dict[int, int]) -> State:
    def ranked(call: Call) -> Call:
        if call.stage != BACK or abs(call.answer) in (0, STALE):
            return call
        return call._replace(answer=ranks[call.answer] if call.answer > 0 else -ranks[-call.answer])

    return state._replace(
        clients=tuple(
            client._replace(ticket=ranks[client.ticket], calls=tuple(map(ranked, client.calls)))
            for client in state.clients
        ),
        line=tuple(place._replace(ticket=ranks[place.ticket]) for place in state.line),
        top=ranks[state.top],
    )


def _unawaited(calls: Calls) -> Calls:
    return tuple(call for call in calls if call.stage == UNAWAITED)


def _with(calls: Calls, call: Call) -> Calls:
    return tuple(sorted((*calls, call)))


def _without(calls: Calls, call: Call) -> Calls:
    number = calls.index(call)
    return calls[:number] + calls[number + 1 :]


def _put(clients: tuple[Client, ...], number: int, client: Client) -> tuple[Client, ...]:
    return (*clients[:number], client, *clients[number + 1 :])
