-- Advisory locks that end with the transaction in which they are acquired, on the user's own connection.
-- All names, operators included, are schema-qualified: the search_path is the user's, and an object that another role
-- created in one of its schemas must not run. `bigint` and `integer` are keywords: no other type can have these names.
-- Parameters are cast, for drivers differ in the types they announce. {suffix}: `_shared` for a reader, else nothing.
--
-- $1 of the first three: the keys, `number` or `number,number` each, in the order in which to acquire them. They are
-- text since asyncpg would ask the server for the type of an array of numbers, once on each connection. A materialized
-- query is sorted before anything is computed from its rows; a plain ORDER BY leaves that to the planner.

-- name: lock
-- Acquire all of them, and wait for as long as the server allows.
WITH key AS MATERIALIZED (
    SELECT numbers, pg_catalog.strpos(numbers, ',') OPERATOR(pg_catalog.>) 0 AS is_pair
    FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (numbers, place)
    ORDER BY place
)
SELECT CASE WHEN is_pair
    THEN pg_catalog.pg_advisory_xact_lock{suffix}(
        pg_catalog.split_part(numbers, ',', 1)::integer, pg_catalog.split_part(numbers, ',', 2)::integer
    )
    ELSE pg_catalog.pg_advisory_xact_lock{suffix}(numbers::bigint)
END
FROM key;

-- name: try_lock
-- Acquire those that are free. True if all were; else the caller rolls back.
WITH key AS MATERIALIZED (
    SELECT numbers, pg_catalog.strpos(numbers, ',') OPERATOR(pg_catalog.>) 0 AS is_pair
    FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (numbers, place)
    ORDER BY place
)
SELECT pg_catalog.bool_and(CASE WHEN is_pair
    THEN pg_catalog.pg_try_advisory_xact_lock{suffix}(
        pg_catalog.split_part(numbers, ',', 1)::integer, pg_catalog.split_part(numbers, ',', 2)::integer
    )
    ELSE pg_catalog.pg_try_advisory_xact_lock{suffix}(numbers::bigint)
END)
FROM key;

-- name: lock_within
-- Acquire all of them, and wait for $2 milliseconds at most. A lock_timeout applies to each lock by itself, so each
-- gets what the ones before it have left.
WITH key AS MATERIALIZED (
    SELECT numbers, pg_catalog.strpos(numbers, ',') OPERATOR(pg_catalog.>) 0 AS is_pair
    FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (numbers, place)
    ORDER BY place
)
SELECT CASE WHEN pg_catalog.set_config(
    'lock_timeout',
    greatest(1, CAST($2 AS bigint) OPERATOR(pg_catalog.-) CAST(
        pg_catalog.floor(
            extract(epoch FROM
                pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.statement_timestamp()
            ) OPERATOR(pg_catalog.*) 1000
        ) AS bigint
    ))::pg_catalog.text,
    true
) IS NOT NULL THEN
    CASE WHEN is_pair
        THEN pg_catalog.pg_advisory_xact_lock{suffix}(
            pg_catalog.split_part(numbers, ',', 1)::integer, pg_catalog.split_part(numbers, ',', 2)::integer
        )
        ELSE pg_catalog.pg_advisory_xact_lock{suffix}(numbers::bigint)
    END
END
FROM key;

-- name: lock_timeout
SELECT pg_catalog.current_setting('lock_timeout');

-- name: restore_lock_timeout
-- $1: the value to restore.
SELECT pg_catalog.set_config('lock_timeout', CAST($1 AS pg_catalog.text), true);

-- name: holder
-- A session that holds one of the locks. $1: the keys, as pg_locks shows them. $2: whether they were to be shared.
SELECT given.key, l.pid, a.application_name
FROM pg_catalog.unnest(CAST($1 AS pg_catalog.text[])) WITH ORDINALITY AS given (key, place)
JOIN pg_catalog.pg_locks l ON l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
    AND pg_catalog.concat_ws(',', l.classid, l.objid, l.objsubid) OPERATOR(pg_catalog.=) given.key
JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE (l.mode OPERATOR(pg_catalog.=) 'ExclusiveLock' OR NOT CAST($2 AS boolean))
AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
AND l.database OPERATOR(pg_catalog.=) (
    SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
)
ORDER BY place, l.pid LIMIT 1;
