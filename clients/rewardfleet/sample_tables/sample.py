"""What a table shows of a sample."""

import io
import json
from typing import Any, NamedTuple

import numpy as np

from rewardfleet.score_log.of_client import frames_of
from rewardfleet.score_log.record import Scored
from rewardfleet.score_log.strip import MAX_FRAMES, MAX_SIDE, QUALITY, Frame, side_by_side
from rewardfleet.services import SERVICES
from rewardfleet.wire.video import sample_indices

#: Characters of a text.
_MAX_TEXT = 2000
#: The fields of a request with the content of a clip.
_CONTENTS = {"frames", "frames_base64", "video_base64"}


class Sample(NamedTuple):
    """A row of a table. Texts are "" where there is none."""

    score: float | None  #: None if it is missing
    status: str
    cause: str
    suspicions: str
    uid: str
    task: str  #: the task of a clip, the tests of a program, the ground truth of an answer
    output: str  #: the program that was extracted, or the answer
    explanation: str  #: the story that `rewardfleet explain` tells
    picture: bytes | None  #: frames of a clip side by side, as JPEG


def sample_of(scored: Scored) -> Sample:
    """Return what a table shows of an item."""
    from rewardfleet.story import story_of  # noqa: PLC0415 - for samples only

    request = scored.request.model_dump(exclude=_CONTENTS, exclude_unset=True)
    answer: Any = scored.score
    score = answer.model_dump()
    fields = {**request, **score}

    def text(*names: str) -> str:
        """Return the first text among fields."""
        return _cut(next(filter(None, map(fields.get, names)), ""))

    return Sample(
        score=score["score"],
        status=text("status"),
        cause=text("cause"),
        suspicions=_cut("; ".join(score.get("suspicions", ()))),
        uid=text("uid"),
        task=text(SERVICES[scored.service].group),
        output=text("code", "revision", "response"),
        explanation=_cut("\n".join(story_of(scored.service, request, score))),
        picture=_picture(scored.request),
    )


def _cut(value: Any) -> str:
    """Return a text that can be encoded, and is not too long; of what is no text its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    shown = text[: _MAX_TEXT + 1].encode(errors="replace").decode()
    return shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"


def _picture(request: Any) -> bytes | None:
    """Return frames of a clip that the request has as an array, or as images."""
    try:
        from PIL import Image  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    images = getattr(request, "frames_base64", None) or ()
    raw = getattr(request, "frames", None)
    frames: list[Frame] = [] if raw is None else frames_of(raw)
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
    return jpeg.getvalue()
