"""What is pickled: a client made from a URL, as a recipe for another. What belongs to a client is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from lockstead.core.store import Store
from lockstead.stores.registry import Source, portable_url

C = TypeVar("C")


def recipe(
    client: C, source: Source, store: Store, options: Mapping[str, Any]
) -> tuple[Callable[..., C], tuple[type[C], str, Mapping[str, Any]]]:
    """Return what pickle makes a new client from, on the same store. Raises TypeError if another process cannot."""
    try:
        url = portable_url(source, store)
    except TypeError as refusal:
        msg = f"this {type(client).__name__} cannot be pickled: {refusal}"
        raise TypeError(msg) from None
    return _remake, (type(client), url, options)


def _remake(kind: Callable[..., C], url: str, options: Mapping[str, Any]) -> C:
    return kind(url, **options)


class NotPickled:
    """Belongs to one client in one process; pickle and copy raise TypeError, as for locks of the standard library."""

    _instead: ClassVar[str] = "pickle the client, which can be if it was made from a URL, and make this of it there"
    """What to do instead."""

    def __reduce__(self) -> NoReturn:
        msg = f"{type(self).__name__} cannot be pickled: {self._instead}"
        raise TypeError(msg)
