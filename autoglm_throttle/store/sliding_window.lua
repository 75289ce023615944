-- User limits of many requests in one call. Decides as the windows in memory do, by the server's clock.
--
-- KEYS  one for each limit of each request, request after request.
-- ARGV  P, then P policies: layout (l: list of stamps, b: sub-buckets), limit in units, window in microseconds.
--       Then for each request m, the number of its limits, and m times: number of the policy (from 1), cost.
--       A refund has -m instead, and m times: number of the policy, units, stamp. Units below 0 are charged, above the
--       limit as well, up to what a sub-bucket can count; of sub-buckets alone.
--       If nothing follows the only policy, every key is a request of one limit and cost 1.
-- Reply one flat array of integers: the clock, then for each limit of a request
--         wait       0 admits, else the microseconds until the cost fits without other charges; -1 it never can,
--                    -2 another type of value under this key
--         remaining  units left, after spending if all limits of the request admit
--         reset      microseconds until the oldest counted unit leaves; 0 if nothing is counted
--         stamp      identifies the units for a refund
--       and one for each limit of a refund: the units moved or charged, -2 for a foreign key.
--
-- A request spends under all of its limits or under none. A key that is written has a time to live for all of its units
-- after the same call. Times are microseconds, exact in a double until the year 2255; a number becomes text by %.0f
-- alone, since tostring keeps 14 digits.

local time = redis.call('TIME')

local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
local ceil, floor, format, max, min = math.ceil, math.floor, string.format, math.max, math.min

local clock = time[1] * 1000000 + time[2]

local function text(number)
  return format('%.0f', number)
end

local reply, length = {clock}, 1

local function answer(wait, left, reset, stamp)
  reply[length + 1] = wait
  reply[length + 2] = left
  reply[length + 3] = reset
  reply[length + 4] = stamp
  length = length + 4
end

-- Time to live in milliseconds, plus one: the server rounds its clock down.
local function milliseconds(left)
  return text(ceil(left / 1000) + 1)
end

-- Result of a look at a key with another type of value. Any other error concerns all keys: it ends the call with
-- the server's text.
local function foreign(found, command, ...)
  if type(found) == 'table' and not string.find(tostring(found.err), 'WRONGTYPE', 1, true) then
    call(command, ...)
  end
  return -2, 0, 0, 0
end

-- Result of a look at an empty key.
local function fresh(policy, cost, ...)
  if cost > policy.limit then
    return -1, 0, policy.present, 0, ...
  end
  return 0, 0, policy.present, 0, ...
end

-- Each layout has three functions, made in the calls that need them: making all of them costs two decisions.
-- hit(key) admits one unit under one limit and answers, or returns false; of the list alone.
-- look(key, policy, cost) drops what has expired, adds nothing, and returns wait, reset, stamp, the units used and
-- further values that its spend needs.
-- spend(key, policy, cost, stamp, used, ...) returns the units used then.
-- refund(key, policy, units, stamp) returns the units moved.

-- The list: one stamp for each unit, newest first, stored modulo a span as a number around 0: in windows below half
-- an hour it takes 6 bytes then, else 10. The time to live is renewed in each eighth of the window, not by each unit.

local function list_policy(limit, window)
  local span, part = window < 2147483648 and 4294967296 or 9007199254740992, ceil(window / 8)
  local half, renewed = span / 2, clock - clock % part
  local last, life = clock + half, milliseconds(window + part - clock % part)

  local function stored(stamp)
    return text(stamp % span - half)
  end

  local present = stored(clock)

  -- The stamp of a stored number: the one that is nearest to the clock.
  local function stamp_of(number)
    return last - (clock - number) % span
  end

  -- Drop the expired stamps of a list whose newest is live; returns the oldest live one.
  local function drop_expired(key, edge)
    for _ = 1, 8 do
      call('RPOP', key)
      local oldest = stamp_of(call('LINDEX', key, '-1'))
      if oldest > edge then
        return oldest
      end
    end
    local live, expired = 0, call('LLEN', key) - 1
    while expired - live > 1 do
      local middle = floor((live + expired) / 2)
      if stamp_of(call('LINDEX', key, text(middle))) > edge then
        live = middle
      else
        expired = middle
      end
    end
    call('LTRIM', key, '0', text(live))
    return stamp_of(call('LINDEX', key, '-1'))
  end

  -- Drop what has expired; returns the oldest live stamp, the present one, and whether the life must be renewed. No
  -- oldest: the key is empty. No present: of a foreign key, and what was found there.
  local function read(key)
    local found = try('LINDEX', key, '-1')
    if not found then
      return nil, clock, true
    end
    local oldest = tonumber(found)
    local newest = oldest and tonumber(call('LINDEX', key, '0'))
    if not newest then
      return nil, nil, found
    end
    oldest, newest = last - (clock - oldest) % span, last - (clock - newest) % span -- `stamp_of`, without two calls
    local now = newest > clock and newest or clock -- the clock went back: hold it until it has caught up
    if newest <= now - window or newest - clock >= window then
      call('DEL', key)
      return nil, clock, true
    end
    if oldest <= now - window then
      oldest = drop_expired(key, now - window)
    end
    return oldest, now, newest < renewed
  end

  -- Admit one unit under one limit, and answer: the reply to the push counts the others. Or leave the key unchanged.
  local function hit(key)
    local oldest, now, renews = read(key)
    if not now then
      return false
    end
    local left = limit - call('LPUSH', key, now == clock and present or stored(now))
    if left < 0 then
      call('LTRIM', key, '1', '-1')
      return false
    end
    if renews then
      call('PEXPIRE', key, life)
    end
    answer(0, left, (oldest or now) + window - clock, now)
    return true
  end

  local function look(key, policy, cost)
    local oldest, now, renews = read(key)
    if not now then
      return foreign(renews, 'LINDEX', key, '-1')
    elseif not oldest then
      return fresh(policy, cost, renews)
    end
    local wait, reset, used = 0, oldest + window - clock, call('LLEN', key)
    local surplus = used + cost - limit
    if cost > limit then
      wait = -1
    elseif surplus > 0 then
      wait = surplus == 1 and reset or stamp_of(call('LINDEX', key, text(-surplus))) + window - clock
    end
    return wait, reset, now, used, renews
  end

  local function spend(key, _, cost, now, used, renews)
    local number, stamps = stored(now), {}
    for i = 1, cost do -- 1000 at most: eight times as many would overflow the stack
      stamps[i] = number
    end
    call('LPUSH', key, unpack(stamps))
    if renews then
      call('PEXPIRE', key, life)
    end
    return used + cost
  end

  local function refund(key, _, units, stamp)
    local amount, number = text(units), stored(stamp)
    local moved = try('LREM', key, amount, number)
    return tonumber(moved) or (foreign(moved, 'LREM', key, amount, number))
  end

  return {limit = limit, present = clock, full = window, hit = hit, look = look, spend = spend, refund = refund}
end

-- The sub-buckets: a mark, the number of the newest bucket (5 bytes), the total (4), the count of the newest, then a
-- count for each bucket before it from the oldest that holds any; big-endian. The mark gives the bytes of every
-- count: 1, 2 or 3, as the largest needs. No text in UTF-8 begins with a mark. Bucket j leaves as a whole at
-- the instant (j + 61) * width: a partly expired one counts fully, so the limit is never exceeded.

local function buckets_form()
  local byte, char, find, gsub, rep, sub = string.byte, string.char, string.find, string.gsub, string.rep, string.sub
  local BEFORE, HEAD, MARK, MOST = 60, 10, 248, 16777215
  local MARKS = {char(MARK + 1), char(MARK + 2), char(MARK + 3)}
  local FITS = {255, 65535, MOST} -- in a count of 1, 2 or 3 bytes
  local LARGE = {256, 256, 65536} -- smallest counts of a larger size
  local REST = {'', '.(.)', '.(..)'} -- a count without its first byte

  local function bytes(number, size)
    if size == 1 then
      return char(number)
    end
    local low = number % 256
    local rest = (number - low) / 256
    if size == 2 then
      return char(rest, low)
    end
    local middle = rest % 256
    return char((rest - middle) / 256, middle, low)
  end

  local function five_bytes(number)
    local low = number % 16777216
    return bytes((number - low) / 16777216, 2) .. bytes(low, 3)
  end

  local function count_at(value, at, size)
    local a, b, c = byte(value, at, at + size - 1)
    if size == 1 then
      return a
    elseif size == 2 then
      return a * 256 + b
    end
    return a * 65536 + b * 256 + c
  end

  -- Number of the newest bucket, total, count of the newest, the counts before it and the bytes of each; nothing if
  -- the value is not ours.
  local function read(value)
    local mark, a, b, c, d, e, f, g, h, i = byte(value, 1, HEAD)
    local size, length = (mark or 0) - MARK, #value - HEAD
    if size < 1 or size > 3 or length % size ~= 0 or length < size or length > size * (BEFORE + 1) then
      return nil
    end
    local number = (a * 256 + b) * 16777216 + c * 65536 + d * 256 + e
    local total = (f * 256 + g) * 65536 + h * 256 + i
    return number, total, count_at(value, HEAD + 1, size), sub(value, HEAD + size + 1), size
  end

  local function written(number, total, counts, size)
    local low = total % 65536
    return MARKS[size] .. number .. bytes((total - low) / 65536, 2) .. bytes(low, 2) .. counts
  end

  -- The counts from the oldest on that is not zero.
  local function without_zeros(before, size)
    local first = find(before, '[^%z]')
    return first and sub(before, first - (first - 1) % size) or ''
  end

  -- The same counts, of as few bytes as the largest needs.
  local function narrowed(counts, size)
    while size > 1 do
      for at = 1, #counts, size do
        if byte(counts, at) > 0 then
          return counts, size
        end
      end
      counts, size = gsub(counts, REST[size], '%1'), size - 1
    end
    return counts, size
  end

  -- The same counts, of as many bytes as one more needs.
  local function widened(counts, size, count)
    local larger = count > FITS[2] and 3 or 2
    return (gsub(counts, rep('.', size), rep('\0', larger - size) .. '%0')), larger
  end

  -- The counts before a bucket that is `steps` newer, their bytes, and the units that leave on the way there.
  local function rolled(before, count, size, steps)
    before = before .. bytes(count, size) .. rep('\0', size * (steps - 1))
    local excess, gone, large = #before - size * BEFORE, 0, false
    for at = 1, excess, size do
      local leaving = count_at(before, at, size)
      gone, large = gone + leaving, large or leaving >= LARGE[size]
    end
    before = without_zeros(sub(before, max(excess, 0) + 1), size)
    if large then
      before, size = narrowed(before, size)
    end
    return before, size, gone
  end

  local function leaves(policy, bucket)
    return (bucket + BEFORE + 1) * policy.width - clock
  end

  -- Microseconds until the excess units have left, the oldest bucket first.
  local function wait_buckets(policy, present, before, size, surplus)
    local bucket = present - #before / size
    for at = 1, #before, size do
      surplus = surplus - count_at(before, at, size)
      if surplus <= 0 then
        break
      end
      bucket = bucket + 1
    end
    return leaves(policy, bucket)
  end

  local function look_buckets(key, policy, cost)
    local value = try('GET', key)
    if not value then
      return fresh(policy, cost, 0, '', 1)
    end
    if type(value) == 'table' then
      return foreign(value, 'GET', key)
    end
    local present, last, total, count, before, size = policy.present, read(value)
    if not last then
      return foreign(value)
    end
    local steps = present - last
    if steps > BEFORE or steps <= -BEFORE then
      return fresh(policy, cost, 0, '', 1)
    end
    if steps > 0 then
      local gone
      before, size, gone = rolled(before, count, size, steps)
      total, count = total - gone, 0
      if total == 0 then
        return fresh(policy, cost, 0, '', 1)
      end
    else
      present = last -- the clock may have gone back: hold it until it has caught up
    end
    local reset = leaves(policy, present - #before / size)
    local surplus = total + cost - policy.limit
    if surplus <= 0 then
      return 0, reset, present, total, count, before, size
    end
    local wait = cost > policy.limit and -1 or wait_buckets(policy, present, before, size, surplus)
    return wait, reset, present, total, count, before, size
  end

  local function spend_buckets(key, policy, cost, present, used, count, before, size)
    local number, life = policy.number, policy.life
    if present ~= policy.present then
      number, life = five_bytes(present), milliseconds(leaves(policy, present))
    end
    count, used = count + cost, used + cost
    if count > FITS[size] then
      before, size = widened(before, size, count)
    end
    call('SET', key, written(number, used, bytes(count, size) .. before, size), 'PX', life)
    return used
  end

  local function refund_buckets(key, _, units, stamp)
    local value = try('GET', key)
    if not value then
      return 0
    end
    if type(value) == 'table' then
      return (foreign(value, 'GET', key))
    end
    local last, total, count, before, size = read(value)
    if not last then
      return -2
    end
    local at, found, moved = #before + size * (stamp - last) + 1, 0, 0
    if stamp == last then
      found = count
      moved = min(found, units)
      count = count - moved
    elseif at > 0 and stamp < last then
      found = count_at(before, at, size)
      moved = min(found, units)
      before = sub(before, 1, at - 1) .. bytes(found - moved, size) .. sub(before, at + size)
      before = without_zeros(before, size)
    end
    if moved >= total then
      call('DEL', key)
    elseif moved > 0 then
      local counts = bytes(count, size) .. before
      if found >= LARGE[size] then
        counts, size = narrowed(counts, size)
      end
      call('SET', key, written(sub(value, 2, 6), total - moved, counts, size), 'KEEPTTL')
    end
    return moved
  end

  return function(limit, window)
    local width = ceil(window / BEFORE)
    local present = floor(clock / width)
    local full = (present + BEFORE + 1) * width - clock
    return {
      limit = limit,
      most = MOST,
      width = width,
      full = full,
      life = milliseconds(full),
      present = present,
      number = five_bytes(present),
      look = look_buckets,
      spend = spend_buckets,
      refund = refund_buckets,
    }
  end
end

local policies, argument = {}, 1

local function next_number()
  argument = argument + 1
  return tonumber(ARGV[argument])
end

-- Spend if all looks of the request admit it, and answer for one limit.
local function finish(key, policy, cost, others, wait, reset, stamp, used, ...)
  if wait == 0 and others and cost > 0 then
    used = policy.spend(key, policy, cost, stamp, used, ...)
    if reset == 0 then
      reset = policy.full
    end
  end
  answer(wait, max(0, policy.limit - used), reset, stamp)
end

local function decide_one(key, policy, cost)
  if not (cost == 1 and policy.hit and policy.hit(key)) then
    finish(key, policy, cost, true, policy.look(key, policy, cost))
  end
end

local buckets_policy
for i = 1, tonumber(ARGV[1]) do
  argument = argument + 1
  local policy = list_policy
  if ARGV[argument] ~= 'l' then
    buckets_policy = buckets_policy or buckets_form()
    policy = buckets_policy
  end
  policies[i] = policy(next_number(), next_number())
end

if #ARGV == 4 then
  for i = 1, #KEYS do
    decide_one(KEYS[i], policies[1], 1)
  end
  return reply
end

local function decide(limits, first)
  local looks, allowed = {}, true
  for i = 1, limits do
    local policy, cost = policies[next_number()], next_number()
    local look = {policy.look(KEYS[first + i], policy, cost)}
    look.policy, look.cost, looks[i] = policy, cost, look
    allowed = allowed and look[1] == 0
  end
  for i = 1, limits do
    local look = looks[i]
    finish(KEYS[first + i], look.policy, look.cost, allowed, unpack(look, 1, 7))
  end
end

-- Charge units that have been used already, after a look at their sub-buckets.
local function charge(key, policy, units, wait, _, present, used, count, ...)
  if wait == -2 then
    return wait
  end
  units = min(units, policy.most - count)
  policy.spend(key, policy, units, present, used, count, ...)
  return units
end

local function refund(limits, first)
  for i = 1, limits do
    local key, policy, units, stamp = KEYS[first + i], policies[next_number()], next_number(), next_number()
    length = length + 1
    if units < 0 then
      reply[length] = charge(key, policy, -units, policy.look(key, policy, 0))
    else
      reply[length] = units == 0 and 0 or policy.refund(key, policy, units, stamp)
    end
  end
end

local first = 0
while argument < #ARGV do
  local limits = next_number()
  if limits == 1 then
    decide_one(KEYS[first + 1], policies[next_number()], next_number())
  elseif limits > 0 then
    decide(limits, first)
  else
    refund(-limits, first)
  end
  first = first + max(limits, -limits)
end

return reply
