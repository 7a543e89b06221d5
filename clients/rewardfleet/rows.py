"""Rows of data sets as requests, and their scores: for adapters, and for `rewardfleet score`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .services import SERVICES, Service
from .tool_use.completion import answer_of
from .tools import ToolsFields
from .video import VideoOptions
from .wire.code import TRUTH_FIELDS, check_values, fields_of_tests
from .wire.errors import RewardFleetError
from .wire.policy_text import POLICY_FIELDS, text_of
from .wire.score import LABELS, failed
from .wire.tools import fields_of_truth
from .wire.truth import given, plain

SampleRow = Mapping[str, Any]

#: Fields of a row that a request has as well; a column `step` or `uid` may have something else.
_TOOLS_FIELDS = ToolsFields.__optional_keys__ - {"uid"}
_VIDEO_OPTIONS = VideoOptions.__optional_keys__ - LABELS


def requests_of(service: str, samples: Iterable[tuple[Any, Any, SampleRow]]) -> list[Any]:
    """Return the requests of samples: what the policy wrote, the truth, and the row of each.

    Raises:
        InvalidRequest: What the caller wrote is invalid.
    """
    declared = sampled(service)
    return [declared.request(**fields_of(declared, *each)) for each in samples]


def fields_of(service: Service, completion: Any, truth: Any, row: SampleRow) -> Any:
    """Return the arguments of `request` for a sample, or raise `InvalidRequest`."""
    if service.truth == "tests":
        check_values(truth, service.truth)
    return service.fields(completion, truth, row)


def sampled(service: str) -> Service:
    """Return a service that scores samples one by one, or raise `TypeError`."""
    known = {name: each for name, each in SERVICES.items() if each.truth}
    if service not in known:
        raise TypeError(f"service: give one of {', '.join(known)}, not {service!r}")
    return known[service]


def tools_fields(completion: Any, truth: Any, row: SampleRow) -> dict[str, Any]:
    """Return the arguments of `tools_request`, as `answer_of` and `fields_of_truth` read them."""
    fields = {"ground_truth": None, **fields_of_truth(truth, given(row, _TOOLS_FIELDS))}
    return {**fields, "response": answer_of(completion, fields["ground_truth"])}


def clip_fields(_: Any, truth: Any, row: SampleRow) -> dict[str, Any]:
    """Return the arguments of `video_request`; `task` is the column of one."""
    if isinstance(truth, np.ndarray) and truth.dtype == object:
        truth = list(truth)  # images from a parquet file
    return {"task_text": row.get("task"), "clip": truth, **given(row, _VIDEO_OPTIONS)}


def code_fields(revision: Any, tests: Any, options: SampleRow) -> dict[str, Any]:
    """Return the arguments of `code_request`, as `text_of` and `fields_of_tests` read them.

    Other fields are taken from an object with `tests`, or else from the options.

    Raises:
        InvalidRequest: One of the texts cannot be read, or the tests are invalid.
    """
    fields = {"revision": revision, **given(options, TRUTH_FIELDS), **fields_of_tests(plain(tests))}
    texts = {name: text_of(fields[name]) for name in POLICY_FIELDS & fields.keys()}
    return {**fields, **texts}


async def scores_of(client: Any, requests: Sequence[Any], options: Any = None) -> list[Any]:
    """Score items, in order. An item that fails has its own `error`, even if all of them fail.

    If the URL is wrong, or has never worked, that is raised. Only episodes have options.
    """
    if not requests:
        return []
    try:
        if options is None:
            return list(await client.score_batch(requests))
        return list((await client.score_batch(requests, options)).results)
    except RewardFleetError as error:
        if error.blames_url:
            raise
        return [failed(error, client.score_type)] * len(requests)
