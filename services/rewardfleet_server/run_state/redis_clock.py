"""The time of a Redis server, for scripts: that of services is not used, as theirs may differ."""

#: Functions of scripts: the server's time in seconds since 1970, and a number as text.
TIME = """
local function text(number)
    return string.format('%.6f', number)
end
local function now()
    local time = redis.call('TIME')
    return time[1] + time[2] / 1000000
end
"""

#: The seconds by which runs age. They begin with the server's time and only grow, between two looks
#: by at most a tenth of the maximum age: a clock that jumps, e.g. as another server takes over,
#: makes no run old.
_AGE = f"""{TIME}
local function age_clock(key, max_age)
    local time, last = now(), redis.call('HMGET', key, 'time', 'seconds')
    local passed = math.min(math.max(time - (last[1] or time), 0), max_age / 10)
    local seconds = (last[2] or time) + passed
    redis.call('HSET', key, 'time', text(time), 'seconds', text(seconds))
    return text(seconds)
end
"""

#: Records that a run is changed now; returns the server's time.
TOUCH = f"""{_AGE}
local clock, runs, names = unpack(KEYS)
local max_age, run, name = unpack(ARGV)
redis.call('ZADD', runs, age_clock(clock, max_age), run)
redis.call('SADD', names, name)
return text(now())
"""

#: Returns the time since which runs must have been changed, and the runs that were not.
OLD_RUNS = f"""{_AGE}
local clock, runs = unpack(KEYS)
local oldest = text(age_clock(clock, ARGV[1]) - ARGV[1])
local old = redis.call('ZRANGEBYSCORE', runs, '-inf', oldest)
table.insert(old, 1, oldest)
return old
"""
