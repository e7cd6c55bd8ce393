-- Release a place; if it holds, replace it by a reservation: the same place, for a while, under another owner.
--
-- KEYS  bucket
-- ARGV  name, owner, the reservation's owner, for how long, for how long a tombstone refuses this owner a place
--       (0: none), and the reservation's metadata, if it differs
-- Returns 1 if the place was there and held, else 0.

local bucket, name, owner, reserved_owner = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', bucket, '\0', name, name .. '\0' .. owner)
local bucket_record = state[1]

--include bucket.lua
--include place.lua
--include line.lua

-- Give a place to the reservation's owner, without moving it in the line.
local function rename(line, place, metadata)
  local constant = place.constant
  local before, after = neighbours(line, place)
  if before then
    before.after = reserved_owner
    touch(line, before)
  else
    line.first = reserved_owner
  end
  if after then
    after.before = reserved_owner
    touch(line, after)
  else
    line.last = reserved_owner
  end
  line.places[owner], line.places[reserved_owner] = false, place
  line.dirty[owner] = nil
  line.gone[#line.gone + 1] = owner
  local channel_at = 3 + #owner
  local metadata_at = channel_at + 10 + #place.channel + #place.secret
  place.owner = reserved_owner
  place.constant = struct.pack('<I2c0', #reserved_owner, reserved_owner)
    .. string.sub(constant, channel_at, metadata_at - 1) .. (metadata or string.sub(constant, metadata_at))
  touch(line, place)
end

local line = open(name, state[2], owner, state[3])
settle(line)
local own = find(line, owner)
local is_reserved = own and is_held(line, own) and not find(line, reserved_owner)
local fields = {}
if is_reserved then
  rename(line, own, ARGV[6])
  own.expires = now + ARGV[4]
  fields = {'\0', packed_bucket()}
elseif own then
  remove(line, own)
  settle(line)
else
  redis.call('HDEL', bucket, ABSENT_FIELD)
end
if ARGV[5] ~= '0' then
  fields[#fields + 1] = '\0' .. owner
  fields[#fields + 1] = struct.pack('<d', now + ARGV[5])
end
save(line, fields)
if ARGV[5] ~= '0' then
  --include sweep.lua
  pcall(sweep, 8)
end
return is_reserved and 1 or 0
