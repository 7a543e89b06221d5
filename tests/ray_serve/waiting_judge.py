"""A judge of a user, which Ray's replicas import."""

import asyncio
import os
from argparse import Namespace
from typing import Any


def build(_: Namespace) -> "WaitingJudge":
    return WaitingJudge()


class WaitingJudge:
    """Waits for `backend_kwargs.seconds`; its text names the GPUs that it sees, and its process."""

    async def score_video(
        self, task_text: str, path: str, nframes: int, max_pixels: int, options: dict[str, Any]
    ) -> tuple[float, str]:
        await asyncio.sleep(options.get("seconds", 0))
        return 1.0, f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {os.getpid()}"
