-- Refuse the write of a holder that has been overtaken. Put this before a script of your own:
--
--   if not check_fence(KEYS[1], ARGV[1]) then return redis.error_reply('STALE …') end
--
-- key    where the newest fence is kept: a key of its own beside the data, in a Cluster in the data's slot. It must
--        be one of KEYS, and must not expire before the data does.
-- fence  the holder's, of an exclusive lock: anything but a number from 1 to 2^53 is an error
-- Returns false if the key has seen a newer fence, else remembers this one and returns true. What the key holds must be
-- a fence, too: else nothing can be told to be newer, so set it to the newest fence, or delete it.

local function check_fence(key, fence)
  local number = tonumber(fence)
  if not number or not (number >= 1 and number <= 2^53) then
    error('not a fence: ' .. tostring(fence))
  end
  local kept = redis.call('GET', key)
  local newest = kept and tonumber(kept)
  if kept and not (newest and newest >= 0 and newest <= 2^53) then
    error('not a fence: ' .. kept .. ', in the key ' .. key)
  elseif kept and number < newest then
    return false
  end
  redis.call('SET', key, string.format('%.0f', number))
  return true
end
