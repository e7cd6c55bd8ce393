-- Creates the lease table, or brings it up to date. May be run again at any time.
-- It is one statement, so that any client applies it as a whole or not at all, and so that drivers which accept only
-- one statement at a time can run it. In braces: the schema, quoted as an identifier and as a text, the version, and
-- the files in migrations/.
DO $lockstead$
DECLARE
    present integer;
    foreign_object pg_catalog.text;
    path pg_catalog.text := pg_catalog.current_setting('search_path');
BEGIN
-- An object that another role created in a schema of the caller's search_path must not run as the caller, nor be used
-- by the tables.
PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
PERFORM pg_advisory_xact_lock(hashtextextended('lockstead migrate', 0));
IF EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_text} AND c.relname = 'lock_state'
) THEN
    SELECT version INTO present FROM {schema}.lock_state;
    IF present > {version} THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LS002',
            MESSAGE = format('the schema %I is at version %s, and this lockstead knows only up to {version}',
                {schema_text}, present),
            HINT = 'upgrade lockstead: this release cannot use the tables of a newer one';
    END IF;
END IF;
-- Defaults and checks keep the objects that they were resolved to when they were created, under any search_path.
SELECT format('%s uses %s', pg_describe_object(d.classid, d.objid, 0), pg_describe_object(d.refclassid, d.refobjid, 0))
INTO foreign_object
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
        ERRCODE = 'LS003',
        MESSAGE = format('%s, which is not the server''s own and would run as every role that locks: create it again '
            'with SET search_path = pg_catalog, then migrate again', foreign_object);
END IF;
-- IF NOT EXISTS would need the right to create schemas even where an administrator has created this one.
IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema_text}) THEN
    CREATE SCHEMA {schema};
END IF;

{migrations}
PERFORM set_config('search_path', path, true);
END
$lockstead$;
