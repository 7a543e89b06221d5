"""Its assembly."""

from rewardfleet.wire.words import WordsCause, WordsRequest, WordsScore

from rewardfleet.wire.score import Status
from rewardfleet_server.http.app import RewardApp
from rewardfleet_server.http.routes import Service
from rewardfleet_server.scorer import ScoringPlan

from .settings import WordsSettings


class WordsScorer:
    async def plan(self, request: WordsRequest, upload: object = None) -> ScoringPlan[WordsScore]:
        async def compute(_: float | None) -> WordsScore:
            words = request.wanted.split()
            missing = [each for each in words if each not in request.response.split()]
            share = 1 - len(missing) / len(words)
            cause = WordsCause.MISSING_WORD if missing else None
            return WordsScore(
                score=share, status=Status.OK, cause=cause, components={"share": share},
                missing=missing, backend="words",
            )  # fmt: skip

        return ScoringPlan("words", compute)

    def provenance(self, backend: str) -> dict[str, object]:
        return {}


def create_app(settings: WordsSettings) -> RewardApp:
    service = Service("words", WordsScorer(), WordsRequest, WordsScore)
    return RewardApp(service, settings)
