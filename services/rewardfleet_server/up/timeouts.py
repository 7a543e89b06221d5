"""How long the gateway and the processes of a fleet wait, in seconds, and why so long."""

# Replicas

#: Between two checks of a replica that starts: demos and tests wait for it.
STARTING_CHECK_SECONDS = 0.1
#: Between two checks of a ready replica, and between two looks at the addresses of a name: requests
#: fail for about so long when a replica ends, and are sent to another one.
READY_CHECK_SECONDS = LOOK_UP_SECONDS = 1.0
#: For one check. A replica that is busy answers health checks in milliseconds.
CHECK_TIMEOUT_SECONDS = 2.0
#: Without an answer to checks, after which the requests of a replica are sent to another one: two
#: checks, and the pause between them.
MOVE_SECONDS = 5.0
#: Without an answer to checks, after which a replica that has been ready is killed as frozen:
#: longer than a busy machine delays a process that works.
FROZEN_SECONDS = 30.0

# Processes

#: Before a crashed replica is restarted: the backoff doubles up to a maximum, as what makes it
#: crash may last.
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
#: A replica that was ready for so long is restarted at once.
STABLE_SECONDS = 60.0
#: Beyond `shutdown_timeout_s`, after which a replica that should end is killed: it ends itself
#: within 3 s after that time.
END_SECONDS = 5.0
#: Between two reports on a replica that is not ready yet: loading a model takes minutes.
REPORT_SECONDS = 10.0

# Requests

#: To connect. Replicas are near, and another one may accept.
CONNECT_SECONDS = 2.0
#: Without a byte of a request's body, or in which a replica reads nothing of it, or the caller
#: nothing of the response.
SILENCE_SECONDS = 30.0
#: Until the response begins, if the request has no `X-Request-Timeout`.
DEFAULT_TIMEOUT_SECONDS = 600.0
#: In addition to `X-Request-Timeout`: a service reports itself that it is too late.
GRACE_SECONDS = 5.0
#: Idle connections are used again for so long: less than services keep them.
IDLE_SECONDS = 60.0
#: Between two looks at what takes too long, and at the replicas for those in line, for all requests
#: together.
LOOK_SECONDS = 0.1
#: In line, if no client of the route has a shorter timeout, and the request has none.
LINE_SECONDS = 100.0
#: The longest time for which a replica that fails gets no requests.
MAX_AVOIDED_SECONDS = 8.0
#: The longest time that a replica gets no requests after a 429.
MAX_COOLDOWN_SECONDS = 5.0
