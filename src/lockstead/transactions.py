"""Locks that end with your own PostgreSQL transaction, on your own connection."""

from lockstead.stores.postgres.transaction.xact_lock import XactLock, xact_lock

__all__ = ["XactLock", "xact_lock"]
