"""Rows of data sets as requests, and their scores: for adapters, and for `rewardfleet score`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .code import CodeOptions, code_request
from .service import BatchClient, ScoreT
from .tools import ToolsFields, tools_request
from .video import VideoOptions, video_request
from .wire.code import as_tests
from .wire.digest import LABELS
from .wire.errors import RewardFleetError
from .wire.policy_text import POLICY_FIELDS, text_of
from .wire.score import Status
from .wire.tools_rows import fields_of_truth

#: A row of a trainer's dataset.
SampleRow = Mapping[str, Any]

#: Fields of a row that a request has as well; a column `language` may name another one, and `step`
#: or `uid` something else.
_OPTIONS = CodeOptions.__optional_keys__ - {"language", *LABELS}
_TOOLS_FIELDS = ToolsFields.__optional_keys__ - {"uid"}
_VIDEO_OPTIONS = VideoOptions.__optional_keys__ - LABELS

#: A service whose items are independent.
ServiceName = Literal["code", "tools", "video"]
_BUILDERS = {"code": code_request, "tools": tools_request, "video": video_request}


def requests_of(service: ServiceName, samples: Iterable[tuple[Any, Any, SampleRow]]) -> list[Any]:
    """Return the requests of samples. Each has the arguments of `fields_of` after the first.

    Raises:
        InvalidRequest: What the caller wrote is invalid.
    """
    build: Any = _BUILDERS[service]
    return [build(**fields_of(service, *each)) for each in samples]


def fields_of(service: ServiceName, completion: Any, truth: Any, row: SampleRow) -> dict[str, Any]:
    """Return the fields of a request, as the service's client takes them.

    Args:
        completion: What the policy wrote; see `completion_text`, for tools `answer_text`. The video
            service ignores it.
        truth: The tests of the code service, or their JSON as text; the ground truth of the tools
            service, see `fields_of_truth`; the clip of the video service.
        row: Options of the request, taken where they are not None; for video also `task`.

    Raises:
        InvalidRequest: The completion has no text that can be read, or the tests are invalid.
    """
    if service == "code":
        return request_fields(completion, truth, row)
    if service == "tools":
        fields = fields_of_truth(truth, _given(row, _TOOLS_FIELDS))
        return {"ground_truth": None, **fields, "response": text_of(completion, with_calls=True)}
    if isinstance(truth, np.ndarray) and truth.dtype == object:
        truth = list(truth)  # images from a parquet file
    return {
        "task_text": row.get("task"),
        "clip": truth,
        **_given(row, _VIDEO_OPTIONS),
    }


def request_fields(revision: Any, tests: Any, options: SampleRow) -> dict[str, Any]:
    """Return the fields of a request, as `rewardfleet.code_request` takes them.

    What a policy wrote (`revision`, `critique`, `original_program`) is read by `completion_text`,
    and the tests by `as_tests`. Other fields are taken from an object with `tests`, or else from
    the options, where they are not None.

    Raises:
        InvalidRequest: One of the texts cannot be read, or the tests are invalid.
    """
    found = as_tests(tests)
    given = _given(options, _OPTIONS)
    match found:
        case {"row": {"ground_truth": {"tests": inner} as with_tests}}:
            given |= _given(with_tests, _OPTIONS)
            inner = as_tests(inner)
            if not isinstance(inner, Mapping) or inner["kind"] != "dataset":
                found = inner  # tests of a request; else the service reads the columns around them
    fields = {"revision": revision, **given}
    texts = {name: text_of(fields[name]) for name in POLICY_FIELDS & fields.keys()}
    return {**fields, **texts, "tests": found}


def _given(row: SampleRow, names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


async def scores_of(client: BatchClient[Any, ScoreT], requests: Sequence[Any]) -> list[ScoreT]:
    """Score items, in order. An item that fails has its own `error`, even if all of them fail."""
    if not requests:
        return []
    try:
        return await client.score_batch(requests)
    except RewardFleetError as error:
        failed = client.score_type(score=None, status=Status.ERROR, error=error.problem())
        return [failed] * len(requests)
