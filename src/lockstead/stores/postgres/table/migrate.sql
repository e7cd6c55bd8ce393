-- Makes the lease table, or brings it up to date. May be run again at any time.
-- One statement, so that it is carried out as a whole or not at all, whoever runs it, and by drivers too that take only
-- one at a time. In braces: the schema to put it in, the same as a text, the version, and the files in migrations/.
DO $lockstead$
DECLARE
    present integer;
    planted pg_catalog.text;
    path pg_catalog.text := pg_catalog.current_setting('search_path');
BEGIN
-- What is planted in the schemas of the caller's search_path must not run as the caller, nor get into the tables.
PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
PERFORM pg_advisory_xact_lock(hashtextextended('lockstead migrate', 0));
IF EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_text} AND c.relname = 'lock_state'
) THEN
    SELECT version INTO present FROM {schema}.lock_state;
    IF present > {version} THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LH002',
            MESSAGE = format('the schema %I is at version %s, and this lockstead knows only up to {version}',
                {schema_text}, present),
            HINT = 'upgrade lockstead: the tables of a newer one are not for this';
    END IF;
END IF;
-- Defaults and checks keep what they were resolved to when they were made, under whatever search_path that was.
SELECT format('%s uses %s', pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0))
INTO planted
FROM pg_depend d
LEFT JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
JOIN pg_class c ON c.oid = coalesce(a.adrelid, k.conrelid)
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_proc f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
WHERE n.nspname = {schema_text} AND coalesce(f.pronamespace, o.oprnamespace) <> 'pg_catalog'::regnamespace
LIMIT 1;
IF FOUND THEN
    RAISE EXCEPTION USING
        ERRCODE = 'LH003',
        MESSAGE = format('%s, which is not the server''s own and would run as every role that locks: make it anew with '
            'SET search_path = pg_catalog, then migrate again', planted);
END IF;
-- IF NOT EXISTS would want the right to create schemas even where an administrator has made it already.
IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema_text}) THEN
    CREATE SCHEMA {schema};
END IF;

{migrations}
PERFORM set_config('search_path', path, true);
END
$lockstead$;
