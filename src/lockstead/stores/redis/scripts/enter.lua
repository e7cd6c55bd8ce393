-- Add a place to a line. A script that includes this file has included bucket.lua and line.lua before.

-- Settle a line, and return the refusal of a place that cannot be added to it: {server time, 0, holder, recheck
-- (-1: unknown), the line's capacity if it differs}. `tombstone` is the owner's tombstone, if there is one.
local function refusal(line, place, queue, tombstone)
  settle(line)
  line.own = find_live(line, place.owner)
  if line.own then
    return nil
  end
  local holder = line.holders[1]
  if holder and holder.capacity ~= place.capacity then
    return {server_time, 0, holder.owner, line.recheck, holder.capacity}
  end
  line.fits = not line.waiting and line.spent + place.weight <= place.capacity
  if not line.fits and queue == 0 then
    return {server_time, 0, holder.owner, line.recheck, 0}
  elseif tombstone and (#tombstone ~= 8 or not (struct.unpack('<d', tombstone) <= now)) then  -- an unreadable one, too
    return {server_time, 0, '', -1, 0}
  end
end

-- Append a place that was not refused, or refresh the one its owner has, and return its standing.
local function enter(line, place, ttl, heartbeat, floor)
  local own = line.own
  if own then
    refresh(line, own, own.acquired ~= 0 and ttl or heartbeat)
    return standing(line, own)
  end
  draw_ticket(floor)
  place.ticket = ticket
  place.expires = now + (line.fits and ttl or heartbeat)
  place.acquired = line.fits and now or 0
  place.holds = line.fits
  append(line, place)
  return standing(line, place)
end
