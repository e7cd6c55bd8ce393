-- Advisory locks of sessions.
-- All names, operators included, are schema-qualified: an object that another role created in a schema of the
-- search_path must not run.
-- In braces: {fence}, the part of that name; {suffix}, `_shared` for a reader, else nothing; {key}, the one or two
-- arguments of a lock function.

-- name: prepare_session
-- Apply the settings that a session needs to hold locks, where the server knows them. Returns the pid of the server
-- process, whether the server is a standby, and whether this role may draw fences.
SELECT
    pg_catalog.pg_backend_pid(),
    pg_catalog.pg_is_in_recovery(),
    (
        SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc
        WHERE pronamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
            AND proname OPERATOR(pg_catalog.=) 'pg_logical_emit_message'
            AND proargtypes[2] OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype
    ),
    pg_catalog.count(pg_catalog.set_config(name, value, false))
FROM (
    VALUES
        ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
        ('tcp_user_timeout', '20000'), ('idle_session_timeout', '0'), ('statement_timeout', '0'),
        ('lock_timeout', '0'), ('transaction_timeout', '0'), ('default_transaction_isolation', 'read committed')
) AS wanted(name, value)
WHERE pg_catalog.current_setting(name, true) IS NOT NULL;

-- name: detect_dead_clients
-- Remove a client that dies while it waits from the server's queue. Servers on some operating systems refuse this.
SET client_connection_check_interval = '2s';

-- name: fence
-- Part of other statements: the position in the write-ahead log behind a message of ours. It grows, and needs no table.
pg_catalog.pg_logical_emit_message(false, 'lockstead', '') OPERATOR(pg_catalog.-) '0/0'::pg_catalog.pg_lsn

-- name: ping
SELECT extract(epoch FROM pg_catalog.clock_timestamp());

-- name: try_lock
-- Acquire a lock if it is free, and then draw the fence; NULL if it is not free. {key}: $1, or $1 and $2.
-- CASE evaluates only what it needs, so the fence is drawn after the lock was acquired.
SELECT
    CASE WHEN pg_catalog.pg_try_advisory_lock{suffix}({key}) THEN {fence} END,
    extract(epoch FROM pg_catalog.clock_timestamp());

-- name: await_lock
-- Wait in the server's queue for a lock, and then draw the fence. {key}: literals.
SELECT
    CASE WHEN pg_catalog.pg_advisory_lock{suffix}({key})::pg_catalog.text IS NOT NULL THEN {fence} END,
    extract(epoch FROM pg_catalog.clock_timestamp());

-- name: unlock
-- Release a lock that this session holds. {key}: $1, or $1 and $2.
SELECT pg_catalog.pg_advisory_unlock{suffix}({key});

-- name: unlock_if_held
-- Release a lock that this session may not hold, for which `unlock` would write a warning into the server's log.
-- {key}: literals. {matches_key}: the part of that name.
SELECT pg_catalog.pg_advisory_unlock{suffix}({key})
FROM pg_catalog.pg_locks
WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND granted
    AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND {matches_key};

-- name: unlock_all
SELECT pg_catalog.pg_advisory_unlock_all();

-- name: cancel
-- {pid}: the session whose statement is to be cancelled.
SELECT pg_catalog.pg_cancel_backend({pid});

-- name: terminate
-- {pid}: the session to end.
SELECT pg_catalog.pg_terminate_backend({pid});

-- name: list_locks
-- List the sessions that hold or await advisory locks of this database. {which}: a condition on the locks, from AND on,
-- or nothing. Draws a fence too.
-- It reads what the views pg_locks and pg_stat_activity show, but is planned in half the time.
SELECT
    (SELECT {fence}),
    extract(epoch FROM pg_catalog.clock_timestamp()),
    classid, objid, objsubid, lock.pid, granted,
    mode OPERATOR(pg_catalog.=) 'ShareLock',
    extract(epoch FROM (pg_catalog.to_jsonb(lock) OPERATOR(pg_catalog.->>) 'waitstart')::pg_catalog.timestamptz),
    application_name, pg_catalog.host(client_addr), query,
    extract(epoch FROM state_change), extract(epoch FROM backend_start)
FROM pg_catalog.pg_lock_status() AS lock LEFT JOIN LATERAL pg_catalog.pg_stat_get_activity(lock.pid) ON true
WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND database OPERATOR(pg_catalog.=) (
    SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
) {which};

-- name: matches_key
-- Part of other statements: whether a row of pg_locks is this lock. {key}: its classid, objid and objsubid there, in
-- parentheses.
(classid::bigint, objid::bigint, objsubid) OPERATOR(pg_catalog.=) {key}
