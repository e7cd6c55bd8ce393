-- Add to a debt, which wears off by itself, if it then is not too deep.
--
-- KEYS  the debt: how much it was, and when; gone when it has worn off
-- ARGV  packed: cost (0: only look), the most debt there may be when its maker acts, how long its maker would wait for that
-- Returns packed: allowed (1 or 0), the debt.
--
-- All are microseconds, and need not be whole ones.

local ROUNDING = 1e-9
local cost, limit, patience = struct.unpack('<ddd', ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('GET', KEYS[1])
local debt, at = 0, now
if record then
  if #record ~= 16 then
    error('DAMAGED(: it is no debt)', 0)
  end
  debt, at = struct.unpack('<dd', record)
  if not (debt >= 0 and debt < 2^53 and at >= 0 and at < 2^53) then
    error('DAMAGED(: it holds impossible values)', 0)
  end
end
debt = math.max(debt - math.max(now - at, 0), 0)
local allowed = debt + cost <= limit * (1 + ROUNDING) + patience
if allowed then
  debt = debt + cost
end
if allowed and cost > 0 or now < at then
  redis.call('SET', KEYS[1], struct.pack('<dd', debt, now), 'PXAT', math.ceil((now + debt) / 1000))
end
return struct.pack('<Bd', allowed and 1 or 0, debt)
