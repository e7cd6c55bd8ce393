-- Hand-overs: how long a lock lies idle between a release and the next holder.

-- Remove a place, grant the places that then fit, and return whether the place was alive. Safe to repeat.
-- `_tombstone`: for how many seconds late joins of this owner are refused. `_lock_timeout` as in line_join.
-- The lock lies idle while this runs, so it does what a plain lock needs by itself, in few statements: those that need
-- no result are assignments, which the server evaluates without its executor.
CREATE OR REPLACE FUNCTION {schema}.line_leave(
    _name text, _owner text, _tombstone double precision, _lock_timeout text
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_sort = off AS $$
DECLARE
    moment timestamptz;
    bound bigint;
    left_behind record;
    head record;
    ignored text;
BEGIN
    IF _lock_timeout <> '' THEN
        ignored := set_config('lock_timeout', _lock_timeout, true);
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM {schema}.line_check_isolation();
    END IF;
    IF _tombstone > 0 THEN  -- a join that is not committed yet may have created the name, invisible to others
        bound := {schema}.line_lock(_name);
    ELSE
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name FOR UPDATE;
    END IF;
    moment := clock_timestamp();
    DELETE FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner
    RETURNING l.fence, l.expires_at INTO left_behind;
    IF _tombstone > 0 THEN
        INSERT INTO {schema}.lock_tombstones AS r (holder, until)
        VALUES (_owner, moment + make_interval(secs => _tombstone))
        ON CONFLICT (holder) DO UPDATE SET until = greatest(r.until, excluded.until);
    END IF;
    SELECT l.fence, l.holder, l.capacity, l.weight, l.acquired_at, l.renewed_at, l.expires_at, l.channel INTO head
    FROM {schema}.distributed_locks l WHERE l.name = _name AND l.fence >= bound ORDER BY l.fence LIMIT 1;
    IF FOUND THEN
        IF head.weight < head.capacity OR head.expires_at <= moment OR head.renewed_at > clock_timestamp() THEN
            PERFORM {schema}.line_settle(_name, bound, moment);
        ELSIF head.acquired_at IS NULL THEN  -- it is alive, and leaves no room for others: all that line_settle would do
            UPDATE {schema}.distributed_locks l SET acquired_at = moment WHERE l.name = _name AND l.fence = head.fence;
            IF head.channel <> '' AND pg_notification_queue_usage() < 0.5 THEN  -- as in line_settle
                PERFORM pg_notify(head.channel, head.holder);
            END IF;
        END IF;
    END IF;
    IF random() < 0.02 THEN  -- read again, for a place that seemed expired may have been renewed meanwhile
        UPDATE {schema}.lock_names n SET first = greatest(n.first, coalesce(
            (SELECT min(l.fence) FROM {schema}.distributed_locks l WHERE l.name = _name AND l.fence >= bound),
            left_behind.fence + 1, 0
        ))
        WHERE n.name = _name;
    END IF;
    RETURN coalesce(left_behind.expires_at > moment, false);
END
$$;

-- As line_join, in a transaction that leaves the name unlocked while its commit waits for the disk: a release of that name
-- need not wait with it. The first commit does not wait; the second does, for everything before it, and only then is
-- there an answer, so what is answered is on disk. The second locks the place's row because that is in the log, as
-- it must be for a commit to wait, and disturbs no grant of the place. Nothing is waited for if there is no place.
-- It has no SET search_path, with which a procedure cannot commit: every name and operator in it is qualified.
CREATE OR REPLACE PROCEDURE {schema}.line_join_and_flush(
    _name text, _owner text, _ttl double precision, _heartbeat double precision, _capacity integer, _weight integer,
    _queue boolean, _metadata jsonb, _channel text, _lock_timeout text,
    INOUT ticket bigint, INOUT held boolean, INOUT now double precision, INOUT holder text,
    INOUT recheck double precision, INOUT other_capacity integer
) LANGUAGE plpgsql AS $$
DECLARE
    ignored pg_catalog.text := pg_catalog.set_config('synchronous_commit', 'off', true);
BEGIN
    SELECT j.ticket, j.held, j.now, j.holder, j.recheck, j.other_capacity
    INTO ticket, held, now, holder, recheck, other_capacity
    FROM {schema}.line_join(
        _name, _owner, _ttl, _heartbeat, _capacity, _weight, _queue, _metadata, _channel, _lock_timeout
    ) AS j;
    -- A commit that notifies waits for the commits of others that do.
    ignored := pg_catalog.set_config('lock_timeout', '0', true);
    IF ticket IS NOT NULL THEN
        COMMIT;
        PERFORM FROM {schema}.distributed_locks AS l
        WHERE l.name OPERATOR(pg_catalog.=) _name AND l.holder OPERATOR(pg_catalog.=) _owner
        FOR KEY SHARE;
    END IF;
END
$$;

-- Roles that may call line_join may call all: else an upgrade would have to name them, where PUBLIC may call nothing.
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, aclexplode(p.proacl) a
        WHERE n.nspname = {schema_text} AND p.proname = 'line_join' AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON ALL ROUTINES IN SCHEMA {schema} TO %s', granted.grantee);
    END LOOP;
END;

UPDATE {schema}.lock_state SET version = 3 WHERE version < 3;
