-- Take a place in a line, or refresh the one its owner has.
--
-- KEYS  bucket
-- ARGV  name; then packed: ttl, heartbeat, floor, queue (1 or 0), member (1 or 0), and the place's constant part (see
--       line.lua)
-- Returns {server time, standing} (see line.lua), or a refusal: {server time, 0, holder, recheck (-1: unknown),
-- the line's capacity if it differs, 1 if this member of a quorum does not vote}.

local CONSTANT = 27
local bucket, name = KEYS[1], ARGV[1]
local ttl, heartbeat, floor, queue, member, owner = struct.unpack('<dddBBI2c0', ARGV[2])
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', bucket, '\0', name, '\0' .. owner, name .. '\0' .. owner)
local bucket_record = state[1]

--include bucket.lua

if member == 1 then
  if not bucket_record or votes_at < 0 or votes_at > now then
    return {server_time, 0, '', votes_at > now and votes_at - now or -1, 0, 1}
  end
  longest = math.max(longest, ttl)
end

local reply
if not state[2] and not state[3] then
  draw_ticket(floor)
  redis.call('HSET', bucket, '\0', packed_bucket(), name,
    struct.pack('<dddI4', now + ttl, ticket, now, 0) .. string.sub(ARGV[2], CONSTANT))
  reply = {server_time, ticket}
  if ticket % 16 ~= 0 then
    return reply
  end
end

--include place.lua
--include line.lua
--include enter.lua

if not reply then
  local line = open(name, state[2], owner, state[4])
  local place = parse(struct.pack('<dddI4', 0, 0, 0, 0) .. string.sub(ARGV[2], CONSTANT))
  reply = refusal(line, place, queue, state[3])
  if reply then
    save(line, stepped_back and {'\0', packed_bucket()} or {})
  else
    reply = {server_time, enter(line, place, ttl, heartbeat, floor)}
    save(line, {'\0', packed_bucket()})
  end
end

if ticket % 16 == 0 then
  --include sweep.lua
  pcall(sweep, 32)  -- the join is done: damage elsewhere in the bucket must not fail it
end
return reply
