-- Tell what a member of a quorum remembers, begin a membership where there is none, and admit one that waits.
--
-- KEYS  bucket
-- ARGV  the token of a membership begun now; or of the one to admit, then: ticket, longest life
-- Returns {token ('': there is no membership to admit), last ticket, longest life, time until it votes (-1: not admitted)}.

local bucket = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local state = redis.call('HGET', bucket, '\0')
local ticket, last, shift, longest, votes_at, token = 0, now, 0, 0, -now, #ARGV == 1 and ARGV[1] or ''
if state then
  ticket, last, shift, longest, votes_at, token = struct.unpack('<ddddd', state)
  token = string.sub(state, token)
  shift = math.max(shift, last - now)
  now = now + shift
end
local is_admitted = state and #ARGV > 1 and votes_at < 0 and token == ARGV[1]
if is_admitted then
  ticket = math.max(ticket, ARGV[2])
  longest = math.max(longest, ARGV[3])
  votes_at = -votes_at + longest
end
if is_admitted or not state and #ARGV == 1 then
  redis.call('HSET', bucket, '\0', struct.pack('<ddddd', ticket, now, shift, longest, votes_at) .. token)
end
return {token, ticket, longest, votes_at < 0 and -1 or math.max(votes_at - now, 0)}
