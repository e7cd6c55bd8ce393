-- Names that stay taken, several names at once, and rates.
-- The table is rate_limits; for you are check_rate, spend_rate and sweep_rates.

-- A debt for every rate in use, in seconds: so much at that time, and a second less with every second since.
IF NOT EXISTS (SELECT FROM pg_tables WHERE schemaname = {schema_text} AND tablename = 'rate_limits') THEN
    CREATE TABLE {schema}.rate_limits (
        name text COLLATE "C" PRIMARY KEY,
        debt double precision NOT NULL,
        at timestamptz NOT NULL
    ) WITH (fillfactor = 70);
    -- Whoever has rights on the other tables has them on this one: else an upgrade would have to name all roles again.
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

-- How far the sweep of rates has come. There is no index by which to find what has worn off: every charge would write it.
IF NOT EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = '{schema}.lock_state'::regclass AND attname = 'rates_swept_to'
) THEN
    ALTER TABLE {schema}.lock_state ADD COLUMN rates_swept_to text COLLATE "C" NOT NULL DEFAULT '';
END IF;

-- Let a place that holds stand for so long from now under its owner's name with a + added, so that no late renewal finds
-- it. Says whether there was one; one that waits is given up. Safe to repeat.
CREATE OR REPLACE FUNCTION {schema}.line_linger(
    _name text, _owner text, _seconds double precision, _metadata jsonb, _unsure double precision, _lock_timeout text
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
    IF _unsure > 0 THEN  -- as in line_leave
        bound := {schema}.line_lock(_name);
    ELSE
        SELECT n.first INTO bound FROM {schema}.lock_names n WHERE n.name = _name FOR UPDATE;
    END IF;
    -- Before the clock is read, for a renewal that is not committed yet has to be waited for.
    PERFORM FROM {schema}.distributed_locks l WHERE l.name = _name AND l.holder = _owner FOR UPDATE;
    moment := clock_timestamp();
    PERFORM {schema}.line_settle(_name, bound, moment);
    UPDATE {schema}.distributed_locks l
    SET holder = l.holder || '+', renewed_at = moment, expires_at = moment + make_interval(secs => _seconds),
        metadata = coalesce(_metadata, l.metadata)
    WHERE l.name = _name AND l.holder = _owner AND l.acquired_at IS NOT NULL AND l.expires_at > moment
        AND NOT EXISTS (SELECT FROM {schema}.distributed_locks s WHERE s.name = _name AND s.holder = _owner || '+');
    held := FOUND;
    PERFORM {schema}.line_leave(_name, _owner, _unsure, '');  -- which finds what did not hold, or came late
    RETURN held;
END
$$;

-- Take a place that holds in each of these lines, or in none. A row for each, in the order asked for; or the last one
-- has no ticket, for that line refused, and those before it do not count. `_lock_timeout` is for all of them together.
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
    -- Whoever only asks whether they are free writes nothing if one is not.
    FOR ask IN
        SELECT * FROM unnest(_names, _owners, _capacities, _weights)
        WITH ORDINALITY AS a (name, owner, capacity, weight, n) ORDER BY a.n
    LOOP
        moment := clock_timestamp();
        SELECT h.first INTO bound FROM {schema}.lock_names h WHERE h.name = ask.name;
        head := {schema}.line_head(ask.name, bound, moment);
        EXIT WHEN head.unsettled OR head.capacity <> ask.capacity
            OR EXISTS (SELECT FROM {schema}.distributed_locks l WHERE l.name = ask.name AND l.holder = ask.owner)
            OR EXISTS (SELECT FROM {schema}.lock_refusals r WHERE r.holder = ask.owner);
        IF head.waiting IS NOT NULL OR head.spent + ask.weight > ask.capacity THEN
            n := ask.n;
            now := extract(epoch FROM moment);
            holder := head.holder;
            recheck := extract(epoch FROM head.ends - moment);
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;

    -- In the same order for everybody, so that nobody waits for who waits for him.
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

-- What is left of a debt; nothing of none. A clock that was set back lets nothing wear off.
CREATE OR REPLACE FUNCTION {schema}.rate_left(_debt double precision, _at timestamptz, _now timestamptz)
RETURNS double precision LANGUAGE sql STABLE  -- and no SET, with which it would not be inlined: it is parsed now
RETURN greatest(_debt - greatest(extract(epoch FROM _now - _at)::double precision, 0), 0);

-- Add to a debt, in seconds, if it then wears off to the limit within one's patience. Tells the debt, with what was added;
-- act once it has worn off to the limit. A cost of 0 only looks. `_lock_timeout` as in line_join.
CREATE OR REPLACE FUNCTION {schema}.spend_rate(
    _name text, _cost double precision, _limit double precision, _patience double precision DEFAULT 0,
    _lock_timeout text DEFAULT '',
    OUT allowed boolean, OUT debt double precision
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    most double precision := _limit * (1 + 1e-9::double precision) + _patience;  -- sums of fractions may be off by that
    known record;
    moment timestamptz;
BEGIN
    IF coalesce(_name, '') = '' OR length(_name) > 512 OR _name ~ '[[:cntrl:]]' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a rate''s name has 1 to 512 characters, no control ones, not %s', quote_nullable(_name)),
            HINT = 'name what is limited, and whose it is, such as mail:user:42';
    END IF;
    IF (_cost >= 0 AND _cost < 'infinity' AND _limit >= 0 AND _patience >= 0 AND most <= 'infinity') IS NOT TRUE THEN
        RAISE invalid_parameter_value USING  -- NaN is greater than everything
            MESSAGE = format('cost, limit and patience are seconds from 0 up, not %s, %s and %s',
                coalesce(_cost::text, 'null'), coalesce(_limit::text, 'null'), coalesce(_patience::text, 'null')),
            HINT = 'check_rate counts in events instead';
    END IF;
    IF _lock_timeout <> '' THEN
        PERFORM set_config('lock_timeout', _lock_timeout, true);
    END IF;

    -- Whoever only looks, or asks for too much, writes nothing and waits for nobody: what others add makes it no less.
    SELECT r.debt, r.at INTO known FROM {schema}.rate_limits r WHERE r.name = _name;
    moment := clock_timestamp();
    debt := {schema}.rate_left(known.debt, known.at, moment);
    allowed := debt + _cost <= most;
    IF (allowed AND _cost > 0) OR known.at > moment THEN
        LOOP
            SELECT r.debt, r.at INTO known FROM {schema}.rate_limits r WHERE r.name = _name FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO {schema}.rate_limits (name, debt, at) VALUES (_name, 0, clock_timestamp())
            ON CONFLICT (name) DO NOTHING;
        END LOOP;
        moment := clock_timestamp();
        debt := {schema}.rate_left(known.debt, known.at, moment);
        allowed := debt + _cost <= most;
        IF allowed THEN
            debt := debt + _cost;
        END IF;
        IF (allowed AND _cost > 0) OR known.at > moment THEN
            UPDATE {schema}.rate_limits r SET debt = spend_rate.debt, at = moment WHERE r.name = _name;
        END IF;
    END IF;
END
$$;

-- So many events in every interval: may there be one more now? It counts if so. `burst` is how many there may be at once,
-- else as many as in an interval; `cost` how many events this one counts for, 0 to only look. `remaining` is how many more
-- there might be now; `retry_after` when to ask again, 0 if it is allowed, null if it never will be.
CREATE OR REPLACE FUNCTION {schema}.check_rate(
    name text, max_events integer, per interval, burst integer DEFAULT NULL, cost integer DEFAULT 1,
    OUT allowed boolean, OUT remaining integer, OUT retry_after interval
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    most integer := coalesce(burst, max_events);
    seconds double precision := extract(epoch FROM per);
    each double precision;
    free double precision;
    balance record;
BEGIN
    IF (max_events > 0 AND seconds > 0 AND seconds < 'infinity' AND most > 0 AND cost >= 0) IS NOT TRUE THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('max_events, per and burst must be above 0 and cost not below, not %s, %s, %s and %s',
                coalesce(max_events::text, 'null'), coalesce(per::text, 'null'), coalesce(burst::text, 'null'),
                coalesce(cost::text, 'null')),
            HINT = 'ten in a minute are 10 and interval ''1 minute''';
    END IF;
    each := seconds / max_events;
    balance := {schema}.spend_rate(name, cost * each, most * each);
    free := most * each * (1 + 1e-9::double precision) - balance.debt;
    allowed := balance.allowed;
    remaining := greatest(floor(free / each), 0);
    retry_after := CASE
        WHEN allowed THEN interval '0'
        WHEN cost <= most THEN make_interval(secs => ceil((cost * each - free) * 1000000) / 1000000)
    END;
END
$$;

-- Remove rates whose debt has worn off, some at a time, as sweep_locks does with names. Waits for nobody.
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
        WHERE w.name > start AND w.name <= reached AND {schema}.rate_left(w.debt, w.at, moment) = 0
        FOR UPDATE SKIP LOCKED
    ) worn WHERE r.name = worn.name;
    UPDATE {schema}.lock_state SET rates_swept_to = CASE WHEN seen < _names THEN '' ELSE reached END;
END
$$;

UPDATE {schema}.lock_state SET version = 2 WHERE version < 2;
