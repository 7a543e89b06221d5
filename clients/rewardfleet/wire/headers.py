"""Names of HTTP headers, in lower case."""

#: In every response: the service that answered, e.g. `video`.
SERVICE_HEADER = "x-rewardfleet-service"
#: In a request: seconds until its deadline.
TIMEOUT_HEADER = "x-request-timeout"
#: In a request: seconds of the complete call, retries included.
CALL_TIMEOUT_HEADER = "x-call-timeout"
#: In a request and its response: the id under which it is logged.
REQUEST_ID_HEADER = "x-request-id"
