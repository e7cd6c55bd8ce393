-- One name's line, kept in a bucket: a hash whose fields are
--
--   '\0'           the bucket itself: last ticket, last time, how far its clock is ahead of the server's,
--                  longest life, voting since; then a member's token
--   '\0' owner     an owner that is refused: until when
--   name           the only place of a line that nobody else has joined; or a header: 0, first and last owner
--   name '\0' owner   a place of any other line: expiry, ticket, held since (0: waits), the owners before and
--                  after it; then what never changes: owner, channel, secret, capacity, weight, metadata
--
-- The secret is what its client takes for the store's word that the place holds. It is published once, when it does.
--
-- Times are microseconds on the bucket's clock, which follows the server's but never goes back.
-- A script that includes this file has set `bucket` and `now`. It changes a line in memory, then saves it. A server
-- refuses only the first write of a script, so that a step is done as a whole or not at all; and for lack of memory it
-- does not refuse one that removes something. A user may lack the right to one of HSET and HDEL: `save` tries both before
-- it changes anything.
--
-- A record that makes no sense, or a link that is not answered by one back, ends the script before it has written
-- anything: 'DAMAGED(field in hexadecimal: what is wrong)'. A walk along links that lead back the way it came cannot be
-- a circle, so it ends.

-- A field that is never there, for a script that must not be refused and may have nothing else to remove.
local FREES = '\0\0'
local LINKS = '<dddI2c0I2c0'
local PLACE = '<dddI2c0I2c0I2c0I1c0I1c0I4I4'

local function damaged(field, what)
  local bytes = string.gsub(string.sub(field, 1, 600), '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end)
  error('DAMAGED(' .. bytes .. ': ' .. what .. ')', 0)
end

-- Read a place; one that comes from `field` must make sense.
local function parse(record, field)
  local is_whole, expires, ticket, acquired, before, after, owner, channel, secret, capacity, weight =
    pcall(struct.unpack, PLACE, record)
  if not is_whole then
    damaged(field, 'it is cut short')
  elseif field and not (expires > 0 and expires < 2^54 and ticket >= 1 and ticket < 2^53
      and acquired >= 0 and acquired < 2^54 and weight >= 1 and weight <= capacity and owner ~= '') then
    damaged(field, 'it holds impossible values')
  end
  return {
    expires = expires, ticket = ticket, acquired = acquired, before = before, after = after, owner = owner,
    channel = channel, secret = secret, capacity = capacity, weight = weight,
    constant = string.sub(record, 29 + #before + #after),
  }
end

local function pack(place)
  return struct.pack(LINKS, place.expires, place.ticket, place.acquired,
    #place.before, place.before, #place.after, place.after) .. place.constant
end

local function parse_linked(line, owner, record)
  local field = line.name .. '\0' .. owner
  local place = parse(record, field)
  if place.owner ~= owner then
    damaged(field, 'it is the place of another owner')
  end
  return place
end

-- Open a line by its name's record; `own`, if given, is the record of a place that is sure to be looked for.
local function open(name, record, owner, own)
  local line = {name = name, first = '', last = '', linked = false, places = {}, dirty = {}, gone = {}, woken = {}}
  if not record then
    return line
  elseif #record < 8 then
    damaged(name, 'it is cut short')
  elseif struct.unpack('<d', record) == 0 then
    local is_whole, _, first, last = pcall(struct.unpack, '<dI2c0I2c0', record)
    if not is_whole or #record ~= 12 + #first + #last or first == '' or last == '' then
      damaged(name, 'it is no header')
    end
    line.first, line.last = first, last
    line.linked = true
    if owner then
      line.places[owner] = own and parse_linked(line, owner, own)
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
    line.places[owner] = record and parse_linked(line, owner, record)
  end
  return line.places[owner]
end

-- Find a place that another, or the header, names.
local function follow(line, owner)
  local place = find(line, owner)
  if not place then
    damaged(line.name .. '\0' .. owner, 'it is not there')
  end
  return place
end

local function unlinked(line)
  damaged(line.name, 'its places are not linked both ways')
end

-- Find the places before and after one; the header stands for what is not there.
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

-- Walk from the head to where the capacity is spent or the first living place does not fit; drop the expired.
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

-- Tell whether a place of a settled line holds.
local function is_held(line, place)
  if place.acquired ~= 0 and not place.holds then
    damaged(line.name .. '\0' .. place.owner, 'it is marked as held, behind others that wait')
  end
  return place.acquired ~= 0
end

-- Look for an owner's living place in a settled line.
local function find_living(line, owner)
  local place = find(line, owner)
  if place and place.expires <= now then
    remove(line, place)
    return false
  end
  return place
end

-- Tell whether only holders stand before a place, dropping the dead on the way.
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

-- A held place's ticket; of a waiting one also who holds and when to look again (-1: when woken).
local function standing(line, place)
  if is_held(line, place) then
    return place.ticket
  end
  return {place.ticket, line.holders[1].owner, is_first_waiting(line, place) and line.recheck or -1}
end

local function refresh(line, place, life)
  if now + life > place.expires then
    place.expires = now + life
    touch(line, place)
  end
end

-- Write what changed, together with `fields` (names and values), and wake who newly holds.
local function save(line, fields)
  local name = line.name
  local gone = {}
  for _, owner in ipairs(line.gone) do
    if not line.dirty[owner] then  -- else it has come back since
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
    redis.call('HDEL', bucket, FREES)
  end
  for i = 1, #fields, 4000 do  -- Lua passes some 8,000 values at most
    redis.call('HSET', bucket, unpack(fields, i, math.min(i + 3999, #fields)))
  end
  for i = 1, #gone, 4000 do
    redis.call('HDEL', bucket, unpack(gone, i, math.min(i + 3999, #gone)))
  end
  for _, place in ipairs(line.woken) do
    redis.pcall('PUBLISH', place.channel, place.secret)
  end
end
