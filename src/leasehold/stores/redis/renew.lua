-- Let places live on. Never shortens, never resurrects.
--
-- KEYS  bucket
-- ARGV  member (1 or 0), then for each place its name, and packed: ttl, heartbeat, floor, claim (1 or 0), owner
-- Returns {server time, and for each place its standing (see line.lua), or 0 if it is gone}.

local bucket = KEYS[1]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local names = {'\0'}
for i = 2, #ARGV, 2 do
  names[#names + 1] = ARGV[i]
end
local records = redis.call('HMGET', bucket, unpack(names))
local reply = {server_time}
if not records[1] then
  for i = 2, #names do
    reply[i] = 0
  end
  return reply
end
local kept = records[1]

--include bucket.lua
--include line.lua

redis.call('HDEL', bucket, FREES)
local fields = {}
local at_stake = 0
for i = 2, #names do
  local record = records[i]
  local ttl, heartbeat, floor, claim, owner = struct.unpack('<dddBI2c0', ARGV[2 * i - 1])
  local expires, own_ticket, holder
  if record then
    expires = struct.unpack('<d', record)
    if expires ~= 0 then
      local _
      expires, own_ticket, _, _, holder = struct.unpack('<dddI4I2c0', record)
    end
  end
  local life = claim == 1 and ttl or heartbeat
  if expires and holder == owner and expires > now and floor == 0 then
    -- the only place of its line: no need to open it
    if now + life > expires then
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = struct.pack('<d', now + life) .. string.sub(record, 9)
    end
    reply[i] = own_ticket
  elseif not record then
    reply[i] = 0
  else
    if #fields > 0 then
      redis.call('HSET', bucket, unpack(fields))
      fields = {}
    end
    local line = open(names[i], redis.call('HGET', bucket, names[i]))
    settle(line)
    local own = find_living(line, owner)
    if own then
      refresh(line, own, own.acquired ~= 0 and life or heartbeat)
      if own.acquired ~= 0 and floor > own.ticket then
        own.ticket = floor
        ticket = math.max(ticket, floor)
        touch(line, own)
      end
      reply[i] = standing(line, own)
    else
      reply[i] = 0
    end
    save(line, {})
  end
  at_stake = math.max(at_stake, ttl)
end
if ARGV[1] == '1' then
  longest = math.max(longest, at_stake)
end
fields[#fields + 1] = '\0'
fields[#fields + 1] = packed_bucket()
redis.call('HSET', bucket, unpack(fields))
return reply
