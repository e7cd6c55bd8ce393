-- Read a whole line. A script that includes this file has included line.lua before.

-- Return all places in order, having checked every link.
local function walk(name)
  local line = open(name, redis.call('HGET', bucket, name))
  local places, before, owner = {}, '', line.first
  while owner ~= '' do
    local place = follow(line, owner)
    if place.before ~= before then
      unlinked(line)
    end
    places[#places + 1] = place
    before, owner = owner, place.after
  end
  if line.last ~= before then
    unlinked(line)
  end
  return places
end
