-- What the store runs within its transactions. Each `?` is a parameter, in the order in which the comment names them.
-- The columns of a place are in the order of `_Row`'s fields.

-- name: places
-- The line of one name: name.
SELECT ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address
FROM place WHERE name = ? ORDER BY ticket;

-- name: find_place
-- The place of one owner: owner, name.
SELECT ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address
FROM place WHERE owner = ? AND name = ?;

-- name: addresses_ahead
-- The processes of the places just ahead of an owner's: name, owner, how many places.
SELECT DISTINCT address FROM (
    SELECT address FROM place WHERE name = ?1
        AND ticket < (SELECT ticket FROM place WHERE owner = ?2 AND name = ?1)
    ORDER BY ticket DESC LIMIT ?3
);

-- name: last_ticket
-- The last ticket drawn, and whether this owner has a tombstone: owner, now.
SELECT ticket, EXISTS (SELECT 1 FROM tombstone WHERE owner = ? AND until > ?) FROM state;

-- name: append_place
-- name, ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address. A trigger keeps the ticket in
-- state.
INSERT INTO place VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: join_empty_line
-- The same parameters; `ticket` is the floor, and acquired_at is now. Only if there is no other place under this name,
-- the last ticket is below the floor, and this owner has no tombstone. `core/rule.py` decides in all other cases.
INSERT INTO place SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM state
WHERE ticket >= 0 AND ticket < ?2 AND typeof(ticket) = 'integer'
    AND NOT EXISTS (SELECT 1 FROM place WHERE name = ?1)
    AND NOT EXISTS (SELECT 1 FROM tombstone WHERE owner = ?3 AND until > ?7);

-- name: leave_only_place
-- owner, name, now, the end of time. Only if the place is alive, and no other is under this name that could be woken.
DELETE FROM place WHERE owner = ?1 AND name = ?2 AND expires_at > ?3 AND expires_at < ?4
    AND NOT EXISTS (SELECT 1 FROM place AS other WHERE other.name = ?2 AND other.ticket <> place.ticket);

-- name: update_place
-- The new expires_at, acquired_at and metadata; name, ticket.
UPDATE place SET expires_at = ?, acquired_at = ?, metadata = ? WHERE name = ? AND ticket = ?;

-- name: rename_place
-- The new owner, name, ticket.
UPDATE place SET owner = ? WHERE name = ? AND ticket = ?;

-- name: remove_place
-- owner, name.
DELETE FROM place WHERE owner = ? AND name = ? RETURNING expires_at;

-- name: add_tombstone
-- owner, until.
INSERT OR REPLACE INTO tombstone VALUES (?, ?);

-- name: rate_limit
-- The level of a rate limit, and the time it was at: name.
SELECT level, at FROM rate_limit WHERE name = ?;

-- name: save_rate_limit
-- name, level, at.
INSERT OR REPLACE INTO rate_limit VALUES (?, ?, ?);

-- name: inspect_name
-- :prefix is the whole name.
SELECT name, ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address
FROM place WHERE name = :prefix ORDER BY name, ticket;

-- name: inspect_prefix
-- :prefix is what names begin with; 1114111 is the last code point of Unicode.
SELECT name, ticket, owner, capacity, weight, expires_at, acquired_at, metadata, address
FROM place WHERE name BETWEEN :prefix AND :prefix || char(1114111) ORDER BY name, ticket;

-- name: inspect_counter
SELECT ticket FROM state;

-- name: remove_line
-- A damaged line, as a whole: name.
DELETE FROM place WHERE name = ?;

-- name: repair_counter
-- Resets a counter that is no ticket: the largest ticket that another may follow.
UPDATE state SET ticket = 0 WHERE typeof(ticket) <> 'integer' OR ticket NOT BETWEEN 0 AND ?;

-- name: last_time
SELECT time FROM state;

-- name: save_time
-- now.
UPDATE state SET time = ?;

-- name: shift_places
-- The seconds by which the clock has stepped back.
UPDATE place SET expires_at = expires_at - ?;

-- name: shift_tombstones
-- The seconds by which the clock has stepped back.
UPDATE tombstone SET until = until - ?;

-- name: sweep_tombstones
-- now.
DELETE FROM tombstone WHERE until <= ?;

-- name: sweep_rate_limits
-- now.
DELETE FROM rate_limit WHERE at + level <= ?;

-- name: next_places_to_sweep
-- Names of the next rows, and whether each has expired: now, the number of rows.
SELECT name, expires_at <= ? AND typeof(expires_at) = 'real'
FROM place WHERE name > (SELECT swept_to FROM state) ORDER BY name LIMIT ?;

-- name: save_swept_to
-- The last name that was searched; empty to begin again.
UPDATE state SET swept_to = ?;

-- name: identify_file
-- Which program made the file, the version of its schema, and the number of objects in it.
SELECT
    (SELECT application_id FROM pragma_application_id),
    (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_master);

-- name: has_newest_table
-- Whether the file has the table that was added last.
SELECT 1 FROM sqlite_master WHERE name = 'rate_limit';

-- name: create_state
-- machine, boot.
INSERT INTO state VALUES (?, ?, 0, 0, '');

-- name: machine_and_boot
SELECT machine, boot FROM state;

-- name: remove_places
DELETE FROM place;

-- name: remove_tombstones
DELETE FROM tombstone;

-- name: remove_rate_limits
DELETE FROM rate_limit;

-- name: save_boot
-- boot.
UPDATE state SET boot = ?, time = 0;
