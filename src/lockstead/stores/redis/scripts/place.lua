-- Parse and pack places: line.lua describes their records. A script that includes line.lua has included this before.

-- Never exists. A script deletes it where its first write has to be a HDEL, and there may be no other field to delete.
local ABSENT_FIELD = '\0\0'
local LINKS = '<dddI2c0I2c0'
local PLACE = '<dddI2c0I2c0I2c0I1c0I1c0I4I4'

local function damaged(field, what)
  local bytes = string.gsub(string.sub(field, 1, 600), '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end)
  error('DAMAGED(' .. bytes .. ': ' .. what .. ')', 0)
end

-- Unpack a place; one that is stored in `field` must hold possible values.
local function unpack_place(record, field)
  local is_whole, expires, ticket, acquired, before, after, owner, channel, secret, capacity, weight =
    pcall(struct.unpack, PLACE, record)
  if not is_whole then
    damaged(field, 'it is cut short')
  elseif field and not (expires > 0 and expires < 2^54 and ticket >= 1 and ticket < 2^53
      and acquired >= 0 and acquired < 2^54 and weight >= 1 and weight <= capacity and owner ~= '') then
    damaged(field, 'it holds impossible values')
  end
  return expires, ticket, acquired, before, after, owner, channel, secret, capacity, weight
end

local function parse(record, field)
  local expires, ticket, acquired, before, after, owner, channel, secret, capacity, weight =
    unpack_place(record, field)
  return {
    expires = expires, ticket = ticket, acquired = acquired, before = before, after = after, owner = owner,
    channel = channel, secret = secret, capacity = capacity, weight = weight,
    constant = string.sub(record, 29 + #before + #after),
  }
end

local function pack(place)
  return struct.pack(LINKS, place.expires, place.ticket, place.acquired,
    #place.before, place.before, #place.after, place.after) .. place.constant
end

-- Parse the place of an owner in the line of `name`.
local function parse_linked(name, owner, record)
  local field = name .. '\0' .. owner
  local place = parse(record, field)
  if place.owner ~= owner then
    damaged(field, 'it is the place of another owner')
  end
  return place
end
