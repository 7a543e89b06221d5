"""Exponential backoff, for the client and for services that call another server."""

import random


def backoff_with_jitter(nth: int, first_s: float, max_s: float) -> float:
    """Return the seconds to wait before retry `nth` (1, 2, …), at random ("full jitter").

    They are at most `first_s`, doubled each time, up to `max_s`. Requests that failed together are
    then not retried together. Source: Marc Brooker, Exponential Backoff And Jitter, AWS
    Architecture Blog (2015).
    """
    longest = min(max_s, first_s * 2.0 ** min(nth - 1, 10))
    return random.uniform(0, longest)  # noqa: S311 - spreads load, guards no secret
