-- Add a request's cost to a rate limit (GCRA), if its level then is low enough.
--
-- KEYS  the state: the level, and when it was measured; expires when the level is 0
-- ARGV  packed: cost (0: only read the level), burst (the level up to which requests are allowed), max_wait (how long
--       the caller would wait for the level to fall to the burst)
-- Returns packed: allowed (1 or 0), the level.
--
-- All are microseconds, and may be fractions of one.

local ROUNDING = 1e-9
local cost, burst, max_wait = struct.unpack('<ddd', ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('GET', KEYS[1])
local level, at = 0, now
if record then
  if #record ~= 16 then
    error('DAMAGED(: it is not a rate limit)', 0)
  end
  level, at = struct.unpack('<dd', record)
  if not (level >= 0 and level < 2^53 and at >= 0 and at < 2^53) then
    error('DAMAGED(: it holds impossible values)', 0)
  end
end
level = math.max(level - math.max(now - at, 0), 0)
local allowed = level + cost <= burst * (1 + ROUNDING) + max_wait
if allowed then
  level = level + cost
end
if allowed and cost > 0 or now < at then
  redis.call('SET', KEYS[1], struct.pack('<dd', level, now), 'PXAT', math.ceil((now + level) / 1000))
end
return struct.pack('<Bd', allowed and 1 or 0, level)
