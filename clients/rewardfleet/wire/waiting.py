"""Routes whose clients cannot repeat a request, or lose a reward if they do: requests wait in line.

Services and the gateway use this table; docs/wire-formats.md has it as well.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import DeadlineExceeded, RewardFleetError


@dataclass(frozen=True)
class Waits:
    """How long requests of a route may wait: less than its clients do."""

    #: Seconds in line, from the headers of the request. None: all of `deadline_s` but
    #: `RESERVED_SECONDS`, as no client of the route has a timeout that is shorter.
    in_line_s: float | None = None
    answer_s: float | None = None  #: Seconds until it is answered. None: `deadline_s`.
    #: What a failure that may pass becomes: the client repeats no other. None: itself.
    repeats_on: type[RewardFleetError] | None = None


#: Seconds that are left to score an item when it leaves the line last.
RESERVED_SECONDS = 20.0

#: NeMo Gym's paths have it in front of them if its `observability_enabled` is set.
_GYM_PREFIX = re.compile(r"\A/ng-rollout/[^/]+(?=/)")

_WAITS: Mapping[str, Waits] = {
    # verl and SkyRL-Agent wait for 30 s, and repeat a 504 only.
    "/run_code": Waits(25.0, 28.0, DeadlineExceeded),
    # slime waits for 120 s, which includes the time in a queue of its own.
    "/slime": Waits(60.0, 100.0),
    # RLinf-RLAIF waits for 120 s, and repeats nothing.
    **dict.fromkeys(("/rlinf/score", "/rlinf"), Waits(90.0, 115.0)),
    # OpenEnv waits for 60 s, and repeats nothing.
    **dict.fromkeys(("/reset", "/step"), Waits(40.0, 55.0)),
    # OpenRLHF waits for 180 s, RLinf repeats nothing.
    **dict.fromkeys(("/submit", "/get_reward", "/v1/chat/completions"), Waits()),
    # NeMo Gym has no timeout, and never repeats a status.
    **dict.fromkeys(("/seed_session", "/verify", "/aggregate_metrics", "/reverify_mode"), Waits()),
}


def without_gym_prefix(path: str) -> str:
    """Return the path of the route that NeMo Gym asks for."""
    return _GYM_PREFIX.sub("", path)


def waits_at(path: str) -> Waits | None:
    """Return how long requests for a path may wait; None if they may not."""
    return _WAITS.get(without_gym_prefix(path))


def backoff_with_jitter(nth: int, first_s: float, max_s: float) -> float:
    """Return the seconds to wait before retry `nth` (1, 2, …), at random ("full jitter").

    They are at most `first_s`, doubled each time, up to `max_s`. Requests that failed together are
    then not retried together. Source: Marc Brooker, Exponential Backoff And Jitter, AWS
    Architecture Blog (2015).
    """
    longest = min(max_s, first_s * 2.0 ** min(nth - 1, 10))
    return random.uniform(0, longest)  # noqa: S311 - spreads load, guards no secret
