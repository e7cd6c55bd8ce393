-- The lease table, for Python and for any language that can call a function.
-- The tables are lock_state, lock_names, distributed_locks, lock_tombstones and lock_fences.
-- The functions acquire_lock, extend_lock, release_lock, check_fence and sweep_locks, and the view locks, are for any
-- client; the functions line_* are for lockstead's own clients.
--
-- Every function has its own search_path. With the caller's, a role that may create objects in the schema public could
-- create an operator there that fits better than the server's, say public.*(numeric, integer), and it would run as the
-- caller.

-- One row: the last migration, and the name up to which the last sweep has come.
CREATE TABLE IF NOT EXISTS {schema}.lock_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version integer NOT NULL,
    swept_to text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO {schema}.lock_state (version) VALUES (1) ON CONFLICT DO NOTHING;

-- The last fence drawn, for all names.
CREATE SEQUENCE IF NOT EXISTS {schema}.lock_fence CACHE 1;

-- A row for every name in use. Every change of a line locks it first: an empty line has no other row to lock.
-- It is rarely updated, since reading a row that is updated often gets slow while any client has an old snapshot.
-- `first` is a lower bound of the fences of all places, raised from time to time, so that a scan of the line skips dead
-- rows.
CREATE TABLE IF NOT EXISTS {schema}.lock_names (
    name text COLLATE "C" PRIMARY KEY,
    first bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- Every place in every line, in the order of fences. You hold if everything up to and including you fits in the
-- capacity.
CREATE TABLE IF NOT EXISTS {schema}.distributed_locks (
    name text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    capacity integer NOT NULL CHECK (capacity > 0),
    weight integer NOT NULL CHECK (weight BETWEEN 1 AND capacity),
    acquired_at timestamptz,                -- null while the place waits
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    channel text NOT NULL DEFAULT '',       -- on which its client listens; empty if it does not
    backend integer NOT NULL DEFAULT pg_backend_pid(),
    application text NOT NULL DEFAULT current_setting('application_name'),
    client_address inet DEFAULT inet_client_addr(),
    PRIMARY KEY (name, fence),
    UNIQUE (name, holder)
) WITH (fillfactor = 70);
-- IF NOT EXISTS would lock the table before the check, and block every client until the oldest transaction has ended.
IF NOT EXISTS (SELECT FROM pg_indexes WHERE schemaname = {schema_text} AND indexname = 'distributed_locks_expires_at') THEN
    CREATE INDEX distributed_locks_expires_at ON {schema}.distributed_locks (expires_at);
END IF;

-- Owners that left while a join of theirs may still arrive. A late join of such an owner must not get a place.
CREATE TABLE IF NOT EXISTS {schema}.lock_tombstones (
    holder text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
);

-- The newest fence that check_fence has accepted for each resource.
CREATE TABLE IF NOT EXISTS {schema}.lock_fences (
    resource text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);

-- Draw the next fence. It is at least the clock in microseconds, so that it grows even if the sequence was lost or set
-- back, as after a failover. The caller has locked the name, so that its fences are drawn one after another.
CREATE OR REPLACE FUNCTION {schema}.line_draw() RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    drawn bigint := nextval('{schema}.lock_fence');
    clock bigint := extract(epoch FROM clock_timestamp()) * 1000000;
BEGIN
    IF drawn < clock THEN
        drawn := setval('{schema}.lock_fence', clock);
    END IF;
    RETURN drawn;
END
$$;

-- A client that waited for a name's lock must see what others committed meanwhile. A snapshot for the whole transaction
-- does not show it: the client would find the line empty, and be a second holder.
CREATE OR REPLACE FUNCTION {schema}.line_check_isolation() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE feature_not_supported USING
            MESSAGE = format('locks cannot be used in a %s transaction', upper(current_setting('transaction_isolation'))),
            HINT = 'call it in a READ COMMITTED transaction of its own';
    END IF;
END
$$;

-- Lock a name, and return its `first`.
CREATE OR REPLACE FUNCTION {schema}.line_lock(_name text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bound bigint;
BEGIN
    PERFORM {schema}.line_check_isolation();
    LOOP
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO {schema}.lock_names (name) VALUES (_name) ON CONFLICT (name) DO NOTHING;
    END LOOP;
    RETURN bound;
END
$$;

-- Read the front of a line without changing it: the capacity, the holders' total weight, the first holder, the earliest
-- expiry of a holder, the fence of the first waiter, and whether line_settle has anything to do.
-- Without a sort: the planner cannot know that mostly two places are read, however long the line is.
CREATE OR REPLACE FUNCTION {schema}.line_head(
    _name text, _first bigint, _now timestamptz,
    OUT capacity integer, OUT spent bigint, OUT holder text, OUT ends timestamptz,
    OUT waiting bigint, OUT unsettled boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_sort = off AS $$
DECLARE
    place record;
BEGIN
    spent := 0;
    unsettled := false;
    FOR place IN
        SELECT l.fence, l.holder, l.capacity, l.weight, l.acquired_at, l.renewed_at, l.expires_at
        FROM {schema}.distributed_locks l WHERE l.name = _name AND l.fence >= coalesce(_first, 0) ORDER BY l.fence
    LOOP
        IF place.expires_at <= _now THEN
            unsettled := true;
            CONTINUE;
        END IF;
        IF spent + place.weight > place.capacity THEN
            waiting := place.fence;
            unsettled := unsettled OR place.renewed_at > _now;
            EXIT;
        END IF;
        IF holder IS NULL THEN
            holder := place.holder;
            capacity := place.capacity;
        END IF;
        spent := spent + place.weight;
        ends := least(ends, place.expires_at);
        unsettled := unsettled OR place.acquired_at IS NULL OR place.renewed_at > _now;
    END LOOP;
END
$$;

-- Delete expired places at the front of a line, grant the places that then fit, and notify their clients. The caller
-- has locked the name. Renewals do not lock it, so a place that seems expired is checked again when it is deleted.
CREATE OR REPLACE FUNCTION {schema}.line_settle(_name text, _first bigint, _now timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_sort = off AS $$
DECLARE
    place record;
    spent bigint := 0;
BEGIN
    FOR place IN
        SELECT l.fence, l.holder, l.capacity, l.weight, l.acquired_at, l.renewed_at, l.expires_at, l.channel
        FROM {schema}.distributed_locks l WHERE l.name = _name AND l.fence >= _first ORDER BY l.fence
    LOOP
        -- The clock was set back: without this, places of dead clients would last longer by the step. Compared with the
        -- clock, not with _now, which is older: a place that was renewed meanwhile must not be shortened.
        IF place.renewed_at > clock_timestamp() THEN
            UPDATE {schema}.distributed_locks l
            SET expires_at = l.expires_at - (l.renewed_at - clock_timestamp()), renewed_at = clock_timestamp()
            WHERE l.name = _name AND l.fence >= _first AND l.renewed_at > clock_timestamp();
            PERFORM {schema}.line_settle(_name, _first, _now);
            RETURN;
        END IF;
        IF place.expires_at <= _now THEN
            DELETE FROM {schema}.distributed_locks l
            WHERE l.name = _name AND l.fence = place.fence AND l.expires_at <= _now;
            CONTINUE WHEN FOUND;
        END IF;
        EXIT WHEN spent + place.weight > place.capacity;
        spent := spent + place.weight;
        IF place.acquired_at IS NULL THEN
            UPDATE {schema}.distributed_locks l SET acquired_at = _now WHERE l.name = _name AND l.fence = place.fence;
            -- A full NOTIFY queue would fail the transaction at its commit, where nothing can catch it. Reading its
            -- usage also makes the server remove what every session has received, which otherwise may not happen for
            -- long.
            IF place.channel <> '' AND pg_notification_queue_usage() < 0.5 THEN
                PERFORM pg_notify(place.channel, place.holder);
            END IF;
        END IF;
    END LOOP;
END
$$;

-- In how many seconds a waiter renews without a notification: when the first holder's lease expires, if it is the first
-- waiter; soon, if the NOTIFY queue is too full.
CREATE OR REPLACE FUNCTION {schema}.line_recheck(_is_next boolean, _ends timestamptz, _now timestamptz)
RETURNS double precision LANGUAGE sql  -- without SET, see rate_level
RETURN least(
    CASE WHEN pg_notification_queue_usage() >= 0.5 THEN 0.1 END,
    CASE WHEN _is_next THEN extract(epoch FROM _ends - _now) END
);

-- Take a place, or refresh the one the owner has. No ticket: refused, because of another capacity if that is returned.
-- `_lock_timeout`, unless empty, is set for the rest of the transaction: only for a transaction of this call's own.
CREATE OR REPLACE FUNCTION {schema}.line_join(
    _name text, _owner text, _ttl double precision, _heartbeat double precision, _capacity integer, _weight integer,
    _queue boolean, _metadata jsonb, _channel text, _lock_timeout text,
    OUT ticket bigint, OUT held boolean, OUT now double precision, OUT holder text, OUT recheck double precision,
    OUT other_capacity integer
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head record;
    own record;
    moment timestamptz;
    bound bigint;
    fits boolean;
BEGIN
    IF _lock_timeout <> '' THEN
        PERFORM set_config('lock_timeout', _lock_timeout, true);
    END IF;
    IF NOT _queue THEN  -- a request that does not queue writes nothing if the name is not free
        PERFORM {schema}.line_check_isolation();
        moment := clock_timestamp();
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name;
        head := {schema}.line_head(_name, bound, moment);
        IF NOT head.unsettled AND head.capacity = _capacity
            AND (head.waiting IS NOT NULL OR head.spent + _weight > _capacity)
            AND NOT EXISTS (
                SELECT FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner
            )
        THEN
            now := extract(epoch FROM moment);
            holder := head.holder;
            recheck := extract(epoch FROM head.ends - moment);
            RETURN;
        END IF;
    END IF;

    bound := {schema}.line_lock(_name);
    moment := clock_timestamp();
    now := extract(epoch FROM moment);
    head := {schema}.line_head(_name, bound, moment);
    IF head.unsettled THEN
        PERFORM {schema}.line_settle(_name, bound, moment);
        head := {schema}.line_head(_name, bound, moment);
    END IF;

    IF head.holder IS NOT NULL THEN
        UPDATE {schema}.distributed_locks l
        SET expires_at = greatest(
                l.expires_at - greatest(l.renewed_at - clock_timestamp(), interval '0'),
                moment + make_interval(secs => CASE WHEN l.acquired_at IS NULL THEN _heartbeat ELSE _ttl END)
            ),
            renewed_at = moment
        WHERE l.name = _name AND l.holder = _owner AND l.expires_at > moment
        RETURNING l.fence, l.acquired_at INTO own;
        IF FOUND THEN
            ticket := own.fence;
            held := own.acquired_at IS NOT NULL;
            IF NOT held THEN
                holder := head.holder;
                recheck := {schema}.line_recheck(head.waiting = ticket, head.ends, moment);
            END IF;
            RETURN;
        END IF;
        IF head.capacity <> _capacity THEN
            other_capacity := head.capacity;
        END IF;
    END IF;

    fits := head.waiting IS NULL AND head.spent + _weight <= _capacity;
    IF other_capacity IS NOT NULL OR NOT (fits OR _queue) THEN
        holder := head.holder;
        recheck := extract(epoch FROM head.ends - moment);
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM {schema}.lock_tombstones r WHERE r.holder = _owner AND r.until > moment) THEN
        RETURN;
    END IF;
    -- Whatever happened to the sequence and the clock: a fence below the bound would not be seen, and one below those
    -- of the places in the line would overtake them.
    ticket := greatest({schema}.line_draw(), bound);
    IF head.holder IS NOT NULL THEN
        DELETE FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner;  -- expired, behind the front
        SELECT greatest(ticket, max(l.fence) + 1) INTO ticket FROM {schema}.distributed_locks l WHERE l.name = _name;
    END IF;
    INSERT INTO {schema}.distributed_locks
        (name, fence, holder, capacity, weight, acquired_at, renewed_at, expires_at, metadata, channel)
    VALUES (
        _name, ticket, _owner, _capacity, _weight, CASE WHEN fits THEN moment END, moment,
        moment + make_interval(secs => CASE WHEN fits THEN _ttl ELSE _heartbeat END), _metadata, _channel
    );
    held := fits;
    IF NOT fits THEN
        holder := head.holder;
        recheck := {schema}.line_recheck(head.waiting IS NULL, head.ends, moment);
    END IF;
END
$$;

-- Renew places. No row for one that is gone; `ticket` is null for one that another transaction has locked: ask again.
-- It skips locked rows, so that a name which an open transaction has locked delays none of the others.
CREATE OR REPLACE FUNCTION {schema}.line_renew(
    _names text[], _owners text[], _ttls double precision[], _heartbeats double precision[], _claims boolean[]
) RETURNS TABLE (
    n bigint, ticket bigint, held boolean, now double precision, holder text, recheck double precision
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    place record;
    head record;
    bound bigint;
    tried text[] := '{}';
BEGIN
    PERFORM {schema}.line_check_isolation();
    now := extract(epoch FROM moment);
    FOR place IN
        WITH asked AS (
            SELECT * FROM unnest(_names, _owners, _ttls, _heartbeats, _claims)
            WITH ORDINALITY AS a (name, owner, ttl, heartbeat, claim, n)
        ), found AS MATERIALIZED (
            SELECT a.n, a.ttl, a.heartbeat, a.claim, l.name, l.fence
            FROM asked a JOIN {schema}.distributed_locks l ON l.name = a.name AND l.holder = a.owner
            WHERE l.expires_at > moment
            FOR UPDATE OF l SKIP LOCKED
        ), renewed AS (
            UPDATE {schema}.distributed_locks l
            SET expires_at = greatest(
                    l.expires_at - greatest(l.renewed_at - clock_timestamp(), interval '0'),
                    moment + make_interval(
                        secs => CASE WHEN f.claim AND l.acquired_at IS NOT NULL THEN f.ttl ELSE f.heartbeat END
                    )
                ),
                renewed_at = moment
            FROM found f WHERE l.name = f.name AND l.fence = f.fence
            RETURNING f.n, l.name, l.fence, l.acquired_at IS NOT NULL AS held
        )
        SELECT a.n, a.name, a.owner, a.ttl, a.claim, r.fence, r.held
        FROM asked a LEFT JOIN renewed r ON r.n = a.n
        WHERE r.n IS NOT NULL OR EXISTS (
            SELECT FROM {schema}.distributed_locks l
            WHERE l.name = a.name AND l.holder = a.owner AND l.expires_at > moment
        )
        ORDER BY a.n
    LOOP
        n := place.n;
        ticket := place.fence;
        held := place.held;
        holder := NULL;
        recheck := NULL;
        IF NOT held THEN
            SELECT h.first INTO bound FROM {schema}.lock_names h WHERE h.name = place.name;
            head := {schema}.line_head(place.name, bound, moment);
            IF head.unsettled AND place.name <> ALL (tried) THEN
                tried := tried || place.name;
                BEGIN
                    PERFORM FROM {schema}.lock_names h WHERE h.name = place.name FOR UPDATE SKIP LOCKED;
                    IF FOUND THEN
                        PERFORM {schema}.line_settle(place.name, bound, moment);
                        head := {schema}.line_head(place.name, bound, moment);
                    END IF;
                EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
                    NULL;  -- another transaction is settling the line, and notifies the new holders
                END;
            END IF;
            UPDATE {schema}.distributed_locks l
            SET expires_at = greatest(
                l.expires_at, moment + make_interval(secs => CASE WHEN place.claim THEN place.ttl ELSE 0 END)
            )
            WHERE l.name = place.name AND l.fence = place.fence AND l.acquired_at IS NOT NULL
                AND (head.waiting IS NULL OR l.fence < head.waiting);
            held := FOUND;
            IF NOT held THEN
                holder := head.holder;
                recheck := CASE  -- soon, where another transaction may be settling by an older state
                    WHEN head.unsettled THEN 0.05
                    ELSE {schema}.line_recheck(head.waiting = ticket, head.ends, moment)
                END;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Remove a place, grant the places that then fit, and return whether the place was alive. Safe to repeat.
-- `_tombstone`: for how many seconds late joins of this owner are refused. `_lock_timeout` as in line_join.
CREATE OR REPLACE FUNCTION {schema}.line_leave(
    _name text, _owner text, _tombstone double precision, _lock_timeout text
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz;
    bound bigint;
    left_behind record;
BEGIN
    IF _lock_timeout <> '' THEN
        PERFORM set_config('lock_timeout', _lock_timeout, true);
    END IF;
    PERFORM {schema}.line_check_isolation();
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
    PERFORM {schema}.line_settle(_name, bound, moment);
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

-- Delete expired places and unused names: some at a time, one sweep at a time. lockstead's Python clients call it
-- regularly, counted by their joins; without such clients, call it from time to time. It skips rows that a transaction
-- has locked.
CREATE OR REPLACE FUNCTION {schema}.sweep_locks(_names integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    start text;
    reached text;
    seen bigint;
    moved text;
    unused text[];
BEGIN
    PERFORM {schema}.line_check_isolation();
    SELECT s.swept_to INTO start FROM {schema}.lock_state s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.lock_tombstones r WHERE r.until <= moment;

    FOR moved IN
        WITH expired AS (
            SELECT l.name, l.fence FROM {schema}.distributed_locks l
            WHERE l.expires_at <= moment ORDER BY l.expires_at LIMIT _names
            FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {schema}.distributed_locks l USING expired e WHERE l.name = e.name AND l.fence = e.fence
            RETURNING l.name
        )
        SELECT DISTINCT g.name FROM gone g
        WHERE EXISTS (SELECT FROM {schema}.distributed_locks l WHERE l.name = g.name AND l.expires_at > moment)
        ORDER BY g.name
    LOOP
        EXIT WHEN clock_timestamp() > moment + interval '1 second';
        BEGIN
            PERFORM FROM {schema}.lock_names h WHERE h.name = moved FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM {schema}.line_settle(moved, 0, moment);
            END IF;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            NULL;  -- the new holder finds its grant at its next heartbeat
        END;
    END LOOP;

    SELECT max(h.name), count(*) INTO reached, seen
    FROM (SELECT n.name FROM {schema}.lock_names n WHERE n.name > start ORDER BY n.name LIMIT _names) h;
    -- In two statements: only the second sees a place that was taken before the name was locked.
    SELECT array_agg(u.name) INTO unused FROM (
        SELECT h.name FROM {schema}.lock_names h
        WHERE h.name > start AND h.name <= reached
            AND NOT EXISTS (SELECT FROM {schema}.distributed_locks l WHERE l.name = h.name)
        FOR UPDATE SKIP LOCKED
    ) u;
    DELETE FROM {schema}.lock_names h
    WHERE h.name = ANY (unused) AND NOT EXISTS (SELECT FROM {schema}.distributed_locks l WHERE l.name = h.name);
    UPDATE {schema}.lock_state SET swept_to = CASE WHEN seen < _names THEN '' ELSE reached END;
END
$$;

-- Check the arguments of the functions for any client.
CREATE OR REPLACE FUNCTION {schema}.line_check(_name text, _holder text, _ttl double precision) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(_name, '') = '' OR length(_name) > 512 OR _name ~ '[[:cntrl:]]' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a lock''s name has 1 to 512 characters, no control ones, not %s', quote_nullable(_name)),
            HINT = 'name what is protected, such as order:42:ship';
    END IF;
    IF coalesce(_holder, '') = '' OR octet_length(_holder) > 256 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a holder has 1 to 256 bytes, not %s', quote_nullable(_holder)),
            HINT = 'make one that no other client has, such as host:pid:random';
    END IF;
    IF _ttl IS NULL OR NOT (_ttl > 0 AND _ttl <= 31536000) THEN  -- NaN is greater than everything
        RAISE invalid_parameter_value USING
            MESSAGE = format('ttl_seconds must be above 0 and at most a year, not %s', coalesce(_ttl::text, 'null')),
            HINT = 'every lock expires unless it is extended: choose after how many seconds';
    END IF;
END
$$;

-- Acquire a lock, or extend the one this holder has. Returns the fence, or null if another client holds the lock.
-- With `queue` it then takes a place in the line: call it again within ten seconds (within the ttl, if that is
-- shorter), as the heartbeat of the place, until it returns the fence; release_lock removes the place.
CREATE OR REPLACE FUNCTION {schema}.acquire_lock(
    name text, holder text, ttl_seconds double precision, metadata jsonb DEFAULT '{}', queue boolean DEFAULT false
) RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    standing record;
BEGIN
    PERFORM {schema}.line_check(name, holder, ttl_seconds);
    IF jsonb_typeof(metadata) <> 'object' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('metadata must be an object, not %s', jsonb_typeof(metadata)),
            HINT = 'such as {"host": "web-1"}';
    END IF;
    standing := {schema}.line_join(
        name, holder, ttl_seconds, least(ttl_seconds, 10), 1, 1, coalesce(queue, false), coalesce(metadata, '{}'), '', ''
    );
    IF standing.other_capacity IS NOT NULL THEN
        RAISE object_in_use USING
            MESSAGE = format('%L is in use with a capacity of %s, not 1', name, standing.other_capacity),
            HINT = 'all clients that share a name must use the same capacity';
    END IF;
    RETURN CASE WHEN standing.held THEN standing.ticket END;
END
$$;

-- Extend a held lock to at least this long from now. False: this holder does not hold it (any more).
CREATE OR REPLACE FUNCTION {schema}.extend_lock(name text, holder text, ttl_seconds double precision) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM {schema}.line_check(name, holder, ttl_seconds);
    UPDATE {schema}.distributed_locks l
    SET expires_at = greatest(
            l.expires_at - greatest(l.renewed_at - clock_timestamp(), interval '0'),
            clock_timestamp() + make_interval(secs => ttl_seconds)
        ),
        renewed_at = clock_timestamp()
    WHERE l.name = extend_lock.name AND l.holder = extend_lock.holder
        AND l.acquired_at IS NOT NULL AND l.expires_at > clock_timestamp();
    RETURN FOUND;
END
$$;

-- Release a lock, or remove a place in its line. False: this holder did not have it (any more).
CREATE OR REPLACE FUNCTION {schema}.release_lock(name text, holder text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM {schema}.line_check(name, holder, 1);
    RETURN {schema}.line_leave(name, holder, 0, '');
END
$$;

-- Call it in your own transaction, before you write what a lock protects: it raises if a newer holder has written
-- already, and blocks other holders that call it until your transaction ends. Fences of exclusive locks only.
CREATE OR REPLACE FUNCTION {schema}.check_fence(resource text, fence bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    newest bigint;
BEGIN
    IF coalesce(resource, '') = '' OR fence IS NULL OR fence < 1 THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('check_fence needs a resource and a fence, not %L and %L', resource, fence),
            HINT = 'the fence is what acquire_lock returned, or a Python handle''s fence';
    END IF;
    INSERT INTO {schema}.lock_fences AS g (resource, fence) VALUES (resource, fence)
    ON CONFLICT ON CONSTRAINT lock_fences_pkey DO UPDATE SET fence = greatest(g.fence, excluded.fence)
    RETURNING g.fence INTO newest;
    IF newest > fence THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LS001',
            MESSAGE = format('fence %s is stale: %L was written with fence %s already', fence, resource, newest),
            HINT = 'this holder has lost its lock, and another has written since: roll back, and acquire it again';
    END IF;
END
$$;

-- The live places: holders and waiters.
CREATE OR REPLACE VIEW {schema}.locks AS
SELECT
    name,
    holder,
    fence,
    CASE WHEN sum(weight) OVER (PARTITION BY name ORDER BY fence) <= capacity THEN 'holds' ELSE 'waits' END AS state,
    acquired_at AS since,
    expires_at,
    metadata,
    backend,
    application,
    client_address
FROM {schema}.distributed_locks
WHERE expires_at > clock_timestamp();

UPDATE {schema}.lock_state SET version = 1 WHERE version < 1;
