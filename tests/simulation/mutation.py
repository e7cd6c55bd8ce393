"""Install a mutant, and fail if its own code is broken: it would be found for the wrong reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isclass, iscoroutinefunction
from typing import Any, Protocol

import pytest

BROKEN = (TypeError, AttributeError, NameError, KeyError)
"""What a mutant raises whose names or signatures are not those of the code it patches."""


class Patch(Protocol):
    """What a mutant is installed with: a `pytest.MonkeyPatch`, or a `Mutation`."""

    def setattr(self, target: Any, name: Any, value: Any = ..., raising: bool = ...) -> None: ...


class Mutation:
    """Patches as a MonkeyPatch does, and records what breaks in the functions put in.

    The engine survives most errors, and reports them as an outage of the store: no test would see them.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.errors: list[BaseException] = []

    def setattr(self, target: Any, name: Any, value: Any = None, raising: bool = True) -> None:
        if isinstance(target, str):
            self._patch.setattr(target, self._watched(name), raising=raising)
        else:
            self._patch.setattr(target, name, self._watched(value), raising=raising)

    def _watched(self, value: Any) -> Any:
        if not callable(value) or isclass(value):
            return value

        @wraps(value)
        def call(*args: Any, **options: Any) -> Any:
            with self._recording():
                return value(*args, **options)

        @wraps(value)
        async def wait(*args: Any, **options: Any) -> Any:
            with self._recording():
                return await value(*args, **options)

        return wait if iscoroutinefunction(value) else call

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except BROKEN as error:
            self.errors.append(error)
            raise


@contextmanager
def mutated(install: Callable[[Patch], None], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a mutant; at the end of the block, fail if its own code raised what only broken code raises."""
    mutation = Mutation(patch)
    install(mutation)
    yield
    if mutation.errors:
        pytest.fail(f"the mutant itself is broken: {mutation.errors[0]!r}")
