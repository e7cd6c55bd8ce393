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
--include place.lua

-- Hand over from the first place of a line to the next one, where that takes the whole capacity: what the rest of this
-- script does, without opening the line. Returns 1, or nothing if the line has to be opened.
local function hand_over()
  local is_header, zero, first, last = pcall(struct.unpack, '<dI2c0I2c0', record)
  if not is_header or zero ~= 0 or first ~= owner or last == '' or #record ~= 12 + #first + #last then
    return
  end
  local field = name .. '\0' .. owner
  local expires, _, _, before, after, own = unpack_place(state[2], field)
  local place = own == owner and before == '' and after ~= '' and expires > now
    and redis.call('HGET', bucket, name .. '\0' .. after)
  if not place then
    return
  end
  local field_after = name .. '\0' .. after
  local ends, ticket, acquired, before_it, after_it, its_owner, channel, secret, capacity, weight =
    unpack_place(place, field_after)
  if its_owner ~= after or before_it ~= owner or after_it == '' and last ~= after
      or ends <= now or acquired ~= 0 or weight ~= capacity then
    return
  end
  redis.call('HDEL', bucket, ABSENT_FIELD)
  redis.call('HSET', bucket, name, struct.pack('<dI2c0I2c0', 0, #after, after, #last, last),
    field_after, struct.pack('<dddI2', ends, ticket, now, 0) .. string.sub(place, 27 + #owner))
  redis.call('HDEL', bucket, field)
  redis.pcall('PUBLISH', channel, secret)
  return 1
end

if state[2] and not ARGV[3] then
  local handed_over = hand_over()
  if handed_over then
    return handed_over
  end
end

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
