"""Names of HTTP headers, in lower case."""

#: In every response: the service that answered, e.g. `video`.
SERVICE_HEADER = "x-rewardfleet-service"
#: The value of `SERVICE_HEADER` in answers of a fleet's gateway itself.
GATEWAY = "gateway"
#: In a request: seconds until its deadline.
TIMEOUT_HEADER = "x-request-timeout"
#: In a request: seconds of the complete call, retries included.
CALL_TIMEOUT_HEADER = "x-call-timeout"
#: In a request and its response: the id under which it is logged.
REQUEST_ID_HEADER = "x-request-id"
#: In a response: the id of the service's store of run state.
RUN_STATE_HEADER = "x-run-state"
#: In a response: the step from which all of the run was discarded, as a new attempt began.
DISCARDED_HEADER = "x-discarded-from-step"
#: In a request: how many rewards the client has replaced by its `on_failure` since it last
#: reported them. A request that is answered with 200 reports them; any other one does not.
FALLBACK_REWARDS_HEADER = "x-fallback-rewards"
#: The most of them that one request reports.
MAX_FALLBACK_REWARDS = 1_000_000
#: In a response, if at least half of its items failed for a reason of the replica: how many did.
FAILED_ITEMS_HEADER = "x-failed-items"
#: In a request that a gateway passes on: for how many seconds it has been there.
HELD_HEADER = "x-request-held"
#: In a request that a proxy passes on: the `Host` that the caller gave.
FORWARDED_HOST_HEADER = "x-forwarded-host"
#: In a request that a proxy passes on: the prefix that it has removed from the path, e.g. `/video`.
PREFIX_HEADER = "x-forwarded-prefix"


def bearer(api_key: str | None) -> dict[str, str]:
    """Return the header with an API key; none without one."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
