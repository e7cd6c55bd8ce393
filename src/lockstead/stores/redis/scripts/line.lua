-- One name's line, stored in a bucket: a hash whose fields are
--
--   '\0'           the bucket's own record: last ticket, last time, how far its clock is ahead of the server's; of a
--                  member of a quorum also the longest ttl it granted, when it votes (negative: it is not admitted,
--                  and was first probed then), and its token
--   '\0' owner     a tombstone: until when this owner is refused a place
--   name           the only place of a line that no other owner has joined; or a header: 0, first and last owner
--   name '\0' owner   a place of any other line: expiry, ticket, held since (0: waits), the owners before and
--                  after it; then its constant part: owner, channel, secret, capacity, weight, metadata
--
-- The secret proves to its client that the place holds. It is published once, when the place begins to hold.
--
-- Times are microseconds on the bucket's clock, which follows the server's but never goes back.
-- A script that includes this file has included place.lua, and set `bucket` and `now`. It changes a line in memory,
-- then saves it. A server refuses only the first write of a script, so that a step is applied as a whole or not at all;
-- and when it is out of memory it does not refuse a write that removes something. A user may lack the right to one of
-- HSET and HDEL: where `save` needs both, it calls both before it changes anything.
--
-- An invalid record, or a link without its counterpart in the other direction, ends the script before its first write:
-- 'DAMAGED(field in hexadecimal: what is wrong)'. A walk that checks every link in both directions cannot enter a
-- cycle, so it ends.

-- Open a line by its name's record; `own`, if given, is the record of the owner's place, which is used in any case.
local function open(name, record, owner, own)
  local line = {name = name, first = '', last = '', linked = false, places = {}, dirty = {}, gone = {}, woken = {}}
  if not record then
    return line
  elseif #record < 8 then
    damaged(name, 'it is cut short')
  elseif struct.unpack('<d', record) == 0 then
    local is_whole, _, first, last = pcall(struct.unpack, '<dI2c0I2c0', record)
    if not is_whole or #record ~= 12 + #first + #last or first == '' or last == '' then
      damaged(name, 'it is not a header')
    end
    line.first, line.last = first, last
    line.linked = true
    if owner then
      line.places[owner] = own and parse_linked(line.name, owner, own)
    end
  else
    local place = parse(record, name)
    if place.before ~= '' or place.after ~= '' then
      damaged(name, 'it has neighbours, but no header')
    end
    line.places[place.owner] = place
    line.first, line.last = place.owner, place.owner
  end
  return line
end

local function find(line, owner)
  if line.places[owner] == nil and line.linked then
    local record = redis.call('HGET', bucket, line.name .. '\0' .. owner)
    line.places[owner] = record and parse_linked(line.name, owner, record)
  end
  return line.places[owner]
end

-- Find a place that another place or the header links to.
local function follow(line, owner)
  local place = find(line, owner)
  if not place then
    damaged(line.name .. '\0' .. owner, 'it is missing')
  end
  return place
end

local function unlinked(line)
  damaged(line.name, 'its places are not linked both ways')
end

-- Find the places before and after one, and check their links to it; at the ends, the header's.
local function neighbours(line, place)
  local before = place.before ~= '' and follow(line, place.before)
  local after = place.after ~= '' and follow(line, place.after)
  if (before and before.after or line.first) ~= place.owner
      or (after and after.before or line.last) ~= place.owner then
    unlinked(line)
  end
  return before, after
end

local function touch(line, place)
  line.dirty[place.owner] = place
end

local function append(line, place)
  place.before, place.after = line.last, ''
  if line.last ~= '' then
    local last = follow(line, line.last)
    if last.after ~= '' then
      unlinked(line)
    end
    last.after = place.owner
    touch(line, last)
    line.linked = true
  else
    line.first = place.owner
  end
  line.last = place.owner
  line.places[place.owner] = place
  touch(line, place)
end

local function remove(line, place)
  local before, after = neighbours(line, place)
  if before then
    before.after = place.after
    touch(line, before)
  else
    line.first = place.after
  end
  if after then
    after.before = place.before
    touch(line, after)
  else
    line.last = place.before
  end
  line.places[place.owner] = false
  line.dirty[place.owner] = nil
  line.gone[#line.gone + 1] = place.owner
end

-- Walk from the head until the capacity is spent or a live place does not fit; remove expired places on the way.
local function settle(line)
  line.holders, line.spent, line.recheck = {}, 0, math.huge
  local before, owner = '', line.first
  while owner ~= '' do
    local place = follow(line, owner)
    if place.before ~= before then
      unlinked(line)
    end
    local after = place.after
    if place.expires <= now then
      remove(line, place)
    elseif line.spent + place.weight > place.capacity then
      break
    else
      line.spent = line.spent + place.weight
      line.holders[#line.holders + 1] = place
      line.recheck = math.min(line.recheck, place.expires - now)
      place.holds, before = true, owner
      if place.acquired == 0 then
        place.acquired = now
        touch(line, place)
        line.woken[#line.woken + 1] = place
      end
      if line.spent == place.capacity then
        owner = after
        break
      end
    end
    owner = after
  end
  line.waiting = owner ~= ''
  if not line.waiting and line.last ~= before then
    unlinked(line)
  end
end

-- Return whether a place of a settled line holds.
local function is_held(line, place)
  if place.acquired ~= 0 and not place.holds then
    damaged(line.name .. '\0' .. place.owner, 'it is marked as held, behind places that wait')
  end
  return place.acquired ~= 0
end

-- Find an owner's live place in a settled line.
local function find_live(line, owner)
  local place = find(line, owner)
  if place and place.expires <= now then
    remove(line, place)
    return false
  end
  return place
end

-- Return whether only holders are before a place; remove expired places on the way.
local function is_first_waiting(line, place)
  while place.before ~= '' do
    local before = follow(line, place.before)
    if before.after ~= place.owner then
      unlinked(line)
    elseif before.acquired ~= 0 then
      return true
    elseif before.expires > now then
      return false
    end
    remove(line, before)
  end
  return true
end

-- Return a held place's ticket; for a waiting place {ticket, the first holder, when to recheck (-1: when woken)}.
local function standing(line, place)
  if is_held(line, place) then
    return place.ticket
  end
  return {place.ticket, line.holders[1].owner, is_first_waiting(line, place) and line.recheck or -1}
end

local function refresh(line, place, duration)
  if now + duration > place.expires then
    place.expires = now + duration
    touch(line, place)
  end
end

-- Write what changed, together with `fields` (names and values), and wake the places that newly hold.
local function save(line, fields)
  local name = line.name
  local gone = {}
  for _, owner in ipairs(line.gone) do
    if not line.dirty[owner] then  -- else it was added again
      gone[#gone + 1] = name .. '\0' .. owner
    end
  end
  if line.first == '' then
    if line.linked or #line.gone > 0 then
      gone[#gone + 1] = name
    end
  elseif line.linked then
    if next(line.dirty) or #line.gone > 0 then
      fields[#fields + 1] = name
      fields[#fields + 1] = struct.pack('<dI2c0I2c0', 0, #line.first, line.first, #line.last, line.last)
    end
    for owner, place in pairs(line.dirty) do
      fields[#fields + 1] = name .. '\0' .. owner
      fields[#fields + 1] = pack(place)
    end
  elseif line.dirty[line.first] then
    fields[#fields + 1] = name
    fields[#fields + 1] = pack(line.dirty[line.first])
  end
  if #gone > 0 and #fields > 0 then
    redis.call('HDEL', bucket, ABSENT_FIELD)
  end
  for i = 1, #fields, 4000 do  -- unpack returns some 8,000 values at most
    redis.call('HSET', bucket, unpack(fields, i, math.min(i + 3999, #fields)))
  end
  for i = 1, #gone, 4000 do
    redis.call('HDEL', bucket, unpack(gone, i, math.min(i + 3999, #gone)))
  end
  for _, place in ipairs(line.woken) do
    redis.pcall('PUBLISH', place.channel, place.secret)
  end
end
