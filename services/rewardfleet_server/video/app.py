"""Assembly of the video service."""

import importlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from rewardfleet.wire.video import VideoHealth, VideoRequest, VideoScore
from rewardfleet_server.app import RewardApp, Service
from rewardfleet_server.app import create_app as create_reward_app
from rewardfleet_server.serve import yield_to_event_loop

from .fetch import Fetcher
from .judges import ALIASES, JUDGES, Judge, Unloaded, custom
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
        found = {name: find_judge(name, settings) for name in settings.backends}
        judges = {
            name: judge.load() if isinstance(judge, Unloaded) else judge
            for name, judge in found.items()
        }
    default = next(iter(judges))
    readers = ThreadPoolExecutor(2, thread_name_prefix="read")
    decoders = ThreadPoolExecutor(
        max(2, os.cpu_count() or 1), thread_name_prefix="decode", initializer=yield_to_event_loop
    )
    max_bytes = settings.max_video_mb * 2**20
    files = VideoFiles(settings.video_root, max_bytes=max_bytes)
    fetcher = Fetcher(settings.video_url_host, max_bytes=max_bytes)

    running = AsyncExitStack()

    async def start() -> None:
        for judge in judges.values():
            await running.enter_async_context(judge.running())

    async def aclose() -> None:
        await fetcher.aclose()
        await running.aclose()
        for threads in (readers, decoders):
            threads.shutdown(wait=False, cancel_futures=True)

    service = Service(
        name="video",
        about="A robot rollout goes in as a video, the judgment of a backend comes out.",
        scorer=VideoScorer(
            judges,
            default=default,
            files=files,
            fetcher=fetcher,
            readers=readers,
            decoders=decoders,
            max_video_bytes=max_bytes,
        ),
        request_type=VideoRequest,
        score_type=VideoScore,
        start=start,
        aclose=aclose,
        takes_uploads=True,
        failure=lambda: next(
            (judge.failure for judge in judges.values() if judge.failure is not None), None
        ),
    )
    app = create_reward_app(service, settings)

    @app.get("/health", summary="Which judges are loaded")
    async def health() -> VideoHealth:
        return VideoHealth(status="ok", default_backend=default, loaded_backends=sorted(judges))

    return app


def find_judge(name: str, settings: VideoSettings) -> Judge | Unloaded:
    """Find a judge of the table `JUDGES`, or the user's own, by its name.

    Raises:
        ValueError: There is no such judge, or it cannot work with these settings.
    """
    target = JUDGES.get(ALIASES.get(name, name))
    if target is None and settings.custom_backend_factory is None:
        raise ValueError(
            f"no judge is called {name!r}; known: {', '.join(sorted(JUDGES))}, "
            "or your own with --custom-backend-factory"
        )
    if target is None:
        return custom.build(name, settings)
    module, _, attribute = target.partition(":")
    judge: Judge | Unloaded = getattr(importlib.import_module(module), attribute)(settings)
    return judge
