-- Renew places. Never shortens, never resurrects.
--
-- KEYS  bucket
-- ARGV  member (1 or 0), then for each place its name, and packed: ttl, heartbeat, floor, claim (1 or 0), owner
-- Returns {server time, and for each place its standing (see line.lua), 0 if it is gone, or what is damaged}.

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
local bucket_record = records[1]

--include bucket.lua
--include place.lua
--include line.lua

-- Renew a place of a line that has to be opened.
local function renew_in_line(name, owner, duration, heartbeat, floor)
  local line = open(name, redis.call('HGET', bucket, name))
  settle(line)
  local own = find_live(line, owner)
  local answer = 0
  if own then
    refresh(line, own, is_held(line, own) and duration or heartbeat)
    if own.acquired ~= 0 and floor > own.ticket then
      own.ticket = floor
      ticket = math.max(ticket, floor)
      touch(line, own)
    end
    answer = standing(line, own)
  end
  save(line, {})
  return answer
end

redis.call('HDEL', bucket, ABSENT_FIELD)
local fields = {}
local longest_ttl = 0
for i = 2, #names do
  local record, packed = records[i], ARGV[2 * i - 1]
  local ttl, heartbeat, floor, claim = struct.unpack('<dddB', packed)
  local duration = claim == 1 and ttl or heartbeat
  local expires, own_ticket = 0, 0
  if record and floor == 0 and string.sub(record, 25, 3 + #packed) == '\0\0\0\0' .. string.sub(packed, 26) then
    expires, own_ticket = struct.unpack('<dd', record)
  end
  if expires > now and expires < 2^54 and own_ticket >= 1 and own_ticket < 2^53 then
    -- the only place of its line: no need to open it
    if now + duration > expires then
      fields[#fields + 1] = names[i]
      fields[#fields + 1] = struct.pack('<d', now + duration) .. string.sub(record, 9)
    end
    reply[i] = own_ticket
  elseif not record then
    reply[i] = 0
  else
    if #fields > 0 then
      redis.call('HSET', bucket, unpack(fields))
      fields = {}
    end
    local is_done, answer = pcall(renew_in_line, names[i], string.sub(packed, 28), duration, heartbeat, floor)
    if not is_done and not string.find(tostring(answer), 'DAMAGED(', 1, true) then
      error(answer, 0)
    end
    reply[i] = answer
  end
  longest_ttl = math.max(longest_ttl, ttl)
end
if ARGV[1] == '1' then
  longest = math.max(longest, longest_ttl)
end
fields[#fields + 1] = '\0'
fields[#fields + 1] = packed_bucket()
redis.call('HSET', bucket, unpack(fields))
return reply
