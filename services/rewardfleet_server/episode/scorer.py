"""Scoring one episode."""

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import JsonValue

from rewardfleet.episodes import score_episodes
from rewardfleet.wire.episode import EpisodeRequest, EpisodeScore
from rewardfleet.wire.score import Timing
from rewardfleet_server.observe.tracing import stage
from rewardfleet_server.scorer import ScoringPlan
from rewardfleet_server.system.anonymous_file import AnonymousFile

from . import encode


class EpisodeScorer:
    """Scores single episodes, without groups. Nothing is cached: computing is cheaper."""

    async def plan(
        self,
        request: EpisodeRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - this service accepts none
    ) -> ScoringPlan[EpisodeScore]:
        async def compute(_: float | None) -> EpisodeScore:
            timing = Timing()
            with stage(timing, "backend"):
                fields = _score(request)
            return EpisodeScore.model_validate({**fields, "timing_ms": timing})

        return ScoringPlan(encode.BACKEND, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        return dict(encode.PROVENANCE)

    def check_ready(self) -> Mapping[str, str] | None:
        """Return None: the run-state store is opened before the service listens."""


def _score(request: EpisodeRequest) -> dict[str, Any]:
    """Score one episode with the default options; return the fields of its `EpisodeScore`.

    Raises:
        RewardFleetError: The episode is invalid for its kind, or the judge of its video failed.
    """
    result = score_episodes([request])
    error = result.batch.reasons.get(0)
    if error is not None:
        raise error
    (encoded,) = encode.results(result, None)
    fields = msgspec.to_builtins(encoded)
    # Filters apply to groups: `keep` is always true for a single episode with a score.
    return {**fields, "keep": fields["score"] is not None, "drop_reason": None}
