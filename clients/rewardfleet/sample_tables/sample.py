"""What a table shows of a sample."""

import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel

from rewardfleet.score_log.of_client import frames_of
from rewardfleet.score_log.record import Scored
from rewardfleet.score_log.strip import MAX_FRAMES, MAX_SIDE, QUALITY, Frame, side_by_side
from rewardfleet.services import SERVICES
from rewardfleet.wire.video import sample_indices

#: Characters of a text.
_MAX_TEXT = 2000
#: The verdicts of tests that lower no score.
_NO_FAILURES = {"accepted", "left_out", "skipped"}


class Picture(NamedTuple):
    """Frames of a clip side by side, encoded once for all trackers."""

    jpeg: bytes
    width: int
    height: int


@dataclass(frozen=True)
class Sample:
    """A row of a table. Texts are "" where there is none."""

    score: float | None  #: None if it is missing
    status: str
    cause: str
    suspicions: str
    uid: str
    task: str  #: the task of a clip, the tests of a program, the ground truth of an answer
    output: str  #: the program that was extracted, or the answer
    explanation: str  #: the judge's words, the failure, or what the cause means
    picture: Picture | None


def sample_of(scored: Scored) -> Sample:
    """Return what a table shows of an item."""
    request, score = scored.request, scored.score

    def text(*names: str) -> str:
        """Return the first text among fields of the score, then of the request."""
        found = (getattr(each, name, None) for each in (score, request) for name in names)
        return _cut(next(filter(None, found), ""))

    return Sample(
        score=getattr(score, "score", None),
        status=text("status"),
        cause=text("cause"),
        suspicions=_cut("; ".join(getattr(score, "suspicions", ()))),
        uid=text("uid"),
        task=text(SERVICES[scored.service].group),
        output=text("code", "revision", "response"),
        explanation=_cut(_explanation(scored)),
        picture=_picture(request),
    )


def _explanation(scored: Scored) -> str:
    score: Any = scored.score
    if score.error is not None:
        return str(score.error.detail)
    if words := getattr(score, "model_output", ""):
        return str(words)
    causes = SERVICES[scored.service].causes
    cause = next((each for each in causes if each == score.cause), None)
    lines = [] if cause is None else [cause.meaning]
    for number, each in enumerate(getattr(score, "verdicts", ()), 1):
        if each.verdict not in _NO_FAILURES:
            shown = each.returned or each.stdout or each.stderr
            lines.append(f"Test {number}: {each.verdict}\n{shown}")
            break
    return "\n".join(lines)


def _cut(value: Any) -> str:
    """Return a text that can be encoded, and is not too long; of a model its JSON."""
    if isinstance(value, BaseModel):
        value = value.model_dump_json(exclude_defaults=True)
    shown = str(value)[: _MAX_TEXT + 1].encode(errors="replace").decode()
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"


def _picture(request: Any) -> Picture | None:
    """Return frames of a clip that the request has as an array, or as images."""
    try:
        from PIL import Image  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    images = getattr(request, "frames_base64", None) or ()
    frames: list[Frame] = []
    if getattr(request, "frames", None) is not None:
        frames = frames_of(request.frames)
    try:
        for index in sample_indices(len(images), MAX_FRAMES):
            with Image.open(io.BytesIO(images[index])) as image:
                image.draft("RGB", (MAX_SIDE, MAX_SIDE))  # JPEG decodes to about this size
                frames.append(np.asarray(image.convert("RGB")))
        if not frames:
            return None
        strip = Image.fromarray(side_by_side(frames))
    except (OSError, SyntaxError, ValueError):  # damaged, or of different sizes
        return None
    jpeg = io.BytesIO()
    strip.save(jpeg, "JPEG", quality=QUALITY)
    return Picture(jpeg.getvalue(), *strip.size)
