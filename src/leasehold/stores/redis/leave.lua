-- Give a place up, and wake who newly holds.
--
-- KEYS  bucket
-- ARGV  name, owner, and for how long to refuse this owner a place, if at all
-- Returns 1 if the place was there, else 0.

local bucket, name, owner = KEYS[1], ARGV[1], ARGV[2]
local state = redis.call('HMGET', bucket, name, name .. '\0' .. owner, '\0')
local record = state[1]
if not ARGV[3] then
  if not record then
    return 0
  elseif struct.unpack('<d', record) ~= 0 then  -- the only place of its line
    local _, _, _, _, holder = struct.unpack('<dddI4I2c0', record)
    if holder == owner then
      return redis.call('HDEL', bucket, name)
    end
    return 0
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if state[3] then
  local _, last, shift = struct.unpack('<ddd', state[3])
  now = math.max(now + shift, last)
end

--include line.lua

local line = open(name, record, owner, state[2])
local own = find(line, owner)
if own then
  remove(line, own)
else
  redis.call('HDEL', bucket, FREES)
end
settle(line)
save(line, not ARGV[3] and {} or {'\0' .. owner, struct.pack('<d', now + ARGV[3])})
return own and own.expires > now and 1 or 0
