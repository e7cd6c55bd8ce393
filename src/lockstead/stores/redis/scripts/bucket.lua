-- A bucket's own field (see line.lua), and with it the time.
--
-- A script that includes this file has set `server_time`, and `kept`, which is what the field holds, if anything.
-- One that holds no sane numbers is refused: a fence drawn from it might be smaller than one that is in use.

local ticket, last, shift, longest, votes_at, token = 0, 0, 0, 0, 0, ''
if kept then
  if #kept < 40 then
    error('DAMAGED(00: it is too short)', 0)
  end
  ticket, last, shift, longest, votes_at, token = struct.unpack('<ddddd', kept)
  token = string.sub(kept, token)
end
local now = server_time + shift
local stepped_back = now < last
if stepped_back then
  shift = shift + last - now
  now = last
end
-- Below 2^53 a microsecond still counts; 2^21 before it, so that no ticket drawn now gets there. NaN compares to nothing.
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
