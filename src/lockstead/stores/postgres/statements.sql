-- What every session is asked first, whatever it is used for.
-- All names, operators included, are schema-qualified: an object that another role created in a schema of the
-- search_path must not run.

-- name: detect_pooler
-- $1: the pid that the connection was opened with. A pooler makes up its own, so that it differs from the server's.
-- Without a pooler the session is ours, and the settings that the server's administrator chose for others are replaced.
SELECT
    pid OPERATOR(pg_catalog.<>) $1::int,
    CASE WHEN pid OPERATOR(pg_catalog.=) $1::int THEN pg_catalog.concat(
        pg_catalog.set_config('idle_session_timeout', '0', false),
        pg_catalog.set_config('extra_float_digits', '1', false),
        pg_catalog.set_config('default_transaction_isolation', 'read committed', false)
    ) END
FROM pg_catalog.pg_backend_pid() AS pid;
