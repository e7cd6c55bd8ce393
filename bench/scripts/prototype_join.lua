-- Acquire the lock of the BLPOP prototype, or join its queue.
--
-- KEYS  the lock, its queue
-- ARGV  owner, ttl in milliseconds
-- Returns 1 if it was free, else 0.

if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0
