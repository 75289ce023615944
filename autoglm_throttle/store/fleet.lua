-- Heartbeat of a fleet's member, and leases from the fleet's priority buckets. One call does both.
--
-- KEYS  1  members: sorted set, member -> microsecond of this server's clock at which it counts as dead
--       2  buckets: hash, number of the priority -> "<micro-tokens> <microsecond>"
--       Both carry one tag in braces, so a cluster keeps them together.
-- ARGV  1  member
--       2  microseconds for which it counts as alive without another call; 0: it leaves the fleet
--       then for each priority, all in micro-tokens:
--          rate (per second), burst, want, need, back
-- Reply    clock in microseconds, number of members, then for each priority: grant, left
--
-- rate counts for the time since the last call of any member: members with different rates average out.
-- back is the unused part of a lease; below 0: tokens spent while the store was unavailable.
-- need is the shortfall of the first waiter: a smaller grant is useless, so it is all or nothing.
-- Beyond it a member gets at most half of the tokens, in whole tokens: the rest is for the others.
--
-- A missing bucket is full. Its key outlives the time it takes to fill.
-- A clock that steps back stops the refill for that call only.
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(number)
  return string.format('%.0f', number)
end

local lives = tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], text(clock + lives), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(clock))
if lives > 0 then
  -- Written by a clock that was far ahead: no live member expires so late, and dead ones must not stay.
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. text(clock + 4 * lives), '+inf')
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(lives / 250)))
end
local reply = { clock, redis.call('ZCARD', KEYS[1]) }

local keep_ms = 3600000
for at = 3, #ARGV, 5 do
  local rate, burst, want = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local need, back = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local field = text((at - 3) / 5)
  local tokens = burst
  local had, stamp = string.match(redis.call('HGET', KEYS[2], field) or '', '^(%d+) (%d+)$')
  if had then
    local elapsed = math.max(0, clock - tonumber(stamp))
    tokens = math.min(burst, tonumber(had) + math.floor(elapsed * rate / 1000000))
  end
  tokens = math.min(burst, math.max(0, tokens + back))
  local grant = 0
  if tokens >= need then
    grant = math.min(want, math.max(need, math.floor(tokens / 2000000) * 1000000))
  end
  tokens = tokens - grant
  redis.call('HSET', KEYS[2], field, text(tokens) .. ' ' .. text(clock))
  if rate > 0 then
    keep_ms = math.max(keep_ms, math.ceil((burst - tokens) / rate * 1000))
  end
  reply[#reply + 1] = grant
  reply[#reply + 1] = tokens
end
redis.call('PEXPIRE', KEYS[2], text(keep_ms))
return reply
