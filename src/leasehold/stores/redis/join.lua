-- Take a place in a line, or refresh the one there is.
--
-- KEYS  bucket
-- ARGV  name; then packed: ttl, heartbeat, floor, queue (1 or 0), member (1 or 0), and what never changes of the
--       place (see line.lua)
-- Returns {server time, standing} (see line.lua), or a refusal: {server time, 0, holder, recheck (-1: unknown),
-- the line's capacity if it is another, 1 if this member of a quorum does not vote}.

local CONSTANT = 27
local bucket, name = KEYS[1], ARGV[1]
local ttl, heartbeat, floor, queue, member, owner = struct.unpack('<dddBBI2c0', ARGV[2])
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', bucket, '\0', name, '\0' .. owner, name .. '\0' .. owner)
local ticket, last, shift, longest, votes_at, token = 0, 0, 0, 0, 0, ''
if state[1] then
  ticket, last, shift, longest, votes_at, token = struct.unpack('<ddddd', state[1])
  token = string.sub(state[1], token)
end
local now = server_time + shift
local stepped_back = now < last
if stepped_back then
  shift = shift + last - now
  now = last
end
if member == 1 then
  if not state[1] or votes_at < 0 or votes_at > now then
    return {server_time, 0, '', votes_at > now and votes_at - now or -1, 0, 1}
  end
  longest = math.max(longest, ttl)
end
local function packed_bucket()
  return struct.pack('<ddddd', ticket, now, shift, longest, votes_at) .. token
end
local function draw_ticket()
  ticket = math.max(ticket + 1, now)
  if floor > ticket and floor < now + 1000000 then
    ticket = floor
  end
end

local reply
if not state[2] and not state[3] then
  draw_ticket()
  redis.call('HSET', bucket, '\0', packed_bucket(), name,
    struct.pack('<dddI4', now + ttl, ticket, now, 0) .. string.sub(ARGV[2], CONSTANT))
  reply = {server_time, ticket}
  if ticket % 16 ~= 0 then
    return reply
  end
end

--include line.lua

if not reply then
  local line = open(name, state[2], owner, state[4])
  settle(line)
  local own = find_living(line, owner)
  local place = own or parse(struct.pack('<dddI4', 0, 0, 0, 0) .. string.sub(ARGV[2], CONSTANT))
  local holder = line.holders[1]
  local fields = stepped_back and {'\0', packed_bucket()} or {}
  if own then
    refresh(line, own, own.acquired ~= 0 and ttl or heartbeat)
    fields = {'\0', packed_bucket()}
    reply = {server_time, standing(line, own)}
  elseif holder and holder.capacity ~= place.capacity then
    reply = {server_time, 0, holder.owner, line.recheck, holder.capacity}
  else
    local fits = not line.waiting and line.spent + place.weight <= place.capacity
    if not fits and queue == 0 then
      reply = {server_time, 0, holder.owner, line.recheck, 0}
    elseif state[3] and struct.unpack('<d', state[3]) > now then
      reply = {server_time, 0, '', -1, 0}
    else
      draw_ticket()
      place.ticket = ticket
      place.expires = now + (fits and ttl or heartbeat)
      place.acquired = fits and now or 0
      append(line, place)
      fields = {'\0', packed_bucket()}
      reply = {server_time, standing(line, place)}
    end
  end
  save(line, fields)
end

-- Now and then look at some fields, more than were added since, for what has expired. Whatever may be wrong there is
-- no fault of this join, which is done.
local function sweep()
  local fields = redis.call('HRANDFIELD', bucket, 32)
  local records = redis.call('HMGET', bucket, unpack(fields))
  local dead, settled = {}, {}
  for i, field in ipairs(fields) do
    local zero = string.find(field, '\0', 1, true)
    local expires = struct.unpack('<d', records[i])
    if expires > now or #field == 1 and zero then
      -- it lives, or is the bucket itself
    elseif zero == 1 or not zero and expires ~= 0 then
      dead[#dead + 1] = field
    else
      local found = zero and string.sub(field, 1, zero - 1) or field
      if not settled[found] then
        settled[found] = true
        local line = open(found, redis.call('HGET', bucket, found))
        settle(line)
        save(line, {})
      end
    end
  end
  if #dead > 0 then
    redis.call('HDEL', bucket, unpack(dead))
  end
end

if ticket % 16 == 0 then
  pcall(sweep)
end
return reply
