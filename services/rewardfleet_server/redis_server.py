"""Whether a Redis server answers, checked before there is an event loop."""

from collections.abc import Sequence


def unreachable_reason(
    url: str, timeout_s: float, command: Sequence[str] = ("PING",)
) -> str | None:
    """Return why a Redis server cannot be used now, without the URL's password; None if it can be.

    Args:
        url: `redis://host:port/number`.
        timeout_s: Seconds to wait for it.
        command: What it must be able to do, e.g. `("MGET", "key")`.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL. The message may contain a part of the password.
    """
    import redis.backoff  # noqa: PLC0415 - an optional package
    import redis.retry  # noqa: PLC0415 - an optional package

    try:
        with redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        ) as server:
            server.execute_command(*command)
    except (redis.RedisError, OSError) as error:
        return reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    """Return why a command failed, without the URL's password.

    Args:
        error: The exception of the `redis` package.
    """
    # Not its own message: a response may repeat the password, and so may a "host".
    cause = error.__context__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return type(error).__name__
