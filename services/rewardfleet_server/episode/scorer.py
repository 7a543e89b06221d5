"""Scoring one episode."""

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
                result = score_episodes([request])
            if error := result.batch.reasons.get(0):
                raise error
            (encoded,) = encode.results(result, None)
            # Filters apply to groups: a single episode with a score is always kept.
            more = {"keep": encoded.score is not None, "drop_reason": None, "timing_ms": timing}
            return EpisodeScore.model_validate(msgspec.to_builtins(encoded) | more)

        return ScoringPlan(encode.BACKEND, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        return dict(encode.PROVENANCE)
