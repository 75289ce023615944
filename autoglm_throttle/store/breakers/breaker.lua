-- Shared state of a circuit breaker in a fleet: state, end of the open period, and leases of half-open probes.
--
-- KEYS  1  state: hash v, state, until, wait, rounds, won, fence, cause; times in microseconds of this server
--       2  probes: sorted set, ticket -> microsecond at which its lease ends
--       Both carry one hash tag in braces, so a cluster puts them in one slot. For `read` each key is a state.
-- ARGV  1  command
--       2  name, without blanks; 3  channel; 4  process that sends the command; 5  v known to it, 0: none
--       open     6  wait  7  rounds  8  cause
--       acquire  6  most probes  7  successes to close  8  1: most at a time, 0: of a round  9  lease  10  ticket
--       finish   6  outcome  7  successes to close  8  wait  9  ticket
--       operate  6  state  7  1: even if others have changed it meanwhile, 0: only if not
--       read     no further ones, and none but the first counts
-- Reply    done (1 or 0), v (0: nothing is stored), state, time left of an open period, rounds, cause, fence;
--          of `read` v, state, left, rounds, cause for each key
-- Message  "<name> <v> <state> <left> <rounds> <cause> <process>"
--
-- v rises with every change, also after the key was lost and after a clock that stepped back.
-- A rejected `acquire` writes nothing, so requests do not extend the lifetime of a key.
-- An end further ahead than its period was set by a clock that was ahead: it counts as over.
-- The first write of each command is one that a full server rejects, so no command is executed in part.
local CLOSED, OPEN, HALF_OPEN = 'closed', 'open', 'half_open'
local OPERATORS = { forced_open = true, disabled = true }
local KEEP_MS = 3600000 -- an hour beyond its end: no process has called meanwhile
local KEEP_OPERATORS_MS = 2592000000 -- thirty days after the last read: only an operator command ends it

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(number)
  return string.format('%.0f', number)
end

local function load(key)
  local kept = redis.pcall('HMGET', key, 'v', 'state', 'until', 'wait', 'rounds', 'won', 'fence', 'cause')
  local v = kept.err == nil and tonumber(kept[1])
  if not v then
    return { v = 0, state = '', left = 0, rounds = 0, won = 0, fence = 0, cause = '' }
  end
  local left, wait = (tonumber(kept[3]) or 0) - now, tonumber(kept[4]) or 0
  if left < 0 or left > wait then
    left = 0
  end
  return {
    v = v, state = kept[2] or '', left = left, rounds = tonumber(kept[5]) or 0, won = tonumber(kept[6]) or 0,
    fence = tonumber(kept[7]) or 0, cause = kept[8] or '',
  }
end

if ARGV[1] == 'read' then
  local found = {}
  for _, key in ipairs(KEYS) do
    local is = load(key)
    if OPERATORS[is.state] then
      redis.call('PEXPIRE', key, text(KEEP_OPERATORS_MS))
    end
    for _, value in ipairs({ is.v, is.state, is.left, is.rounds, is.cause }) do
      found[#found + 1] = value
    end
  end
  return found
end

local command, name, channel, who, known = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local is = load(KEYS[1])

local function reply(done)
  return { done, is.v, is.state, is.left, is.rounds, is.cause, is.fence }
end

local function keep(lasts_us)
  redis.call('HSET', KEYS[1], 'v', text(is.v), 'state', is.state, 'until', text(now + is.left), 'wait',
    text(is.left), 'rounds', text(is.rounds), 'won', text(is.won), 'fence', text(is.fence), 'cause', is.cause)
  redis.call('PEXPIRE', KEYS[1], text(OPERATORS[is.state] and KEEP_OPERATORS_MS or KEEP_MS + math.ceil(lasts_us / 1000)))
end

local function renumber()
  is.v = math.max(is.v + 1, known + 1, now)
end

local function go(state, left, rounds, cause)
  renumber()
  is.state, is.left, is.rounds, is.won, is.cause = state, left, rounds, 0, cause
  keep(left)
  redis.call('DEL', KEYS[2])
  local told = { name, text(is.v), is.state, text(is.left), text(is.rounds), is.cause, who }
  redis.call('PUBLISH', channel, table.concat(told, ' '))
  return reply(1)
end

local function open()
  local newer = is.v > known and (is.state == HALF_OPEN or (is.state == OPEN and is.left > 0))
  if newer or OPERATORS[is.state] then
    return reply(0)
  end
  return go(OPEN, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8])
end

local function acquire()
  local most, need, lease = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[9])
  if is.state == CLOSED or OPERATORS[is.state] or (is.state == OPEN and is.left > 0) then
    return reply(0)
  end
  if is.state == OPEN then
    is.won = 0
  end
  if is.v > 0 and is.won >= need then -- else the higher number that others require would keep the round open
    return go(CLOSED, 0, 0, 'trial')
  end
  local taken = redis.call('ZCOUNT', KEYS[2], '(' .. text(now), text(now + 4 * lease))
  if ARGV[8] == '0' then
    taken = taken + is.won
  end
  is.state, is.left = HALF_OPEN, 0
  if taken >= most then
    return reply(0)
  end
  if is.v == 0 then
    renumber()
  end
  is.fence, is.cause = math.max(is.fence + 1, now), 'trial'
  redis.call('ZADD', KEYS[2], text(now + lease), ARGV[10])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. text(now + 4 * lease), '+inf')
  redis.call('PEXPIRE', KEYS[2], text(4 * math.ceil(lease / 1000)))
  keep(4 * lease)
  return reply(1)
end

local function finish()
  local outcome, need, ticket = ARGV[6], tonumber(ARGV[7]), ARGV[9]
  if outcome == 'neutral' then
    redis.call('ZREM', KEYS[2], ticket)
    return reply(1)
  end
  if is.v ~= known or not redis.call('ZSCORE', KEYS[2], ticket) then
    return reply(0)
  end
  if outcome ~= 'success' then
    return go(OPEN, tonumber(ARGV[8]), is.rounds + 1, 'trial')
  end
  is.won = is.won + 1
  if is.won >= need then
    return go(CLOSED, 0, 0, 'trial')
  end
  redis.call('ZREM', KEYS[2], ticket)
  redis.call('HSET', KEYS[1], 'won', text(is.won))
  return reply(1)
end

local function operate()
  if ARGV[7] == '0' and is.v > known then
    return reply(0)
  end
  return go(ARGV[6], 0, 0, 'operator')
end

return ({ open = open, acquire = acquire, finish = finish, operate = operate })[command]()
