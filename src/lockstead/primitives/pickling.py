"""What is pickled: a client made from a URL, as a recipe for another. What belongs to a client is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

C = TypeVar("C")


def remake(kind: Callable[..., C], url: str, options: Mapping[str, Any]) -> C:
    """Make a client again; pickle calls it in the other process."""
    return kind(url, **options)


class NotPickled:
    """Belongs to one client in one process; pickle and copy raise TypeError, as for locks of the standard library."""

    _instead: ClassVar[str] = "pickle the client, which can be if it was made from a URL, and make this of it there"
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        msg = f"{type(self).__name__} cannot be pickled: {self._instead}"
        raise TypeError(msg)
