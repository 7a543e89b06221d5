"""What a client writes to its own score log."""

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.frames import Frames
from rewardfleet.wire.score import Request, Score, Status

from .record import Scored
from .strip import Frame, strip_of
from .writer import ScoreLog


class ClientLog:
    """The part of a client's log that is of one service.

    Args:
        log: Where it is written.
        service: The service.
        run: The training run of requests that do not say it.
    """

    def __init__(self, log: ScoreLog, service: str, run: str | None) -> None:
        self._log = log
        self._service = service
        self._run = run

    def add(
        self,
        requests: Sequence[Request],
        answers: Sequence[Score | RewardFleetError],
        *,
        run: str | None = None,
        step: int | None = None,
        options: Request | None = None,
    ) -> None:
        """Add requests and their answers.

        Args:
            run, step, options: Those of the batch, where they are no part of its items.
        """
        now = time.time()

        def scored() -> Iterator[Scored]:
            for request, answer in zip(requests, answers, strict=True):
                yield Scored(
                    self._service,
                    now,
                    request,
                    _failed(answer) if isinstance(answer, RewardFleetError) else answer,
                    run=run or self._run,
                    step=step,
                    strip=partial(_strip_of, getattr(request, "frames", None)),
                    options=options,
                )

        self._log.add(scored, items=len(requests), size=sum(_sizes(requests)))


def _failed(error: RewardFleetError) -> Score:
    return Score(score=None, status=Status.ERROR, error=error.problem())


def _strip_of(frames: Frames | None) -> bytes | None:
    if frames is None:
        return None
    pixels = np.frombuffer(b"".join(frames.pixels), np.uint8).reshape(frames.shape)
    if frames.order == "TCHW":
        pixels = pixels.transpose(0, 2, 3, 1)
    images: Sequence[Frame] = [*pixels]
    return strip_of(images)


def _sizes(requests: Iterable[Request]) -> Iterator[int]:
    """Yield how many bytes of content each request keeps in memory."""
    for request in requests:
        frames = getattr(request, "frames", None)
        images = getattr(request, "frames_base64", None) or ()
        video = getattr(request, "video_base64", None) or b""
        yield (frames.size if frames else 0) + len(video) + sum(map(len, images))
