-- Reservations, locks on several names at once, and rate limits.
-- The table is rate_limits. The functions check_rate, consume_rate and sweep_rates are for any client.

-- The GCRA level of every rate limit in use: seconds, at the time `at`. It drains by one second a second.
IF NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = {schema_text} AND tablename = 'rate_limits') THEN
    CREATE TABLE {schema}.rate_limits (
        name text COLLATE "C" PRIMARY KEY,
        level double precision NOT NULL,
        at timestamptz NOT NULL
    ) WITH (fillfactor = 70);
    -- Roles that have privileges on the other tables get them on this one: else an upgrade would have to name all of
    -- them.
    DECLARE
        granted record;
    BEGIN
        FOR granted IN
            SELECT a.privilege_type AS privilege,
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
            FROM pg_class c, aclexplode(c.relacl) a
            WHERE c.oid = '{schema}.lock_names'::regclass AND a.grantee <> c.relowner
        LOOP
            EXECUTE format('GRANT %s ON {schema}.rate_limits TO %s', granted.privilege, granted.grantee);
        END LOOP;
    END;
END IF;

-- The name up to which the last sweep of rate limits has come. There is no index to find drained ones by: every request
-- would have to write it.
IF NOT EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = '{schema}.lock_state'::regclass AND attname = 'rates_swept_to'
) THEN
    ALTER TABLE {schema}.lock_state ADD COLUMN rates_swept_to text COLLATE "C" NOT NULL DEFAULT '';
END IF;

-- Replace a place that holds by a reservation for `_seconds` from now: its owner gets a + added, so that no late
-- renewal finds it. Returns whether there was one; a place that waits is removed. Safe to repeat.
-- `_metadata`: what the reservation shows; null keeps that of the place. The last two as in line_leave.
CREATE OR REPLACE FUNCTION {schema}.line_reserve(
    _name text, _owner text, _seconds double precision, _metadata jsonb, _tombstone double precision, _lock_timeout text
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz;
    bound bigint;
    held boolean;
BEGIN
    IF _lock_timeout <> '' THEN
        PERFORM set_config('lock_timeout', _lock_timeout, true);
    END IF;
    PERFORM {schema}.line_check_isolation();
    IF _tombstone > 0 THEN  -- as in line_leave
        bound := {schema}.line_lock(_name);
    ELSE
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name FOR UPDATE;
    END IF;
    -- Before the clock is read: this waits for a renewal that is not committed yet.
    PERFORM FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner FOR UPDATE;
    moment := clock_timestamp();
    PERFORM {schema}.line_settle(_name, bound, moment);
    UPDATE {schema}.distributed_locks l
    SET holder = l.holder || '+', renewed_at = moment, expires_at = moment + make_interval(secs => _seconds),
        metadata = coalesce(_metadata, l.metadata)
    WHERE l.name = _name AND l.holder = _owner AND l.acquired_at IS NOT NULL AND l.expires_at > moment
        AND NOT EXISTS (SELECT FROM {schema}.distributed_locks s WHERE s.name = _name AND s.holder = _owner || '+');
    held := FOUND;
    PERFORM {schema}.line_leave(_name, _owner, _tombstone, '');  -- removes a place that waits, or of a late join
    RETURN held;
END
$$;

-- Take a place that holds in each of these lines, or in none. Returns a row for each, in the order of the arguments. If
-- the last row has no ticket, that line refused, and the rows before it do not count. `_lock_timeout` is for all names
-- together.
CREATE OR REPLACE FUNCTION {schema}.line_join_all(
    _names text[], _owners text[], _ttls double precision[], _heartbeats double precision[], _capacities integer[],
    _weights integer[], _metadata jsonb[], _lock_timeout text
) RETURNS TABLE (
    n bigint, ticket bigint, held boolean, now double precision, holder text, recheck double precision,
    other_capacity integer
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until timestamptz := clock_timestamp() + nullif(_lock_timeout, '')::interval;
    ask record;
    head record;
    moment timestamptz;
    bound bigint;
BEGIN
    PERFORM {schema}.line_check_isolation();
    -- If one of the names is not free, nothing is written.
    FOR ask IN
        SELECT * FROM unnest(_names, _owners, _capacities, _weights)
        WITH ORDINALITY AS a (name, owner, capacity, weight, n) ORDER BY a.n
    LOOP
        moment := clock_timestamp();
        SELECT h.first INTO bound FROM {schema}.lock_names h WHERE h.name = ask.name;
        head := {schema}.line_head(ask.name, bound, moment);
        EXIT WHEN head.unsettled OR head.capacity <> ask.capacity
            OR EXISTS (SELECT FROM {schema}.distributed_locks l WHERE l.name = ask.name AND l.holder = ask.owner)
            OR EXISTS (SELECT FROM {schema}.lock_tombstones r WHERE r.holder = ask.owner);
        IF head.waiting IS NOT NULL OR head.spent + ask.weight > ask.capacity THEN
            n := ask.n;
            now := extract(epoch FROM moment);
            holder := head.holder;
            recheck := extract(epoch FROM head.ends - moment);
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;

    -- Names are locked in a global order, so that two calls cannot deadlock.
    FOR ask IN SELECT a.name FROM unnest(_names) AS a (name) ORDER BY a.name COLLATE "C" LOOP
        IF until IS NOT NULL THEN
            PERFORM set_config(
                'lock_timeout', greatest(ceil(extract(epoch FROM until - clock_timestamp()) * 1000), 1)::text, true
            );
        END IF;
        PERFORM {schema}.line_lock(ask.name);
    END LOOP;

    FOR ask IN
        SELECT * FROM unnest(_names, _owners, _ttls, _heartbeats, _capacities, _weights, _metadata)
        WITH ORDINALITY AS a (name, owner, ttl, heartbeat, capacity, weight, metadata, n) ORDER BY a.n
    LOOP
        SELECT ask.n, j.* INTO n, ticket, held, now, holder, recheck, other_capacity
        FROM {schema}.line_join(
            ask.name, ask.owner, ask.ttl, ask.heartbeat, ask.capacity, ask.weight, false, ask.metadata, '', ''
        ) j;
        RETURN NEXT;
        IF ticket IS NULL THEN
            PERFORM {schema}.line_leave(a.name, a.owner, 0, '')
            FROM unnest(_names, _owners) WITH ORDINALITY AS a (name, owner, n) WHERE a.n < ask.n;
            RETURN;
        END IF;
    END LOOP;
END
$$;

-- The level that is left now; 0 where there is none. A clock that was set back drains nothing.
-- It has no SET search_path, with which it would not be inlined: its names are resolved when it is created.
CREATE OR REPLACE FUNCTION {schema}.rate_level(_level double precision, _at timestamptz, _now timestamptz)
RETURNS double precision LANGUAGE sql STABLE
RETURN greatest(_level - greatest(extract(epoch FROM _now - _at)::double precision, 0), 0);

-- Add a cost to a level if it then drains to the burst within max_wait; all in seconds. Returns the level, with the
-- cost if that was allowed: act once it has drained to the burst. A cost of 0 only reads it. `_lock_timeout` as in
-- line_join.
CREATE OR REPLACE FUNCTION {schema}.consume_rate(
    _name text, _cost double precision, _burst double precision, _max_wait double precision DEFAULT 0,
    _lock_timeout text DEFAULT '',
    OUT allowed boolean, OUT level double precision
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most double precision := _burst * (1 + 1e-9::double precision) + _max_wait;  -- sums of fractions may be off by that
    known record;
    moment timestamptz;
BEGIN
    IF coalesce(_name, '') = '' OR length(_name) > 512 OR _name ~ '[[:cntrl:]]' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a rate limit''s name has 1 to 512 characters, no control ones, not %s', quote_nullable(_name)),
            HINT = 'name what is limited, and for which user, such as mail:user:42';
    END IF;
    IF (_cost >= 0 AND _cost < 'infinity' AND _burst >= 0 AND _max_wait >= 0 AND most <= 'infinity') IS NOT TRUE THEN
        RAISE invalid_parameter_value USING  -- NaN is greater than everything
            MESSAGE = format('cost, burst and max_wait are seconds from 0 up, not %s, %s and %s',
                coalesce(_cost::text, 'null'), coalesce(_burst::text, 'null'), coalesce(_max_wait::text, 'null')),
            HINT = 'check_rate counts in events instead';
    END IF;
    IF _lock_timeout <> '' THEN
        PERFORM set_config('lock_timeout', _lock_timeout, true);
    END IF;

    -- A request that only reads, or costs too much, writes nothing and waits for no lock: what others add concurrently
    -- can only raise the level.
    SELECT r.level, r.at INTO known FROM {schema}.rate_limits r WHERE r.name = _name;
    moment := clock_timestamp();
    level := {schema}.rate_level(known.level, known.at, moment);
    allowed := level + _cost <= most;
    IF (allowed AND _cost > 0) OR known.at > moment THEN
        LOOP
            SELECT r.level, r.at INTO known FROM {schema}.rate_limits r WHERE r.name = _name FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO {schema}.rate_limits (name, level, at) VALUES (_name, 0, clock_timestamp())
            ON CONFLICT (name) DO NOTHING;
        END LOOP;
        moment := clock_timestamp();
        level := {schema}.rate_level(known.level, known.at, moment);
        allowed := level + _cost <= most;
        IF allowed THEN
            level := level + _cost;
        END IF;
        IF (allowed AND _cost > 0) OR known.at > moment THEN
            UPDATE {schema}.rate_limits r SET level = consume_rate.level, at = moment WHERE r.name = _name;
        END IF;
    END IF;
END
$$;

-- Rate limiting: allow at most `max_events` events per interval, and count this one if it is allowed. `burst`: how many
-- may happen at once, by default as many as in an interval. `cost`: how many events this one counts for; 0 only reads.
-- `remaining`: how many more are allowed now. `retry_after`: when to ask again; 0 if allowed, null if it never will be.
CREATE OR REPLACE FUNCTION {schema}.check_rate(
    name text, max_events integer, per interval, burst integer DEFAULT NULL, cost integer DEFAULT 1,
    OUT allowed boolean, OUT remaining integer, OUT retry_after interval
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    most integer := coalesce(burst, max_events);
    seconds double precision := extract(epoch FROM per);
    each double precision;
    free double precision;
    result record;
BEGIN
    IF (max_events > 0 AND seconds > 0 AND seconds < 'infinity' AND most > 0 AND cost >= 0) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('max_events, per and burst must be above 0 and cost not below, not %s, %s, %s and %s',
                coalesce(max_events::text, 'null'), coalesce(per::text, 'null'), coalesce(burst::text, 'null'),
                coalesce(cost::text, 'null')),
            HINT = 'ten in a minute are 10 and interval ''1 minute''';
    END IF;
    each := seconds / max_events;
    result := {schema}.consume_rate(name, cost * each, most * each);
    free := most * each * (1 + 1e-9::double precision) - result.level;
    allowed := result.allowed;
    remaining := greatest(floor(free / each), 0);
    retry_after := CASE
        WHEN allowed THEN interval '0'
        WHEN cost <= most THEN make_interval(secs => ceil((cost * each - free) * 1000000) / 1000000)
    END;
END
$$;

-- Delete rate limits whose level has drained, some at a time, as sweep_locks does with names. It skips locked rows.
CREATE OR REPLACE FUNCTION {schema}.sweep_rates(_names integer DEFAULT 1000) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moment timestamptz := clock_timestamp();
    start text;
    reached text;
    seen bigint;
BEGIN
    SELECT s.rates_swept_to INTO start FROM {schema}.lock_state s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT max(h.name), count(*) INTO reached, seen
    FROM (SELECT r.name FROM {schema}.rate_limits r WHERE r.name > start ORDER BY r.name LIMIT _names) h;
    DELETE FROM {schema}.rate_limits r USING (
        SELECT w.name FROM {schema}.rate_limits w
        WHERE w.name > start AND w.name <= reached AND {schema}.rate_level(w.level, w.at, moment) = 0
        FOR UPDATE SKIP LOCKED
    ) drained WHERE r.name = drained.name;
    UPDATE {schema}.lock_state SET rates_swept_to = CASE WHEN seen < _names THEN '' ELSE reached END;
END
$$;

UPDATE {schema}.lock_state SET version = 2 WHERE version < 2;
