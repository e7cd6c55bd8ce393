-- Release a minimal lock, roughly as redis-py and Redlock do.
--
-- KEYS  the lock
-- ARGV  token

if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
