"""Assembly of the video service."""

import importlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rewardfleet.wire.video import VideoHealth, VideoRequest, VideoScore
from rewardfleet_server.app import RewardApp, Service
from rewardfleet_server.app import create_app as create_reward_app

from .judges import JUDGES, Judge
from .scorer import VideoScorer
from .settings import VideoSettings
from .sources import VideoFiles


def create_app(settings: VideoSettings, judges: Mapping[str, Judge] | None = None) -> RewardApp:
    """Put the video service together.

    Args:
        settings: What it was told.
        judges: The judges by name; by default those that the settings ask for, loaded here.

    Raises:
        ValueError: The settings name a judge that does not exist, or one that cannot be loaded.
    """
    if judges is None:
        judges = {settings.default_backend: load_judge(settings.default_backend, settings)}
    default = settings.default_backend
    if default not in judges:
        default = next(iter(judges))
    threads = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="decode")
    files = VideoFiles(settings.video_root, max_bytes=settings.max_video_mb * 2**20)

    async def aclose() -> None:
        for judge in judges.values():
            await judge.aclose()
        threads.shutdown(wait=False, cancel_futures=True)

    service = Service(
        name="video",
        about="A robot rollout goes in as a video, the judgment of a backend comes out.",
        scorer=VideoScorer(judges, default=default, files=files, threads=threads),
        request_type=VideoRequest,
        score_type=VideoScore,
        aclose=aclose,
    )
    app = create_reward_app(service, settings)

    @app.get("/health", summary="Which judges are loaded")
    async def health() -> VideoHealth:
        return VideoHealth(status="ok", default_backend=default, loaded_backends=sorted(judges))

    return app


def load_judge(name: str, settings: VideoSettings) -> Judge:
    """Load a judge of the table `JUDGES` by its name.

    Raises:
        ValueError: There is no such judge, or it cannot be loaded with these settings.
    """
    target = JUDGES.get(name)
    if target is None:
        raise ValueError(f"no judge is called {name!r}; known: {', '.join(sorted(JUDGES))}")
    module, _, attribute = target.partition(":")
    judge: Judge = getattr(importlib.import_module(module), attribute)(settings)
    return judge
