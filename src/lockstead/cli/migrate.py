"""`lockstead migrate`: create or update the lease table in PostgreSQL."""

from __future__ import annotations

import json
import os
from argparse import Namespace

from lockstead.cli.outcome import Exit, Failure
from lockstead.core.quoting import escaped
from lockstead.stores.registry import POSTGRES_SCHEMES, redact

HEADER = """\
-- lockstead's lease table and functions, version {version}, in the schema {schema}. Run in one transaction; repeatable.
--
-- psql:     lockstead migrate --print | psql --single-transaction -v ON_ERROR_STOP=1 postgresql://…
-- Alembic:  from lockstead.stores.postgres import migration_sql
--           def upgrade() -> None: op.execute(migration_sql())
-- Django:   from lockstead.stores.postgres import migration_sql
--           operations = [migrations.RunSQL(migration_sql(), migrations.RunSQL.noop)]
"""


def migrate(arguments: Namespace) -> int:
    """Create or update the lease table in a database, or print the SQL that does."""
    url = arguments.url or os.environ.get("LOCKSTEAD_URL") or ""
    is_postgres = url.partition(":")[0].lower() in POSTGRES_SCHEMES
    if not is_postgres and (arguments.url or not arguments.print):
        named = redact(url) if url else "your own SQLite file"
        msg = f"only PostgreSQL needs a migration, {named} does not: give the database as --url postgresql://…"
        raise Failure(Exit.BAD_INPUT, msg)
    try:
        from lockstead.stores.postgres.address import Options, parse_url  # noqa: PLC0415 (needs psycopg)
        from lockstead.stores.postgres.table import migrate as migration  # noqa: PLC0415 (needs psycopg)
        from lockstead.stores.postgres.table.schema import VERSION, migration_sql  # noqa: PLC0415 (needs psycopg)
    except ImportError as error:  # of psycopg, or of libpq
        msg = f"this needs psycopg: pip install 'lockstead[postgres]' ({error})"
        raise Failure(Exit.BAD_INPUT, msg) from error
    address, options = parse_url(url) if is_postgres else (None, Options())
    schema = arguments.schema if arguments.schema is not None else options.schema
    if arguments.print or address is None:
        sql = migration_sql(schema, grant=arguments.grant)
        print(HEADER.format(version=VERSION, schema=escaped(schema)), sql, sep="\n", end="")
        return 0
    done = migration.migrate(address, schema, arguments.grant)
    if arguments.json:
        result = {
            "schema": schema,
            "database": done.database,
            "server": done.server,
            "version": VERSION,
            "was": done.was,
            "granted": arguments.grant,
        }
        print(json.dumps(result, indent=2))
    else:
        was = "none" if done.was is None else done.was
        print(
            escaped(f"schema {schema} of {done.database} at {done.server} is at version {VERSION}") + f" (was: {was})"
        )
        if arguments.grant:
            print(escaped(f"granted to: {', '.join(arguments.grant)}"))
    return 0
