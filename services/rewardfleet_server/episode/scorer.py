"""Scoring one episode."""

from collections.abc import Mapping

import msgspec
from pydantic import JsonValue

from rewardfleet.episodes import measure, settle
from rewardfleet.wire.episode import EpisodeOptions, EpisodeRequest, EpisodeScore
from rewardfleet_server.anonymous_file import AnonymousFile
from rewardfleet_server.engine import Plan

from . import encode


class EpisodeScorer:
    """Scores episodes that are compared with no other. Nothing is cached: computing is cheaper."""

    async def plan(
        self,
        request: EpisodeRequest,
        upload: AnonymousFile | None = None,  # noqa: ARG002 - there is none
    ) -> Plan[EpisodeScore]:
        async def compute() -> EpisodeScore:
            return score_one(request)

        return Plan(encode.BACKEND, compute)

    def provenance(self, backend: str) -> dict[str, JsonValue]:  # noqa: ARG002 - there is one
        """Return the provenance of all scores."""
        return dict(encode.PROVENANCE)

    def check_ready(self) -> Mapping[str, str] | None:
        """The store is opened before the service listens."""


def score_one(request: EpisodeRequest) -> EpisodeScore:
    """Score one episode that is compared with no other.

    Raises:
        RewardFleetError: It is invalid for its kind, or its video's judge failed.
    """
    options = EpisodeOptions()
    settled = settle(measure([request], options), options)
    reason = settled.reasons.get(0)
    if reason is not None:
        raise reason
    (result,) = encode.results(settled, None)
    score = EpisodeScore.model_validate(msgspec.to_builtins(result))
    return score.model_copy(update={"keep": score.score is not None, "dropped": None})
