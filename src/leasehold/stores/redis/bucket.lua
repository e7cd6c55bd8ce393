-- A bucket's own field (see line.lua), and with it the time.
--
-- A script that includes this file has set `server_time`, and `kept`, which is what the field holds, if anything.

local ticket, last, shift, longest, votes_at, token = 0, 0, 0, 0, 0, ''
if kept then
  ticket, last, shift, longest, votes_at, token = struct.unpack('<ddddd', kept)
  token = string.sub(kept, token)
end
local now = server_time + shift
local stepped_back = now < last
if stepped_back then
  shift = shift + last - now
  now = last
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
