-- Makes the lease table, or brings it up to date. May be run again at any time.
-- One statement, so that it is carried out as a whole or not at all, whoever runs it, and by drivers too that take only
-- one at a time. In braces: the schema to put it in, the same as a text, the version, and the files in migrations/.
DO $leasehold$
DECLARE
    present integer;
BEGIN
PERFORM pg_advisory_xact_lock(hashtextextended('leasehold migrate', 0));
IF EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_text} AND c.relname = 'lock_state'
) THEN
    SELECT version INTO present FROM {schema}.lock_state;
    IF present > {version} THEN
        RAISE EXCEPTION USING
            ERRCODE = 'LH002',
            MESSAGE = format('the schema %I is at version %s, and this leasehold knows only up to {version}',
                {schema_text}, present),
            HINT = 'upgrade leasehold: the tables of a newer one are not for this';
    END IF;
END IF;
-- IF NOT EXISTS would want the right to create schemas even where an administrator has made it already.
IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema_text}) THEN
    CREATE SCHEMA {schema};
END IF;

{migrations}
END
$leasehold$;
