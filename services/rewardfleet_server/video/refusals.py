"""A loud line of the log for each cause by which the requests of a trainer are refused.

The original LIBERO client takes the simulator's success for a reward that is refused, and the
training goes on: nothing else would be noticed.
"""

import logging

from rewardfleet.wire.errors import RewardFleetError

log = logging.getLogger(__name__)

#: Causes that are reported; callers can make up names of judges.
_MAX_CAUSES = 100


class Refusals:
    """Reports each cause once."""

    def __init__(self) -> None:
        self._causes: set[str] = set()

    def of(
        self, cause: str, error: RewardFleetError, advice: str | None = None
    ) -> RewardFleetError:
        """Report a cause, and return its error to be raised.

        Args:
            cause: A name for it.
            error: The error that callers get.
            advice: What to do, without what logs must not show; None if the error says it.
        """
        if cause not in self._causes and len(self._causes) < _MAX_CAUSES:
            self._causes.add(cause)
            log.error(
                "REQUESTS ARE REFUSED, and RLinf-RLAIF's client then trains on the SIMULATOR'S "
                "SUCCESS: %s",
                advice or error.detail,
            )
        return error
