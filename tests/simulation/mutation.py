"""Install a mutant for a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Patch = pytest.MonkeyPatch


@contextmanager
def mutated(install: Callable[[Patch], None], patch: pytest.MonkeyPatch) -> Iterator[None]:
    install(patch)
    yield
