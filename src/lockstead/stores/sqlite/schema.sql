-- lockstead's embedded store, version 1. Run again, it adds what a file of an earlier release lacks.
-- Whatever an earlier release can overlook is added without another version: that would refuse the file.
-- Times are seconds on the machine's boot clock and mean nothing after a restart, which `boot` tells.

CREATE TABLE IF NOT EXISTS state (
    machine  TEXT NOT NULL,
    boot     TEXT NOT NULL,
    ticket   INTEGER NOT NULL,  -- the last one drawn
    time     REAL NOT NULL,     -- of some operation within the last second of activity
    swept_to TEXT NOT NULL      -- the name up to which rows were looked through for leftovers
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
    address     TEXT NOT NULL,     -- the socket of the process to wake, or empty
    PRIMARY KEY (name, ticket)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS place_draws_ticket AFTER INSERT ON place
    BEGIN UPDATE state SET ticket = NEW.ticket; END;

CREATE UNIQUE INDEX IF NOT EXISTS place_by_owner ON place (owner);

CREATE TABLE IF NOT EXISTS refused (
    owner TEXT PRIMARY KEY,
    until REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS debt (
    name   TEXT PRIMARY KEY,
    amount REAL NOT NULL,  -- seconds, at that time
    at     REAL NOT NULL
) WITHOUT ROWID;
