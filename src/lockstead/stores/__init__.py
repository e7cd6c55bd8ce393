"""The stores: where the lines are."""

from lockstead.stores.registry import Source, open_store, register

__all__ = ["Source", "open_store", "register"]
