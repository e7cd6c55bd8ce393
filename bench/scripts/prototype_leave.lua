-- Release the lock of the BLPOP prototype, and push to the list on which its next owner blocks.
--
-- KEYS  the lock, its queue
-- ARGV  owner, ttl in milliseconds

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
  redis.call('RPUSH', next, 1)
else
  redis.call('DEL', KEYS[1])
end
return 1
