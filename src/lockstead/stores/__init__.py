"""The stores: where the lines are."""

from lockstead.stores.registry import open_store, register

__all__ = ["open_store", "register"]
