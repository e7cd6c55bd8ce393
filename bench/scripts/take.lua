-- Acquire a minimal lock, roughly as redis-py and Redlock do.
--
-- KEYS  the lock
-- ARGV  token, ttl in milliseconds

return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
