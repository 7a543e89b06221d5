"""The client of the answers service, and what its declaration names."""

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from .service import BatchClient, reward_of, score_of, with_options
from .wire.answers import AnswersRequest, AnswersScore, Form, Rule, fields_of_truth
from .wire.policy_text import text_of
from .wire.validation import validate


class AnswersOptions(TypedDict, total=False):
    """The options of `answers_request`."""

    form: Form
    extract: Rule
    tolerance: float | None
    units: str | None
    schema: Mapping[str, Any] | bool | None
    run: str | None
    step: int | None
    uid: str | None


@with_options
def answers_request(
    response: str | None, reference: Any = None, **options: Unpack[AnswersOptions]
) -> AnswersRequest:
    """Build a request from what a policy wrote and the right answer.

    Args:
        response: Any text. None abstains: `no_answer`.
        reference: A text, a number, or JSON; or a list of equally right ones.
        options: `form`, `extract`, `tolerance`, `units`, `schema`; see `AnswersRequest`.

    Raises:
        InvalidRequest: The request is invalid; the message is the service's.
    """
    return validate(AnswersRequest, {"response": response, "reference": reference, **options})


class AnswersClient(BatchClient[AnswersRequest, AnswersScore]):
    """The client of the answers service. `RewardFleet` creates it."""

    request_type = AnswersRequest
    score_type = AnswersScore
    has_run_label = True

    score = score_of(answers_request, AnswersScore)
    reward = reward_of(answers_request)


def answers_fields(completion: Any, truth: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request, as `text_of` and `fields_of_truth` read them."""
    return {**fields_of_truth(truth, row), "response": text_of(completion)}
