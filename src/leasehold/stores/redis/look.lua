-- Read lines as they are, changing nothing.
--
-- KEYS  bucket
-- ARGV  names
-- Returns {the bucket's time, and for each name the records of its places in order (see line.lua)}.

local bucket = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HGET', bucket, '\0')
if state then
  local _, last, shift = struct.unpack('<ddd', state)
  now = math.max(now + shift, last)
end
local reply = {now}
for i, name in ipairs(ARGV) do
  local record = redis.call('HGET', bucket, name)
  local places = {}
  if record and struct.unpack('<d', record) ~= 0 then
    places[1] = record
  elseif record then
    local _, owner = struct.unpack('<dI2c0', record)
    while owner ~= '' do
      record = redis.call('HGET', bucket, name .. '\0' .. owner)
      places[#places + 1] = record
      _, _, _, _, owner = struct.unpack('<dddI2c0I2c0', record)
    end
  end
  reply[i + 1] = places
end
return reply
