-- Read lines without changing them.
--
-- KEYS  bucket
-- ARGV  whether to ignore the bucket's own record, because it is damaged (1 or 0), then names
-- Returns {the bucket's time, and for each name the records of its places in order (see line.lua), or what is damaged}.

local bucket = KEYS[1]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local bucket_record = ARGV[1] == '0' and redis.call('HGET', bucket, '\0')

--include bucket.lua
--include place.lua
--include line.lua
--include walk.lua

local reply = {now}
for i = 2, #ARGV do
  local is_sound, found = pcall(walk, ARGV[i])
  if not is_sound then
    reply[i] = tostring(found)
  else
    for number, place in ipairs(found) do
      found[number] = pack(place)
    end
    reply[i] = found
  end
end
return reply
