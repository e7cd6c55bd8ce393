-- How a place is taken. A script that includes this file has included bucket.lua and line.lua before.

-- Settle a line, and tell why a place is not to be had in it: {server time, 0, holder, recheck (-1: unknown), the line's
-- capacity if it is another}. `refused` is the record that refuses its owner, if there is one.
local function refusal(line, place, queue, refused)
  settle(line)
  line.own = find_living(line, place.owner)
  if line.own then
    return nil
  end
  local holder = line.holders[1]
  if holder and holder.capacity ~= place.capacity then
    return {server_time, 0, holder.owner, line.recheck, holder.capacity}
  end
  line.fits = not line.waiting and line.spent + place.weight <= place.capacity
  if not line.fits and queue == 0 then
    return {server_time, 0, holder.owner, line.recheck, 0}
  elseif refused and struct.unpack('<d', refused) > now then
    return {server_time, 0, '', -1, 0}
  end
end

-- Take a place that was not refused, or refresh the one its owner has, and tell its standing.
local function enter(line, place, ttl, heartbeat, floor)
  local own = line.own
  if own then
    refresh(line, own, own.acquired ~= 0 and ttl or heartbeat)
    return standing(line, own)
  end
  draw_ticket(floor)
  place.ticket = ticket
  place.expires = now + (line.fits and ttl or heartbeat)
  place.acquired = line.fits and now or 0
  append(line, place)
  return standing(line, place)
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
