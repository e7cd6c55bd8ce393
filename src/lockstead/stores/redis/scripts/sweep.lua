-- Remove expired records that no client asks for. A script that includes this file has included line.lua before.

-- Return whether a field has expired by itself, or (second) the name of a line in which places may have.
local function classify(field, record)
  local zero = string.find(field, '\0', 1, true)
  local expires = #record >= 8 and struct.unpack('<d', record) or -1
  if zero == 1 then  -- a tombstone, or the bucket's own record
    return #field > 1 and (#record ~= 8 or not (expires > now and expires < 2^54))
  elseif expires == 0 or zero and expires > 0 and expires <= now then
    return false, zero and string.sub(field, 1, zero - 1) or field
  end
  return not zero and expires > 0 and expires <= now
end

local function sweep_line(name, field)
  local record = redis.call('HGET', bucket, name)
  if not record or #record >= 8 and struct.unpack('<d', record) ~= 0 then
    return true  -- no line links to this place
  end
  local line = open(name, record)
  settle(line)
  save(line, {})
end

-- Check `count` random fields. While a quarter of them had expired, check more: so there are never many more expired
-- records than live ones, however many expire at once. Damaged records are kept, and do not stop the sweep.
local function sweep(count)
  for _ = 1, 16 do
    local fields = redis.call('HRANDFIELD', bucket, count)
    local records = redis.call('HMGET', bucket, unpack(fields))
    local expired, swept = {}, {}
    for i, field in ipairs(fields) do
      local is_expired, name = classify(field, records[i])
      if name and not swept[name] then
        swept[name] = true
        local is_sound, is_stray = pcall(sweep_line, name, field)
        is_expired = is_sound and is_stray
      end
      if is_expired then
        expired[#expired + 1] = field
      end
    end
    if #expired > 0 then
      redis.call('HDEL', bucket, unpack(expired))
    end
    if #expired * 4 < #fields or #expired == 0 then
      return
    end
    count = 128
  end
end
