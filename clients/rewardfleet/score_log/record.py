"""The record of a scored item, a flat row that is the same for all services; and its label."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, StrictBool
from pydantic_core import PydanticSerializationError, to_json

from rewardfleet.bulk.arrow import json_text
from rewardfleet.wire.digest import digest_of, fields_of, text_of
from rewardfleet.wire.errors import Problem
from rewardfleet.wire.score import Score, Timing
from rewardfleet.wire.urls import redact

#: A record: columns by name, as JSON.
Record = dict[str, Any]
Label = Literal["right", "wrong", "unclear"]

#: The fields of times and of errors, by column.
_TIMES = {f"timing_ms_{name}": name for name in Timing.model_fields}
_ERRORS = {f"error_{name}": name for name in Problem.model_fields}
_NO_ERROR = dict.fromkeys(_ERRORS)
_ERROR_TYPES = {"error_status": "int64", "error_retryable": "bool", "error_retry_after": "float64"}
#: The columns of a record and their types: of Arrow, a `map` of text to float64, or `json`.
COLUMNS = {
    "id": "string",
    "time": "float64",
    "service": "string",
    "run": "string",
    "step": "int64",
    "uid": "string",
    "call": "string",
    "request": "string",
    "frames": "binary",
    "score": "float64",
    "status": "string",
    "components": "map",
    "backend": "string",
    "cached": "bool",
    **dict.fromkeys(_TIMES, "float64"),
    "provenance": "json",
    **{name: _ERROR_TYPES.get(name, "string") for name in _ERRORS},
    "cause": "string",
    "details": "string",
    "sample_rate": "float64",
    "label_fraction": "float64",
}

#: The columns of an output of `rewardfleet score`: where an item is in the input, and its record.
ITEM_COLUMNS = {
    "row": "int64",
    "place": "string",
    "completion": "int64",
    "path": "string",
    "metadata": "string",
    "keep": "bool",
    **COLUMNS,
}

#: A record whose line has more bytes is not kept.
MAX_RECORD_BYTES = 16 * 2**20
#: Fields that are columns of their own. The column `details` has all others, one of which is that
#: of a score.
_BASE = {*Score.model_fields, "cause"} - {"details"}
#: Names of options that a caller may have given a key as, by mistake.
_SECRET = re.compile(r"(^|[_-])(api_?key|key|token|secret|password|authorization)$", re.IGNORECASE)


@dataclass(frozen=True)
class Scored:
    """An item and its score, as the log keeps it."""

    service: str
    time: float  #: unix seconds when it was answered
    request: BaseModel
    score: Score | Mapping[str, Any]  #: or the fields of one
    call: str | None = None  #: the id of the HTTP request
    run: str | None = None  #: where the request does not have it
    step: int | None = None  #: likewise
    #: What its score shares with others.
    provenance: Mapping[str, Any] = field(default_factory=dict)
    sample_rate: float = 1.0  #: the share of such items that the log keeps
    sha256: str | None = None  #: of the content, if it is known
    strip: Callable[[], bytes | None] = lambda: None  #: returns a JPEG of its frames
    options: BaseModel | None = None  #: of its batch, where they are no part of the item
    #: The share of such items that people are to label, if this is one of them.
    label_fraction: float | None = None


class LabelLine(BaseModel):
    """What is read of a line of labels, which `rewardfleet look` writes.

    Of the lines of a request, the last one counts.
    """

    id: str  #: of the request
    label: Label  #: whether the score is right
    success: StrictBool | None  #: whether the person saw a success; None if it is unclear


def line_of(scored: Scored) -> bytes:
    """Return the record of an item as a line of JSON."""
    record = record_of(scored)
    try:
        return to_json(record) + b"\n"
    except PydanticSerializationError:  # a lone surrogate, which is no part of a text in UTF-8
        return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


def record_of(scored: Scored) -> Record:
    """Return the record of an item."""
    request = scored.request
    fields = fields_of(request, scored.sha256, scored.options)
    strip = None if "video_path" in fields else scored.strip()
    text = text_of(request, fields)
    shown = _shown(fields)
    # ASCII, also with lone surrogates. For most requests, both texts are the same.
    is_same = shown is fields and "sha256" not in fields and text.isascii()
    given = text if is_same else json.dumps(shown)
    return {
        "id": digest_of(text),
        "time": scored.time,
        "service": scored.service,
        "run": getattr(request, "run", None) or scored.run,
        "step": getattr(request, "step", None) if scored.step is None else scored.step,
        "uid": getattr(request, "uid", None),
        "call": scored.call,
        "request": given,
        "frames": None if strip is None else b64encode(strip).decode(),
        **_score_columns(scored, fields.get("video_url")),
        "sample_rate": scored.sample_rate,
        "label_fraction": scored.label_fraction,
    }


def decoded(record: Mapping[str, Any]) -> Record:
    """Return a record whose JSON texts are what they stand for."""
    names = ("request", "details", "provenance", "metadata")
    texts = {name: each for name in names if isinstance(each := record.get(name), str)}
    return {**record, **{name: json.loads(each) for name, each in texts.items()}}


def _score_columns(scored: Scored, url: str | None) -> Record:
    given = scored.score
    if isinstance(given, Score):  # attributes are read faster than a model is dumped
        details = given.model_dump(exclude=_BASE, exclude_defaults=True)
        given = {**vars(given), "timing_ms": vars(given.timing_ms)}
    else:
        details = {name: value for name, value in given.items() if name not in _BASE}
    timing = given.get("timing_ms") or {}
    stages = timing.keys() - _TIMES.values()
    if stages := {name: timing[name] for name in sorted(stages) if timing[name]}:
        details["timing_ms"] = stages  # those of the service
    problem = given.get("error")
    problem = problem.model_dump(mode="json") if isinstance(problem, Problem) else problem or {}
    if url is not None and problem:
        problem["detail"] = problem["detail"].replace(url, redact(url))
    errors = {name: problem.get(each) for name, each in _ERRORS.items()} if problem else _NO_ERROR
    return {
        "score": given.get("score"),
        "status": str(given["status"]),
        "components": given.get("components") or {},
        "backend": given.get("backend") or "",
        "cached": bool(given.get("cached")),
        **{column: timing.get(name, 0.0) for column, name in _TIMES.items()},
        "provenance": {**scored.provenance, **(given.get("provenance") or {})},
        **errors,
        "cause": given.get("cause"),
        "details": json_text(details),
    }


def _shown(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request as the log has them, which give no access to anything."""
    more: dict[str, Any] = {}
    if (url := fields.get("video_url")) is not None:
        more["video_url"] = redact(url)
    if options := fields.get("backend_kwargs"):
        more["backend_kwargs"] = {
            name: "***" if _SECRET.search(name) else each for name, each in options.items()
        }
    return {**fields, **more} if more else fields
