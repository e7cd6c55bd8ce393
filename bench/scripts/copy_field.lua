-- Copy the record of one name of a bucket to numbered names.
--
-- KEYS  bucket
-- ARGV  name, the first number, the last

local record = redis.call('HGET', KEYS[1], ARGV[1])
for i = ARGV[2], ARGV[3] do redis.call('HSET', KEYS[1], ARGV[1] .. i, record) end
