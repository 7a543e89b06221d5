"""How long a trainer that leaves out missing rewards may go on without any."""

import time
from collections.abc import Collection, Sequence

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.score import Score, Status

#: So many calls in a row without any reward end a run: batches; or, of a function that is called
#: per sample, the timeouts of so many calls. Answers without a verdict do not count.
MOST_CALLS = 3


class Patience:
    """Tells when a service has stayed away for too long, as a run would waste its data.

    Args:
        timeout_s: That of a call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._missed = 0  #: calls in a row
        self._first = 0.0  #: when the first of them had ended

    def is_over(self, statuses: Collection[str], *, is_batch: bool) -> bool:
        """Return whether a call is one too many.

        Args:
            statuses: Those of its scores, see `Status`.
            is_batch: Whether it has all samples of a step.
        """
        now = time.monotonic()
        if Status.OK in statuses:
            self._missed = 0
        if Status.OK in statuses or Status.ERROR not in statuses:
            return False
        self._missed += 1
        if self._missed == 1:
            self._first = now
        # The first call had taken one timeout.
        lasts = now - self._first > (MOST_CALLS - 1.5) * self._timeout_s
        return self._missed >= MOST_CALLS and (is_batch or lasts)

    def check(self, scores: Sequence[Score], *, is_batch: bool) -> None:
        """Raise the failure of scores if they are of one call too many."""
        if self.is_over({each.status for each in scores}, is_batch=is_batch):
            problem = next(each.error for each in scores if each.error is not None)
            detail = f"no reward in {self._missed} calls in a row: {problem.detail}"
            raise RewardFleetError.from_problem(problem.model_copy(update={"detail": detail}))
