-- The newest GPU rows of every host: a host publishes its own and reads those of the others.
--
-- KEYS  1  hash, host -> "<microsecond of this server's clock> <process> <payload>"
-- ARGV  1  host
--       2  process: any text without blanks that no other process has
--       3  microseconds from one of its readings to the next
--       4  payload; empty: nothing to publish, only to read
-- Reply    for each other host: its name, its age in microseconds, its payload
--
-- One process of a host publishes. When it has been silent for one and a half intervals, another takes over.
-- Ages are those of this server's clock alone. Entries older than a minute are deleted, and so are entries from
-- the future: the clock has stepped back, and live hosts publish again at once.
local OLDEST = 60000000
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])

if ARGV[4] ~= '' then
  local stamp, process = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) (%S+) ')
  local age = stamp and clock - tonumber(stamp)
  if not stamp or process == ARGV[2] or age < 0 or age >= 1.5 * tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', clock) .. ' ' .. ARGV[2] .. ' ' .. ARGV[4])
    redis.call('PEXPIRE', KEYS[1], OLDEST / 1000)
  end
end

local reply = {}
local entries = redis.call('HGETALL', KEYS[1])
for at = 1, #entries, 2 do
  local stamp, payload = string.match(entries[at + 1], '^(%d+) %S+ (.*)$')
  local age = stamp and clock - tonumber(stamp)
  if not stamp or age < 0 or age > OLDEST then
    redis.call('HDEL', KEYS[1], entries[at])
  elseif entries[at] ~= ARGV[1] then
    reply[#reply + 1] = entries[at]
    reply[#reply + 1] = age
    reply[#reply + 1] = payload
  end
end
return reply
