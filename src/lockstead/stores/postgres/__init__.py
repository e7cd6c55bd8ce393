"""PostgreSQL: a lease table, and advisory locks. Keys and the SQL of migrations need no psycopg."""

from lockstead.stores.postgres.table.schema import migration_sql

__all__ = ["migration_sql"]
