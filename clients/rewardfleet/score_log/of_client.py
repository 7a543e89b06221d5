"""What a client gives to its own score log, and to tables of samples."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rewardfleet.wire.errors import RewardFleetError
from rewardfleet.wire.frames import Buffer, Frames
from rewardfleet.wire.score import Request, Score, failed
from rewardfleet.wire.video import VideoRequest

from .queue import ScoredQueue
from .record import Scored
from .strip import Frame, strip_of


@dataclass(frozen=True)
class ClientLog:
    """The part of a client's log that is of one service."""

    logs: Sequence[ScoredQueue]  #: where it is written: a score log, tables of samples, or both
    service: str
    run: str | None  #: the training run of requests that do not say it

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
                    self.service,
                    now,
                    request,
                    failed(answer, Score) if isinstance(answer, RewardFleetError) else answer,
                    run=run or self.run,
                    step=step,
                    strip=partial(_strip_of, getattr(request, "frames", None)),
                    options=options,
                )

        clips = (each.content for each in requests if isinstance(each, VideoRequest))
        size = sum(map(len, itertools.chain.from_iterable(clips)))
        for log in self.logs:
            log.add(scored, items=len(requests), size=size)


def frames_of(frames: Frames) -> list[Frame]:
    """Return raw frames, of which each is a view of their pixels."""
    count, *shape = frames.shape
    parts: Sequence[Buffer] = frames.pixels
    if len(parts) != count:
        joined, size = memoryview(b"".join(parts)), frames.size // count
        parts = [joined[index * size :][:size] for index in range(count)]
    arrays = [np.frombuffer(part, np.uint8).reshape(shape) for part in parts]
    return [each.transpose(1, 2, 0) for each in arrays] if frames.order == "TCHW" else arrays


def _strip_of(frames: Frames | None) -> bytes | None:
    return None if frames is None else strip_of(frames_of(frames))
