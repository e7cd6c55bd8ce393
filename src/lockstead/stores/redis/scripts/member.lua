-- Report a member of a quorum: begin a membership where there is none, and admit one that waits.
--
-- KEYS  bucket
-- ARGV  the token of a membership begun now; or of the one to admit, then: ticket, longest ttl
-- Returns {token ('': no membership to admit), last ticket, longest ttl, time until it votes (-1: not admitted)}.

local bucket = KEYS[1]
local time = redis.call('TIME')
local server_time = time[1] * 1000000 + time[2]
local bucket_record = redis.call('HGET', bucket, '\0')

--include bucket.lua

if not bucket_record then
  votes_at, token = -now, #ARGV == 1 and ARGV[1] or ''
end
local is_admitted = bucket_record and #ARGV > 1 and votes_at < 0 and token == ARGV[1]
if is_admitted then
  ticket = math.max(ticket, ARGV[2])
  longest = math.max(longest, ARGV[3])
  votes_at = -votes_at + longest
end
if is_admitted or not bucket_record and #ARGV == 1 then
  redis.call('HSET', bucket, '\0', packed_bucket())
end
return {token, ticket, longest, votes_at < 0 and -1 or math.max(votes_at - now, 0)}
