-- Copy the key of one lock of redis-py to numbered keys.
--
-- KEYS  the lock
-- ARGV  the first number, the last

local token = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
for i = ARGV[1], ARGV[2] do redis.call('SET', KEYS[1] .. i, token, 'PX', left) end
