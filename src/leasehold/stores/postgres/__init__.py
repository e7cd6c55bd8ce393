"""Locks on a PostgreSQL server."""
