"""What is sent: items that the services can score without preparation, or those of a file."""

import functools
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, FiniteFloat, JsonValue, ValidationError

from rewardfleet.client import SERVICES
from rewardfleet.video import video_request
from rewardfleet.wire.validation import format_validation_error

#: The largest file with requests, which is in memory.
_MAX_FILE_BYTES = 512 * 2**20
#: Images that clips are composed of, the side of an image, and how many a clip has.
_IMAGES, _SIDE, _CLIP_FRAMES = 48, 256, 16

Body = dict[str, JsonValue]


class LoadRequest(BaseModel, extra="forbid"):
    """A request to send, and the only right score; None if any is."""

    service: str
    body: Body
    path: Literal["/score", "/score/batch"] = "/score"
    score: FiniteFloat | None = None


def generate_requests(services: Sequence[str]) -> Iterator[LoadRequest]:
    """Yield requests with one item each, no two of which are the same, so that caches do not help.

    Args:
        services: Those that get requests, equally often.
    """
    choices = random.Random()  # noqa: S311 - not for secrets
    for number in itertools.count(choices.getrandbits(40)):
        name = choices.choice(services)
        body, score = ITEMS[name](number)
        yield LoadRequest.model_construct(service=name, body=body, path="/score", score=score)


def video_item(number: int) -> tuple[Body, None]:
    """Return a task, and a clip of images as an adapter sends it, for which any score is right."""
    frames = random.Random(number).choices(_images(), k=_CLIP_FRAMES)  # noqa: S311 - not for secrets
    return {"task_text": "put it there", "frames_base64": frames, "nframes": _CLIP_FRAMES}, None


@functools.cache
def _images() -> list[JsonValue]:
    blocks = np.random.default_rng(0).integers(0, 256, (_IMAGES, 8, 8, 3), np.uint8)
    images = blocks.repeat(_SIDE // 8, axis=1).repeat(_SIDE // 8, axis=2)
    request = video_request("-", images, nframes=_IMAGES)
    encoded: list[JsonValue] = request.model_dump(mode="json")["frames_base64"]
    return encoded


def code_item(number: int) -> tuple[Body, float]:
    """Return a short program with two tests that it passes, and its score."""
    cases: list[JsonValue] = [
        {"stdin": f"{number} {each}", "stdout": str(number + each)} for each in (1, 2)
    ]
    program = "a, b = map(int, input().split())\nprint(a + b)"
    return {"revision": program, "tests": {"kind": "stdio", "cases": cases}}, 1.0


def episode_item(number: int) -> tuple[Body, float]:
    """Return an episode and its score."""
    return {"uid": f"load-{number}", "success": number % 2}, float(number % 2)


def tools_item(number: int) -> tuple[Body, float]:
    """Return an answer with the right call, and its score."""
    call = json.dumps({"name": "search", "parameters": {"query": f"load {number}"}})
    text = f"<think>I look it up.</think>\n<tool_call>\n{call}\n</tool_call>"
    return {"response": text, "ground_truth": text}, 4.0


#: What is generated for each service, given a number that no other item has.
ITEMS: dict[str, Callable[[int], tuple[Body, float | None]]] = {
    "video": video_item, "code": code_item, "episode": episode_item, "tools": tools_item,
}  # fmt: skip


def read_requests(path: Path) -> list[LoadRequest]:
    """Return the requests of a file, one per line.

    Raises:
        ValueError: The file is too large, is empty, or has an invalid line.
        OSError: It cannot be read.
    """
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"--requests {path}: the file has more than 512 MiB")
    requests = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            requests += [LoadRequest.model_validate_json(line)] if line.strip() else []
        except ValidationError as error:
            reason = format_validation_error(error, LoadRequest)
            raise ValueError(f"--requests {path}, line {number}: {reason}") from None
    if not requests:
        raise ValueError(f"--requests {path}: the file has no requests")
    if unknown := {each.service for each in requests} - SERVICES.keys():
        known = ", ".join(SERVICES)
        raise ValueError(f"--requests {path}: service {min(unknown)!r} is not one of {known}")
    return requests
