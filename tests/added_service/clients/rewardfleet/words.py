"""The client of a service of the tests, and what its declaration names."""

from collections.abc import Iterator, Mapping
from typing import Any

from .service import BatchClient
from .wire.validation import validate
from .wire.words import WordsRequest, WordsScore


class WordsClient(BatchClient[WordsRequest, WordsScore]):
    request_type = WordsRequest
    score_type = WordsScore
    has_run_label = True

    async def score(self, response: str, wanted: str, **labels: Any) -> WordsScore:
        return await self._score_one(words_request(response, wanted, **labels))


def words_request(response: str, wanted: str, **labels: Any) -> WordsRequest:
    return validate(WordsRequest, {"response": response, "wanted": wanted, **labels})


def words_fields(completion: Any, truth: Any, _: Mapping[str, Any]) -> dict[str, Any]:
    return {"response": completion, "wanted": truth}


def story_of_words(_: Mapping[str, Any], score: Mapping[str, Any]) -> Iterator[str]:
    yield f"Missing: {', '.join(score.get('missing', ()))}"


def item(number: int) -> tuple[dict[str, Any], float]:
    return {"response": f"it is {number}", "wanted": f"{number} it"}, 1.0
