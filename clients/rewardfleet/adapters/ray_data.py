"""Ray Data: score a dataset on a Ray cluster."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rewardfleet.event_loop_thread import EventLoopThread
from rewardfleet.service import OnFailure
from rewardfleet.wire.errors import InvalidRequest, RewardFleetError
from rewardfleet.wire.score import abstained

from ._rows import DatasetReward, ServiceName, requests_of, rows_of, scores_of


class Scorer:
    """A class for `map_batches`, which adds columns with rewards and errors to batches.

    Each actor has its own connections and sends one request per batch of rows.

    Args:
        service, url, column, columns, options: See `rewardfleet.adapters`.
        text: The column with the responses: texts, lists of messages, …. Not read for video.
        reward: The name of the new column with rewards; the errors, as texts or None, are in a
            column of that name and `_error`.
        on_failure: As in `RewardFleet`. By default, a row without a reward has NaN. This includes
            rows that are invalid, unless it is "raise".
    """

    def __init__(
        self,
        service: ServiceName,
        url: str | Sequence[str],
        *,
        text: str = "response",
        column: str | None = None,
        columns: Sequence[str] = (),
        reward: str = "reward",
        on_failure: OnFailure = math.nan,
        **options: Any,
    ) -> None:
        self._scorer = DatasetReward(
            service, url, column, columns, on_failure=on_failure, **options
        )
        self._loop = EventLoopThread()
        self._text = None if service == "video" else text
        self._reward = reward

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with two more columns, of float64 and of texts or None.

        Raises:
            InvalidRequest: A column is missing.
            RewardFleetError: There is no reward, and `on_failure` is "raise".
        """
        count = len(next(iter(batch.values()), ()))
        client, service = self._scorer.client, self._scorer.service
        rows = rows_of(batch, self._scorer.columns, count)
        texts = rows_of(batch, [] if self._text is None else [self._text], count)
        rewards = np.empty(count)
        errors = np.full(count, None, dtype=object)
        requests: dict[int, Any] = {}
        for index, (row, text) in enumerate(zip(rows, texts, strict=True)):
            sample = (text.get(self._text or ""), row[self._scorer.truth], row)
            try:
                requests[index] = requests_of(service, [sample])[0]
            except InvalidRequest as error:  # an invalid row does not end the job
                rewards[index], errors[index] = client.policy.fallback(error), str(error)
        scores = self._loop.run(scores_of(client, list(requests.values())))
        for index, score in zip(requests, scores, strict=True):
            if score.score is not None:
                rewards[index] = client.policy.reward(score)
                continue
            problem = score.error
            failure = RewardFleetError.from_problem(problem) if problem else abstained(score)
            rewards[index], errors[index] = client.policy.fallback(failure), str(failure)
        return {**batch, self._reward: rewards, f"{self._reward}_error": errors}
