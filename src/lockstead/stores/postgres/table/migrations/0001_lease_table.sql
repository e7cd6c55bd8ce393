-- The lease table, for Python and for any language that can call a function.
-- Tables are lock_state, lock_names, distributed_locks, lock_refusals, lock_guards;
-- for you are acquire_lock, extend_lock, release_lock, check_fence, sweep_locks and the view locks.
--
-- Every function has a search_path of its own. With the caller's, a role that may create in the schema public could plant
-- an operator there that fits better than the server's, public.*(numeric, integer) say, and have it run as the caller.

-- One row: which migrations have run, and how far the sweep has come.
CREATE TABLE IF NOT EXISTS {schema}.lock_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    version integer NOT NULL,
    swept_to text COLLATE "C" NOT NULL DEFAULT ''
);
INSERT INTO {schema}.lock_state (version) VALUES (1) ON CONFLICT DO NOTHING;

-- The last fence drawn, of all names.
CREATE SEQUENCE IF NOT EXISTS {schema}.lock_fence CACHE 1;

-- A row for every name in use. Whoever changes a line locks it first: an empty line has no other row to lock.
-- It is hardly ever written, for a row that is written often gets slow while anybody has an old snapshot: `first` is
-- a bound below which there are no places, raised now and then, which spares those who look for them the dead rows.
CREATE TABLE IF NOT EXISTS {schema}.lock_names (
    name text COLLATE "C" PRIMARY KEY,
    first bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);

-- Every place in every line, in the order of fences. You hold if everything up to and including you fits.
CREATE TABLE IF NOT EXISTS {schema}.distributed_locks (
    name text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    holder text COLLATE "C" NOT NULL,
    capacity integer NOT NULL CHECK (capacity > 0),
    weight integer NOT NULL CHECK (weight BETWEEN 1 AND capacity),
    acquired_at timestamptz,                -- null while it waits
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    channel text NOT NULL DEFAULT '',       -- where its process listens, if it does
    backend integer NOT NULL DEFAULT pg_backend_pid(),
    application text NOT NULL DEFAULT current_setting('application_name'),
    client_address inet DEFAULT inet_client_addr(),
    PRIMARY KEY (name, fence),
    UNIQUE (name, holder)
) WITH (fillfactor = 70);
-- IF NOT EXISTS would lock the table before it looks, and stop everybody until the oldest transaction has ended.
IF NOT EXISTS (SELECT FROM pg_indexes WHERE schemaname = {schema_text} AND indexname = 'distributed_locks_expires_at') THEN
    CREATE INDEX distributed_locks_expires_at ON {schema}.distributed_locks (expires_at);
END IF;

-- Owners that gave up while a request of theirs may still be on its way. It must find no place when it arrives.
CREATE TABLE IF NOT EXISTS {schema}.lock_refusals (
    holder text COLLATE "C" PRIMARY KEY,
    until timestamptz NOT NULL
);

-- The newest fence that has written to each guarded resource.
CREATE TABLE IF NOT EXISTS {schema}.lock_guards (
    resource text COLLATE "C" PRIMARY KEY,
    fence bigint NOT NULL
);

-- Draw the next fence. It follows the clock, so that it grows even where the sequence was lost or went back, as after
-- a fail-over. The name is locked, so that its fences are drawn one after another.
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

-- Whoever waited for a name must see what was done meanwhile, which a snapshot that is kept for the whole transaction
-- does not show: he would find the line empty, and hold beside the other.
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

-- Lock a name, and give its `first`.
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

-- Look at the front of a line without touching it: what its holders weigh, the first of them, when the first of them
-- ends, the fence of the first who waits, and whether anything there has to be settled.
-- Nothing is sorted: the planner cannot know that mostly the first two are looked at, however long the line is.
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

-- Drop what has expired at the front of a line, and wake who holds by that. The caller has locked the name.
-- Renewals do not lock the name, so that what looks expired is looked at again before it is deleted.
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
        -- The clock was set back: without this, the dead would outlive it. Asked of the clock itself: _now is older, and
        -- who has renewed meanwhile must lose nothing of what was promised.
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
            -- A full queue would fail the whole transaction, at its end, where nothing can catch it. To ask for its usage
            -- also makes the server drop what every session has read, which it may not do for long by itself.
            IF place.channel <> '' AND pg_notification_queue_usage() < 0.5 THEN
                PERFORM pg_notify(place.channel, place.holder);
            END IF;
        END IF;
    END LOOP;
END
$$;

-- In how many seconds a waiter is to ask by itself: when the first lease of the holders ends, if it is next in line; soon,
-- if nothing would notify it.
CREATE OR REPLACE FUNCTION {schema}.line_recheck(_is_next boolean, _ends timestamptz, _now timestamptz)
RETURNS double precision LANGUAGE sql  -- as rate_left is: inlined, and resolved here and now
RETURN least(
    CASE WHEN pg_notification_queue_usage() >= 0.5 THEN 0.1 END,
    CASE WHEN _is_next THEN extract(epoch FROM _ends - _now) END
);

-- Take a place, or refresh the one the owner has. No ticket: refused, because of another capacity if that is told.
-- `_lock_timeout` is set for the rest of the transaction, so only for one of the caller's own.
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
    IF NOT _queue THEN  -- whoever only asks whether it is free writes nothing if it is not
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
    IF EXISTS (SELECT FROM {schema}.lock_refusals r WHERE r.holder = _owner AND r.until > moment) THEN
        RETURN;
    END IF;
    -- Whatever became of the sequence and of the clock, nobody may come before the bound, where he would not be seen,
    -- nor before those who are there already.
    ticket := greatest({schema}.line_draw(), bound);
    IF head.holder IS NOT NULL THEN
        DELETE FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner;  -- expired behind the front
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

-- Let places live on. No row for one that is gone; `ticket` is null for one that somebody is just changing: ask again.
-- Waits for nobody, so that one name that is stuck in a transaction holds up none of the others.
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
                    NULL;  -- somebody else is settling it just now, and wakes whom it concerns
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
                recheck := CASE  -- soon, where somebody else may be settling by what he saw before
                    WHEN head.unsettled THEN 0.05
                    ELSE {schema}.line_recheck(head.waiting = ticket, head.ends, moment)
                END;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Give a place up, say whether it was alive, and wake who holds by that. Safe to repeat.
CREATE OR REPLACE FUNCTION {schema}.line_leave(
    _name text, _owner text, _unsure double precision, _lock_timeout text
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
    IF _unsure > 0 THEN  -- a join that is just being carried out may have made the name, which nobody else sees yet
        bound := {schema}.line_lock(_name);
    ELSE
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name FOR UPDATE;
    END IF;
    moment := clock_timestamp();
    DELETE FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner
    RETURNING l.fence, l.expires_at INTO left_behind;
    IF _unsure > 0 THEN
        INSERT INTO {schema}.lock_refusals AS r (holder, until)
        VALUES (_owner, moment + make_interval(secs => _unsure))
        ON CONFLICT (holder) DO UPDATE SET until = greatest(r.until, excluded.until);
    END IF;
    PERFORM {schema}.line_settle(_name, bound, moment);
    IF random() < 0.02 THEN  -- looked at anew, for who seemed to have expired may have been renewed meanwhile
        UPDATE {schema}.lock_names n SET first = greatest(n.first, coalesce(
            (SELECT min(l.fence) FROM {schema}.distributed_locks l WHERE l.name = _name AND l.fence >= bound),
            left_behind.fence + 1, 0
        ))
        WHERE n.name = _name;
    END IF;
    RETURN coalesce(left_behind.expires_at > moment, false);
END
$$;

-- Remove what nobody asks for any more: some at a time, and by one at a time. lockstead's Python clients call it now and
-- then; where there are none, call it from time to time. Waits for nobody who is in a transaction.
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
    DELETE FROM {schema}.lock_refusals r WHERE r.until <= moment;

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
            NULL;  -- who holds now finds out at its next heartbeat
        END;
    END LOOP;

    SELECT max(h.name), count(*) INTO reached, seen
    FROM (SELECT n.name FROM {schema}.lock_names n WHERE n.name > start ORDER BY n.name LIMIT _names) h;
    -- In two statements: only the second sees who took a place before the name was locked.
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
            HINT = 'make one that nobody else has, such as host:pid:random';
    END IF;
    IF _ttl IS NULL OR NOT (_ttl > 0 AND _ttl <= 31536000) THEN  -- NaN is greater than everything
        RAISE invalid_parameter_value USING
            MESSAGE = format('ttl_seconds must be above 0 and at most a year, not %s', coalesce(_ttl::text, 'null')),
            HINT = 'a lock always ends by itself: choose how soon';
    END IF;
END
$$;

-- Acquire, or extend what this holder has: the fence, or null if another holds.
-- With `queue` it takes a place in the line instead, which is kept by asking again within ten seconds (within the ttl,
-- if that is shorter) until the fence comes; release_lock gives it up.
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
            HINT = 'all who share a name must agree on it';
    END IF;
    RETURN CASE WHEN standing.held THEN standing.ticket END;
END
$$;

-- Let a held lock live at least this long from now. False: this holder does not hold it (any more).
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

-- Give a lock, or a place in its line, up. False: this holder did not have it (any more).
CREATE OR REPLACE FUNCTION {schema}.release_lock(name text, holder text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
    PERFORM {schema}.line_check(name, holder, 1);
    RETURN {schema}.line_leave(name, holder, 0, '');
END
$$;

-- Call it in your own transaction, before you write what a lock protects: it raises if a newer holder has written
-- already, and until your transaction ends no other holder gets past it. Fences of exclusive locks only.
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
    INSERT INTO {schema}.lock_guards AS g (resource, fence) VALUES (resource, fence)
    ON CONFLICT ON CONSTRAINT lock_guards_pkey DO UPDATE SET fence = greatest(g.fence, excluded.fence)
    RETURNING g.fence INTO newest;
    IF newest > fence THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LH001',
            MESSAGE = format('fence %s is stale: %L was written with fence %s already', fence, resource, newest),
            HINT = 'this holder has lost its lock and another has gone on: roll back, and acquire it again';
    END IF;
END
$$;

-- Who holds and who waits, as of now.
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
