-- Remove damaged records, and nothing else.
--
-- KEYS  bucket
-- ARGV  member (1 or 0), whether the line is known to be damaged (1 or 0), its name, and the fields to remove if it is
-- Returns 1 if anything was damaged, else 0.

local bucket, name = KEYS[1], ARGV[3]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local bucket_record = redis.call('HGET', bucket, '\0')

local function read_clock()
  --include bucket.lua
  return now
end

local is_sound, now = pcall(read_clock)
local is_repaired = 0
if not is_sound then
  now = server_time
  is_repaired = 1
  redis.call('HDEL', bucket, ARGV[1] == '0' and '\0\0' or '\0')  -- first: a HDEL is not refused for lack of memory
  if ARGV[1] == '0' then  -- a member stays empty: its votes are lost, so it must not vote
    redis.call('HSET', bucket, '\0', struct.pack('<ddddd', 0, now, 0, 0, 0))
  end
end

--include place.lua
--include line.lua
--include walk.lua

local is_whole, problem = pcall(walk, name)
if not is_whole and not string.find(tostring(problem), 'DAMAGED(', 1, true) then
  return problem
end
if ARGV[2] == '1' or not is_whole then
  is_repaired = 1
  for i = 4, #ARGV, 4000 do
    redis.call('HDEL', bucket, unpack(ARGV, i, math.min(i + 3999, #ARGV)))
  end
end
return is_repaired
