"""What a Redis server answers: whether it can be used, and why a command failed."""

from collections.abc import Sequence

#: The most characters of a server's answer.
_MAX_ANSWER = 300


def unreachable_reason(
    url: str, timeout_s: float, command: Sequence[str] = ("PING",)
) -> str | None:
    """Return why a Redis server cannot be used now, without the URL's password; None if it can be.

    Args:
        url: `redis://host:port/number`.
        command: What it must be able to do in `timeout_s` seconds, e.g. `("MGET", "key")`.

    Raises:
        ImportError: The `redis` package is not installed.
        ValueError: It is not such a URL. The message may contain a part of the password.
    """
    import redis.backoff  # noqa: PLC0415 - an optional package
    import redis.retry  # noqa: PLC0415 - an optional package

    limits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    try:
        with redis.Redis.from_url(url, retry=once, **limits) as server:
            server.execute_command(*command)
    except (redis.RedisError, OSError) as error:
        return reason_of(error)
    return None


def reason_of(error: Exception) -> str:
    """Return why a command failed, with the answer of the server if there is one.

    The URL's password is not in it.
    """
    import redis  # noqa: PLC0415 - an optional package

    cause, answer = error.__context__, str(error)[:_MAX_ANSWER]
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    name = type(error).__name__
    # Not any other message: it may contain a part of the password, as a "host" may. Nor the answer
    # to a login, which may repeat it.
    is_login = any(each in answer.upper() for each in ("AUTH", "HELLO"))
    if is_login or not isinstance(error, redis.ResponseError | redis.BusyLoadingError):
        return name
    return f"{name}: {answer}"
