"""Requests: items that the services can score without preparation, or those of a file."""

import base64
import functools
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, JsonValue, ValidationError

from rewardfleet.arrays import encode_png
from rewardfleet.services import SERVICES
from rewardfleet.wire.errors import ErrorKind
from rewardfleet.wire.validation import read_lines

#: Images that clips are composed of, the side of an image, and how many a clip has.
_IMAGES, _SIDE, _CLIP_FRAMES = 48, 256, 16

#: What became of requests that were answered. All other kinds are failures.
SCORED, CACHED, ABSTAINED = ANSWERED = ("scored", "cached", "abstained")
WRONG_SCORE = "wrong score"


class LoadRequest(BaseModel, extra="forbid"):
    """A request to send, and the only right score; None if any is."""

    service: str
    body: dict[str, Any]  #: JSON
    path: Literal["/score", "/score/batch"] = "/score"
    score: FiniteFloat | None = None


def generate_requests(services: Sequence[str]) -> Iterator[LoadRequest]:
    """Yield requests with one item each, no two of which are the same, so that caches do not help.

    Args:
        services: Those that get requests, equally often.
    """
    choices = random.Random()  # noqa: S311 - not for secrets
    for number in itertools.count(choices.getrandbits(40)):
        service = choices.choice(services)
        body, score = SERVICES[service].item(number)
        yield LoadRequest.model_construct(service=service, body=body, score=score)


def clip(number: int) -> tuple[dict[str, Any], float | None]:
    """Return a clip of blocks of color."""
    frames = random.Random(number).choices(_images(), k=_CLIP_FRAMES)  # noqa: S311 - not for secrets
    return {"task_text": "put it there", "frames_base64": frames, "nframes": _CLIP_FRAMES}, None


@functools.cache
def _images() -> list[JsonValue]:
    blocks = np.random.default_rng(0).integers(0, 256, (_IMAGES, 8, 8, 3), np.uint8)
    images = blocks.repeat(_SIDE // 8, axis=1).repeat(_SIDE // 8, axis=2)
    return [base64.b64encode(encode_png(image)).decode() for image in images]


def program(number: int) -> tuple[dict[str, Any], float | None]:
    """Return a program that passes 2 tests."""
    cases = [{"stdin": f"{number} {each}", "stdout": str(number + each)} for each in (1, 2)]
    revision = "a, b = map(int, input().split())\nprint(a + b)"
    return {"revision": revision, "tests": {"kind": "stdio", "cases": cases}}, 1.0


def episode(number: int) -> tuple[dict[str, Any], float | None]:
    """Return a success after 120 of 512 steps."""
    body = {"uid": f"load-{number}", "kind": "efficiency", "success": 1, "steps": 120}
    return {**body, "max_steps": 512}, 512 / (512 + 120)


def answer(number: int) -> tuple[dict[str, Any], float | None]:
    """Return an answer with the right call."""
    call = json.dumps({"name": "search", "parameters": {"query": f"load {number}"}})
    text = f"<think>I look it up.</think>\n<tool_call>\n{call}\n</tool_call>"
    return {"response": text, "ground_truth": text}, 4.0


def number(number: int) -> tuple[dict[str, Any], float | None]:
    """Return a number, in a box."""
    return {"response": f"So it is \\boxed{{{number}}}.", "reference": number}, 1.0


def read_requests(path: Path) -> list[LoadRequest]:
    """Return the requests of a file, one per line. They are all in memory.

    Raises:
        ValueError: The file is empty, or has an invalid line.
        OSError: It cannot be read.
    """
    requests = []
    for number, line in read_lines(path, LoadRequest):
        if isinstance(line, str):
            raise ValueError(f"--requests {path}, line {number}: {line}")  # noqa: TRY004 - of a value
        requests.append(line)
    if not requests:
        raise ValueError(f"--requests {path}: the file has no requests")
    if unknown := {each.service for each in requests} - SERVICES.keys():
        known = ", ".join(SERVICES)
        raise ValueError(f"--requests {path}: service {min(unknown)!r} is not one of {known}")
    return requests


class _LoadAnswer(BaseModel):
    """The fields of a score, a batch or a problem that matter here."""

    status: str | int | None = None
    score: float | None = None
    cached: bool = False
    error: "_LoadAnswer | None" = None
    results: "list[_LoadAnswer] | None" = None
    kind: str = ""
    detail: str = ""


def outcome_of(request: LoadRequest, status: int, body: bytes) -> tuple[str, str]:
    """Return what an answer means: one of `ANSWERED` or a kind of failure, and a message."""
    try:
        answer = _LoadAnswer.model_validate_json(body)
    except ValidationError:  # of a proxy
        return f"HTTP {status}", "not an answer of rewardfleet"
    if status != 200:
        return answer.kind if answer.kind in set(ErrorKind) else f"HTTP {status}", answer.detail
    scores = [answer] if answer.results is None else answer.results
    for each in scores or [_LoadAnswer()]:
        if each.error is not None:
            return each.error.kind, each.error.detail
        if each.status == "abstained":
            return ABSTAINED, ""
        if each.score is None:
            return "invalid answer", "there is no score"
        if request.score is not None and abs(each.score - request.score) > 1e-6:
            return WRONG_SCORE, f"{each.score:g} instead of {request.score:g}"
    return CACHED if all(each.cached for each in scores) else SCORED, ""
