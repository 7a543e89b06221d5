"""Whether each frame reaches the model behind an endpoint: proved by the tokens of its prompts.

Engines sample videos again, such as at 2 frames per second, and do not say what they leave out.
So clips with 2, 4 and more frames are shown: all pairs must add as many tokens as the second one.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable

import numpy as np

from rewardfleet.wire.errors import BackendFailed
from rewardfleet_server.video.clip.frames import UNKNOWN_FPS, Clip

from .chat_endpoint import ChatEndpoint, Choice

log = logging.getLogger(__name__)

#: The shortest clip that is proved is that of a default request.
_LEAST_FRAMES = 16
#: What to do if frames are left out. The flags are those of vLLM 0.32.
_REMEDY = (
    "use --set media=images, or start vLLM with --media-io-kwargs "
    '\'{"video": {"video_backend": "opencv", "num_frames": -1}}\' '
    "--mm-processor-kwargs '{\"do_sample_frames\": false}'; of images, send fewer"
)


class ShownFrames:
    """What is proved, until the endpoint is restarted.

    Args:
        show: Returns the answer to a clip, or without one; it may raise BackendFailed.
    """

    def __init__(
        self, endpoint: ChatEndpoint, show: Callable[[Clip | None], Awaitable[Choice]]
    ) -> None:
        self._endpoint = endpoint
        self._show = show
        self._lock = asyncio.Lock()
        #: Of the tokens that clips of 0, 2 and 4 frames become, or of their number.
        self.digest: str | None = None
        self._breaks: int | None = None  #: of the endpoint, when the following was found
        self._frames, self._rate = 0.0, 0.0  #: of the longest and of the fastest clip

    async def prove(self, frames: int = _LEAST_FRAMES, rate: float = UNKNOWN_FPS) -> bool:
        """Return whether clips like this are shown completely; False if tokens are not counted.

        Args:
            frames: The number of frames.
            rate: The most frames per second at which they are sent.

        Raises:
            BackendFailed: Some are left out.
            Unavailable: The endpoint fails.
        """
        async with self._lock:
            if self._breaks != self._endpoint.breaks:
                self._breaks = self._endpoint.breaks
                self._frames = self._rate = 0.0
            if frames > self._frames or rate > self._rate:
                most = max(frames, int(self._frames), _LEAST_FRAMES)
                await self._prove(most, max(rate, self._rate))
            return self.digest is not None

    async def _prove(self, frames: int, rate: float) -> None:
        clips = (None, _clip(2), _clip(4), _clip(frames, rate))
        try:
            answers = [await self._show(clip) for clip in clips]
            none, two, four, all_frames = (answer.prompt_tokens for answer in answers)
            reason = None if two > none else "its usage.prompt_tokens does not count frames"
        except BackendFailed as error:
            reason = error.detail
        if reason is not None:
            log.warning("it is not known whether the model sees all frames: %s", reason)
            self.digest, self._frames, self._rate = None, math.inf, math.inf
            return
        pair = four - two
        shown = 2 + 2 * (all_frames - two) / pair if pair > 0 else 2
        if shown < frames - 0.5:
            raise BackendFailed(
                f"the endpoint shows the model about {shown:.0f} of {frames} frames that are sent "
                f"at {rate:.3g} frames per second: {_REMEDY}"
            )
        tokens = [answer.prompt_token_ids or answer.prompt_tokens for answer in answers[:3]]
        self.digest = hashlib.sha256(str(tokens).encode()).hexdigest()[:16]
        self._frames, self._rate = frames, rate


def _clip(frames: int, fps: float = UNKNOWN_FPS) -> Clip:
    frame = np.zeros((224, 224, 3), np.uint8)
    return Clip((frame,) * frames, tuple(range(frames)), frames, fps, 224 * 224)
