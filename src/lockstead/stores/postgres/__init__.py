"""PostgreSQL: a lease table, and advisory locks. Empty, so that keys can be had without psycopg."""
