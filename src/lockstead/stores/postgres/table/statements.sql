-- What a client of the lease table sends, and what a migration runs first. {schema}: the schema of the table.
-- All names, operators included, are schema-qualified: behind a pooler the search_path is not ours to choose, and an
-- object that another role created in one of its schemas must not run as this role.
-- Where lock_timeout is set to 0, that is for the commit: one that notifies waits for the commits of others that do.

-- name: join
-- $1 to $10: the arguments of line_join. A table that is too old for this client has no such procedure.
CALL {schema}.line_join_and_flush($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL, NULL, NULL, NULL, NULL, NULL);

-- name: renew
-- $1 to $5: the arguments of line_renew.
SELECT * FROM {schema}.line_renew($1, $2, $3, $4, $5);

-- name: holds
-- Returns a row if the place holds. $1: name. $2: owner.
SELECT 1 FROM {schema}.distributed_locks
WHERE name OPERATOR(pg_catalog.=) $1 AND holder OPERATOR(pg_catalog.=) $2 AND acquired_at IS NOT NULL
    AND expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp();

-- name: leave
-- $1 to $4: the arguments of line_leave.
-- Without waiting for the disk: a leave that a crash undoes costs only time, for the place expires.
SELECT {schema}.line_leave($1, $2, $3, $4), pg_catalog.set_config('lock_timeout', '0', true)
FROM pg_catalog.set_config('synchronous_commit', 'off', true);

-- name: leave_with_tombstone
-- $1 to $4: the arguments of line_leave. It waits for the disk: a crash must not undo a tombstone.
SELECT {schema}.line_leave($1, $2, $3, $4), pg_catalog.set_config('lock_timeout', '0', true);

-- name: reserve
-- $1 to $6: the arguments of line_reserve.
-- It waits for the disk: if a crash undid a reservation, its job might run twice.
SELECT {schema}.line_reserve($1, $2, $3, $4, $5, $6), pg_catalog.set_config('lock_timeout', '0', true);

-- name: join_all
-- $1 to $8: the arguments of line_join_all.
SELECT j.*, pg_catalog.set_config('lock_timeout', '0', true)
FROM {schema}.line_join_all($1, $2, $3, $4, $5, $6, $7, $8) AS j;

-- name: consume
-- $1 to $5: the arguments of consume_rate.
-- Without waiting for the disk, during which all other requests of the rate limit would wait: a crash loses what was
-- consumed in the last moment.
SELECT s.*, pg_catalog.set_config('synchronous_commit', 'off', true)
FROM {schema}.consume_rate($1, $2, $3, $4, $5) AS s;

-- name: sweep
SELECT {schema}.sweep_locks(), {schema}.sweep_rates();

-- name: inspect_name
-- The places of one name. $1: name.
SELECT
    name, extract(epoch FROM moment), fence, holder, capacity, weight, extract(epoch FROM expires_at),
    extract(epoch FROM acquired_at), metadata, backend, application, pg_catalog.host(client_address)
FROM {schema}.distributed_locks, pg_catalog.clock_timestamp() AS moment
WHERE expires_at OPERATOR(pg_catalog.>) moment AND name OPERATOR(pg_catalog.=) $1
ORDER BY name, fence;

-- name: inspect_prefix
-- The places of all names with a prefix. $1: the prefix.
SELECT
    name, extract(epoch FROM moment), fence, holder, capacity, weight, extract(epoch FROM expires_at),
    extract(epoch FROM acquired_at), metadata, backend, application, pg_catalog.host(client_address)
FROM {schema}.distributed_locks, pg_catalog.clock_timestamp() AS moment
WHERE expires_at OPERATOR(pg_catalog.>) moment AND pg_catalog.starts_with(name, $1)
ORDER BY name, fence;

-- name: examine
-- The settings of the server, and the state of the table, that matter to locks. $1: the schema's name.
SELECT
    pg_catalog.current_setting('server_version'), pg_catalog.pg_is_in_recovery(),
    extract(epoch FROM pg_catalog.clock_timestamp()), s.version,
    pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
    pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('transaction_isolation'),
    pg_catalog.pg_notification_queue_usage(),
    (
        SELECT pg_catalog.string_agg(p.proname, ', ' ORDER BY p.proname)
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND p.prosqlbody IS NULL AND p.prokind OPERATOR(pg_catalog.<>) 'p'
            AND NOT EXISTS (
                SELECT FROM pg_catalog.unnest(p.proconfig) AS c (setting)
                WHERE pg_catalog.starts_with(c.setting, 'search_path=')
            )
    ),
    (
        SELECT pg_catalog.string_agg(c.relname, ', ' ORDER BY c.relname)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
        WHERE n.nspname OPERATOR(pg_catalog.=) $1 AND c.relkind OPERATOR(pg_catalog.=) 'r'
            AND c.relpersistence OPERATOR(pg_catalog.=) 'u'
    )
FROM (SELECT) one LEFT JOIN {schema}.lock_state s ON true;

-- name: lock_migration
-- One migration at a time, until the transaction ends.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('lockstead migrate', 0));

-- name: find_table
-- NULL if there is no such table. %(table)s: its qualified name.
SELECT pg_catalog.to_regclass(%(table)s);

-- name: version
SELECT version FROM {schema}.lock_state;

-- The privileges to use the lease table, and no more. {roles}: the roles that get them.

-- name: grant_schema
GRANT USAGE ON SCHEMA {schema} TO {roles};

-- name: grant_tables
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {roles};

-- name: grant_sequences
GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {roles};

-- name: grant_functions
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA {schema} TO {roles};
