-- Give a place up; but if it holds, let it stand for a while under another name.
--
-- KEYS  bucket
-- ARGV  name, owner, the owner's name from now on, for how long, for how long to refuse this owner a place (0: not at
--       all), and the metadata from now on, if it is another
-- Returns 1 if the place was there and held, else 0.

local bucket, name, owner, heir = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', bucket, '\0', name, name .. '\0' .. owner)
local kept = state[1]

--include bucket.lua
--include line.lua

-- Let a place stand where it stands under another owner's name.
local function rename(line, place, metadata)
  local constant = place.constant
  local before, after = neighbours(line, place)
  if before then
    before.after = heir
    touch(line, before)
  else
    line.first = heir
  end
  if after then
    after.before = heir
    touch(line, after)
  else
    line.last = heir
  end
  line.places[owner], line.places[heir] = false, place
  line.dirty[owner] = nil
  line.gone[#line.gone + 1] = owner
  local numbers = 3 + #owner
  local shown = numbers + 10 + #place.channel + #place.secret
  place.owner = heir
  place.constant = struct.pack('<I2c0', #heir, heir) .. string.sub(constant, numbers, shown - 1)
    .. (metadata or string.sub(constant, shown))
  touch(line, place)
end

local line = open(name, state[2], owner, state[3])
settle(line)
local own = find(line, owner)
local stays = own and is_held(line, own) and not find(line, heir)
local fields = {}
if stays then
  rename(line, own, ARGV[6])
  own.expires = now + ARGV[4]
  fields = {'\0', packed_bucket()}
elseif own then
  remove(line, own)
  settle(line)
else
  redis.call('HDEL', bucket, FREES)
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
return stays and 1 or 0
