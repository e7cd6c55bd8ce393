-- Parse a bucket's own record (see line.lua), and compute the bucket's time from it.
--
-- A script that includes this file has set `server_time`, and `bucket_record`: the record, if there is one.
-- A record with impossible numbers is refused: a fence drawn from it might be lower than one already in use.

local ticket, last, shift, longest, votes_at, token = 0, 0, 0, 0, 0, ''
if bucket_record then
  if #bucket_record < 40 then
    error('DAMAGED(00: it is too short)', 0)
  end
  ticket, last, shift, longest, votes_at, token = struct.unpack('<ddddd', bucket_record)
  token = string.sub(bucket_record, token)
end
local now = server_time + shift
local stepped_back = now < last
if stepped_back then
  shift = shift + last - now
  now = last
end
-- A double counts single microseconds below 2^53. The limit is 2^21 lower, so that no ticket drawn now reaches 2^53.
-- Every comparison with NaN is false.
if not (now < 9007199252643840 and ticket >= 0 and ticket < 9007199252643840 and last >= 0 and shift >= 0)
    or token ~= '' and not (longest >= 0 and longest < 9007199254740992 and votes_at > -9007199254740992
      and votes_at < 9007199254740992 and not string.find(token, '[^%w%p]')) then
  error('DAMAGED(00: it holds impossible values)', 0)
end
local function packed_bucket()
  return struct.pack('<ddddd', ticket, now, shift, longest, votes_at) .. token
end
local function draw_ticket(floor)
  ticket = math.max(ticket + 1, now)
  if floor > ticket and floor < now + 1000000 then
    ticket = floor
  end
end
