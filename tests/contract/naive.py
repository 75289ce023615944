"""The sliding window as it is usually written, and forms of it that are seen as often.

Each has a defect, which `test_sixteen_defects` shows.
"""

SCRIPT = """
local now, window, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
if redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], now, now)
redis.call('EXPIRE', KEYS[1], 1)
return 1
"""

LIVES = SCRIPT.replace("KEYS[1], 1)", "KEYS[1], 3600)")
"""The same without one of its defects, so that a slow machine does not hide the others."""

AS_TEXT = LIVES.replace("now, now)", "now, tostring(now))")
"""The member is made a text first."""

TOLD_APART = LIVES.replace("now, now)", "now, now .. ':' .. redis.call('ZCARD', KEYS[1]))").replace(
    "tonumber(ARGV[1])", "ARGV[1]"
)
"""Members of one instant are told apart by a number, so that each counts."""

ADDS_FIRST = """
local now, window, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('EXPIRE', KEYS[1], 3600)
return redis.call('ZCARD', KEYS[1]) <= limit and 1 or 0
"""
"""What a pipeline does that sends all its commands before it sees an answer."""

TESTS_BEFORE_COST = """
local now, window, limit, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
local used = redis.call('ZCARD', KEYS[1])
if used >= limit then return 0 end
for unit = 1, cost do redis.call('ZADD', KEYS[1], now, ARGV[1] .. ':' .. used + unit) end
redis.call('EXPIRE', KEYS[1], 3600)
return 1
"""
"""The cost is spent, but room is looked for as if it were one."""

TRIMS = TOLD_APART.replace(
    "if redis.call('ZCARD'", "redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -limit - 1)\nif redis.call('ZCARD'"
)
"""More members than the limit are cut off."""

WITHOUT_EXPIRE = "\n".join(line for line in LIVES.splitlines() if "EXPIRE" not in line)
"""The first of two commands; the client sends ``EXPIRE`` afterwards."""

BATCH = """
local reply = {}
for i, key in ipairs(KEYS) do
  redis.call('ZREMRANGEBYSCORE', key, 0, ARGV[1] - ARGV[2])
  reply[i] = 0
  if redis.call('ZCARD', key) < tonumber(ARGV[3]) then
    redis.call('ZADD', key, ARGV[1], ARGV[1])
    redis.call('EXPIRE', key, 3600)
    reply[i] = 1
  end
end
return reply
"""
"""Many callers in one call."""
