-- Refuse a write with an outdated fence. Put this before a script of your own:
--
--   if not check_fence(KEYS[1], ARGV[1]) then return redis.error_reply('STALE …') end
--
-- key    stores the newest fence: a key of its own beside the data, in a Cluster in the data's slot. It must be one of
--        KEYS, and must not expire before the data does.
-- fence  the holder's, of an exclusive lock: anything but a number from 1 to 2^53 is an error
-- Returns false if the key holds a newer fence, else stores this one and returns true. A value of the key that is not a
-- fence is an error, since no fence can be compared with it: set it to the newest fence, or delete it.

local function check_fence(key, fence)
  local number = tonumber(fence)
  if not number or not (number >= 1 and number <= 2^53) then
    error('not a fence: ' .. tostring(fence))
  end
  local stored = redis.call('GET', key)
  local newest = stored and tonumber(stored)
  if stored and not (newest and newest >= 0 and newest <= 2^53) then
    error('not a fence: ' .. stored .. ', in the key ' .. key)
  elseif stored and number < newest then
    return false
  end
  redis.call('SET', key, string.format('%.0f', number))
  return true
end
