-- The embedded store, version 1. Run again, it adds what the file of an earlier release lacks.
-- What an earlier release can ignore is added without a new version, with which that release would refuse the file.
-- Times are seconds on the machine's boot clock, and mean nothing after a restart, which changes `boot`.

CREATE TABLE IF NOT EXISTS state (
    machine  TEXT NOT NULL,
    boot     TEXT NOT NULL,
    ticket   INTEGER NOT NULL,  -- the last one drawn
    time     REAL NOT NULL,     -- of some operation within the last second of activity
    swept_to TEXT NOT NULL      -- the name up to which rows were searched for expired places
);

CREATE TABLE IF NOT EXISTS place (
    name        TEXT NOT NULL,
    ticket      INTEGER NOT NULL,
    owner       TEXT NOT NULL,
    capacity    INTEGER NOT NULL,
    weight      INTEGER NOT NULL,
    expires_at  REAL NOT NULL,
    acquired_at REAL,              -- NULL while it waits
    metadata    TEXT NOT NULL,
    address     TEXT NOT NULL,     -- the notify socket of its process, or empty
    PRIMARY KEY (name, ticket)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS place_draws_ticket AFTER INSERT ON place
    BEGIN UPDATE state SET ticket = NEW.ticket; END;

CREATE UNIQUE INDEX IF NOT EXISTS place_by_owner ON place (owner);

CREATE TABLE IF NOT EXISTS tombstone (
    owner TEXT PRIMARY KEY,
    until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS rate_limit (
    name  TEXT PRIMARY KEY,
    level REAL NOT NULL,  -- seconds, at the time in `at`
    at    REAL NOT NULL
) WITHOUT ROWID;
