-- Remove a place, and wake the places that newly hold.
--
-- KEYS  bucket
-- ARGV  name, owner, and for how long a tombstone refuses this owner a place, if it needs one
-- Returns 1 if the place was there, else 0.

local bucket, name, owner = KEYS[1], ARGV[1], ARGV[2]
local state = redis.call('HMGET', bucket, name, name .. '\0' .. owner, '\0')
local record = state[1]
if not ARGV[3] then
  if not record then
    return 0
  elseif #record > 30 then
    local expires, _, _, links, size = struct.unpack('<dddI4I2', record)
    if expires ~= 0 and links == 0 and size == #owner and string.sub(record, 31, 30 + size) == owner then
      return redis.call('HDEL', bucket, name)  -- the only place of its line
    end
  end
end

local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local bucket_record = state[3]

--include bucket.lua
--include line.lua

local line = open(name, record, owner, state[2])
if not line.linked and not ARGV[3] then
  return 0
end
local own = find(line, owner)
if own then
  remove(line, own)
else
  redis.call('HDEL', bucket, ABSENT_FIELD)
end
settle(line)
save(line, not ARGV[3] and {} or {'\0' .. owner, struct.pack('<d', now + ARGV[3])})
if ARGV[3] then
  --include sweep.lua
  pcall(sweep, 8)
end
return own and own.expires > now and 1 or 0
