"""An explicit-state model checker: it visits every state that a model can get into.

It looks for a state or step that breaks an invariant, and for a state from which, though nothing bad happens any
more, rest cannot be reached. What it finds it shows as the shortest way there.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Violation(NamedTuple):
    """What a step leads to if it breaks a promise, instead of a state."""

    reason: str


class Step(NamedTuple, Generic[S]):
    label: str
    after: S | Violation
    is_fault: bool = False
    """Whether it is a fault or a timeout: no way to rest may depend on that."""


class Model(Protocol[S]):
    def start(self) -> S: ...

    def steps(self, state: S) -> Iterator[Step[S]]:
        """Yield all that may happen next."""
        ...

    def canonical(self, state: S) -> S:
        """Choose one of the states that differ only in what cannot be observed, such as the names of equal clients."""
        ...

    def fault(self, state: S) -> str:
        """Say which invariant the state breaks; nothing if none."""
        ...

    def is_at_rest(self, state: S) -> bool:
        """Return whether no client wants anything, and no place is left."""
        ...


class Report(NamedTuple):
    states: int
    steps: int
    depth: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.states:,} states, {self.steps:,} steps, {self.depth} deep, in {self.seconds:.1f} s of the processor"
        )


class CounterexampleError(AssertionError):
    def __init__(self, reason: str, trace: list[str], states: int) -> None:
        numbered = (f"{number:3}. {label}" for number, label in enumerate(trace, 1))
        super().__init__("\n".join([reason, *numbered]))
        self.reason = reason
        self.trace = trace
        self.states = states


class TooManyStatesError(Exception):
    """The scope is too large for the limit of states it was given."""


def explore(model: Model[S], most: int = 10_000_000) -> Report:
    """Visit every state breadth first. Raises CounterexampleError."""
    began = time.process_time()
    first = model.canonical(model.start())
    number = {first: 0}
    states = [first]
    came_from: list[int] = [-1]
    depths = [0]
    ways_back: list[list[int]] = [[]]
    steps = 0

    def refute(reason: str, index: int) -> CounterexampleError:
        way = []
        while index >= 0:
            way.append(states[index])
            index = came_from[index]
        return CounterexampleError(reason, _labels(model, way[::-1], reason), len(states))

    for index, state in enumerate(states):  # which grows on the way
        for step in model.steps(state):
            steps += 1
            if isinstance(step.after, Violation):
                raise refute(step.after.reason, index)
            after = model.canonical(step.after)
            found = number.get(after)
            if found is None:
                found = number[after] = len(states)
                states.append(after)
                came_from.append(index)
                depths.append(depths[index] + 1)
                ways_back.append([])
                if reason := model.fault(after):
                    raise refute(reason, found)
                if found > most:
                    raise TooManyStatesError(f"more than {most:,} states")
            if not step.is_fault:
                ways_back[found].append(index)

    rests = _reach([index for index, state in enumerate(states) if model.is_at_rest(state)], ways_back)
    if len(rests) < len(states):
        raise refute("stuck: rest cannot be reached any more", min(set(range(len(states))) - rests))
    return Report(len(states), steps, depths[-1], time.process_time() - began)


def _reach(from_here: list[int], ways: list[list[int]]) -> set[int]:
    reached = set(from_here)
    while from_here:
        for index in ways[from_here.pop()]:
            if index not in reached:
                reached.add(index)
                from_here.append(index)
    return reached


def _labels(model: Model[S], way: list[S], reason: str) -> list[str]:
    """Walk the way once more without renaming clients, so that a name means the same from beginning to end."""
    here = model.start()
    labels = []
    for known, target in pairwise(way):
        # What lies beyond a scope that is counted from the canonical is found only from there.
        label, here = _step_to(model, here, target) or _step_to(model, known, target) or ("?", target)
        labels.append(label)
    if model.fault(way[-1]) != reason:
        labels += [label for label, after, _ in model.steps(here) if isinstance(after, Violation)][:1]
    return labels


def _step_to(model: Model[S], state: S, target: S) -> tuple[str, S] | None:
    for label, after, _ in model.steps(state):
        if not isinstance(after, Violation) and model.canonical(after) == target:
            return label, after
    return None
