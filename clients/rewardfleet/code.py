"""The client of the code service."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from .service import BatchClient, reward_of, score_of, with_options
from .wire.code import CodeRequest, CodeScore, DatasetTests, Limits, PlainTests
from .wire.validation import validate

#: Tests as a model, or as a mapping with the same fields; or in any form of `code_request`.
TestsLike = PlainTests | DatasetTests | Mapping[str, Any] | Sequence[Any] | str


class CodeOptions(TypedDict, total=False):
    """The options of `code_request`."""

    program: str | None
    critique: str | None
    original_program: str | None
    original_passed: bool | None
    mode: Literal["pass_rate", "all_pass"]
    limits: Limits | Mapping[str, float]
    language: Literal["python"]
    run: str | None
    step: int | None
    uid: str | None


@with_options
def code_request(
    revision: str | None = None, tests: TestsLike | None = None, **options: Unpack[CodeOptions]
) -> CodeRequest:
    """Build a request from a program and its tests.

    Args:
        revision: The program, plain or in a fenced block of a text. None abstains: `no_answer`.
        tests: 1 to 1000 tests of one kind; or tests, a row of a data set, a list of asserts in any
            form of docs/wire-formats.md, or the JSON of one of these.
        options: `program`, another name of `revision`; `critique`, `original_program`,
            `original_passed`, `mode`, `limits` and `language`; see `CodeRequest`.

    Raises:
        InvalidRequest: The request is invalid; the message is the service's.
    """
    given = {} if revision is None and "program" in options else {"revision": revision}
    return validate(CodeRequest, {**given, "tests": tests, **options})


class CodeClient(BatchClient[CodeRequest, CodeScore]):
    """The client of the code service. `RewardFleet` creates it."""

    request_type = CodeRequest
    score_type = CodeScore
    has_run_label = True

    score = score_of(code_request, CodeScore)
    reward = reward_of(code_request)
