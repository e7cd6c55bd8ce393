-- Take a place in each of several lines, or in none; or refresh those their owners have.
--
-- KEYS  bucket
-- ARGV  for each line its name, and the packed argument of join.lua
-- Returns {server time, and for each line the standing (see line.lua)}, or a refusal: {server time, 0, holder, recheck
-- (-1: unknown), the line's capacity if it differs, the number of the line that refused}.

local CONSTANT = 27
local bucket = KEYS[1]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local bucket_record = redis.call('HGET', bucket, '\0')

--include bucket.lua
--include place.lua
--include line.lua
--include enter.lua

local lines, places = {}, {}
for i = 1, #ARGV / 2 do
  local name, packed = ARGV[2 * i - 1], ARGV[2 * i]
  local place = parse(struct.pack('<dddI4', 0, 0, 0, 0) .. string.sub(packed, CONSTANT))
  local owner = place.owner
  local state = redis.call('HMGET', bucket, name, '\0' .. owner, name .. '\0' .. owner)
  local line = open(name, state[1], owner, state[3])
  local reply = refusal(line, place, 0, state[2])
  if reply then
    reply[6] = i
    for _, joined in ipairs(lines) do
      if joined.own then
        remove(joined, joined.own)
        settle(joined)
      end
    end
    for _, joined in ipairs(lines) do
      save(joined, {})
    end
    save(line, stepped_back and {'\0', packed_bucket()} or {})
    return reply
  end
  lines[i], places[i] = line, place
end

local reply = {server_time}
for i, line in ipairs(lines) do
  local ttl, heartbeat, floor = struct.unpack('<ddd', ARGV[2 * i])
  reply[i + 1] = enter(line, places[i], ttl, heartbeat, floor)
end
redis.call('HDEL', bucket, ABSENT_FIELD)  -- a user that may not HDEL must be refused before any line is saved
for i, line in ipairs(lines) do
  save(line, i == 1 and {'\0', packed_bucket()} or {})
end
if ticket % 16 < #lines then
  --include sweep.lua
  pcall(sweep, 32)
end
return reply
