"""What is sent: items that the services can score without preparation, or those of a file."""

import base64
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import cv2
import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, JsonValue, ValidationError

from rewardfleet.client import SERVICES
from rewardfleet.wire.validation import format_validation_error

#: Limits of a file with requests, which is in memory.
_MAX_FILE_BYTES = 512 * 2**20
#: Frames that clips are composed of, their size, and how many a clip has.
_IMAGES, _SIDE, _CLIP_FRAMES = 48, 256, 16


class LoadRequest(NamedTuple):
    """A request to send.

    Attributes:
        service: Where to, e.g. `code`.
        path: The route, `/score` or `/score/batch`.
        body: JSON.
        score: The only right score; None if any is.
    """

    service: str
    path: str
    body: bytes
    score: float | None


class Source(Protocol):
    """Where requests come from."""

    @property
    def services(self) -> frozenset[str]:
        """The services that get requests."""

    def next(self) -> LoadRequest:
        """Return the next request."""


class GeneratedRequests:
    """Requests with one item each, no two of which are the same, so that caches do not help.

    Args:
        weights: How often each service gets a request, relative to the others.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = list(weights)
        self._weights = list(weights.values())
        self._random = random.Random()  # noqa: S311 - not for secrets
        self._number = self._random.getrandbits(40)
        self._images = list(_images()) if "video" in weights else []

    @property
    def services(self) -> frozenset[str]:
        return frozenset(self._names)

    def next(self) -> LoadRequest:
        self._number += 1
        (name,) = self._random.choices(self._names, self._weights)
        item, score = getattr(self, f"_{name}")(self._number)
        return LoadRequest(name, "/score", msgspec.json.encode(item), score)

    def _video(self, _number: int) -> tuple[dict[str, JsonValue], float | None]:
        frames: list[JsonValue] = list(self._random.choices(self._images, k=_CLIP_FRAMES))
        task = "put the bowl on the stove"
        return {"task_text": task, "frames_base64": frames, "nframes": _CLIP_FRAMES}, None

    def _code(self, number: int) -> tuple[dict[str, JsonValue], float | None]:
        cases: list[JsonValue] = [
            {"stdin": f"{number} {each}", "stdout": str(number + each)} for each in (1, 2)
        ]
        program = "a, b = map(int, input().split())\nprint(a + b)"
        return {"revision": program, "tests": {"kind": "stdio", "cases": cases}}, 1.0

    def _episode(self, number: int) -> tuple[dict[str, JsonValue], float | None]:
        return {"uid": f"load-{number}", "success": number % 2}, float(number % 2)

    def _tools(self, number: int) -> tuple[dict[str, JsonValue], float | None]:
        call = {"name": "search", "parameters": {"query": f"load {number}"}}
        text = f"<think>I look it up.</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        return {"response": text, "ground_truth": text}, 4.0


def _images() -> Iterator[str]:
    """Return JPEG images in base64, of the size that LIBERO renders."""
    random_numbers = np.random.default_rng(0)
    for _ in range(_IMAGES):
        small = random_numbers.integers(0, 256, (8, 8, 3), np.uint8)
        image = cv2.resize(small, (_SIDE, _SIDE), interpolation=cv2.INTER_CUBIC)
        yield base64.b64encode(cv2.imencode(".jpg", image)[1].tobytes()).decode()


class _Line(BaseModel):
    """A line of a file with requests."""

    model_config = ConfigDict(extra="forbid")

    service: str
    body: dict[str, JsonValue]
    path: Literal["/score", "/score/batch"] = "/score"
    score: FiniteFloat | None = None


class RecordedRequests:
    """The requests of a file, in turn, over and over.

    Args:
        path: JSON lines: `service`, `body`, and optionally `path` and the right `score`.

    Raises:
        ValueError: The file cannot be read, is too large, or has an invalid line.
    """

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"--requests {path}: the file has more than 512 MiB")
        with path.open("rb") as file:
            self._requests = list(_read(path, file))
        if not self._requests:
            raise ValueError(f"--requests {path}: the file has no requests")
        self._place = -1

    @property
    def services(self) -> frozenset[str]:
        return frozenset(each.service for each in self._requests)

    def next(self) -> LoadRequest:
        self._place = (self._place + 1) % len(self._requests)
        return self._requests[self._place]


def _read(path: Path, lines: Iterable[bytes]) -> Iterator[LoadRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            parsed = _Line.model_validate_json(line)
        except ValidationError as error:
            reason = format_validation_error(error, _Line)
            raise ValueError(f"--requests {path}, line {number}: {reason}") from None
        if parsed.service not in SERVICES:
            known = ", ".join(SERVICES)
            raise ValueError(
                f"--requests {path}, line {number}: service {parsed.service[:100]!r} is not one of "
                f"{known}"
            )
        body = json.dumps(parsed.body).encode()
        yield LoadRequest(parsed.service, parsed.path, body, parsed.score)
