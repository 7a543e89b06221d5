"""Exponential backoff, for the client and for services that call another server."""

import random


def backoff(nth: int, first_s: float, max_s: float) -> float:
    """Return the seconds before retry `nth` (1, 2, …): `first_s`, doubled each time, up to `max_s`.

    >>> [backoff(nth, 0.5, 3.0) for nth in (1, 2, 3, 4)]
    [0.5, 1.0, 2.0, 3.0]
    """
    return min(max_s, first_s * 2.0 ** min(nth - 1, 10))


def backoff_with_jitter(nth: int, first_s: float, max_s: float) -> float:
    """Return a random time from 0 to `backoff`, in seconds ("full jitter").

    Requests that failed together are then not retried together. Source: Marc Brooker, Exponential
    Backoff And Jitter, AWS Architecture Blog (2015).
    """
    return random.uniform(0, backoff(nth, first_s, max_s))  # noqa: S311 - spreads load, guards no secret
