-- How what has expired is found where no client asks for it. A script that includes this file has included line.lua before.

-- Tell whether a field is dead by itself, or (second) the name of a line in which something may be.
local function judge(field, record)
  local zero = string.find(field, '\0', 1, true)
  local expires = #record >= 8 and struct.unpack('<d', record) or -1
  if zero == 1 then  -- a tombstone, or the bucket itself
    return #field > 1 and (#record ~= 8 or not (expires > now and expires < 2^54))
  elseif expires == 0 or zero and expires > 0 and expires <= now then
    return false, zero and string.sub(field, 1, zero - 1) or field
  end
  return not zero and expires > 0 and expires <= now
end

local function sweep_line(name, field)
  local record = redis.call('HGET', bucket, name)
  if not record or #record >= 8 and struct.unpack('<d', record) ~= 0 then
    return true  -- no line leads to this place
  end
  local line = open(name, record)
  settle(line)
  save(line, {})
end

-- Look at so many fields, chosen by chance. While a quarter of them was dead, look at more: so what is dead is never much
-- more than what lives, however much of it came at once. What is damaged is left alone, and keeps nothing else from
-- being swept.
local function sweep(count)
  for _ = 1, 16 do
    local fields = redis.call('HRANDFIELD', bucket, count)
    local records = redis.call('HMGET', bucket, unpack(fields))
    local dead, swept = {}, {}
    for i, field in ipairs(fields) do
      local is_dead, name = judge(field, records[i])
      if name and not swept[name] then
        swept[name] = true
        local is_sound, is_stray = pcall(sweep_line, name, field)
        is_dead = is_sound and is_stray
      end
      if is_dead then
        dead[#dead + 1] = field
      end
    end
    if #dead > 0 then
      redis.call('HDEL', bucket, unpack(dead))
    end
    if #dead * 4 < #fields or #dead == 0 then
      return
    end
    count = 128
  end
end
